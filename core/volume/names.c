/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * names: creating, renaming, deleting and resizing volumes, as entries of the log.
 *
 * The entry is written first; then the change is made in memory, before the log counts the entry as
 * completed: a commit that waits for the log to be at rest sees both or neither. No data of
 * any volume is written for a name; only a shrink and a grow cut their own volume first, so
 * that what was written before them comes before them in the log.
 */
#include "volume/volume-internal.h"

#include "lib/mutation.h"

#include <stdio.h>

struct change {
	struct cpc_volume *vol;
	const char *name;
	uint64_t size;
	struct cpc_view *next;
	struct cpc_run *hole;
	bool applied;
};

/* --- what a change does in memory --- */

void cpc_engine_replay_name(struct cpc_volume *vol, const char *name)
{
	cpc_mutex_lock(&vol->item_lock);
	snprintf(vol->item.name, sizeof(vol->item.name), "%s", name);
	vol->item_dirty = true;
	vol->item_version++;
	cpc_mutex_unlock(&vol->item_lock);
}

void cpc_engine_replay_created(struct cpc_volume *vol)
{
	cpc_mutex_lock(&vol->item_lock);
	vol->item_dirty = true;
	vol->item_version++;
	cpc_mutex_unlock(&vol->item_lock);
}

void cpc_engine_replay_deleted(struct cpc_volume *vol)
{
	cpc_mutex_lock(&vol->item_lock);
	vol->deleted = true;
	vol->orphan = true;
	vol->item_version++;
	cpc_mutex_unlock(&vol->item_lock);
}

static void set_size(struct cpc_volume *vol, uint64_t size)
{
	cpc_mutex_lock(&vol->item_lock);
	vol->item.size = size;
	vol->item_dirty = true;
	vol->item_version++;
	cpc_mutex_unlock(&vol->item_lock);
	atomic_store(&vol->size, size);
}

static void apply_created(void *ctx)
{
	struct change *change = ctx;

	cpc_engine_replay_created(change->vol);
	change->applied = true;
}

static void apply_name(void *ctx)
{
	struct change *change = ctx;

	cpc_engine_replay_name(change->vol, change->name);
	change->applied = true;
}

static void apply_deleted(void *ctx)
{
	struct change *change = ctx;

	cpc_engine_replay_deleted(change->vol);
	change->applied = true;
}

/* The tail's hole is linked as a cut of its own: nothing else changes the volume meanwhile. */
static void apply_size(void *ctx)
{
	struct change *change = ctx;
	uint64_t first = cpc_div_round_up(change->size, CPC_BLOCK_SIZE);

	if (change->hole) {
		cpc_cut_link(change->vol, change->next, change->hole);
		cpc_cache_remove(change->vol, first, CPC_MAX_VOLUME_BLOCKS - first, UINT64_MAX);
	}
	set_size(change->vol, change->size);
	change->applied = true;
}

/* --- logging it --- */

static int log_it(struct change *change, struct cpc_log_batch *batch, void (*apply)(void *ctx),
		  uint64_t *seq)
{
	struct cpc_engine *e = change->vol->engine;
	uint64_t room = batch->len;
	int ret = cpc_log_batch_end(batch);

	if (ret)
		return ret;
	room = batch->len;
	ret = cpc_log_room(e, room);
	if (ret)
		return ret;
	ret = cpc_log_change(change->vol, batch, apply, change, seq);
	cpc_log_unreserve(e->log, room);
	return ret;
}

static int log_and_flush(struct change *change, enum cpc_log_entry_type type, uint64_t size,
			 const void *payload, uint32_t len, void (*apply)(void *ctx))
{
	struct cpc_engine *e = change->vol->engine;
	struct cpc_log_batch batch;
	uint64_t seq = 0;
	int ret;

	cpc_log_batch_init(&batch, e->log);
	cpc_log_batch_name(&batch, type, change->vol->item.id, size, payload, len);
	ret = log_it(change, &batch, apply, &seq);
	cpc_log_batch_destroy(&batch);
	if (!ret)
		ret = cpc_log_flush(e->log, seq);
	if (!ret)
		cpc_kick_mark(e);
	return ret;
}

/* --- the doors --- */

int cpc_engine_create_volume(struct cpc_engine *e, const struct cpc_volume_item *item,
			     struct cpc_volume **out, bool *applied)
{
	uint8_t value[CPC_VOLUME_VALUE_MAX];
	struct change change = {0};
	int ret;

	*applied = false;
	ret = cpc_engine_wake_volume(e, item, &change.vol);
	if (ret)
		return ret;
	cpc_engine_count_volume(e, &item->root);
	ret = log_and_flush(&change, CPC_LOG_CREATE, 0, value,
			    cpc_volume_item_encode(item, 0, value), apply_created);
	*applied = change.applied;
	if (change.applied)
		*out = change.vol;
	else
		cpc_engine_remove_volume(change.vol);
	return ret;
}

int cpc_engine_rename(struct cpc_volume *vol, const char *name, bool *applied)
{
	struct change change = {.vol = vol, .name = name};
	int ret =
	    log_and_flush(&change, CPC_LOG_RENAME, 0, name, (uint32_t)strlen(name), apply_name);

	*applied = change.applied;
	return ret;
}

int cpc_engine_delete(struct cpc_volume *vol, bool *applied)
{
	struct change change = {.vol = vol};
	int ret = log_and_flush(&change, CPC_LOG_DELETE, 0, NULL, 0, apply_deleted);

	*applied = change.applied;
	return ret;
}

int cpc_engine_grow(struct cpc_volume *vol, uint64_t size, bool *applied)
{
	struct change change = {.vol = vol, .size = size};
	int ret = cpc_zero_tail(vol);

	*applied = false;
	if (!ret)
		ret = cpc_cut(vol);
	if (!ret)
		ret = log_and_flush(&change, CPC_LOG_RESIZE, size, NULL, 0, apply_size);
	*applied = change.applied;
	return ret;
}

static int make_hole(struct change *change)
{
	uint64_t first = cpc_div_round_up(change->size, CPC_BLOCK_SIZE);
	struct cpc_run_builder builder;
	int ret;

	cpc_run_builder_init(&builder, 1, 0);
	cpc_run_builder_hole(&builder, first, CPC_MAX_VOLUME_BLOCKS - first);
	ret = cpc_run_builder_finish(&builder, &change->hole);
	if (ret)
		return ret;
	change->next = cpc_view_alloc();
	ret = change->next ? cpc_view_reserve(change->vol) : -ENOMEM;
	if (ret) {
		cpc_free(change->next);
		cpc_run_put(change->hole);
	}
	return ret;
}

int cpc_engine_replay_size(struct cpc_volume *vol, uint64_t size)
{
	struct change change = {.vol = vol, .size = size};
	bool hole = size < atomic_load(&vol->size) && !CPC_MUTANT(shrink_replayed_without_its_hole);
	int ret = hole ? make_hole(&change) : 0;

	if (!ret)
		apply_size(&change);
	return ret;
}

int cpc_engine_truncate(struct cpc_volume *vol, uint64_t size, bool *applied)
{
	struct change change = {.vol = vol, .size = size};
	int ret = cpc_cut(vol);

	*applied = false;
	if (!ret)
		ret = make_hole(&change);
	if (ret)
		return ret;
	ret = log_and_flush(&change, CPC_LOG_RESIZE, size, NULL, 0, apply_size);
	*applied = change.applied;
	if (!change.applied) {
		cpc_view_unreserve(vol);
		cpc_free(change.next);
		cpc_run_put(change.hole);
	}
	return ret;
}
