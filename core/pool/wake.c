/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * wake: a volume that nobody has asked for is an item and a name, some 200 bytes. What a volume
 * needs to be read and written, locks, view and io tree, has 3.5 KiB: it is made for the first
 * client or change of names, so that a hundred thousand volumes cost neither memory nor a place in
 * every commit until they are used.
 *
 * Who wakes makes the volume first and then says so: of two at a time one is later, and its volume,
 * which nobody has seen, goes again. So an opening waits for no change of names.
 *
 *   asleep (vol NULL, rest is the item) -- cpc_pool_wake --> awake (vol, rest means nothing)
 *
 * Nothing of a volume changes while it sleeps: its committed root neither, for only a commit of
 * the volume itself moves that.
 *
 * Rejected: reading the item from the root tree again: an opening would do I/O and could fail of
 * it.
 */
#include "pool/pool-internal.h"

#include <stdio.h>

#include "lib/mutation.h"

/* table_lock or names_lock is held. */
static void rested_item(const struct cpc_pool_entry *entry, struct cpc_volume_item *item)
{
	memset(item, 0, sizeof(*item));
	memcpy(item, &entry->rest, sizeof(entry->rest));
	snprintf(item->name, sizeof(item->name), "%s", entry->name);
}

struct cpc_pool_entry *cpc_pool_entry_asleep(const struct cpc_volume_item *item)
{
	struct cpc_pool_entry *entry = cpc_pool_entry_new(item->name, item->id);

	if (entry)
		memcpy(&entry->rest, item, sizeof(entry->rest));
	return entry;
}

/* The volume if it is awake, else NULL. */
static struct cpc_volume *awake(struct cpc_pool *pool, const struct cpc_pool_entry *entry)
{
	struct cpc_volume *vol;

	cpc_mutex_lock(&pool->table_lock);
	vol = entry->vol;
	cpc_mutex_unlock(&pool->table_lock);
	return vol;
}

int cpc_pool_wake(struct cpc_pool *pool, struct cpc_pool_entry *entry, struct cpc_volume **out)
{
	struct cpc_volume *fresh = NULL;
	struct cpc_volume_item item;
	int ret;

	cpc_mutex_lock(&pool->table_lock);
	*out = entry->vol;
	if (!*out)
		rested_item(entry, &item);
	cpc_mutex_unlock(&pool->table_lock);
	if (*out)
		return 0;
	ret = cpc_engine_wake_volume(pool->engine, &item, &fresh);
	if (ret)
		return ret;
	cpc_mutex_lock(&pool->table_lock);
	if (!entry->vol || CPC_MUTANT(woken_twice)) {
		entry->vol = fresh;
		fresh = NULL;
	}
	*out = entry->vol;
	cpc_mutex_unlock(&pool->table_lock);
	if (fresh)
		cpc_engine_put_to_sleep(fresh);
	return 0;
}

void cpc_pool_entry_item(struct cpc_pool *pool, const struct cpc_pool_entry *entry,
			 struct cpc_volume_item *item, uint64_t *used)
{
	struct cpc_volume *vol = awake(pool, entry);

	if (vol) {
		cpc_engine_get_item(vol, item);
		*used = cpc_engine_volume_used(vol);
	} else {
		rested_item(entry, item);
		*used = item->root.data_blocks << CPC_BLOCK_SHIFT;
	}
}
