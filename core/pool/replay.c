/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * replay: what an open does with the log that the last life has left.
 *
 *   scan (verify, write nothing) -> settle the superblock -> claim the blocks that the log names
 *   -> copy what may be in a cache only -> runs and names into memory
 *   -> commit under a new nonce -> an empty log
 *
 * Nothing is answered before that commit is durable. A crash on the way leaves the old superblock
 * and the old log, and the next open does it again. Read-only scans, takes runs and names into
 * memory, and writes nothing.
 */
#include "pool/pool-internal.h"

#include <inttypes.h>

#include "backing/ioq.h"
#include "lib/hooks.h"
#include "lib/mutation.h"
#include "log/log.h"

static struct cpc_pool_entry *find_id(struct cpc_pool *pool, uint64_t id)
{
	for (size_t i = 0; i < pool->nr; i++) {
		if (pool->table[i]->id == id)
			return pool->table[i];
	}
	return NULL;
}

/* A cut that was on its way when its volume was deleted stands behind the deletion: nobody's. */
static int replay_run(void *ctx, uint64_t volume, struct cpc_run *run)
{
	struct cpc_pool *pool = ctx;
	struct cpc_pool_entry *entry = find_id(pool, volume);
	struct cpc_volume *vol;
	int ret;

	if (entry) {
		ret = cpc_pool_wake(pool, entry, &vol);
		return ret ? ret : cpc_engine_replay_run(vol, run);
	}
	if (volume >= pool->next_volume)
		return -EUCLEAN;
	if (!pool->opts.read_only)
		cpc_engine_replay_drop(pool->engine, run);
	return 0;
}

static int replay_create(struct cpc_pool *pool, uint64_t id, const void *payload, uint32_t len)
{
	struct cpc_volume_item item;
	struct cpc_volume *vol;
	int ret = cpc_volume_item_decode(&item, id, payload, len);

	if (!ret && (find_id(pool, id) || id >= UINT32_MAX || !cpc_node_ptr_empty(&item.root)))
		ret = -EUCLEAN;
	if (!ret)
		ret = cpc_pool_add_found(pool, &item);
	if (!ret)
		ret = cpc_pool_wake(pool, find_id(pool, id), &vol);
	if (ret)
		return ret;
	cpc_engine_replay_created(vol);
	if (id >= pool->next_volume)
		cpc_engine_set_next_volume(pool->engine, pool->next_volume = id + 1);
	return 0;
}

static int replay_rename(struct cpc_pool *pool, struct cpc_pool_entry *entry,
			 struct cpc_volume *vol, const void *payload, uint32_t len)
{
	char *fresh;

	if (!cpc_name_valid(payload, len))
		return -EUCLEAN;
	fresh = cpc_zalloc(len + 1);
	if (!fresh)
		return -ENOMEM;
	memcpy(fresh, payload, len);
	if (cpc_pool_find(pool, fresh)) {
		cpc_free(fresh);
		return -EUCLEAN;
	}
	cpc_engine_replay_name(vol, fresh);
	cpc_free(cpc_pool_table_rename(pool, entry, fresh));
	return 0;
}

static int replay_name(void *ctx, enum cpc_log_entry_type type, uint64_t volume, uint64_t size,
		       const void *payload, uint32_t len)
{
	struct cpc_pool *pool = ctx;
	struct cpc_pool_entry *entry;
	struct cpc_volume *vol;
	int ret;

	if (type == CPC_LOG_CREATE)
		return replay_create(pool, volume, payload, len);
	entry = find_id(pool, volume);
	if (!entry)
		return -EUCLEAN;
	ret = cpc_pool_wake(pool, entry, &vol);
	if (ret)
		return ret;
	if (type == CPC_LOG_RENAME)
		return replay_rename(pool, entry, vol, payload, len);
	if (type == CPC_LOG_RESIZE)
		return cpc_engine_replay_size(vol, size);
	cpc_engine_replay_deleted(vol);
	cpc_pool_table_remove(pool, entry);
	cpc_pool_entry_free(entry);
	return 0;
}

/*
 * A long log may hold more than there is memory for maps: some of it is committed on the way. Only
 * up to the durable mark: above it, data that later records have replaced has not been verified,
 * and those records stand on data that is not moved before the last commit.
 */
static int replay_batch(void *ctx, uint64_t seq, uint64_t position)
{
	struct cpc_pool *pool = ctx;

	cpc_engine_replay_to(pool->engine, pool->store->super.nonce, seq, position);
	if (pool->opts.read_only || seq > pool->replay_durable ||
	    !cpc_engine_maps_full(pool->engine))
		return 0;
	return cpc_engine_commit(pool->engine, false);
}

/* Nothing is answered before start_log has committed it under a new nonce: a serving pool never
 * stands on replayed state, and its log starts empty. */
static int replay_accepted(struct cpc_pool *pool, struct cpc_log_replay *r)
{
	const struct cpc_log_handler handler = {
	    .run = replay_run, .name = replay_name, .batch = replay_batch, .ctx = pool};
	int ret = pool->opts.read_only ? 0 : cpc_log_claim(r);

	pool->replay_durable = r->durable;
	if (!ret && !pool->opts.read_only)
		ret = cpc_log_move_data(r, !cpc_engine_replay_room(pool->engine, r->entries));
	if (!ret)
		ret = cpc_log_replay_run(r, &handler);
	for (size_t i = 0; !ret && i < r->nr_moves; i++)
		cpc_engine_replay_free(pool->engine, r->move[i].from, r->move[i].nr);
	return ret;
}

static int start_log(struct cpc_pool *pool, uint64_t position)
{
	int ret;

	cpc_engine_replay_to(pool->engine, pool->store->nonce, 0, position);
	ret = cpc_engine_commit(pool->engine, false);
	return ret ? ret : cpc_engine_start_log(pool->engine);
}

static int refuse(struct cpc_pool *pool, const struct cpc_log_replay *r, int ret, const char *why,
		  struct cpc_error *err)
{
	const struct cpc_log_unreadable *u = &r->unreadable;
	const struct cpc_pool_entry *entry = find_id(pool, u->volume);

	if (ret != -EIO || !u->bytenr)
		return cpc_pool_fail(err, ret, "%s: %s; run coppice check", why,
				     ret == -EUCLEAN ? "damaged" : strerror(-ret));
	return cpc_pool_fail(err, ret,
			     "%s: %s%s, offset %" PRIu64 ", at byte %" PRIu64
			     " of the pool: %s; open it again, or run coppice check",
			     why, entry ? "volume " : "a new volume", entry ? entry->name : "",
			     u->block << CPC_BLOCK_SHIFT, u->bytenr, strerror(-ret));
}

int cpc_pool_replay(struct cpc_pool *pool, struct cpc_error *err)
{
	struct cpc_log_replay r;
	const char *why = "";
	int ret = cpc_log_scan(pool->store, &r, &why);

	if (ret)
		return refuse(pool, &r, ret, why, err);
	if (!pool->opts.read_only || CPC_MUTANT(read_only_open_writes))
		ret = cpc_store_settle(pool->store);
	if (ret) {
		cpc_log_replay_destroy(&r);
		return cpc_pool_fail(err, ret, "superblock cannot be written: %s", strerror(-ret));
	}
	ret = replay_accepted(pool, &r);
	if (!ret && !pool->opts.read_only)
		ret = start_log(pool, r.end_position);
	cpc_log_replay_destroy(&r);
	/* The process may fork before it goes on; rings must not go with it. */
	cpc_ioq_close_idle(pool->backing);
	return ret ? cpc_pool_fail(err, ret, "replaying the log: %s",
				   ret == -EUCLEAN ? "damaged; run coppice check" : strerror(-ret))
		   : 0;
}
