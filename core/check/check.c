/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * check: the whole of it: superblocks, then one walk that marks every block it meets, then the
 * bitmaps against the marks, then the log, whose blocks must not be marked yet.
 *
 * `seen` answers three questions at once: is a block named twice (the walk), what is reachable (the
 * bitmaps), has this node been walked already (ending on any image). Nodes of the free-log tree
 * are noted apart, since no bitmap has them.
 *
 * Volume names are compared by a 64-bit hash each, sorted at the end: 16 bytes a volume whatever
 * the names are. That two names of one pool differ and hash alike will not happen by chance, and
 * an image made for it is reported wrongly, which is all that it gains.
 */
#include "check/check-internal.h"

#include <inttypes.h>
#include <stdlib.h>

#include "lib/hooks.h"

struct name_hash {
	uint64_t hash, id;
};

struct checker {
	struct cpc_backing *backing;
	const struct cpc_check_options *opts;
	struct cpc_check_result *result;
	struct cpc_super super;
	struct cpc_geometry geo;
	struct cpc_findings findings;
	struct cpc_blockset seen, log_nodes;
	struct cpc_bitmaps bitmaps;
	struct cpc_data_batch data;
	struct name_hash *names;	   /* of the first CPC_MAX_VOLUMES */
	uint64_t volume_blocks;		   /* size of the volume that is being walked */
	uint64_t done, told;		   /* blocks, for progress */
	struct cpc_check_collect *collect; /* NULL: only look */
	bool incomplete, free_log_incomplete;
	int error; /* of marking; ends the walk at the next item */
};

static void advance(struct checker *c, uint64_t blocks)
{
	c->done += blocks;
	if (!c->opts->progress || c->done - c->told < 1024)
		return;
	c->told = c->done;
	c->opts->progress(c->opts->ctx, c->done, cpc_max_u64(c->done, c->super.used_blocks));
}

/* --- superblocks --- */

struct slots {
	struct cpc_disk_super *disk; /* buffer */
	uint64_t transid[2][CPC_SUPER_SLOTS];
	const char *why[2][CPC_SUPER_SLOTS]; /* what is wrong; NULL: nothing */
};

/* Return: NULL, or what is wrong with the slot; *transid is 0 where there is no superblock. */
static const char *judge_slot(struct checker *c, struct slots *s, unsigned ring, uint32_t slot)
{
	uint64_t bytenr = cpc_geometry_super(&c->geo, ring, slot);
	uint64_t *transid = &s->transid[ring][slot];
	const char *why = "cannot be read";
	struct cpc_super super;
	int ret;

	*transid = 0;
	if (cpc_backing_read(c->backing, bytenr, s->disk, sizeof(*s->disk)))
		return why;
	if (cpc_all_zero(s->disk, sizeof(*s->disk)))
		return slot == c->super.slot ? "the newest superblock is not here" : NULL;
	ret = cpc_super_decode(&super, s->disk, slot, cpc_backing_size(c->backing), &why);
	if (ret)
		return why;
	if (memcmp(super.uuid, c->super.uuid, CPC_UUID_SIZE) != 0)
		return "belongs to another pool";
	if (super.total_bytes != c->super.total_bytes || super.log_size != c->super.log_size ||
	    super.nodesize != c->super.nodesize || super.incompat != c->super.incompat)
		return "sizes differ from the newest superblock's";
	*transid = super.transid;
	if (slot == c->super.slot && super.transid != c->super.transid)
		return "the newest superblock is not here";
	return NULL;
}

/*
 * The newest superblock is copied from the other ring. Any other slot is of no use to anybody, and
 * pieces of a superblock in it are a danger: wiped.
 */
static void bad_slot(struct checker *c, struct slots *s, unsigned ring, uint32_t slot)
{
	struct cpc_fix fix = {
	    .kind = CPC_DAMAGE_SUPER,
	    .to = cpc_geometry_super(&c->geo, ring, slot),
	    .from = CPC_FIX_WIPE,
	    .len = CPC_BLOCK_SIZE,
	    .what = s->why[ring][slot],
	};

	c->result->supers_bad++;
	if (slot == c->super.slot) {
		fix.from = cpc_geometry_super(&c->geo, !ring, slot);
		cpc_super_encode(s->disk, &c->super);
	}
	cpc_finding_fix(&c->findings, c->collect ? &c->collect->fixes : NULL, &fix, s->disk,
			"superblock ring %u slot %u", ring, slot);
}

static void check_transids(struct checker *c, const struct slots *s)
{
	for (unsigned i = 0; i < 2 * CPC_SUPER_SLOTS; i++) {
		for (unsigned j = 0; j < i; j++) {
			uint64_t a = s->transid[i / CPC_SUPER_SLOTS][i % CPC_SUPER_SLOTS];
			uint64_t b = s->transid[j / CPC_SUPER_SLOTS][j % CPC_SUPER_SLOTS];

			if (a && a == b && i % CPC_SUPER_SLOTS != j % CPC_SUPER_SLOTS)
				cpc_finding(&c->findings, "transid %" PRIu64 " stands in two slots",
					    a);
		}
	}
}

static int check_supers(struct checker *c)
{
	struct slots s;

	s.disk = cpc_alloc_aligned(CPC_BLOCK_SIZE, sizeof(*s.disk));
	if (!s.disk)
		return -ENOMEM;
	for (unsigned ring = 0; ring < 2; ring++) {
		for (uint32_t slot = 0; slot < CPC_SUPER_SLOTS; slot++)
			s.why[ring][slot] = judge_slot(c, &s, ring, slot);
	}
	for (unsigned ring = 0; ring < 2; ring++) {
		for (uint32_t slot = 0; slot < CPC_SUPER_SLOTS; slot++) {
			if (s.why[ring][slot])
				bad_slot(c, &s, ring, slot);
		}
	}
	check_transids(c, &s);
	cpc_free(s.disk);
	return 0;
}

/* --- marking --- */

/* Return: false when a block of the range has been named before (reported), or without memory. */
static bool mark(struct checker *c, uint64_t bytenr, uint64_t nr, uint64_t owner, const char *what)
{
	uint64_t block = bytenr >> CPC_BLOCK_SHIFT, before = c->seen.nr_blocks;

	if (!c->error)
		c->error = cpc_blockset_add(&c->seen, block, nr);
	if (c->error)
		return false;
	if (c->seen.nr_blocks - before == nr)
		return true;
	cpc_finding(&c->findings,
		    "tree %" PRIu64 ": %s at %" PRIu64 ": blocks that something else names too",
		    owner, what, bytenr);
	return false;
}

static bool visit_node(void *ctx, uint64_t owner, const struct cpc_node_ptr *ptr)
{
	struct checker *c = ctx;
	uint64_t nr = c->geo.nodesize >> CPC_BLOCK_SHIFT;
	bool fresh = true;

	c->result->nodes++;
	for (unsigned i = 0; i < c->geo.copies; i++) {
		fresh &= mark(c, ptr->bytenr[i], nr, owner, "node");
		if (owner == CPC_TREE_FREE_LOG && !c->error)
			c->error =
			    cpc_blockset_add(&c->log_nodes, ptr->bytenr[i] >> CPC_BLOCK_SHIFT, nr);
	}
	advance(c, nr * c->geo.copies);
	return fresh;
}

static int visit_extent(void *ctx, const struct cpc_extent_ref *ref)
{
	struct checker *c = ctx;

	mark(c, ref->bytenr, ref->nr, ref->owner, "data");
	if (ref->dropped || c->error)
		return c->error;
	c->result->data_blocks += ref->nr;
	if (ref->key + ref->nr > c->volume_blocks)
		cpc_finding(&c->findings,
			    "tree %" PRIu64 ": block %" PRIu64 " lies beyond the volume's end",
			    ref->owner, ref->key);
	if (c->opts->data)
		cpc_data_batch_add(&c->data, ref);
	advance(c, ref->nr);
	return 0;
}

/* --- volumes --- */

static uint64_t hash_name(const char *name)
{
	uint64_t hash = 0xcbf29ce484222325u;

	for (; *name; name++)
		hash = (hash ^ (uint8_t)*name) * 0x100000001b3u;
	return hash;
}

static int visit_volume(void *ctx, const struct cpc_volume_item *item)
{
	struct checker *c = ctx;
	uint64_t nr = c->result->volumes++;

	c->volume_blocks = cpc_div_round_up(item->size, CPC_BLOCK_SIZE);
	if (nr == CPC_MAX_VOLUMES)
		cpc_finding(&c->findings, "more than %u volumes", CPC_MAX_VOLUMES);
	if (nr < CPC_MAX_VOLUMES)
		c->names[nr] = (struct name_hash){hash_name(item->name), item->id};
	return c->error;
}

static int by_hash(const void *a, const void *b)
{
	const struct name_hash *x = a, *y = b;

	if (x->hash != y->hash)
		return x->hash < y->hash ? -1 : 1;
	return x->id < y->id ? -1 : x->id > y->id;
}

static void check_names(struct checker *c)
{
	size_t nr = (size_t)cpc_min_u64(c->result->volumes, CPC_MAX_VOLUMES);

	if (nr)
		qsort(c->names, nr, sizeof(*c->names), by_hash);
	for (size_t i = 1; i < nr; i++) {
		if (c->names[i - 1].hash == c->names[i].hash)
			cpc_finding(&c->findings,
				    "volumes %" PRIu64 " and %" PRIu64 " have the same name",
				    c->names[i - 1].id, c->names[i].id);
	}
}

/* --- the rest of the walk --- */

static int visit_group(void *ctx, uint64_t group, const struct cpc_disk_group *item)
{
	struct checker *c = ctx;

	return c->error ? c->error : cpc_bitmaps_load(&c->bitmaps, group, item);
}

static int visit_free_log(void *ctx, uint64_t key, const struct cpc_disk_free_log *item,
			  uint32_t nr_entries)
{
	struct checker *c = ctx;

	return c->error ? c->error : cpc_bitmaps_replay(&c->bitmaps, key, item, nr_entries);
}

static int walk(struct checker *c)
{
	static const struct cpc_pool_visitor visitor = {
	    .node = visit_node,
	    .volume = visit_volume,
	    .extent = visit_extent,
	    .group = visit_group,
	    .free_log = visit_free_log,
	};
	struct cpc_pool_walk w = {
	    .backing = c->backing,
	    .super = &c->super,
	    .geo = &c->geo,
	    .visitor = &visitor,
	    .ctx = c,
	    .findings = &c->findings,
	    .fixes = c->collect ? &c->collect->fixes : NULL,
	    .both_copies = true,
	};
	int ret = cpc_walk_pool(&w);

	c->result->nodes_bad = w.nodes_bad;
	c->incomplete |= w.incomplete;
	c->free_log_incomplete = w.free_log_incomplete;
	return ret ? ret : c->error;
}

/* After the bitmaps have been compared, which know nothing of what only the log names. */
static int check_log(struct checker *c)
{
	struct cpc_log_check lc = {
	    .findings = &c->findings,
	    .named = &c->seen,
	    .data = c->opts->data ? &c->data : NULL,
	    .fixes = c->collect ? &c->collect->fixes : NULL,
	    .roll_back = c->collect && c->collect->roll_back,
	};
	int ret = cpc_check_log(&lc, c->backing, &c->super, &c->geo);

	c->result->log_records = lc.records;
	c->result->log_bad = lc.bad;
	c->incomplete |= lc.lost;
	return ret;
}

/* --- what is to be rebuilt --- */

static bool must_rebuild(const struct checker *c, uint64_t group)
{
	const struct cpc_check_group *g = &c->bitmaps.groups[group];

	if (g->bad || g->wrong)
		return true;
	return c->free_log_incomplete && (g->bitmap || cpc_blockset_group(&c->seen, group));
}

static int add_rebuilt(struct checker *c, uint64_t group)
{
	struct cpc_rebuilt *rebuilt = &c->collect->rebuilt;
	uint8_t *bitmap = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);

	if (!bitmap)
		return -ENOMEM;
	cpc_bitmaps_want(&c->geo, group, &c->seen, c->free_log_incomplete ? NULL : &c->log_nodes,
			 bitmap);
	rebuilt->groups[rebuilt->nr++] = (struct cpc_rebuilt_group){group, bitmap};
	return 0;
}

/* Before the log has added its blocks to what is reachable. */
static int collect_rebuilt(struct checker *c)
{
	struct cpc_rebuilt *rebuilt = &c->collect->rebuilt;
	int ret = 0;

	rebuilt->groups = cpc_alloc_array(c->geo.nr_groups, sizeof(*rebuilt->groups));
	if (!rebuilt->groups)
		return -ENOMEM;
	rebuilt->free_log_lost = c->free_log_incomplete;
	for (uint64_t g = 0; !ret && g < c->geo.nr_groups; g++) {
		if (must_rebuild(c, g))
			ret = add_rebuilt(c, g);
	}
	c->collect->rebuild = rebuilt->nr > 0 || c->bitmaps.used_wrong || c->free_log_incomplete;
	return ret;
}

void cpc_check_collect_destroy(struct cpc_check_collect *collect)
{
	for (size_t i = 0; i < collect->rebuilt.nr; i++)
		cpc_free(collect->rebuilt.groups[i].bitmap);
	cpc_free(collect->rebuilt.groups);
	cpc_fixes_destroy(&collect->fixes);
}

/* --- the whole --- */

static int init(struct checker *c)
{
	int ret;

	c->findings.report = c->opts->report;
	c->findings.ctx = c->opts->ctx;
	cpc_blockset_init(&c->seen, c->geo.nr_groups);
	cpc_blockset_init(&c->log_nodes, c->geo.nr_groups);
	c->names = cpc_alloc_array(CPC_MAX_VOLUMES, sizeof(*c->names));
	if (!c->names)
		return -ENOMEM;
	ret = cpc_bitmaps_init(&c->bitmaps, c->backing, &c->super, &c->geo, &c->findings);
	if (ret)
		goto out_names;
	c->bitmaps.fixes = c->collect ? &c->collect->fixes : NULL;
	ret = cpc_data_batch_init(&c->data, c->backing, &c->findings);
	if (ret)
		goto out_bitmaps;
	return 0;

out_bitmaps:
	cpc_bitmaps_destroy(&c->bitmaps);
out_names:
	cpc_free(c->names);
	return ret;
}

static void destroy(struct checker *c)
{
	cpc_data_batch_destroy(&c->data);
	cpc_bitmaps_destroy(&c->bitmaps);
	cpc_free(c->names);
	cpc_blockset_destroy(&c->seen);
	cpc_blockset_destroy(&c->log_nodes);
}

static int run(struct checker *c)
{
	int ret = check_supers(c);

	if (!ret)
		ret = walk(c);
	if (!ret) {
		check_names(c);
		cpc_bitmaps_compare(&c->bitmaps, &c->seen, &c->log_nodes);
		ret = c->collect ? collect_rebuilt(c) : 0;
	}
	if (!ret)
		ret = check_log(c);
	if (!ret && c->collect)
		c->collect->cannot_rebuild = c->incomplete;
	if (!ret)
		cpc_data_batch_run(&c->data);
	c->result->data_bad = c->data.bad;
	c->result->leaked_blocks = c->bitmaps.leaked;
	c->result->errors = c->findings.errors;
	if (c->opts->progress)
		c->opts->progress(c->opts->ctx, c->done, c->done);
	return ret;
}

static int find_super(struct checker *c, const char **why)
{
	int ret = cpc_super_find(c->backing, &c->super, why);

	if (ret && ret != -ENOMEM && c->collect && c->collect->found) {
		c->super = *c->collect->found;
		ret = 0;
	}
	return ret;
}

int cpc_check(struct cpc_backing *backing, const struct cpc_check_options *opts,
	      struct cpc_check_result *result)
{
	return cpc_check_and_collect(backing, opts, result, NULL);
}

int cpc_check_and_collect(struct cpc_backing *backing, const struct cpc_check_options *opts,
			  struct cpc_check_result *result, struct cpc_check_collect *collect)
{
	struct checker *c = cpc_zalloc(sizeof(*c));
	const char *why;
	int ret;

	memset(result, 0, sizeof(*result));
	if (!c)
		return -ENOMEM;
	c->backing = backing;
	c->opts = opts;
	c->result = result;
	c->collect = collect;
	ret = find_super(c, &why);
	if (!ret)
		ret = cpc_geometry_init(&c->geo, c->super.total_bytes, c->super.log_size,
					c->super.nodesize, c->super.incompat & CPC_INCOMPAT_DUP);
	if (!ret)
		ret = init(c);
	if (!ret) {
		result->transid = c->super.transid;
		ret = run(c);
		destroy(c);
	} else if (opts->report) {
		opts->report(opts->ctx, ret == -ENOMEM ? "out of memory" : why);
	}
	cpc_free(c);
	return ret;
}
