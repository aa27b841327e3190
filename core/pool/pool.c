/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pool: life and names. Everything else is passed on to the engine.
 *
 * Names are kept in one array sorted by name; there are at most CPC_MAX_VOLUMES and changes are
 * rare. Each change of names holds names_lock from its check until its record is durable, so names
 * change one at a time, in order. Opening a volume does without that lock and waits for no change;
 * list and info take it, for it keeps the volumes, and so wait for one that is being made.
 */
#include "pool/pool-internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/hooks.h"

int cpc_pool_fail(struct cpc_error *err, int code, const char *fmt, ...)
{
	va_list ap;

	if (err) {
		va_start(ap, fmt);
		vsnprintf(err->text, sizeof(err->text), fmt, ap);
		va_end(ap);
	}
	return code;
}

/* --- open and close --- */

void cpc_pool_options_init(struct cpc_pool_options *opts)
{
	*opts = (struct cpc_pool_options){
	    .cache = CPC_CACHE_DEFAULT,
	    .commit_interval = CPC_COMMIT_INTERVAL_DEFAULT,
	    .direct = CPC_DIRECT_AUTO,
	};
}

static void device_broken(void *ctx)
{
	struct cpc_pool *pool = ctx;

	if (pool->engine)
		cpc_engine_break(pool->engine, "the device lost writes that it had taken, or does "
					       "not flush any more");
}

/* Where `name` is or belongs; table_lock or names_lock is held. */
static size_t position(const struct cpc_pool *pool, const char *name, bool *found)
{
	size_t low = 0, high = pool->nr;

	*found = false;
	while (low < high) {
		size_t mid = (low + high) / 2;
		int cmp = strcmp(pool->table[mid]->name, name);

		if (cmp == 0) {
			*found = true;
			return mid;
		}
		if (cmp < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

int cpc_pool_table_reserve(struct cpc_pool *pool)
{
	size_t cap = pool->cap ? 2 * pool->cap : 16;
	struct cpc_pool_entry **bigger, **old;

	if (pool->nr < pool->cap)
		return 0;
	bigger = cpc_alloc_array(cap, sizeof(*bigger));
	if (!bigger)
		return -ENOMEM;
	cpc_mutex_lock(&pool->table_lock);
	if (pool->nr)
		memcpy(bigger, pool->table, pool->nr * sizeof(*bigger));
	old = pool->table;
	pool->table = bigger;
	pool->cap = cap;
	cpc_mutex_unlock(&pool->table_lock);
	cpc_free(old);
	return 0;
}

static void insert_locked(struct cpc_pool *pool, struct cpc_pool_entry *entry)
{
	bool found;
	size_t at = position(pool, entry->name, &found);

	cpc_assert(!found && pool->nr < pool->cap);
	memmove(&pool->table[at + 1], &pool->table[at], (pool->nr - at) * sizeof(*pool->table));
	pool->table[at] = entry;
	pool->nr++;
}

void cpc_pool_table_insert(struct cpc_pool *pool, struct cpc_pool_entry *entry)
{
	cpc_mutex_lock(&pool->table_lock);
	insert_locked(pool, entry);
	cpc_mutex_unlock(&pool->table_lock);
}

static void remove_locked(struct cpc_pool *pool, struct cpc_pool_entry *entry)
{
	bool found;
	size_t at = position(pool, entry->name, &found);

	cpc_assert(found && pool->table[at] == entry);
	pool->nr--;
	memmove(&pool->table[at], &pool->table[at + 1], (pool->nr - at) * sizeof(*pool->table));
}

void cpc_pool_table_remove(struct cpc_pool *pool, struct cpc_pool_entry *entry)
{
	cpc_mutex_lock(&pool->table_lock);
	remove_locked(pool, entry);
	cpc_mutex_unlock(&pool->table_lock);
}

/* At each instant the volume is there under one of its names. Return: the old one, to be freed. */
char *cpc_pool_table_rename(struct cpc_pool *pool, struct cpc_pool_entry *entry, char *name)
{
	char *old = entry->name;

	cpc_mutex_lock(&pool->table_lock);
	remove_locked(pool, entry);
	entry->name = name;
	insert_locked(pool, entry);
	cpc_mutex_unlock(&pool->table_lock);
	return old;
}

struct cpc_pool_entry *cpc_pool_find(struct cpc_pool *pool, const char *name)
{
	bool found;
	size_t at = position(pool, name, &found);

	return found ? pool->table[at] : NULL;
}

char *cpc_pool_copy_name(const char *name)
{
	size_t len = strlen(name) + 1;
	char *copy = cpc_alloc(len);

	return copy ? memcpy(copy, name, len) : NULL;
}

struct cpc_pool_entry *cpc_pool_entry_new(const char *name, uint64_t id)
{
	struct cpc_pool_entry *entry = cpc_zalloc(sizeof(*entry));

	if (!entry)
		return NULL;
	entry->id = id;
	entry->name = cpc_pool_copy_name(name);
	if (!entry->name) {
		cpc_free(entry);
		return NULL;
	}
	return entry;
}

void cpc_pool_entry_free(struct cpc_pool_entry *entry)
{
	cpc_free(entry->name);
	cpc_free(entry);
}

static int entry_found(struct cpc_pool *pool, const struct cpc_volume_item *item,
		       struct cpc_pool_entry **out)
{
	int ret = cpc_pool_table_reserve(pool);

	if (ret)
		return ret;
	*out = cpc_pool_entry_asleep(item);
	if (!*out)
		return -ENOMEM;
	cpc_engine_count_volume(pool->engine, &item->root);
	return 0;
}

int cpc_pool_add_found(struct cpc_pool *pool, const struct cpc_volume_item *item)
{
	struct cpc_pool_entry *entry;
	int ret;

	if (pool->nr >= CPC_MAX_VOLUMES || cpc_pool_find(pool, item->name))
		return -EUCLEAN;
	ret = entry_found(pool, item, &entry);
	if (!ret)
		cpc_pool_table_insert(pool, entry);
	return ret;
}

/* --- the list of volumes at an opening: sorted when it is whole --- */

static int append_found(void *ctx, const struct cpc_volume_item *item)
{
	struct cpc_pool *pool = ctx;
	struct cpc_pool_entry *entry;
	int ret = entry_found(pool, item, &entry);

	if (!ret)
		pool->table[pool->nr++] = entry;
	return ret;
}

static int by_name(const void *a, const void *b)
{
	const struct cpc_pool_entry *const *x = a, *const *y = b;

	return strcmp((*x)->name, (*y)->name);
}

/* Counted before any is noted. */
static int count_found(void *ctx, const struct cpc_volume_item *item)
{
	size_t *nr = ctx;

	return ++*nr > CPC_MAX_VOLUMES ? -EUCLEAN : 0;
}

static int find_volumes(struct cpc_pool *pool)
{
	size_t nr = 0;
	int ret = cpc_store_for_each_volume(pool->store, count_found, &nr);

	if (!ret)
		ret = cpc_store_for_each_volume(pool->store, append_found, pool);
	if (ret || !pool->nr)
		return ret;
	qsort(pool->table, pool->nr, sizeof(*pool->table), by_name);
	for (size_t i = 1; i < pool->nr; i++) {
		if (by_name(&pool->table[i - 1], &pool->table[i]) == 0)
			return -EUCLEAN;
	}
	return 0;
}

/* Three quarters for data; nodes and extent maps share the rest. */
static void engine_options(const struct cpc_pool_options *opts, struct cpc_engine_options *eo)
{
	*eo = (struct cpc_engine_options){
	    .data_bytes = opts->data_bytes ? opts->data_bytes : opts->cache / 4 * 3,
	    .dirty_bytes = opts->dirty ? opts->dirty : opts->cache / 2,
	    .map_bytes = opts->cache / 8,
	    .commit_interval = opts->commit_interval,
	    .no_threads = opts->no_threads,
	    .stats_detail = opts->stats_detail,
	    .read_only = opts->read_only,
	};
}

static int open_parts(struct cpc_pool *pool, struct cpc_error *err)
{
	uint64_t nodes = pool->opts.node_bytes ? pool->opts.node_bytes : pool->opts.cache / 8;
	struct cpc_engine_options eo;
	const char *why = "";
	int ret;

	ret = cpc_store_open(pool->backing, pool->opts.read_only, nodes, device_broken, pool,
			     &pool->store, &why);
	if (ret == -EINVAL)
		return cpc_pool_fail(err, ret, "not a Coppice pool (%s); coppice format makes one",
				     why);
	if (ret == -ENOTSUP)
		return cpc_pool_fail(err, ret, "pool cannot be opened: %s", why);
	if (ret)
		return cpc_pool_fail(err, ret, "pool cannot be opened: %s: %s; run coppice check",
				     why, ret == -EUCLEAN ? "damaged" : strerror(-ret));
	engine_options(&pool->opts, &eo);
	ret = cpc_engine_create(pool->store, &eo, &pool->engine);
	if (ret)
		return cpc_pool_fail(err, ret,
				     "no memory for a cache of %llu bytes: give a smaller cache=",
				     (unsigned long long)pool->opts.cache);
	ret = find_volumes(pool);
	if (ret)
		return cpc_pool_fail(err, ret, "list of volumes: %s; run coppice check",
				     ret == -EUCLEAN ? "damaged" : strerror(-ret));
	pool->next_volume = pool->store->super.next_volume;
	memcpy(pool->label, pool->store->super.label, sizeof(pool->label));
	return cpc_pool_replay(pool, err);
}

int cpc_pool_open_backing(struct cpc_backing *backing, const struct cpc_pool_options *opts,
			  struct cpc_pool **out, struct cpc_error *err)
{
	uint64_t start = cpc_now_ns();
	struct cpc_pool *pool;
	int ret;

	if (opts->cache < CPC_CACHE_MIN) {
		cpc_backing_close(backing);
		return cpc_pool_fail(err, -EINVAL, "cache is %llu bytes, the least is %llu",
				     (unsigned long long)opts->cache,
				     (unsigned long long)CPC_CACHE_MIN);
	}
	pool = cpc_zalloc(sizeof(*pool));
	if (!pool) {
		cpc_backing_close(backing);
		return cpc_pool_fail(err, -ENOMEM, "out of memory");
	}
	pool->backing = backing;
	pool->opts = *opts;
	cpc_mutex_init(&pool->names_lock, "names", CPC_RANK_POOL);
	cpc_mutex_init(&pool->table_lock, "name table", CPC_RANK_LEAF);
	pool->scrubber = cpc_pool_scrubber_new();
	ret = pool->scrubber ? open_parts(pool, err) : cpc_pool_fail(err, -ENOMEM, "out of memory");
	if (ret) {
		cpc_pool_close(pool);
		return ret;
	}
	pool->open_us = (cpc_now_ns() - start) / 1000;
	*out = pool;
	return 0;
}

int cpc_pool_open(const char *path, const struct cpc_pool_options *opts, struct cpc_pool **out,
		  struct cpc_error *err)
{
	struct cpc_error text = {""};
	struct cpc_backing *backing;
	int ret;

	ret = cpc_backing_open_file(path, opts->read_only ? CPC_BACKING_READONLY : 0, opts->direct,
				    &backing, text.text, sizeof(text.text));
	if (ret)
		return cpc_pool_fail(err, ret, "%s", text.text);
	ret = cpc_pool_open_backing(backing, opts, out, &text);
	return ret ? cpc_pool_fail(err, ret, "%.200s: %.300s", path, text.text) : 0;
}

int cpc_pool_start(struct cpc_pool *pool, struct cpc_error *err)
{
	int ret = cpc_engine_start(pool->engine);

	return ret ? cpc_pool_fail(err, ret, "threads cannot be started: %s", strerror(-ret)) : 0;
}

int cpc_pool_shutdown(struct cpc_pool *pool)
{
	int ret = 0;

	cpc_pool_scrub_stop(pool);
	cpc_mutex_lock(&pool->names_lock);
	if (!atomic_exchange(&pool->shut, true)) {
		cpc_engine_refuse(pool->engine);
		if (!pool->opts.read_only)
			ret = cpc_engine_commit(pool->engine, true);
	}
	cpc_mutex_unlock(&pool->names_lock);
	return ret;
}

void cpc_pool_close(struct cpc_pool *pool)
{
	if (pool->scrubber)
		cpc_pool_scrub_stop(pool);
	cpc_pool_scrubber_free(pool->scrubber);
	if (pool->engine)
		cpc_engine_destroy(pool->engine);
	if (pool->store)
		cpc_store_close(pool->store);
	cpc_backing_close(pool->backing);
	for (size_t i = 0; i < pool->nr; i++)
		cpc_pool_entry_free(pool->table[i]);
	cpc_free(pool->table);
	cpc_mutex_destroy(&pool->names_lock);
	cpc_mutex_destroy(&pool->table_lock);
	cpc_free(pool);
}

/* --- looking --- */

static void fill_info(struct cpc_pool *pool, const struct cpc_pool_entry *entry,
		      struct cpc_volume_info *info)
{
	struct cpc_volume_item item;

	memset(info, 0, sizeof(*info));
	cpc_pool_entry_item(pool, entry, &item, &info->used);
	snprintf(info->name, sizeof(info->name), "%s", entry->name);
	info->id = item.id;
	info->size = item.size;
	info->exclusive = info->used;
	info->created = (int64_t)item.created;
	cpc_mutex_lock(&pool->table_lock);
	info->open = entry->open;
	cpc_mutex_unlock(&pool->table_lock);
	info->read_only = pool->opts.read_only || item.flags & CPC_VOLUME_READONLY;
	memcpy(info->uuid, item.uuid, CPC_UUID_SIZE);
}

void cpc_pool_settle(struct cpc_pool *pool)
{
	if (!pool->opts.read_only && !atomic_load(&pool->shut) &&
	    !cpc_engine_broken(pool->engine, NULL, 0))
		cpc_engine_commit_if_dirty(pool->engine);
}

int cpc_pool_list(struct cpc_pool *pool, int (*fn)(void *ctx, const struct cpc_volume_info *info),
		  void *ctx)
{
	struct cpc_volume_info *infos;
	size_t nr;
	int ret = 0;

	/* names_lock keeps the volumes; table_lock is a leaf and must not be held for the rest */
	cpc_mutex_lock(&pool->names_lock);
	nr = pool->nr;
	infos = cpc_alloc_array(nr + 1, sizeof(*infos));
	for (size_t i = 0; infos && i < nr; i++)
		fill_info(pool, pool->table[i], &infos[i]);
	cpc_mutex_unlock(&pool->names_lock);
	if (!infos)
		return -ENOMEM;
	for (size_t i = 0; i < nr && !ret; i++)
		ret = fn(ctx, &infos[i]);
	cpc_free(infos);
	return ret;
}

int cpc_pool_volume_info(struct cpc_pool *pool, const char *name, struct cpc_volume_info *info)
{
	struct cpc_pool_entry *entry;

	cpc_mutex_lock(&pool->names_lock);
	entry = cpc_pool_find(pool, name);
	if (entry)
		fill_info(pool, entry, info);
	cpc_mutex_unlock(&pool->names_lock);
	return entry ? 0 : -ENOENT;
}

void cpc_pool_info(struct cpc_pool *pool, struct cpc_pool_info *info)
{
	struct cpc_store *store = pool->store;
	struct cpc_store_info si;
	struct cpc_space_info space;

	memset(info, 0, sizeof(*info));
	cpc_mutex_lock(&pool->names_lock);
	info->volumes = pool->nr;
	cpc_mutex_unlock(&pool->names_lock);
	cpc_store_info(store, &si);
	cpc_space_info(store->space, &space);
	memcpy(info->uuid, store->uuid, CPC_UUID_SIZE);
	cpc_uuid_format(store->uuid, info->uuid_text);
	memcpy(info->label, pool->label, sizeof(info->label));
	info->capacity = space.total << CPC_BLOCK_SHIFT;
	info->used = si.used_blocks << CPC_BLOCK_SHIFT;
	info->free = (space.total - si.used_blocks) << CPC_BLOCK_SHIFT;
	info->pinned = si.pinned_blocks << CPC_BLOCK_SHIFT;
	info->reserved = space.reserved << CPC_BLOCK_SHIFT;
	info->generation = si.transid;
	info->nodesize = store->geo.nodesize;
	info->copies = store->geo.copies;
	info->log_size = store->geo.log_blocks << CPC_BLOCK_SHIFT;
	info->read_only = pool->opts.read_only;
	if (!cpc_engine_broken(pool->engine, info->health, sizeof(info->health)))
		snprintf(info->health, sizeof(info->health), "ok");
}

bool cpc_pool_healthy(struct cpc_pool *pool, char *why, size_t len)
{
	return !cpc_engine_broken(pool->engine, why, len);
}

int cpc_pool_commit(struct cpc_pool *pool)
{
	return cpc_engine_commit(pool->engine, false);
}

/* --- handles --- */

static void close_handle(struct cpc_pool *pool, struct cpc_pool_entry *entry)
{
	cpc_mutex_lock(&pool->table_lock);
	entry->open--;
	cpc_mutex_unlock(&pool->table_lock);
}

int cpc_pool_open_volume(struct cpc_pool *pool, const char *name, struct cpc_volume **out)
{
	struct cpc_pool_entry *entry;
	int ret = 0;

	if (atomic_load(&pool->shut))
		return -ESHUTDOWN;
	cpc_mutex_lock(&pool->table_lock);
	entry = cpc_pool_find(pool, name);
	if (!entry)
		ret = -ENOENT;
	else if (entry->closing)
		ret = -EBUSY;
	else
		entry->open++;
	cpc_mutex_unlock(&pool->table_lock);
	if (ret)
		return ret;
	ret = cpc_pool_wake(pool, entry, out);
	if (ret)
		close_handle(pool, entry);
	return ret;
}

void cpc_pool_close_volume(struct cpc_pool *pool, struct cpc_volume *volume)
{
	cpc_mutex_lock(&pool->table_lock);
	for (size_t i = 0; i < pool->nr; i++) {
		if (pool->table[i]->vol == volume) {
			cpc_assert(pool->table[i]->open > 0);
			pool->table[i]->open--;
			break;
		}
	}
	cpc_mutex_unlock(&pool->table_lock);
}

/* --- for stats.c --- */

struct cpc_store *cpc_pool_store(struct cpc_pool *pool)
{
	return pool->store;
}

struct cpc_engine *cpc_pool_engine(struct cpc_pool *pool)
{
	return pool->engine;
}

uint64_t cpc_pool_open_us(const struct cpc_pool *pool)
{
	return pool->open_us;
}
