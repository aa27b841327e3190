/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * view: what a volume maps, as one immutable object: runs, newest first, and the committed root.
 *
 * A change copies the current view (a few words a run), edits the copy and makes it current. Old
 * views stay in a list, oldest first, until their readers are gone; blocks freed by a commit are
 * pinned to the view that the commit replaced and released when it and all older ones are gone, for
 * an older reader may be on the same blocks.
 *
 * Runs are kept few by merging neighbours until each is at least twice as long as the newer one
 * beside it (the order of a log-structured merge): a block's entry is copied O(log n) times.
 * Only runs of finished cuts, or direct runs of one and the same epoch, are merged with each other,
 * so that a commit can take exactly the finished cuts. Pool blocks that a merge drops are kept
 * until the next commit (engine->dropped): a burned superblock may still name them.
 */
#include "volume/volume-internal.h"

#include "lib/mutation.h"

struct cpc_view *cpc_view_alloc(void)
{
	return cpc_zalloc(sizeof(struct cpc_view));
}

struct cpc_view *cpc_view_get(struct cpc_volume *vol)
{
	struct cpc_view *view;

	cpc_mutex_lock(&vol->view_lock);
	view = vol->view;
	view->refs++;
	cpc_mutex_unlock(&vol->view_lock);
	return view;
}

static void view_free(struct cpc_view *view)
{
	for (unsigned i = 0; i < view->nr; i++)
		cpc_run_put(view->runs[i].run);
	cpc_pins_put(view->pins);
	cpc_free(view);
}

/* Moves retired views without readers from the old end of the list to `gone`. */
static void collect_gone(struct cpc_volume *vol, struct cpc_list *gone)
{
	cpc_mutex_assert_held(&vol->view_lock);
	while (!cpc_list_empty(&vol->views)) {
		struct cpc_view *view = cpc_list_first(&vol->views, struct cpc_view, node);

		if (!view->retired || view->refs)
			break;
		cpc_list_del(&view->node);
		cpc_list_add_tail(gone, &view->node);
	}
}

static void free_gone(struct cpc_list *gone)
{
	while (!cpc_list_empty(gone)) {
		struct cpc_view *view = cpc_list_first(gone, struct cpc_view, node);

		cpc_list_del(&view->node);
		view_free(view);
	}
}

void cpc_view_put(struct cpc_volume *vol, struct cpc_view *view)
{
	struct cpc_list gone;

	cpc_list_init(&gone);
	cpc_mutex_lock(&vol->view_lock);
	cpc_assert(view->refs > 0);
	if (--view->refs == 0 && view->retired)
		collect_gone(vol, &gone);
	cpc_mutex_unlock(&vol->view_lock);
	free_gone(&gone);
}

void cpc_view_destroy_all(struct cpc_volume *vol)
{
	struct cpc_list gone;

	cpc_list_init(&gone);
	cpc_mutex_lock(&vol->view_lock);
	if (vol->view)
		vol->view->retired = true;
	vol->view = NULL;
	collect_gone(vol, &gone);
	cpc_assert(cpc_list_empty(&vol->views));
	cpc_mutex_unlock(&vol->view_lock);
	free_gone(&gone);
}

/* Copies the current view into `next`; view_lock is held. */
static void copy_current(struct cpc_volume *vol, struct cpc_view *next)
{
	const struct cpc_view *view = vol->view;

	if (!view)
		return;
	next->root = view->root;
	next->nr = view->nr;
	for (unsigned i = 0; i < view->nr; i++) {
		next->runs[i] = view->runs[i];
		cpc_run_get(next->runs[i].run);
	}
}

void cpc_view_replace(struct cpc_volume *vol, struct cpc_view *next, cpc_view_edit edit, void *ctx,
		      struct cpc_pins *pins)
{
	struct cpc_list gone;

	cpc_list_init(&gone);
	cpc_mutex_lock(&vol->view_lock);
	copy_current(vol, next);
	edit(next, ctx);
	if (vol->view) {
		vol->view->retired = true;
		vol->view->pins = pins;
		next->seq = vol->view->seq + 1;
	}
	vol->view = next;
	cpc_list_add_tail(&vol->views, &next->node);
	collect_gone(vol, &gone);
	cpc_mutex_unlock(&vol->view_lock);
	free_gone(&gone);
}

/* --- linking runs --- */

int cpc_view_reserve(struct cpc_volume *vol)
{
	for (;;) {
		bool room;
		int ret;

		cpc_mutex_lock(&vol->view_lock);
		room = vol->view->nr + vol->reserved_runs < CPC_VIEW_RUNS - 2;
		if (room)
			vol->reserved_runs++;
		cpc_mutex_unlock(&vol->view_lock);
		if (room)
			return 0;
		ret = cpc_view_compact(vol);
		if (ret)
			return ret;
	}
}

void cpc_view_unreserve(struct cpc_volume *vol)
{
	cpc_mutex_lock(&vol->view_lock);
	vol->reserved_runs--;
	cpc_mutex_unlock(&vol->view_lock);
}

struct link {
	struct cpc_volume *vol;
	struct cpc_view_run run;
};

/* True when `a` is newer than `b`. */
static bool newer(const struct cpc_view_run *a, const struct cpc_view_run *b)
{
	if (a->epoch != b->epoch)
		return a->epoch > b->epoch;
	return a->cut || !b->cut;
}

static void edit_link(struct cpc_view *next, void *ctx)
{
	struct link *link = ctx;
	unsigned at = 0;

	cpc_assert(next->nr < CPC_VIEW_RUNS);
	while (at < next->nr && !newer(&link->run, &next->runs[at]))
		at++;
	memmove(&next->runs[at + 1], &next->runs[at], (next->nr - at) * sizeof(next->runs[0]));
	next->runs[at] = link->run;
	next->nr++;
	link->vol->reserved_runs--;
}

static void count_run(struct cpc_engine *e, const struct cpc_run *run, int sign)
{
	uint64_t bytes = cpc_run_bytes(run);

	if (sign > 0) {
		atomic_fetch_add(&e->map_bytes, bytes);
		atomic_fetch_add(&e->map_entries, run->nr_entries);
	} else {
		atomic_fetch_sub(&e->map_bytes, bytes);
		atomic_fetch_sub(&e->map_entries, run->nr_entries);
	}
}

void cpc_view_link(struct cpc_volume *vol, struct cpc_view *next, struct cpc_run *run,
		   uint64_t epoch, bool cut)
{
	struct link link = {vol, {run, epoch, cut}};

	count_run(vol->engine, run, 1);
	cpc_view_replace(vol, next, edit_link, &link, NULL);
}

/* --- merging --- */

struct swap {
	unsigned from, nr; /* runs[from, from + nr) become one */
	struct cpc_view_run merged;
	struct cpc_run *first; /* the run at `from` when it was chosen */
};

/* Linking may have moved the runs down meanwhile, but they are still side by side. */
static void edit_swap(struct cpc_view *next, void *ctx)
{
	struct swap *swap = ctx;
	unsigned at = 0;

	while (at < next->nr && next->runs[at].run != swap->first)
		at++;
	cpc_assert(at + swap->nr <= next->nr);
	for (unsigned i = 0; i < swap->nr; i++)
		cpc_run_put(next->runs[at + i].run);
	next->runs[at] = swap->merged;
	memmove(&next->runs[at + 1], &next->runs[at + swap->nr],
		(next->nr - at - swap->nr) * sizeof(next->runs[0]));
	next->nr -= swap->nr - 1;
}

void cpc_view_drop(void *ctx, uint64_t bytenr, uint64_t nr_blocks)
{
	struct cpc_engine *e = ctx;

	if (CPC_MUTANT(merged_blocks_released_at_once) && e->log) {
		cpc_space_release(e->store->space, bytenr >> CPC_BLOCK_SHIFT, nr_blocks);
		return;
	}
	cpc_mutex_lock(&e->dropped_lock);
	if (cpc_blockset_add(&e->dropped, bytenr >> CPC_BLOCK_SHIFT, nr_blocks))
		cpc_warn("out of memory: %llu blocks stay unused until the next open",
			 (unsigned long long)nr_blocks);
	cpc_mutex_unlock(&e->dropped_lock);
}

/* Merges nr runs of `view` (held by the caller) from `from` on and publishes the result. */
static int merge(struct cpc_volume *vol, const struct cpc_view *view, unsigned from, unsigned nr,
		 cpc_run_drop_fn drop, void *drop_ctx, struct cpc_run **out)
{
	struct cpc_run *runs[CPC_VIEW_RUNS];
	struct cpc_view *next = cpc_view_alloc();
	struct swap swap = {.from = from, .nr = nr};
	int ret;

	if (!next)
		return -ENOMEM;
	for (unsigned i = 0; i < nr; i++)
		runs[i] = view->runs[from + i].run;
	ret = cpc_run_merge(runs, nr, &swap.merged.run, drop, drop_ctx);
	if (ret) {
		cpc_free(next);
		return ret;
	}
	swap.merged.epoch = view->runs[from].epoch;
	swap.merged.cut = view->runs[from].cut;
	swap.first = view->runs[from].run;
	count_run(vol->engine, swap.merged.run, 1);
	for (unsigned i = 0; i < nr; i++)
		count_run(vol->engine, runs[i], -1);
	if (out)
		*out = cpc_run_get(swap.merged.run);
	cpc_view_replace(vol, next, edit_swap, &swap, NULL);
	return 0;
}

/* Whether two neighbours may become one run. */
static bool mergeable(struct cpc_volume *vol, const struct cpc_view_run *a,
		      const struct cpc_view_run *b, uint64_t published)
{
	if (a->run == vol->frozen || b->run == vol->frozen)
		return false;
	/* a commit takes the runs up to freeze_epoch, and all of them */
	if (vol->freeze_epoch && a->epoch > vol->freeze_epoch && b->epoch <= vol->freeze_epoch)
		return false;
	if (a->epoch <= published)
		return true; /* b is older: finished too */
	return a->epoch == b->epoch && !a->cut && !b->cut;
}

/* Chooses runs to merge: from the newest, as long as the next is not twice as long as all so far.
 */
static unsigned choose(struct cpc_volume *vol, const struct cpc_view *view, unsigned *from,
		       bool any)
{
	uint64_t published = atomic_load(&vol->published);

	for (unsigned i = 0; i + 1 < view->nr; i++) {
		size_t size = view->runs[i].run->nr_entries;
		unsigned nr = 1;

		while (i + nr < view->nr &&
		       mergeable(vol, &view->runs[i + nr - 1], &view->runs[i + nr], published) &&
		       (any || view->runs[i + nr].run->nr_entries < 2 * size)) {
			size += view->runs[i + nr].run->nr_entries;
			nr++;
		}
		if (nr > 1) {
			*from = i;
			return nr;
		}
	}
	return 0;
}

/* Merging is kept away while a commit marks where it takes runs from. Return: whether it may go. */
static bool enter_merge(struct cpc_engine *e, bool wait)
{
	bool ok;

	cpc_mutex_lock(&e->merge_gate);
	while (wait && e->hold_merges)
		cpc_cond_wait(&e->merge_cond, &e->merge_gate);
	ok = !e->hold_merges;
	e->merging += ok;
	cpc_mutex_unlock(&e->merge_gate);
	return ok;
}

static void leave_merge(struct cpc_engine *e)
{
	cpc_mutex_lock(&e->merge_gate);
	if (--e->merging == 0)
		cpc_cond_broadcast(&e->merge_cond);
	cpc_mutex_unlock(&e->merge_gate);
}

void cpc_merges_hold(struct cpc_engine *e)
{
	cpc_mutex_lock(&e->merge_gate);
	e->hold_merges = true;
	while (e->merging)
		cpc_cond_wait(&e->merge_cond, &e->merge_gate);
	cpc_mutex_unlock(&e->merge_gate);
}

void cpc_merges_allow(struct cpc_engine *e)
{
	cpc_mutex_lock(&e->merge_gate);
	e->hold_merges = false;
	cpc_cond_broadcast(&e->merge_cond);
	cpc_mutex_unlock(&e->merge_gate);
}

/* With `any` one merge is made wherever one is possible, to get a free slot. */
static int compact(struct cpc_volume *vol, bool any)
{
	int ret = 0;

	if (!enter_merge(vol->engine, any))
		return 0;
	cpc_mutex_lock(&vol->merge_lock);
	while (!ret) {
		struct cpc_view *view = cpc_view_get(vol);
		unsigned from = 0, nr = choose(vol, view, &from, any);

		if (nr)
			ret = merge(vol, view, from, nr, cpc_view_drop, vol->engine, NULL);
		cpc_view_put(vol, view);
		if (!nr)
			break;
		any = false;
	}
	cpc_mutex_unlock(&vol->merge_lock);
	leave_merge(vol->engine);
	return ret;
}

int cpc_view_compact(struct cpc_volume *vol)
{
	bool full;

	cpc_mutex_lock(&vol->view_lock);
	full = vol->view->nr + vol->reserved_runs >= CPC_VIEW_RUNS - 2;
	cpc_mutex_unlock(&vol->view_lock);
	return compact(vol, full);
}

/* --- commit --- */

int cpc_view_freeze(struct cpc_volume *vol, cpc_run_drop_fn drop, void *ctx, struct cpc_run **run)
{
	struct cpc_view *view;
	unsigned from = 0;
	int ret = 0;

	*run = NULL;
	cpc_mutex_lock(&vol->merge_lock);
	cpc_assert(!vol->frozen);
	view = cpc_view_get(vol);
	while (from < view->nr && view->runs[from].epoch > vol->freeze_epoch &&
	       !CPC_MUTANT(commit_takes_the_open_cut))
		from++;
	if (view->nr - from == 1)
		*run = cpc_run_get(view->runs[from].run);
	else if (view->nr - from > 1)
		ret = merge(vol, view, from, view->nr - from, drop, ctx, run);
	cpc_view_put(vol, view);
	vol->frozen = *run;
	cpc_mutex_unlock(&vol->merge_lock);
	return ret;
}

struct thaw {
	struct cpc_run *run;
	const struct cpc_node_ptr *root;
};

static void edit_thaw(struct cpc_view *next, void *ctx)
{
	struct thaw *thaw = ctx;

	next->root = *thaw->root;
	if (!thaw->run)
		return;
	cpc_assert(next->nr && next->runs[next->nr - 1].run == thaw->run);
	cpc_run_put(thaw->run);
	next->nr--;
}

void cpc_view_thaw(struct cpc_volume *vol, struct cpc_view *next, struct cpc_run *run, bool durable,
		   const struct cpc_node_ptr *root, struct cpc_pins *pins)
{
	struct thaw thaw = {run, root};

	if (CPC_MUTANT(readers_pin_nothing)) {
		cpc_pins_put(pins);
		pins = NULL;
	}
	cpc_mutex_lock(&vol->merge_lock);
	cpc_assert(vol->frozen == run);
	vol->frozen = NULL;
	vol->freeze_epoch = 0;
	if (durable) {
		if (run)
			count_run(vol->engine, run, -1);
		cpc_view_replace(vol, next, edit_thaw, &thaw, pins);
	}
	cpc_mutex_unlock(&vol->merge_lock);
	cpc_run_put(run);
}

/* --- lookup --- */

struct walk {
	struct cpc_cursor cursor;
	bool started;
	uint32_t csums[CPC_EXTENT_MAX_BLOCKS];
};

/* What the committed tree says of `block`, cut to `max` blocks. */
static int map_tree(struct walk *w, uint64_t block, uint64_t max, struct cpc_mapping *m)
{
	struct cpc_cursor *c = &w->cursor;
	const struct cpc_disk_extent *extent;
	uint64_t skip;
	int ret = 0;

	if (!w->started)
		ret = cpc_cursor_seek(c, block);
	else if (c->valid && c->key + cpc_item_len(c->owner, c->size) <= block)
		ret = cpc_cursor_next(c);
	if (!ret && w->started && c->valid && c->key + cpc_item_len(c->owner, c->size) <= block)
		ret = cpc_cursor_seek(c, block);
	if (ret)
		return ret;
	w->started = true;
	*m = (struct cpc_mapping){.block = block, .nr = max};
	if (!c->valid)
		return 0;
	if (c->key > block) {
		m->nr = cpc_min_u64(max, c->key - block);
		return 0;
	}
	extent = c->value;
	skip = block - c->key;
	m->nr = cpc_min_u64(max, cpc_item_len(c->owner, c->size) - skip);
	m->bytenr = cpc_get_le64(&extent->bytenr) + (skip << CPC_BLOCK_SHIFT);
	for (uint64_t i = 0; i < m->nr; i++)
		w->csums[i] = cpc_get_le32(&extent->csum[skip + i]);
	m->csums = w->csums;
	return 0;
}

static int map_one(struct cpc_view *view, struct walk *w, uint64_t block, uint64_t max,
		   struct cpc_mapping *m)
{
	for (unsigned i = 0; i < view->nr; i++) {
		if (cpc_run_lookup(view->runs[i].run, block, max, m))
			return 0;
		max = m->nr;
	}
	return map_tree(w, block, max, m);
}

int cpc_view_map(struct cpc_volume *vol, struct cpc_view *view, uint64_t block, uint64_t nr,
		 cpc_mapping_fn fn, void *ctx)
{
	uint64_t end = block + nr;
	struct walk w;
	int ret = 0;

	w.started = false;
	cpc_cursor_init(&w.cursor, vol->engine->store->ebc, CPC_TREE_VOLUME_BASE + vol->item.id,
			&view->root);
	while (!ret && block < end) {
		struct cpc_mapping m;

		ret = map_one(view, &w, block, end - block, &m);
		if (ret)
			break;
		block += m.nr;
		ret = fn(ctx, &m);
	}
	cpc_cursor_release(&w.cursor);
	return ret;
}
