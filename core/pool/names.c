/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * names: creating, renaming, deleting and resizing volumes, one change at a time.
 *
 * A change that the log has taken is in force, also when its flush failed: then the caller is told,
 * and a later flush or a crash decides. One that the log has not taken has changed nothing.
 */
#include "pool/pool-internal.h"

#include <stdio.h>

#include "lib/hooks.h"

/* Commits that a new name waits for in a full pool. */
#define NAME_COMMITS 6u

/* Why a change of names is refused now, 0: it is not. names_lock is held. */
static int may_change(struct cpc_pool *pool, struct cpc_error *err)
{
	char why[256];

	if (pool->opts.read_only)
		return cpc_pool_fail(err, -EROFS, "pool is open read-only");
	if (atomic_load(&pool->shut))
		return cpc_pool_fail(err, -ESHUTDOWN, "pool is being shut down");
	if (cpc_engine_broken(pool->engine, why, sizeof(why)))
		return cpc_pool_fail(err, -EIO, "pool is read-only: %s", why);
	return 0;
}

static int check_name(const char *name, struct cpc_error *err)
{
	if (cpc_name_valid(name, strlen(name)))
		return 0;
	return cpc_pool_fail(
	    err, -EINVAL,
	    "'%.60s' is not a volume name: 1 to 255 letters, digits, '.', '_', '-', not "
	    "starting with '.' or '-'",
	    name);
}

static int check_size(uint64_t *size, struct cpc_error *err)
{
	if (*size == 0 || *size > 1ull << 63)
		return cpc_pool_fail(err, -EINVAL, "size must be 1 byte to 8 EiB");
	*size = cpc_min_u64(*size, CPC_VOLUME_SIZE_MAX);
	return 0;
}

/*
 * The device did not take it. If the change is there, a later flush, or a crash, decides whether it
 * stays. If it is not there, nothing has changed; but a record whose write failed may have landed
 * in one of its copies: then the pool is read-only, and the next opening decides.
 */
static int not_durable(struct cpc_pool *pool, struct cpc_error *err, int ret, const char *what,
		       const char *name, bool applied)
{
	const char *how = applied ? "is done but could not be made durable" : "failed";

	if (!applied && cpc_engine_broken(pool->engine, NULL, 0))
		how = "may have failed, the pool's next opening will show it";
	return cpc_pool_fail(err, ret, "%s of '%s' %s: %s", what, name, how,
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
	struct cpc_pool_entry *entry = cpc_pool_entry_new(item->name, item->id);
	int ret = entry ? cpc_pool_table_reserve(pool) : -ENOMEM;
	bool applied = false;

	if (ret) {
		if (entry)
			cpc_pool_entry_free(entry);
		return cpc_pool_fail(err, ret, "out of memory");
	}
	/* An id is used up even if this fails, and before a commit can meet the volume. */
	cpc_engine_set_next_volume(pool->engine, ++pool->next_volume);
	ret = cpc_engine_create_volume(pool->engine, item, &entry->vol, &applied);
	if (applied)
		cpc_pool_table_insert(pool, entry);
	else
		cpc_pool_entry_free(entry);
	return ret ? not_durable(pool, err, ret, "creation", item->name, applied) : 0;
}

static int create_locked(struct cpc_pool *pool, const char *name, uint64_t size,
			 struct cpc_error *err)
{
	struct cpc_volume_item item;
	int ret = may_change(pool, err);

	if (ret)
		return ret;
	if (cpc_pool_find(pool, name))
		return cpc_pool_fail(err, -EEXIST, "volume '%s' exists already", name);
	if (pool->nr >= CPC_MAX_VOLUMES || pool->next_volume >= UINT32_MAX)
		return cpc_pool_fail(err, -ENOSPC, "the pool has no room for more volumes");
	ret = make_room_for_name(pool);
	if (ret == -ENOSPC)
		return cpc_pool_fail(err, ret, "the pool is full: trim or delete something first");
	if (ret)
		return not_durable(pool, err, ret, "creation", name, false);
	if (create_item(pool, name, size, &item))
		return cpc_pool_fail(err, -EIO, "no random numbers for a uuid");
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
	struct cpc_pool_entry *entry;
	struct cpc_volume *vol;
	bool applied = false;
	char *fresh;
	int ret = may_change(pool, err);

	if (ret)
		return ret;
	entry = cpc_pool_find(pool, old_name);
	if (!entry)
		return cpc_pool_fail(err, -ENOENT, "no volume '%.200s'", old_name);
	if (cpc_pool_find(pool, new_name))
		return cpc_pool_fail(err, -EEXIST, "volume '%s' exists already", new_name);
	fresh = cpc_pool_copy_name(new_name);
	if (!fresh)
		return cpc_pool_fail(err, -ENOMEM, "out of memory");
	ret = cpc_pool_wake(pool, entry, &vol);
	if (!ret)
		ret = cpc_engine_rename(vol, new_name, &applied);
	cpc_free(applied ? cpc_pool_table_rename(pool, entry, fresh) : fresh);
	return ret ? not_durable(pool, err, ret, "renaming", old_name, applied) : 0;
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
static int close_door(struct cpc_pool *pool, struct cpc_pool_entry *entry, const char *what,
		      struct cpc_error *err)
{
	uint32_t open;

	cpc_mutex_lock(&pool->table_lock);
	open = entry->open;
	entry->closing = !open;
	cpc_mutex_unlock(&pool->table_lock);
	if (!open)
		return 0;
	return cpc_pool_fail(err, -EBUSY,
			     "volume '%s' cannot be %s: %u client connection%s it open",
			     entry->name, what, open, open == 1 ? " has" : "s have");
}

static void open_door(struct cpc_pool *pool, struct cpc_pool_entry *entry)
{
	cpc_mutex_lock(&pool->table_lock);
	entry->closing = false;
	cpc_mutex_unlock(&pool->table_lock);
}

static int delete_locked(struct cpc_pool *pool, const char *name, struct cpc_error *err)
{
	struct cpc_pool_entry *entry;
	struct cpc_volume *vol;
	bool applied = false;
	int ret = may_change(pool, err);

	if (ret)
		return ret;
	entry = cpc_pool_find(pool, name);
	if (!entry)
		return cpc_pool_fail(err, -ENOENT, "no volume '%.200s'", name);
	ret = close_door(pool, entry, "deleted", err);
	if (ret)
		return ret;
	ret = cpc_pool_wake(pool, entry, &vol);
	if (!ret)
		ret = cpc_engine_delete(vol, &applied);
	if (applied) {
		cpc_pool_table_remove(pool, entry);
		cpc_pool_entry_free(entry);
	} else {
		open_door(pool, entry);
	}
	return ret ? not_durable(pool, err, ret, "deletion", name, applied) : 0;
}

int cpc_pool_delete(struct cpc_pool *pool, const char *name, struct cpc_error *err)
{
	int ret;

	cpc_mutex_lock(&pool->names_lock);
	ret = delete_locked(pool, name, err);
	cpc_mutex_unlock(&pool->names_lock);
	return ret;
}

static int shrink(struct cpc_pool *pool, struct cpc_pool_entry *entry, uint64_t size,
		  struct cpc_error *err)
{
	int ret = close_door(pool, entry, "shrunk", err);
	struct cpc_volume *vol;
	bool applied = false;

	if (ret)
		return ret;
	ret = cpc_pool_wake(pool, entry, &vol);
	if (!ret)
		ret = cpc_engine_truncate(vol, size, &applied);
	open_door(pool, entry);
	return ret ? not_durable(pool, err, ret, "shrinking", entry->name, applied) : 0;
}

static int resize_locked(struct cpc_pool *pool, const char *name, uint64_t size, bool may_shrink,
			 struct cpc_error *err)
{
	struct cpc_pool_entry *entry;
	struct cpc_volume_item item;
	struct cpc_volume *vol;
	bool applied = false;
	uint64_t used;
	int ret = may_change(pool, err);

	if (ret)
		return ret;
	entry = cpc_pool_find(pool, name);
	if (!entry)
		return cpc_pool_fail(err, -ENOENT, "no volume '%.200s'", name);
	cpc_pool_entry_item(pool, entry, &item, &used);
	if (size == item.size)
		return 0;
	if (size < item.size && !may_shrink)
		return cpc_pool_fail(
		    err, -EINVAL,
		    "volume '%s' has %llu bytes; making it smaller loses what lies "
		    "behind, ask for it with --shrink",
		    name, (unsigned long long)item.size);
	if (size < item.size)
		return shrink(pool, entry, size, err);
	ret = cpc_pool_wake(pool, entry, &vol);
	if (!ret)
		ret = cpc_engine_grow(vol, size, &applied);
	return ret ? not_durable(pool, err, ret, "growing", name, applied) : 0;
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
