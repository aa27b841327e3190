/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * volume: reads and writes of one virtual disk; its data cache, cuts and their writeback.
 *
 * Called by server/plugin on a handle from cpc_pool_open_volume; by core/transaction (freeze,
 * publish) through volume-commit.h. Calls core/io-tree, extent-map, space, btree, backing.
 *
 * I/O functions take any offset and length (bytes) within the volume; what lies outside is -EINVAL
 * (reads, trims) or -ENOSPC (writes, zeroes). They may be called from any number of threads.
 *
 * Errors: -EIO device error, or a pool that is read-only by error or has stopped, -EUCLEAN damage
 * (a plugin says EIO), -ENOSPC, -ENOMEM, -EROFS, -ESHUTDOWN, -EINVAL. After an error of a write,
 * trim or zero the range holds the old or, for pieces of it, the new content; nothing else changed.
 *
 * Durable on return: cpc_volume_flush: every write, trim and zero that was answered on any handle
 * of this volume before the call. CPC_FUA: the request itself and all earlier ones.
 */
#ifndef CPC_VOLUME_VOLUME_H
#define CPC_VOLUME_VOLUME_H

#include "lib/base.h"

struct cpc_volume;

enum cpc_request_flags {
	CPC_FUA = 1,
	CPC_NO_HOLE = 2,   /* zero: leave the range provisioned */
	CPC_FAST_ZERO = 4, /* zero: -EOPNOTSUPP at once unless it is fast */
};

uint64_t cpc_volume_size(struct cpc_volume *vol); /* bytes, as of the handle's opening */
bool cpc_volume_read_only(struct cpc_volume *vol);

int cpc_volume_read(struct cpc_volume *vol, void *buf, uint64_t len, uint64_t offset);
int cpc_volume_write(struct cpc_volume *vol, const void *buf, uint64_t len, uint64_t offset,
		     unsigned flags);
int cpc_volume_trim(struct cpc_volume *vol, uint64_t len, uint64_t offset, unsigned flags);
int cpc_volume_zero(struct cpc_volume *vol, uint64_t len, uint64_t offset, unsigned flags);
int cpc_volume_flush(struct cpc_volume *vol);
/* Reads the range into the cache. */
int cpc_volume_cache(struct cpc_volume *vol, uint64_t len, uint64_t offset);

/*
 * Reports what [offset, offset + len) holds: ascending, touching pieces, starting at offset and cut
 * to the range, neighbours of one kind joined. Stops when emit returns non-zero (and returns 0), or
 * after the range.
 */
typedef int (*cpc_extent_fn)(void *ctx, uint64_t offset, uint64_t len, bool hole);
int cpc_volume_extents(struct cpc_volume *vol, uint64_t offset, uint64_t len, cpc_extent_fn emit,
		       void *ctx);

#endif
