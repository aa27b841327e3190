/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Hostile pools: opened, listed, read, written, checked.
 *
 * Input of `pool`: one byte says which base, one how it is sealed and opened; then eight bytes at a
 * time, changes of the image or, with the top bit of the first byte set, requests. `super` and
 * `entries` give the bytes of a superblock and of a log record to an else valid pool, `node` those
 * of a node to the tree-checker alone.
 *
 * A pool that is refused must not have been harmed, see expect_unharmed(). With both top bits of
 * the second byte another copy of the image is given to check --repair, see repair().
 */
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "btree/btree.h"
#include "check/check.h"
#include "describe.h"
#include "image.h"
#include "lib/hooks.h"
#include "pool/pool.h"
#include "target.h"
#include "transaction/store.h"
#include "volume/volume.h"

#define MEMORY_MAX  (64ull << 20) /* above the cache */
#define BUF_BYTES   (256u << 10)
#define NR_REQUESTS 24u

static struct image image[IMAGE_BASES];
static uint8_t buf[BUF_BYTES];

struct target_counts target_counts;

/* --- memory --- */

static _Atomic int64_t in_use, peak;

static void *counted_alloc(size_t align, size_t size)
{
	void *p = cpc_hooks_default.alloc(align, size);
	int64_t now;

	if (!p)
		return NULL;
	now = atomic_fetch_add(&in_use, (int64_t)malloc_usable_size(p)) +
	      (int64_t)malloc_usable_size(p);
	if (now > atomic_load(&peak))
		atomic_store(&peak, now);
	return p;
}

static void counted_free(void *p)
{
	atomic_fetch_sub(&in_use, (int64_t)malloc_usable_size(p));
	cpc_hooks_default.free(p);
}

static int fixed_random(void *out, size_t len)
{
	static uint8_t next;

	memset(out, ++next, len);
	return 0;
}

static int64_t fixed_time(void)
{
	return 1700000000;
}

void pool_target_init(void)
{
	cpc_hooks.alloc = counted_alloc;
	cpc_hooks.free = counted_free;
	cpc_hooks.random = fixed_random;
	cpc_hooks.realtime_s = fixed_time;
	for (unsigned i = 0; i < IMAGE_BASES; i++)
		image_init(&image[i], i);
}

/* --- requests --- */

static int count_volume(void *ctx, const struct cpc_volume_info *info)
{
	char(*name)[CPC_NAME_MAX + 1] = ctx;

	if (!(*name)[0] || info->name[0] == 'b')
		memcpy(*name, info->name, sizeof(*name));
	return 0;
}

static int ignore_extent(void *ctx, uint64_t offset, uint64_t len, bool hole)
{
	return 0;
}

static void ignore_damage(void *ctx, const struct cpc_damage *damage)
{
	char line[CPC_DAMAGE_LINE];

	cpc_damage_line(damage, line);
}

static bool pool_read_only, volume_read_only; /* the latter by the flags of the image */

/* What a pool may answer to a request that is within bounds. */
static void expect_answer(int ret)
{
	target_counts.requests++;
	if ((pool_read_only || volume_read_only) && ret == -EROFS)
		return;
	if (ret != 0 && ret != -EIO && ret != -EUCLEAN && ret != -ENOSPC && ret != -ENOMEM)
		target_fail("a request is answered with %s", strerror(-ret));
}

static void request_on(struct cpc_volume *vol, const uint8_t *r)
{
	uint64_t size = cpc_volume_size(vol), offset, len;
	unsigned flags = r[1] & 0x80 ? CPC_FUA : 0;

	offset = ((uint64_t)r[2] << 16 | (uint64_t)r[3] << 8 | r[4]) << (r[5] % 13);
	offset %= size;
	len = cpc_min_u64(cpc_min_u64(1 + ((uint64_t)r[6] << 10 | r[7]), size - offset), BUF_BYTES);
	switch (r[1] % 8) {
	case 0:
	case 1:
		expect_answer(cpc_volume_read(vol, buf, len, offset));
		break;
	case 2:
	case 3:
		expect_answer(cpc_volume_write(vol, buf, len, offset, flags));
		break;
	case 4:
		expect_answer(cpc_volume_trim(vol, size - offset, offset, flags));
		break;
	case 5:
		expect_answer(cpc_volume_zero(vol, len, offset, flags | CPC_NO_HOLE));
		break;
	case 6:
		expect_answer(cpc_volume_extents(vol, offset, size - offset, ignore_extent, NULL));
		break;
	default:
		expect_answer(cpc_volume_flush(vol));
	}
}

static void request(struct cpc_pool *pool, const char *name, const uint8_t *r)
{
	static const char *const others[] = {"other", "big", "a.b-c_d", "small"};
	struct cpc_scrub_result scrubbed;
	struct cpc_volume_info info;
	struct cpc_volume *vol;

	switch (r[0] % 16) {
	case 0:
		expect_answer(cpc_pool_commit(pool));
		break;
	case 1:
		cpc_pool_create_volume(pool, others[r[1] % 4], 1 + r[2] * 4097u, NULL);
		break;
	case 2:
		cpc_pool_rename(pool, name, others[r[1] % 4], NULL);
		break;
	case 3:
		cpc_pool_delete(pool, r[1] % 4 ? others[r[1] % 4] : name, NULL);
		break;
	case 4:
		cpc_pool_resize(pool, name, 1 + r[2] * 65537u, true, NULL);
		break;
	case 5:
		cpc_pool_volume_info(pool, name, &info);
		break;
	case 6:
		expect_answer(cpc_pool_scrub(pool, ignore_damage, NULL, &scrubbed));
		target_counts.scrubs++;
		break;
	default:
		if (cpc_pool_open_volume(pool, name, &vol))
			return;
		volume_read_only = cpc_volume_read_only(vol);
		request_on(vol, r);
		volume_read_only = false;
		cpc_pool_close_volume(pool, vol);
	}
}

static void read_all(struct cpc_pool *pool, const char *name)
{
	struct cpc_volume *vol;
	uint64_t size;

	if (cpc_pool_open_volume(pool, name, &vol))
		return;
	size = cpc_min_u64(cpc_volume_size(vol), 2u << 20);
	for (uint64_t offset = 0; offset < size; offset += BUF_BYTES)
		expect_answer(
		    cpc_volume_read(vol, buf, cpc_min_u64(BUF_BYTES, size - offset), offset));
	cpc_pool_close_volume(pool, vol);
}

static void use(struct cpc_pool *pool, const uint8_t *input, size_t len)
{
	char name[CPC_NAME_MAX + 1] = "";
	unsigned nr = 0;

	cpc_pool_list(pool, count_volume, &name);
	if (!name[0])
		return;
	read_all(pool, name);
	for (; len >= 8 && nr < NR_REQUESTS; input += 8, len -= 8) {
		if (*input & 0x80)
			request(pool, name, input);
		nr += *input >> 7;
	}
}

/* --- one image --- */

/* A hostile image and what is done with it. */
struct job {
	struct image *image;
	void (*change)(const struct job *job);
	const uint8_t *input; /* of change */
	size_t len;
	uint8_t how;
	const uint8_t *requests;
	size_t requests_len;
};

#define HOW_READ_ONLY 1u
#define HOW_CHECK     6u /* both bits */
#define HOW_SEAL      3u /* shift */
#define HOW_SEALS     (IMAGE_SEAL_POINTERS | IMAGE_SEAL_DATA | IMAGE_SEAL_BITMAPS)
#define HOW_REPAIR    0xc4u /* all three bits; HOW_READ_ONLY: without --roll-back */

static void prepare(const struct job *job)
{
	image_reset(job->image);
	job->change(job);
	image_seal(job->image, job->how >> HOW_SEAL & HOW_SEALS);
}

static int check(struct image *im, struct cpc_check_result *result)
{
	struct cpc_check_options opts = {.data = true};
	struct cpc_backing *b = device_open(&im->device);
	int ret = cpc_check(b, &opts, result);

	cpc_backing_close(b);
	target_counts.findings += result->errors;
	if (im->device.writes)
		target_fail("a check has written");
	return ret;
}

/*
 * Only an opening that has validated all but the trees of volumes, and is applying the log, has
 * changed anything when it is refused. What it writes beside the bytes that are there already is
 * the beginning of a commit, in free blocks, and zeroes over pieces of superblocks. So a check
 * finds what it found before, or less.
 */
static void expect_unharmed(const struct job *job, const char *why)
{
	struct cpc_check_result after = {0}, before = {0};
	int ret = check(job->image, &after);

	prepare(job);
	if (strncmp(why, "replaying the log", 17) != 0 || ret != check(job->image, &before) ||
	    after.transid != before.transid || after.errors > before.errors ||
	    after.nodes != before.nodes || after.data_blocks != before.data_blocks ||
	    after.log_records != before.log_records)
		target_fail("a pool was written and then refused: %s", why);
}

static int open_image(struct image *im, bool read_only, struct cpc_pool **pool,
		      struct cpc_error *err)
{
	struct cpc_pool_options opts;

	cpc_pool_options_init(&opts);
	opts.cache = CPC_CACHE_MIN;
	opts.no_threads = true;
	opts.read_only = read_only;
	return cpc_pool_open_backing(device_open(&im->device), &opts, pool, err);
}

static void open_and_use(const struct job *job)
{
	struct image *im = job->image;
	bool read_only = job->how & HOW_READ_ONLY;
	struct cpc_error err = {""};
	struct cpc_pool *pool;
	int ret;

	pool_read_only = read_only;
	ret = open_image(im, read_only, &pool, &err);
	if (ret) {
		target_counts.refused++;
		if (!err.text[0])
			target_fail("a pool is refused without a word: %s", strerror(-ret));
		if (im->device.changed)
			expect_unharmed(job, err.text);
		return;
	}
	target_counts.opened++;
	if (cpc_pool_start(pool, &err))
		target_fail("a pool without threads does not start: %s", err.text);
	use(pool, job->requests, job->requests_len);
	cpc_pool_shutdown(pool);
	cpc_pool_close(pool);
	if (read_only && im->device.writes)
		target_fail("a pool that is open read-only was written");
}

/* A pool that a check finds nothing in opens; of what records of the log say together, a check
 * knows less than an opening. */
static void open_repaired(const struct job *job)
{
	struct cpc_error err = {""};
	struct cpc_pool *pool;

	if (open_image(job->image, false, &pool, &err))
		target_fail("a pool without a finding is refused: %s", err.text);
	cpc_pool_close(pool);
}

static void repair_once(const struct job *job, struct cpc_repair_result *result, int *ret)
{
	struct cpc_repair_options opts = {
	    .check.data = true, .roll_back = !(job->how & HOW_READ_ONLY), .damage = ignore_damage};
	struct cpc_backing *b = device_open(&job->image->device);

	*ret = cpc_repair(b, &opts, result);
	cpc_backing_close(b);
	target_counts.repairs++;
	target_counts.repaired += result->repaired;
}

/* Repairs another copy of the image. What has no finding is not written; what was called repaired
 * stays so. */
static void repair(const struct job *job)
{
	struct cpc_repair_result first, again;
	int ret;

	prepare(job);
	repair_once(job, &first, &ret);
	if (ret == -ENOTSUP && job->image->device.writes)
		target_fail("a pool that a repair refuses was written");
	if (ret)
		return;
	if (first.before.errors == 0 && job->image->device.writes)
		target_fail("a pool without a finding was written by a repair");
	repair_once(job, &again, &ret);
	if (ret || again.repaired || again.after.errors != first.after.errors)
		target_fail(
		    "a second repair finds something else: %d, %llu repaired, %llu findings "
		    "after %llu",
		    ret, (unsigned long long)again.repaired, (unsigned long long)again.after.errors,
		    (unsigned long long)first.after.errors);
	if (first.after.errors == 0 && first.after.log_records == 0)
		open_repaired(job);
}

static void run(const struct job *job)
{
	int64_t before = atomic_load(&in_use), most;
	struct cpc_check_result result = {0};

	atomic_store(&peak, before);
	prepare(job);
	if ((job->how & HOW_CHECK) == HOW_CHECK)
		check(job->image, &result);
	open_and_use(job);
	if ((job->how & HOW_REPAIR) == HOW_REPAIR)
		repair(job);
	image_reset(job->image);
	most = atomic_load(&peak) - before;
	if (most > (int64_t)(CPC_CACHE_MIN + MEMORY_MAX))
		target_fail("a run took %lld bytes", (long long)most);
	if (atomic_load(&in_use) != before)
		target_fail("%lld bytes are not freed", (long long)(atomic_load(&in_use) - before));
	most -= (int64_t)CPC_CACHE_MIN;
	if (most > 0 && (uint64_t)most > target_counts.max_bytes)
		target_counts.max_bytes = (uint64_t)most;
}

static void change_as_described(const struct job *job)
{
	for (size_t i = 0; i + 8 <= job->len; i += 8) {
		struct image_change c;

		memcpy(&c, job->input + i, sizeof(c));
		if (!(c.what & 0x80))
			image_change(job->image, &c);
	}
}

size_t pool_target_mutate(uint64_t *state, uint8_t *input, size_t len, size_t max)
{
	return describe(image, state, input, len, max);
}

void pool_target_run(const uint8_t *input, size_t len)
{
	struct job job = {.change = change_as_described};

	if (len < 2)
		return;
	job.image = &image[input[0] % IMAGE_BASES];
	job.how = input[1];
	job.input = job.requests = input + 2;
	job.len = job.requests_len = len - 2;
	run(&job);
}

/* --- parts of an image --- */

static const uint8_t some_requests[] = {
    0x87, 0x02, 0, 0, 1, 0, 2, 0, 0x87, 0x07, 0, 0, 0, 0, 0, 0,
    0x81, 0x00, 9, 0, 0, 0, 0, 0, 0x80, 0x00, 0, 0, 0, 0, 0, 0,
};

static void change_super(const struct job *job)
{
	image_put_super(job->image, job->input, job->len);
}

/* One byte of how, then what `change` puts into the image. */
static void run_changed(struct image *im, void (*change)(const struct job *job),
			const uint8_t *input, size_t len)
{
	run(&(struct job){.image = im,
			  .change = change,
			  .requests = some_requests,
			  .requests_len = sizeof(some_requests),
			  .how = input[0],
			  .input = input + 1,
			  .len = len - 1});
}

void super_target_run(const uint8_t *input, size_t len)
{
	if (len >= 1)
		run_changed(&image[0], change_super, input, len);
}

size_t super_target_sample(unsigned i, uint8_t *input)
{
	const struct image *im = &image[0];
	size_t len = 328 - offsetof(struct cpc_disk_super, version);

	input[0] = (uint8_t)i;
	memcpy(input + 1,
	       im->base + cpc_geometry_super(&im->geo, 0, im->super.slot) +
		   offsetof(struct cpc_disk_super, version),
	       len);
	return 1 + len;
}

static void change_entries(const struct job *job)
{
	image_put_entries(job->image, job->input + 1, job->len - 1, job->input[0]);
}

void entries_target_run(const uint8_t *input, size_t len)
{
	if (len >= 2)
		run_changed(&image[1], change_entries, input, len);
}

size_t entries_target_sample(unsigned i, uint8_t *input)
{
	const struct image *im = &image[1];
	const struct cpc_disk_log_record *r = (const void *)(im->base + im->record[0]);

	input[0] = (uint8_t)i;
	input[1] = (uint8_t)cpc_get_le32(&r->nr_entries);
	memcpy(input + 2, r + 1, 1024);
	return 2 + 1024;
}

/* --- nodes --- */

void node_target_run(const uint8_t *input, size_t len)
{
	uint8_t *node = calloc(1, 4096);

	cpc_assert(node);
	memcpy(node, input, cpc_min_u64(len, 4096));
	cpc_tree_check_node(node, 4096, &image[len % 3].geo);
	free(node);
}

size_t node_target_sample(unsigned i, uint8_t *input)
{
	const struct image *im = &image[i % 3];

	memcpy(input, im->base + im->node[i / 3 % im->nr_nodes].bytenr[0], 4096);
	return 4096;
}
