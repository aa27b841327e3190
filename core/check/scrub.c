/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * scrub: the way through a pool in batches.
 *
 *   superblocks -> root tree -> free log -> for each item of the root tree: its bitmap or its tree,
 *   and the data below -> log
 *
 * Whatever the place, the next one is found again by key in the state that is then the newest.
 * Nothing is remembered but the key, so a volume may be deleted, or a drop list be freed, between
 * two batches.
 *
 * Rejected: holding one state for the whole scrub (hours, in which nothing that is freed can be
 * used again); comparing with the newest state after a mismatch (a copy could be healed from a node
 * that is no longer one).
 */
#include "check/scrub-internal.h"

#include <inttypes.h>
#include <stdio.h>

#include "lib/hooks.h"
#include "lib/log.h"
#include "lib/mutation.h"

/* --- batches --- */

void cpc_scrub_hold(struct scrub *s)
{
	cpc_store_hold(s->store, &s->hold);
	s->held_at = cpc_now_ns();
}

void cpc_scrub_release(struct scrub *s)
{
	uint64_t busy = cpc_now_ns() - s->held_at;

	cpc_store_unhold(s->store, &s->hold);
	if (s->opts->progress)
		s->opts->progress(s->opts->ctx, cpc_min_u64(s->done, s->total), s->total);
	if (s->opts->pause && s->opts->pause(s->opts->ctx, busy))
		s->stop = s->result->stopped = true;
}

void cpc_scrub_advance(struct scrub *s, uint64_t blocks)
{
	s->done += blocks;
}

/* --- damage --- */

void cpc_scrub_damage(struct scrub *s, struct cpc_damage *damage, const char *action)
{
	char line[CPC_DAMAGE_LINE];

	damage->repaired = !action;
	damage->action = action ? action : "repaired";
	if (damage->repaired)
		s->result->repaired++;
	else
		s->result->unrepaired++;
	cpc_damage_line(damage, line);
	cpc_warn("scrub: %s", line);
	if (s->opts->damage)
		s->opts->damage(s->opts->ctx, damage);
}

static int write_and_read_back(struct scrub *s, uint64_t bytenr, const void *good, size_t len)
{
	struct cpc_store *store = s->store;
	void *buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, len);
	int ret = buf ? 0 : -ENOMEM;

	if (!ret)
		ret = cpc_fe_write(&store->fe, bytenr, good, len, CPC_CAUSE_REPAIR, NULL);
	if (!ret)
		ret = cpc_flush_epoch_flush(&store->fe, CPC_FLUSH_REPAIR);
	if (!ret)
		ret = cpc_backing_read(store->backing, bytenr, buf, len);
	if (!ret && memcmp(buf, good, len) != 0 && !CPC_MUTANT(scrub_reads_nothing_back))
		ret = -EIO;
	cpc_free(buf);
	return ret;
}

void cpc_scrub_heal(struct scrub *s, struct cpc_damage *damage, const void *good, size_t len)
{
	int ret;

	atomic_fetch_add(&s->store->scrub_errors, 1);
	if (!good) {
		cpc_scrub_damage(s, damage, "not repaired: no good copy");
		return;
	}
	if (!s->opts->heal) {
		cpc_scrub_damage(s, damage, "not repaired: the pool is read-only");
		return;
	}
	ret = write_and_read_back(s, damage->bytenr, good, len);
	if (ret) {
		cpc_scrub_damage(s, damage,
				 ret == -ENOMEM
				     ? "not repaired: out of memory"
				     : "not repaired: the device does not keep what is written");
	} else {
		atomic_fetch_add(&s->store->scrub_healed, 1);
		cpc_scrub_damage(s, damage, NULL);
	}
}

static void bad_data(void *ctx, const struct cpc_data_entry *e, const char *what)
{
	struct scrub *s = ctx;
	struct cpc_damage d = {
	    .kind = CPC_DAMAGE_DATA,
	    .bytenr = e->bytenr,
	    .volume = s->volume,
	    .offset = e->block << CPC_BLOCK_SHIFT,
	    .what = what,
	};

	snprintf(d.where, sizeof(d.where), "volume %s, offset %" PRIu64, s->volume, d.offset);
	cpc_scrub_damage(s, &d, "not repaired: data has one copy");
}

/* --- the root tree's items --- */

struct item {
	uint64_t key;
	uint8_t value[CPC_ITEM_MAX_SIZE];
	uint32_t size;
};

/* The first item at or behind `key`; under a hold. Return: 1, 0 none, negative errno. */
static int next_item(struct scrub *s, uint64_t key, struct item *item)
{
	struct cpc_cursor c;
	int ret;

	cpc_cursor_init(&c, s->store->ebc, CPC_TREE_ROOT, &s->hold.super.root);
	ret = cpc_cursor_seek(&c, key);
	if (!ret && c.valid) {
		item->key = c.key;
		item->size = c.size;
		memcpy(item->value, c.value, c.size);
		ret = 1;
	}
	cpc_cursor_release(&c);
	return ret;
}

static int scrub_volume(struct scrub *s, const struct item *at)
{
	uint64_t id = at->key & CPC_KEY_ID_MASK;
	struct cpc_volume_item item;

	if (cpc_volume_item_decode(&item, id, at->value, at->size))
		return 0; /* the root tree's checksum is right: no damage but a bug, check says so
			   */
	memcpy(s->volume, item.name, sizeof(s->volume));
	return cpc_scrub_tree(s, at->key, CPC_TREE_VOLUME_BASE + id);
}

static int scrub_item(struct scrub *s, const struct item *item)
{
	const struct cpc_disk_drop *drop = (const void *)item->value;

	switch (item->key >> CPC_KEY_TYPE_SHIFT) {
	case CPC_ITEM_VOLUME:
		return scrub_volume(s, item);
	case CPC_ITEM_DROP:
		return cpc_scrub_tree(s, item->key, cpc_get_le64(&drop->owner));
	case CPC_ITEM_DEAD:
		return cpc_scrub_tree(s, item->key, CPC_TREE_DEAD);
	default:
		return 0;
	}
}

static int scrub_items(struct scrub *s)
{
	struct item item;
	uint64_t key = 0;
	int ret = 1;

	while (ret == 1 && !s->stop) {
		cpc_scrub_hold(s);
		ret = next_item(s, key, &item);
		if (ret == 1 && item.key >> CPC_KEY_TYPE_SHIFT == CPC_ITEM_GROUP)
			cpc_scrub_home(s, item.key & CPC_KEY_ID_MASK, (const void *)item.value);
		cpc_scrub_release(s);
		if (ret == 1) {
			key = item.key + 1;
			ret = scrub_item(s, &item);
			ret = ret ? ret : 1;
		}
	}
	/* A damaged root tree has been reported; what it names cannot be found. */
	return ret == -ENOMEM ? ret : 0;
}

/* --- the whole --- */

static int init(struct scrub *s)
{
	const struct cpc_geometry *geo = &s->store->geo;
	int ret = cpc_data_batch_init(&s->data, s->store->backing, &s->no_findings);

	if (ret)
		return ret;
	s->data.bad_block = bad_data;
	s->data.ctx = s;
	s->copy = cpc_alloc_aligned(CPC_BLOCK_SIZE, geo->nodesize);
	for (unsigned i = 0; i <= CPC_MAX_LEVEL; i++) {
		s->node[i] = cpc_alloc_aligned(CPC_BLOCK_SIZE, geo->nodesize);
		if (!s->node[i])
			ret = -ENOMEM;
	}
	cpc_mutex_lock(&s->store->lock);
	s->total =
	    s->store->super.used_blocks - (geo->nr_blocks - (geo->data_end - geo->data_start));
	cpc_mutex_unlock(&s->store->lock);
	return s->copy ? ret : -ENOMEM;
}

static void destroy(struct scrub *s)
{
	for (unsigned i = 0; i <= CPC_MAX_LEVEL; i++)
		cpc_free(s->node[i]);
	cpc_free(s->copy);
	cpc_data_batch_destroy(&s->data);
	cpc_free(s);
}

int cpc_scrub(struct cpc_store *store, struct cpc_log *log, const struct cpc_scrub_options *opts,
	      struct cpc_scrub_result *result)
{
	struct scrub *s = cpc_zalloc(sizeof(*s));
	int ret;

	memset(result, 0, sizeof(*result));
	if (!s)
		return -ENOMEM;
	s->store = store;
	s->log = log;
	s->opts = opts;
	s->result = result;
	ret = init(s);
	if (!ret)
		ret = cpc_scrub_supers(s);
	if (!ret)
		ret = cpc_scrub_tree(s, SCRUB_ROOT, CPC_TREE_ROOT);
	if (!ret)
		ret = cpc_scrub_tree(s, SCRUB_FREE_LOG, CPC_TREE_FREE_LOG);
	if (!ret)
		ret = scrub_items(s);
	if (!ret && !s->stop)
		ret = cpc_scrub_log(s);
	if (!ret && opts->progress)
		opts->progress(opts->ctx, s->total, s->total);
	destroy(s);
	return ret;
}
