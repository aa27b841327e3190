/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * super-scan: finds ring 1 of a pool whose device has grown since and whose ring 0 is lost.
 *
 * Nothing but the lost ring says where the pool ends, so the device is read from its end towards
 * its start. A block counts only where its own superblock says it belongs: a slot of ring 1 of a
 * pool of `total_bytes`. Blocks in the data area are written by clients, who may put there what
 * looks like that; so the first ring from the end decides, for what stands behind the pool's end
 * no client has ever reached, and nothing before it is looked at. What is left of ring 0, or of an
 * older pool, must not contradict it: then the user has to decide, not we.
 */
#include "transaction/store-internal.h"

#include "lib/hooks.h"
#include "lib/mutation.h"

#define WINDOW (1u << 20)

/* Return: whether a slot of ring 1 stands here, which says so itself. */
static bool is_ring1_slot(const struct cpc_disk_super *disk, uint64_t bytenr, uint64_t device_size,
			  struct cpc_super *super)
{
	uint32_t slot = cpc_get_le32(&disk->slot);
	struct cpc_geometry geo;
	const char *why;

	return slot < CPC_SUPER_SLOTS &&
	       cpc_super_decode(super, disk, slot, device_size, &why) == 0 &&
	       cpc_geometry_init(&geo, super->total_bytes, super->log_size, super->nodesize,
				 super->incompat & CPC_INCOMPAT_DUP) == 0 &&
	       cpc_geometry_super(&geo, 1, slot) == bytenr;
}

/* The last slot of a window that is one; false: none. */
static bool search_window(const uint8_t *window, uint64_t start, size_t len, uint64_t device_size,
			  struct cpc_super *super)
{
	for (size_t at = len; at > 0; at -= CPC_BLOCK_SIZE) {
		size_t block = at - CPC_BLOCK_SIZE;

		if (is_ring1_slot((const void *)(window + block), start + block, device_size,
				  super))
			return true;
	}
	return false;
}

/* One block that cannot be read does not hide the others. */
static void read_window(struct cpc_backing *backing, uint64_t start, uint8_t *window, size_t len)
{
	if (cpc_backing_read(backing, start, window, len) == 0)
		return;
	for (size_t at = 0; at < len; at += CPC_BLOCK_SIZE) {
		if (cpc_backing_read(backing, start + at, window + at, CPC_BLOCK_SIZE))
			memset(window + at, 0, CPC_BLOCK_SIZE);
	}
}

/* The newest slot of the ring that `found` stands in. */
static int newest_of_ring(struct cpc_backing *backing, const struct cpc_super *found,
			  uint8_t *window, struct cpc_super *super)
{
	uint64_t start = found->total_bytes - (uint64_t)CPC_SUPER_SLOTS * CPC_BLOCK_SIZE;
	struct cpc_super other;

	*super = *found;
	read_window(backing, start, window, (size_t)CPC_SUPER_SLOTS * CPC_BLOCK_SIZE);
	for (uint32_t slot = 0; slot < CPC_SUPER_SLOTS; slot++) {
		const void *disk = window + (size_t)slot * CPC_BLOCK_SIZE;

		if (!is_ring1_slot(disk, start + slot * CPC_BLOCK_SIZE, cpc_backing_size(backing),
				   &other))
			continue;
		if (memcmp(other.uuid, found->uuid, CPC_UUID_SIZE) != 0)
			return -EUCLEAN;
		if (other.transid > super->transid)
			*super = other;
	}
	return 0;
}

/* Pieces of ring 0 must be of the same pool. */
static int ask_ring0(struct cpc_backing *backing, uint8_t *window, const struct cpc_super *super)
{
	struct cpc_disk_super zero = {0};

	read_window(backing, 0, window, (size_t)CPC_SUPER_SLOTS * CPC_BLOCK_SIZE);
	for (uint32_t slot = 0; slot < CPC_SUPER_SLOTS; slot++) {
		const struct cpc_disk_super *disk =
		    (const void *)(window + (size_t)slot * CPC_BLOCK_SIZE);

		if (!memcmp(disk->magic, CPC_SUPER_MAGIC, sizeof(disk->magic)) &&
		    memcmp(disk->uuid, super->uuid, CPC_UUID_SIZE) != 0 &&
		    memcmp(disk->uuid, zero.uuid, CPC_UUID_SIZE) != 0)
			return -EUCLEAN;
	}
	return 0;
}

int cpc_super_scan(struct cpc_backing *backing, struct cpc_super *super,
		   void (*progress)(void *ctx, uint64_t done, uint64_t total), void *ctx)
{
	uint64_t size = cpc_backing_size(backing), at = size;
	uint8_t *window = cpc_alloc_aligned(CPC_BLOCK_SIZE, WINDOW);
	struct cpc_super found;
	int ret = -EINVAL;

	if (!window)
		return -ENOMEM;
	while (at && ret == -EINVAL) {
		uint64_t len = cpc_min_u64(at, WINDOW);
		uint64_t start = CPC_MUTANT(scan_from_the_start) ? size - at : at - len;

		read_window(backing, start, window, len);
		if (search_window(window, start, len, size, &found))
			ret = 0;
		at -= len;
		if (progress)
			progress(ctx, (size - at) >> CPC_BLOCK_SHIFT, size >> CPC_BLOCK_SHIFT);
	}
	if (!ret)
		ret = newest_of_ring(backing, &found, window, super);
	if (!ret)
		ret = ask_ring0(backing, window, super);
	cpc_free(window);
	return ret;
}
