/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pool: life and names. Everything else is passed on to the engine.
 *
 * Names are kept in one array sorted by name; there are at most CPC_MAX_VOLUMES and changes are
 * rare. Each change of names holds names_lock from its check to the durable commit, so names change
 * one at a time, in order; looking one up (open, list) takes table_lock only and never waits for a
 * commit.
 */
#include "pool/pool-internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/hooks.h"
#include "lib/log.h"
#include "backing/ioq.h"
#include "log/log.h"
#include "volume/engine.h"

/* Commits that a new name waits for in a full pool. */
#define NAME_COMMITS 6u

struct entry {
	char *name;
	uint64_t id;
	uint32_t open; /* handles; table_lock */
	bool closing;  /* being deleted or shrunk: no new handles; table_lock */
	struct cpc_volume *vol;
};

struct cpc_pool {
	struct cpc_backing *backing;
	struct cpc_store *store;
	struct cpc_engine *engine;
	struct cpc_pool_options opts;
	uint64_t open_us;
	char label[CPC_LABEL_MAX + 1]; /* immutable */

	struct cpc_mutex names_lock; /* CPC_RANK_POOL: one change of names at a time */
	struct cpc_mutex table_lock; /* CPC_RANK_LEAF: the table below */
	struct entry **table;	     /* sorted by name */
	size_t nr, cap;
	uint64_t next_volume; /* names_lock */
	_Atomic bool shut;
};

static int fail(struct cpc_error *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static int fail(struct cpc_error *err, int code, const char *fmt, ...)
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

static int table_reserve(struct cpc_pool *pool)
{
	size_t cap = pool->cap ? 2 * pool->cap : 16;
	struct entry **bigger, **old;

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

static void insert_locked(struct cpc_pool *pool, struct entry *entry)
{
	bool found;
	size_t at = position(pool, entry->name, &found);

	cpc_assert(!found && pool->nr < pool->cap);
	memmove(&pool->table[at + 1], &pool->table[at], (pool->nr - at) * sizeof(*pool->table));
	pool->table[at] = entry;
	pool->nr++;
}

static void table_insert(struct cpc_pool *pool, struct entry *entry)
{
	cpc_mutex_lock(&pool->table_lock);
	insert_locked(pool, entry);
	cpc_mutex_unlock(&pool->table_lock);
}

static void remove_locked(struct cpc_pool *pool, struct entry *entry)
{
	bool found;
	size_t at = position(pool, entry->name, &found);

	cpc_assert(found && pool->table[at] == entry);
	pool->nr--;
	memmove(&pool->table[at], &pool->table[at + 1], (pool->nr - at) * sizeof(*pool->table));
}

static void table_remove(struct cpc_pool *pool, struct entry *entry)
{
	cpc_mutex_lock(&pool->table_lock);
	remove_locked(pool, entry);
	cpc_mutex_unlock(&pool->table_lock);
}

/* At each instant the volume is there under one of its names. Return: the old one, to be freed. */
static char *table_rename(struct cpc_pool *pool, struct entry *entry, char *name)
{
	char *old = entry->name;

	cpc_mutex_lock(&pool->table_lock);
	remove_locked(pool, entry);
	entry->name = name;
	insert_locked(pool, entry);
	cpc_mutex_unlock(&pool->table_lock);
	return old;
}

static struct entry *find(struct cpc_pool *pool, const char *name)
{
	bool found;
	size_t at = position(pool, name, &found);

	return found ? pool->table[at] : NULL;
}

static char *copy_name(const char *name)
{
	size_t len = strlen(name) + 1;
	char *copy = cpc_alloc(len);

	return copy ? memcpy(copy, name, len) : NULL;
}

static struct entry *entry_new(const char *name, uint64_t id)
{
	struct entry *entry = cpc_zalloc(sizeof(*entry));

	if (!entry)
		return NULL;
	entry->id = id;
	entry->name = copy_name(name);
	if (!entry->name) {
		cpc_free(entry);
		return NULL;
	}
	return entry;
}

static void entry_free(struct entry *entry)
{
	cpc_free(entry->name);
	cpc_free(entry);
}

static int add_found(void *ctx, const struct cpc_volume_item *item)
{
	struct cpc_pool *pool = ctx;
	struct entry *entry;
	int ret;

	if (pool->nr >= CPC_MAX_VOLUMES || find(pool, item->name))
		return -EUCLEAN;
	ret = table_reserve(pool);
	if (ret)
		return ret;
	entry = entry_new(item->name, item->id);
	if (!entry)
		return -ENOMEM;
	ret = cpc_engine_add_volume(pool->engine, item, &entry->vol);
	if (ret) {
		entry_free(entry);
		return ret;
	}
	table_insert(pool, entry);
	return 0;
}

/* --- replay --- */

static struct entry *find_id(struct cpc_pool *pool, uint64_t id)
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
	struct entry *entry = find_id(pool, volume);

	if (entry)
		return cpc_engine_replay_run(entry->vol, run);
	if (volume >= pool->next_volume)
		return -EUCLEAN;
	if (!pool->opts.read_only)
		cpc_engine_replay_drop(pool->engine, run);
	return 0;
}

static int replay_create(struct cpc_pool *pool, uint64_t id, const void *payload, uint32_t len)
{
	struct cpc_volume_item item;
	int ret = cpc_volume_item_decode(&item, id, payload, len);

	if (!ret && (find_id(pool, id) || id >= UINT32_MAX || !cpc_node_ptr_empty(&item.root)))
		ret = -EUCLEAN;
	if (!ret)
		ret = add_found(pool, &item);
	if (ret)
		return ret;
	cpc_engine_replay_created(find_id(pool, id)->vol);
	if (id >= pool->next_volume)
		cpc_engine_set_next_volume(pool->engine, pool->next_volume = id + 1);
	return 0;
}

static int replay_rename(struct cpc_pool *pool, struct entry *entry, const void *payload,
			 uint32_t len)
{
	char *fresh;

	if (!cpc_name_valid(payload, len))
		return -EUCLEAN;
	fresh = cpc_zalloc(len + 1);
	if (!fresh)
		return -ENOMEM;
	memcpy(fresh, payload, len);
	if (find(pool, fresh)) {
		cpc_free(fresh);
		return -EUCLEAN;
	}
	cpc_engine_replay_name(entry->vol, fresh);
	cpc_free(table_rename(pool, entry, fresh));
	return 0;
}

static int replay_name(void *ctx, enum cpc_log_entry_type type, uint64_t volume, uint64_t size,
		       const void *payload, uint32_t len)
{
	struct cpc_pool *pool = ctx;
	struct entry *entry;

	if (type == CPC_LOG_CREATE)
		return replay_create(pool, volume, payload, len);
	entry = find_id(pool, volume);
	if (!entry)
		return -EUCLEAN;
	if (type == CPC_LOG_RENAME)
		return replay_rename(pool, entry, payload, len);
	if (type == CPC_LOG_RESIZE)
		return cpc_engine_replay_size(entry->vol, size);
	cpc_engine_replay_deleted(entry->vol);
	table_remove(pool, entry);
	entry_free(entry);
	return 0;
}

/* A long log may hold more than there is memory for maps: some of it is committed on the way. */
static int replay_batch(void *ctx, uint64_t seq, uint64_t position)
{
	struct cpc_pool *pool = ctx;

	cpc_engine_replay_to(pool->engine, pool->store->super.nonce, seq, position);
	if (pool->opts.read_only || !cpc_engine_maps_full(pool->engine))
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

static int replay(struct cpc_pool *pool, struct cpc_error *err)
{
	struct cpc_log_replay r;
	const char *why = "";
	int ret = cpc_log_scan(pool->store, &r, &why);

	if (ret)
		return fail(err, ret, "%s: %s; run coppice check", why,
			    ret == -EUCLEAN ? "damaged" : strerror(-ret));
	ret = replay_accepted(pool, &r);
	if (!ret && !pool->opts.read_only)
		ret = start_log(pool, r.end_position);
	cpc_log_replay_destroy(&r);
	/* The process may fork before it goes on; rings must not go with it. */
	cpc_ioq_close_idle(pool->backing);
	return ret ? fail(err, ret, "replaying the log: %s",
			  ret == -EUCLEAN ? "damaged; run coppice check" : strerror(-ret))
		   : 0;
}

/* Three quarters for data; nodes and extent maps share the rest. */
static void engine_options(const struct cpc_pool_options *opts, struct cpc_engine_options *eo)
{
	*eo = (struct cpc_engine_options){
	    .data_bytes = opts->cache / 4 * 3,
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
	struct cpc_engine_options eo;
	const char *why = "";
	int ret;

	ret = cpc_store_open(pool->backing, pool->opts.read_only, pool->opts.cache / 8,
			     device_broken, pool, &pool->store, &why);
	if (ret == -EINVAL)
		return fail(err, ret, "not a Coppice pool (%s); coppice format makes one", why);
	if (ret == -ENOTSUP)
		return fail(err, ret, "pool cannot be opened: %s", why);
	if (ret)
		return fail(err, ret, "pool cannot be opened: %s: %s; run coppice check", why,
			    ret == -EUCLEAN ? "damaged" : strerror(-ret));
	engine_options(&pool->opts, &eo);
	ret = cpc_engine_create(pool->store, &eo, &pool->engine);
	if (ret)
		return fail(err, ret, "no memory for a cache of %llu bytes: give a smaller cache=",
			    (unsigned long long)pool->opts.cache);
	ret = cpc_store_for_each_volume(pool->store, add_found, pool);
	if (ret)
		return fail(err, ret, "list of volumes: %s; run coppice check",
			    ret == -EUCLEAN ? "damaged" : strerror(-ret));
	pool->next_volume = pool->store->super.next_volume;
	memcpy(pool->label, pool->store->super.label, sizeof(pool->label));
	return replay(pool, err);
}

int cpc_pool_open_backing(struct cpc_backing *backing, const struct cpc_pool_options *opts,
			  struct cpc_pool **out, struct cpc_error *err)
{
	uint64_t start = cpc_now_ns();
	struct cpc_pool *pool;
	int ret;

	if (opts->cache < CPC_CACHE_MIN) {
		cpc_backing_close(backing);
		return fail(err, -EINVAL, "cache is %llu bytes, the least is %llu",
			    (unsigned long long)opts->cache, (unsigned long long)CPC_CACHE_MIN);
	}
	pool = cpc_zalloc(sizeof(*pool));
	if (!pool) {
		cpc_backing_close(backing);
		return fail(err, -ENOMEM, "out of memory");
	}
	pool->backing = backing;
	pool->opts = *opts;
	cpc_mutex_init(&pool->names_lock, "names", CPC_RANK_POOL);
	cpc_mutex_init(&pool->table_lock, "name table", CPC_RANK_LEAF);
	ret = open_parts(pool, err);
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
		return fail(err, ret, "%s", text.text);
	ret = cpc_pool_open_backing(backing, opts, out, &text);
	return ret ? fail(err, ret, "%.200s: %.300s", path, text.text) : 0;
}

int cpc_pool_start(struct cpc_pool *pool, struct cpc_error *err)
{
	int ret = cpc_engine_start(pool->engine);

	return ret ? fail(err, ret, "threads cannot be started: %s", strerror(-ret)) : 0;
}

int cpc_pool_shutdown(struct cpc_pool *pool)
{
	int ret = 0;

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
	if (pool->engine)
		cpc_engine_destroy(pool->engine);
	if (pool->store)
		cpc_store_close(pool->store);
	cpc_backing_close(pool->backing);
	for (size_t i = 0; i < pool->nr; i++)
		entry_free(pool->table[i]);
	cpc_free(pool->table);
	cpc_mutex_destroy(&pool->names_lock);
	cpc_mutex_destroy(&pool->table_lock);
	cpc_free(pool);
}

/* --- changing names --- */

/* Why a change of names is refused now, 0: it is not. names_lock is held. */
static int may_change(struct cpc_pool *pool, struct cpc_error *err)
{
	char why[256];

	if (pool->opts.read_only)
		return fail(err, -EROFS, "pool is open read-only");
	if (atomic_load(&pool->shut))
		return fail(err, -ESHUTDOWN, "pool is being shut down");
	if (cpc_engine_broken(pool->engine, why, sizeof(why)))
		return fail(err, -EIO, "pool is read-only: %s", why);
	return 0;
}

static int check_name(const char *name, struct cpc_error *err)
{
	if (cpc_name_valid(name, strlen(name)))
		return 0;
	return fail(err, -EINVAL,
		    "'%.60s' is not a volume name: 1 to 255 letters, digits, '.', '_', '-', not "
		    "starting with '.' or '-'",
		    name);
}

static int check_size(uint64_t *size, struct cpc_error *err)
{
	if (*size == 0 || *size > 1ull << 63)
		return fail(err, -EINVAL, "size must be 1 byte to 8 EiB");
	*size = cpc_min_u64(*size, CPC_VOLUME_SIZE_MAX);
	return 0;
}

/* The device did not take it: either nothing has changed, or the change is there and a later flush,
 * or a crash, decides whether it stays. */
static int not_durable(struct cpc_error *err, int ret, const char *what, const char *name,
		       bool applied)
{
	return fail(err, ret, "%s of '%s' %s: %s", what, name,
		    applied ? "is done but could not be made durable" : "failed",
		    strerror(ret == -EUCLEAN ? EIO : -ret));
}

/* A node's worth of space for the commit that writes the name. */
static bool room_for_name(struct cpc_pool *pool)
{
	struct cpc_space_info info;
	uint64_t node =
	    (uint64_t)pool->store->geo.nodesize / CPC_BLOCK_SIZE * pool->store->geo.copies;

	cpc_space_info(pool->store->space, &info);
	return info.free > info.reserved + 32 * node;
}

/* Commits may have to free what was deleted before. */
static int make_room_for_name(struct cpc_pool *pool)
{
	for (unsigned i = 0; i < NAME_COMMITS && !room_for_name(pool); i++) {
		int ret;

		if (!cpc_engine_commit_may_help(pool->engine))
			break;
		ret = cpc_engine_commit(pool->engine, false);
		if (ret)
			return ret;
	}
	return room_for_name(pool) ? 0 : -ENOSPC;
}

static int create_item(struct cpc_pool *pool, const char *name, uint64_t size,
		       struct cpc_volume_item *item)
{
	memset(item, 0, sizeof(*item));
	item->id = pool->next_volume;
	item->size = size;
	item->created = (uint64_t)cpc_hooks.realtime_s();
	snprintf(item->name, sizeof(item->name), "%s", name);
	return cpc_uuid_draw(item->uuid);
}

static int create_entry(struct cpc_pool *pool, const struct cpc_volume_item *item,
			struct cpc_error *err)
{
	struct entry *entry = entry_new(item->name, item->id);
	int ret = entry ? table_reserve(pool) : -ENOMEM;
	bool applied = false;

	if (ret) {
		if (entry)
			entry_free(entry);
		return fail(err, ret, "out of memory");
	}
	/* An id is used up even if this fails, and before a commit can meet the volume. */
	cpc_engine_set_next_volume(pool->engine, ++pool->next_volume);
	ret = cpc_engine_create_volume(pool->engine, item, &entry->vol, &applied);
	if (applied)
		table_insert(pool, entry);
	else
		entry_free(entry);
	return ret ? not_durable(err, ret, "creation", item->name, applied) : 0;
}

static int create_locked(struct cpc_pool *pool, const char *name, uint64_t size,
			 struct cpc_error *err)
{
	struct cpc_volume_item item;
	int ret = may_change(pool, err);

	if (ret)
		return ret;
	if (find(pool, name))
		return fail(err, -EEXIST, "volume '%s' exists already", name);
	if (pool->nr >= CPC_MAX_VOLUMES || pool->next_volume >= UINT32_MAX)
		return fail(err, -ENOSPC, "the pool has no room for more volumes");
	ret = make_room_for_name(pool);
	if (ret == -ENOSPC)
		return fail(err, ret, "the pool is full: trim or delete something first");
	if (ret)
		return not_durable(err, ret, "creation", name, false);
	if (create_item(pool, name, size, &item))
		return fail(err, -EIO, "no random numbers for a uuid");
	return create_entry(pool, &item, err);
}

int cpc_pool_create_volume(struct cpc_pool *pool, const char *name, uint64_t size,
			   struct cpc_error *err)
{
	int ret = check_name(name, err);

	if (!ret)
		ret = check_size(&size, err);
	if (ret)
		return ret;
	cpc_mutex_lock(&pool->names_lock);
	ret = create_locked(pool, name, size, err);
	cpc_mutex_unlock(&pool->names_lock);
	return ret;
}

static int rename_locked(struct cpc_pool *pool, const char *old_name, const char *new_name,
			 struct cpc_error *err)
{
	struct entry *entry;
	bool applied = false;
	char *fresh;
	int ret = may_change(pool, err);

	if (ret)
		return ret;
	entry = find(pool, old_name);
	if (!entry)
		return fail(err, -ENOENT, "no volume '%.200s'", old_name);
	if (find(pool, new_name))
		return fail(err, -EEXIST, "volume '%s' exists already", new_name);
	fresh = copy_name(new_name);
	if (!fresh)
		return fail(err, -ENOMEM, "out of memory");
	ret = cpc_engine_rename(entry->vol, new_name, &applied);
	cpc_free(applied ? table_rename(pool, entry, fresh) : fresh);
	return ret ? not_durable(err, ret, "renaming", old_name, applied) : 0;
}

int cpc_pool_rename(struct cpc_pool *pool, const char *old_name, const char *new_name,
		    struct cpc_error *err)
{
	int ret = check_name(new_name, err);

	if (ret)
		return ret;
	cpc_mutex_lock(&pool->names_lock);
	ret = rename_locked(pool, old_name, new_name, err);
	cpc_mutex_unlock(&pool->names_lock);
	return ret;
}

/* Keeps clients away for a change that needs it. */
static int close_door(struct cpc_pool *pool, struct entry *entry, const char *what,
		      struct cpc_error *err)
{
	uint32_t open;

	cpc_mutex_lock(&pool->table_lock);
	open = entry->open;
	entry->closing = !open;
	cpc_mutex_unlock(&pool->table_lock);
	if (!open)
		return 0;
	return fail(err, -EBUSY, "volume '%s' cannot be %s: %u client connection%s it open",
		    entry->name, what, open, open == 1 ? " has" : "s have");
}

static void open_door(struct cpc_pool *pool, struct entry *entry)
{
	cpc_mutex_lock(&pool->table_lock);
	entry->closing = false;
	cpc_mutex_unlock(&pool->table_lock);
}

static int delete_locked(struct cpc_pool *pool, const char *name, struct cpc_error *err)
{
	struct entry *entry;
	bool applied = false;
	int ret = may_change(pool, err);

	if (ret)
		return ret;
	entry = find(pool, name);
	if (!entry)
		return fail(err, -ENOENT, "no volume '%.200s'", name);
	ret = close_door(pool, entry, "deleted", err);
	if (ret)
		return ret;
	ret = cpc_engine_delete(entry->vol, &applied);
	if (applied) {
		table_remove(pool, entry);
		entry_free(entry);
	} else {
		open_door(pool, entry);
	}
	return ret ? not_durable(err, ret, "deletion", name, applied) : 0;
}

int cpc_pool_delete(struct cpc_pool *pool, const char *name, struct cpc_error *err)
{
	int ret;

	cpc_mutex_lock(&pool->names_lock);
	ret = delete_locked(pool, name, err);
	cpc_mutex_unlock(&pool->names_lock);
	return ret;
}

static int shrink(struct cpc_pool *pool, struct entry *entry, uint64_t size, struct cpc_error *err)
{
	int ret = close_door(pool, entry, "shrunk", err);
	bool applied;

	if (ret)
		return ret;
	ret = cpc_engine_truncate(entry->vol, size, &applied);
	open_door(pool, entry);
	return ret ? not_durable(err, ret, "shrinking", entry->name, applied) : 0;
}

static int resize_locked(struct cpc_pool *pool, const char *name, uint64_t size, bool may_shrink,
			 struct cpc_error *err)
{
	struct entry *entry;
	bool applied;
	uint64_t old;
	int ret = may_change(pool, err);

	if (ret)
		return ret;
	entry = find(pool, name);
	if (!entry)
		return fail(err, -ENOENT, "no volume '%.200s'", name);
	old = cpc_volume_size(entry->vol);
	if (size == old)
		return 0;
	if (size < old && !may_shrink)
		return fail(err, -EINVAL,
			    "volume '%s' has %llu bytes; making it smaller loses what lies "
			    "behind, ask for it with --shrink",
			    name, (unsigned long long)old);
	if (size < old)
		return shrink(pool, entry, size, err);
	ret = cpc_engine_grow(entry->vol, size, &applied);
	return ret ? not_durable(err, ret, "growing", name, applied) : 0;
}

int cpc_pool_resize(struct cpc_pool *pool, const char *name, uint64_t size, bool may_shrink,
		    struct cpc_error *err)
{
	int ret = check_size(&size, err);

	if (ret)
		return ret;
	cpc_mutex_lock(&pool->names_lock);
	ret = resize_locked(pool, name, size, may_shrink, err);
	cpc_mutex_unlock(&pool->names_lock);
	return ret;
}

/* --- looking --- */

static void fill_info(struct cpc_pool *pool, const struct entry *entry,
		      struct cpc_volume_info *info)
{
	struct cpc_volume_item item;

	cpc_engine_get_item(entry->vol, &item);
	memset(info, 0, sizeof(*info));
	snprintf(info->name, sizeof(info->name), "%s", entry->name);
	info->id = item.id;
	info->size = item.size;
	info->used = cpc_engine_volume_used(entry->vol);
	info->exclusive = info->used;
	info->created = (int64_t)item.created;
	cpc_mutex_lock(&pool->table_lock);
	info->open = entry->open;
	cpc_mutex_unlock(&pool->table_lock);
	info->read_only = cpc_volume_read_only(entry->vol);
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
	struct entry *entry;

	cpc_mutex_lock(&pool->names_lock);
	entry = find(pool, name);
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

int cpc_pool_open_volume(struct cpc_pool *pool, const char *name, struct cpc_volume **out)
{
	struct entry *entry;
	int ret = 0;

	if (atomic_load(&pool->shut))
		return -ESHUTDOWN;
	cpc_mutex_lock(&pool->table_lock);
	entry = find(pool, name);
	if (!entry)
		ret = -ENOENT;
	else if (entry->closing)
		ret = -EBUSY;
	else
		entry->open++;
	if (!ret)
		*out = entry->vol;
	cpc_mutex_unlock(&pool->table_lock);
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
