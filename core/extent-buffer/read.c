/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Why this way: a node is believed only if it is what its pointer says: the checksum catches rot
 * and tears; address, pool and owner catch misdirected writes; generation and the checksum repeated
 * in the pointer catch a stale node that a lost write has left. So any single bad copy is noticed,
 * and the other one is used.
 *
 * Normal path: the first copy is good. Slow path: it is not; the second one is read, and if that
 * is good, written over the first. This is done in the reader's thread: the reader keeps the tree
 * from being freed (by its view or its transaction), so nobody can have been given the block
 * meanwhile. The repair goes through the flush epoch as any write does.
 *
 * Rejected: reading both copies always (twice the reads for what scrub does in its own time);
 * choosing the copy by address for balance (the first one lies near the data of its time).
 */
#include "extent-buffer/extent-buffer-internal.h"

#include <inttypes.h>

#include "backing/flush-epoch.h"
#include "lib/log.h"
#include "lib/mutation.h"

/* What is wrong with a copy. */
struct fault {
	const char *what; /* NULL: nothing */
	uint64_t got, expected;
};

static bool differs(struct fault *f, const char *what, uint64_t got, uint64_t expected)
{
	if (cpc_likely(got == expected))
		return false;
	f->what = what;
	f->got = got;
	f->expected = expected;
	return true;
}

static bool checksum_differs(const struct cpc_eb_cache *cache, const void *data, struct fault *f)
{
	const struct cpc_disk_node *header = data;
	uint32_t csum =
	    cpc_csum_without_field(data, cache->nodesize, offsetof(struct cpc_disk_node, csum));

	return differs(f, "checksum", cpc_get_le32(&header->csum), csum) &&
	       !CPC_MUTANT(nodes_not_verified);
}

/* Everything that says which node this is. */
static bool identity_differs(const struct cpc_eb_cache *cache, const struct cpc_disk_node *header,
			     const struct cpc_node_ptr *ptr, uint64_t owner, struct fault *f)
{
	int uuid = memcmp(header->uuid, cache->p.uuid, CPC_UUID_SIZE);

	if (CPC_MUTANT(stale_nodes_accepted))
		return false;
	return differs(f, "magic", cpc_get_le32(&header->magic), CPC_NODE_MAGIC) ||
	       differs(f, "pool (memcmp)", uuid != 0, 0) ||
	       differs(f, "address", cpc_get_le64(&header->bytenr), ptr->bytenr[0]) ||
	       differs(f, "generation", cpc_get_le64(&header->generation), ptr->generation) ||
	       differs(f, "tree", cpc_get_le64(&header->owner), owner) ||
	       differs(f, "level", header->level, ptr->level) ||
	       differs(f, "checksum (parent's)", cpc_get_le32(&header->csum), ptr->csum);
}

static void examine(const struct cpc_eb *eb, const struct cpc_node_ptr *ptr, struct fault *f)
{
	const struct cpc_eb_cache *cache = eb->cache;

	if (checksum_differs(cache, eb->data, f) ||
	    identity_differs(cache, eb->data, ptr, eb->owner, f))
		return;
	if (cache->p.checker)
		f->what = cache->p.checker(eb->data, cache->nodesize, cache->p.geo);
}

static void report(const struct cpc_eb *eb, unsigned copy, int err, const struct fault *f)
{
	if (err != -EUCLEAN)
		cpc_warn("tree %" PRIu64 ": node at %" PRIu64 ", copy %u at %" PRIu64 ": read: %s",
			 eb->owner, eb->bytenr[0], copy, eb->bytenr[copy], strerror(-err));
	else
		cpc_warn("tree %" PRIu64 ": node at %" PRIu64 ", copy %u at %" PRIu64
			 ": %s: got %" PRIu64 ", expected %" PRIu64,
			 eb->owner, eb->bytenr[0], copy, eb->bytenr[copy], f->what, f->got,
			 f->expected);
}

static void count(struct cpc_eb_cache *cache, uint64_t *counter)
{
	cpc_mutex_lock(&cache->lock);
	++*counter;
	cpc_mutex_unlock(&cache->lock);
}

static int load_copy(struct cpc_eb *eb, const struct cpc_node_ptr *ptr, unsigned copy)
{
	struct cpc_eb_cache *cache = eb->cache;
	struct fault f = {0};
	int ret = cpc_backing_read(cache->p.backing, eb->bytenr[copy], eb->data, cache->nodesize);

	if (ret == 0) {
		examine(eb, ptr, &f);
		ret = f.what ? -EUCLEAN : 0;
	} else {
		ret = -EIO;
	}
	if (ret) {
		report(eb, copy, ret, &f);
		count(cache, &cache->stats.errors);
	}
	return ret;
}

/* Writes the good content over a bad copy; failing at that harms nobody. */
static void heal(struct cpc_eb *eb, unsigned copy)
{
	struct cpc_eb_cache *cache = eb->cache;

	if (!cache->p.fe || cpc_flush_epoch_broken(cache->p.fe))
		return;
	if (cpc_fe_write(cache->p.fe, eb->bytenr[copy], eb->data, cache->nodesize, CPC_CAUSE_REPAIR,
			 NULL))
		return;
	count(cache, &cache->stats.healed);
}

int cpc_eb_load(struct cpc_eb *eb, const struct cpc_node_ptr *ptr)
{
	unsigned copies = eb->cache->p.geo->copies;
	int first = 0;

	for (unsigned copy = 0; copy < copies; copy++) {
		int ret = load_copy(eb, ptr, copy);

		if (ret == 0) {
			if (copy)
				heal(eb, 0);
			return 0;
		}
		if (first == 0 || ret == -EUCLEAN)
			first = ret;
	}
	cpc_error("tree %" PRIu64 ": node at %" PRIu64 " level %u generation %" PRIu64
		  ": no good copy",
		  eb->owner, ptr->bytenr[0], ptr->level, ptr->generation);
	return first;
}

int cpc_eb_compare(const struct cpc_eb *eb, const struct cpc_node_ptr *ptr, uint64_t owner)
{
	struct fault f = {0};

	if (cpc_likely(eb->generation == ptr->generation && eb->owner == owner &&
		       eb->level == ptr->level && eb->csum == ptr->csum))
		return 0;
	identity_differs(eb->cache, eb->data, ptr, owner, &f);
	cpc_error("tree %" PRIu64 ": node at %" PRIu64 " in memory: %s: got %" PRIu64
		  ", expected %" PRIu64,
		  owner, ptr->bytenr[0], f.what ? f.what : "pointer", f.got, f.expected);
	return -EUCLEAN;
}
