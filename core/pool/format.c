/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * format: makes a pool. On a path that exists it first looks for something that a user might miss:
 * a pool, or any of the signatures below, and asks for --force then.
 */
#include "pool/pool-internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/hooks.h"
#include "transaction/store.h"

/* Nodes that the smallest pool must have room for. */
#define MIN_NODES 48u

static int fail(struct cpc_error *err, int code, const char *text)
{
	if (err)
		snprintf(err->text, sizeof(err->text), "%s", text);
	return code;
}

/* --- what is there already --- */

struct signature {
	uint64_t offset;
	const char *magic;
	size_t len;
	const char *what;
};

static const struct signature signatures[] = {
    {0, CPC_SUPER_MAGIC, 8, "a Coppice pool"},
    {0x438, "\x53\xef", 2, "an ext2/3/4 file system"},
    {0, "XFSB", 4, "an XFS file system"},
    {0x10040, "_BHRfS_M", 8, "a btrfs file system"},
    {0, "LUKS\xba\xbe", 6, "a LUKS volume"},
    {512, "EFI PART", 8, "a GPT partition table"},
    {510, "\x55\xaa", 2, "a partition table or boot sector"},
    {536, "LVM2 001", 8, "an LVM physical volume"},
    {24, "LVM2 001", 8, "an LVM physical volume"},
    {0, "QFI\xfb", 4, "a qcow2 image"},
    {4086, "SWAPSPACE2", 10, "swap space"},
    {0x1000, "\xfc\x4e\x2b\xa9", 4, "an md RAID member"},
    {3, "NTFS", 4, "an NTFS file system"},
    {32769, "CD001", 5, "an ISO 9660 image"},
};

#define PROBE_BYTES 73728u

static const char *recognize(struct cpc_backing *backing)
{
	size_t len = (size_t)cpc_min_u64(PROBE_BYTES, cpc_backing_size(backing));
	uint8_t *buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, PROBE_BYTES);
	const char *what = NULL;

	if (!buf)
		return "something (no memory to look)";
	if (cpc_backing_read(backing, 0, buf, len))
		what = "something that cannot be read";
	for (size_t i = 0; !what && i < CPC_ARRAY_SIZE(signatures); i++) {
		const struct signature *s = &signatures[i];

		if (s->offset + s->len <= len && !memcmp(buf + s->offset, s->magic, s->len))
			what = s->what;
	}
	cpc_free(buf);
	return what;
}

/* A pool whose first ring is gone still has its second. */
static const char *recognize_pool(struct cpc_backing *backing)
{
	struct cpc_super super;
	const char *why;
	int ret = cpc_super_find(backing, &super, &why);

	return super.transid || ret == -EUCLEAN || ret == -ENOTSUP ? "a Coppice pool" : NULL;
}

/* --- making --- */

int cpc_uuid_draw(uint8_t uuid[CPC_UUID_SIZE])
{
	int ret = cpc_hooks.random(uuid, CPC_UUID_SIZE);

	uuid[6] = (uint8_t)(0x40 | (uuid[6] & 0x0f));
	uuid[8] = (uint8_t)(0x80 | (uuid[8] & 0x3f));
	return ret;
}

static int fill_super(struct cpc_backing *backing, const struct cpc_format_options *opts,
		      struct cpc_super *super, struct cpc_error *err)
{
	uint64_t size = cpc_backing_size(backing);
	struct cpc_geometry geo;
	uint64_t node;

	if (size > CPC_POOL_SIZE_MAX)
		size = CPC_POOL_SIZE_MAX;
	memset(super, 0, sizeof(*super));
	super->total_bytes = size;
	super->nodesize = opts->nodesize ? opts->nodesize : CPC_NODESIZE_DEFAULT;
	super->log_size = opts->log_size ? opts->log_size : cpc_default_log_size(size);
	super->incompat = opts->single ? 0 : CPC_INCOMPAT_DUP;
	super->compat = opts->sparse ? CPC_COMPAT_SPARSE : 0;
	super->transid = 1;
	super->next_volume = 1;
	super->next_drop = 1;
	super->next_free_log = 1;
	super->created = (uint64_t)cpc_hooks.realtime_s();
	super->flags = CPC_SUPER_CLEAN;
	if (opts->label)
		snprintf(super->label, sizeof(super->label), "%s", opts->label);
	if (size < CPC_POOL_SIZE_MIN)
		return fail(err, -EINVAL, "too small: a pool has at least 4 MiB");
	if (super->nodesize < CPC_NODESIZE_MIN || super->nodesize > CPC_NODESIZE_MAX ||
	    super->nodesize & (super->nodesize - 1))
		return fail(err, -EINVAL, "nodesize must be 4K, 8K, 16K, 32K or 64K");
	if (cpc_geometry_init(&geo, size, super->log_size, super->nodesize, !opts->single))
		return fail(err, -EINVAL,
			    "log size must be a multiple of 4K from 128K to 1G and at most an "
			    "eighth of the pool");
	node = (uint64_t)super->nodesize / CPC_BLOCK_SIZE * geo.copies;
	if (geo.data_end - geo.data_start < MIN_NODES * node)
		return fail(err, -EINVAL, "too small for this nodesize: give a smaller --nodesize");
	if (cpc_uuid_draw(super->uuid) || cpc_hooks.random(&super->nonce, sizeof(super->nonce)))
		return fail(err, -EIO, "no random numbers");
	return 0;
}

int cpc_pool_format_backing(struct cpc_backing *backing, const struct cpc_format_options *opts,
			    struct cpc_error *err)
{
	struct cpc_super super;
	int ret = fill_super(backing, opts, &super, err);

	if (ret)
		return ret;
	ret = cpc_store_format(backing, &super);
	if (ret && err)
		snprintf(err->text, sizeof(err->text), "writing failed: %s", strerror(-ret));
	return ret;
}

/* Whether the file is one that we may create. Return: 1 it does not exist, 0 it does. */
static int prepare_file(const char *path, const struct cpc_format_options *opts,
			struct cpc_error *err)
{
	struct stat st;
	uint64_t size = cpc_align_down(opts->size, CPC_BLOCK_SIZE);

	if (stat(path, &st) == 0) {
		if (opts->size && S_ISREG(st.st_mode) && (uint64_t)st.st_size != size)
			return fail(err, -EEXIST,
				    "file exists with another size: leave --size out to use "
				    "it as it is, or remove it");
		return 0;
	}
	if (!opts->size)
		return fail(err, -ENOENT, "no such file or device; --size SIZE creates a file");
	if (size < CPC_POOL_SIZE_MIN)
		return fail(err, -EINVAL, "too small: a pool has at least 4 MiB");
	return cpc_backing_create_file(path, size, opts->sparse, err->text, sizeof(err->text)) ?: 1;
}

static int format_open(struct cpc_backing *backing, const struct cpc_format_options *opts,
		       bool created, struct cpc_error *err)
{
	const char *what = NULL;

	if (!opts->force && !created) {
		what = recognize(backing);
		if (!what)
			what = recognize_pool(backing);
	}
	if (what) {
		snprintf(err->text, sizeof(err->text),
			 "holds %s; --force overwrites it and everything in it", what);
		return -EEXIST;
	}
	return cpc_pool_format_backing(backing, opts, err);
}

int cpc_pool_format(const char *path, const struct cpc_format_options *opts, struct cpc_error *err)
{
	struct cpc_error text = {""};
	struct cpc_backing *backing;
	int ret, created;

	created = prepare_file(path, opts, &text);
	ret = created < 0 ? created : 0;
	if (!ret) {
		ret = cpc_backing_open_file(path, 0, CPC_DIRECT_AUTO, &backing, text.text,
					    sizeof(text.text));
		if (ret) {
			snprintf(err->text, sizeof(err->text), "%s", text.text);
			return ret;
		}
		ret = format_open(backing, opts, created == 1, &text);
		cpc_backing_close(backing);
		if (ret && created == 1)
			unlink(path);
	}
	if (ret && err)
		snprintf(err->text, sizeof(err->text), "%.200s: %.300s", path, text.text);
	return ret;
}
