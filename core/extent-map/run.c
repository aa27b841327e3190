/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * run: sorted arrays instead of a tree.
 *
 * A run never changes, so it needs no locks, no node pointers and no room to grow: 24 bytes a
 * mapping and 4 a checksum, which is what the memory bound of a pool is spent on.
 *
 * Normal path: a read bisects the entries of one to a few runs. The bisection has no branch that
 * depends on data and fetches both possible next probes ahead, because in a run of half a million
 * entries nearly every probe misses the cache. A finished cut streams through the builder.
 *
 * Slow path: a merge. It keeps one cursor a run, in the order of where they stand. As long as the
 * first one's entry ends before the second begins, entries are copied whole; where runs overlap, it
 * goes on by elementary segments, which a run covers wholly or not at all. What a merge drops is
 * told in a second walk over the same input: the first one may run out of memory, the second
 * cannot, and no list of drops needs memory. It is left out when the first walk met no overlap.
 *
 * Rejected: scanning for the lowest cursor (measured no faster, and a segment needs the order), one
 * allocation for entries and checksums (the builder does not know their ratio).
 */
#include "extent-map/run.h"

#include "format/format.h"
#include "lib/hooks.h"

/* --- references ----------------------------------------------------------------------------- */

struct cpc_run *cpc_run_get(struct cpc_run *run)
{
	atomic_fetch_add_explicit(&run->refs, 1, memory_order_relaxed);
	return run;
}

static void run_free(struct cpc_run *run)
{
	cpc_free(run->entries);
	cpc_free(run->csums);
	cpc_free(run);
}

void cpc_run_put(struct cpc_run *run)
{
	uint32_t refs;

	if (!run)
		return;
	refs = atomic_fetch_sub_explicit(&run->refs, 1, memory_order_acq_rel);
	cpc_assert(refs > 0);
	if (refs == 1)
		run_free(run);
}

size_t cpc_run_bytes(const struct cpc_run *run)
{
	return run->bytes;
}

/* --- lookup --------------------------------------------------------------------------------- */

/* Cuts entry `e` to begin at `block`, which lies inside, and to at most `max` blocks. */
static inline void mapping_from_entry(const struct cpc_run *run, const struct cpc_run_entry *e,
				      uint64_t block, uint64_t max, struct cpc_mapping *m)
{
	uint64_t skip = block - e->block;

	m->block = block;
	m->nr = cpc_min_u64(cpc_run_entry_len(e) - skip, max);
	m->bytenr = e->bytenr ? e->bytenr + (skip << CPC_BLOCK_SHIFT) : 0;
	m->csums = e->bytenr ? run->csums + e->csum + skip : NULL;
}

static inline void mapping_gap(struct cpc_mapping *m, uint64_t block, uint64_t nr)
{
	m->block = block;
	m->nr = nr;
	m->bytenr = 0;
	m->csums = NULL;
}

/* Number of entries that begin at or before `block`. */
static inline size_t bisect(const struct cpc_run *run, uint64_t block)
{
	const struct cpc_run_entry *base = run->entries;
	size_t n = run->nr_entries;

	if (n == 0)
		return 0;
	while (n > 1) {
		size_t half = n / 2;

		__builtin_prefetch(base + half / 2);
		__builtin_prefetch(base + half + half / 2);
		base = base[half].block <= block ? base + half : base;
		n -= half;
	}
	return (size_t)(base - run->entries) + (base->block <= block);
}

bool cpc_run_lookup(const struct cpc_run *run, uint64_t block, uint64_t max, struct cpc_mapping *m)
{
	size_t i = bisect(run, block);

	if (i > 0) {
		const struct cpc_run_entry *e = &run->entries[i - 1];

		if (block - e->block < cpc_run_entry_len(e)) {
			mapping_from_entry(run, e, block, max, m);
			return true;
		}
	}
	if (i < run->nr_entries)
		max = cpc_min_u64(max, run->entries[i].block - block);
	mapping_gap(m, block, max);
	return false;
}

bool cpc_runs_lookup(struct cpc_run *const *runs, size_t nr, uint64_t block, uint64_t max,
		     struct cpc_mapping *m)
{
	for (size_t i = 0; i < nr; i++) {
		if (cpc_run_lookup(runs[i], block, max, m))
			return true;
		max = m->nr;
	}
	mapping_gap(m, block, max);
	return false;
}

void cpc_run_iter_init(struct cpc_run_iter *it, const struct cpc_run *run, uint64_t block)
{
	it->run = run;
	it->start = block;
	it->next = bisect(run, block);
	if (it->next > 0) {
		const struct cpc_run_entry *e = &run->entries[it->next - 1];

		if (block - e->block < cpc_run_entry_len(e))
			it->next--;
	}
}

bool cpc_run_iter_next(struct cpc_run_iter *it, struct cpc_mapping *m)
{
	const struct cpc_run_entry *e;

	if (it->next == it->run->nr_entries)
		return false;
	e = &it->run->entries[it->next++];
	mapping_from_entry(it->run, e, cpc_max_u64(e->block, it->start), UINT64_MAX, m);
	return true;
}

/* --- building ------------------------------------------------------------------------------- */

/* Gives `*array` room for `capacity` elements; keeps the first `used`. */
static int resize_array(void **array, size_t used, size_t capacity, size_t size)
{
	void *bigger = NULL;

	if (capacity > 0) {
		bigger = cpc_alloc_array(capacity, size);
		if (!bigger)
			return -ENOMEM;
		if (used > 0)
			memcpy(bigger, *array, used * size);
	}
	cpc_free(*array);
	*array = bigger;
	return 0;
}

static int set_entry_capacity(struct cpc_run_builder *b, size_t capacity)
{
	void *array = b->run->entries;
	int err = resize_array(&array, b->run->nr_entries, capacity, sizeof(struct cpc_run_entry));

	if (err)
		return err;
	b->run->entries = array;
	b->entry_capacity = capacity;
	return 0;
}

static int set_csum_capacity(struct cpc_run_builder *b, size_t capacity)
{
	void *array = b->run->csums;
	int err = resize_array(&array, b->run->nr_csums, capacity, sizeof(uint32_t));

	if (err)
		return err;
	b->run->csums = array;
	b->csum_capacity = capacity;
	return 0;
}

void cpc_run_builder_init(struct cpc_run_builder *b, size_t entries, size_t csums)
{
	memset(b, 0, sizeof(*b));
	b->run = cpc_zalloc(sizeof(*b->run));
	if (!b->run) {
		b->error = -ENOMEM;
		return;
	}
	atomic_init(&b->run->refs, 1);
	b->error = set_entry_capacity(b, entries);
	if (!b->error)
		b->error = set_csum_capacity(b, csums);
}

/* Makes room for one entry and `csums` checksums. Sets b->error. */
static void builder_grow(struct cpc_run_builder *b, size_t csums)
{
	const struct cpc_run *run = b->run;

	if (run->nr_entries == b->entry_capacity)
		b->error = set_entry_capacity(b, b->entry_capacity * 2 + 16);
	if (!b->error && run->nr_csums + csums > b->csum_capacity)
		b->error = set_csum_capacity(b, (run->nr_csums + csums) * 2);
	if (!b->error && run->nr_csums + csums > UINT32_MAX)
		b->error = -ENOMEM;
}

static inline struct cpc_run_entry *builder_last(const struct cpc_run_builder *b)
{
	return b->run->nr_entries ? &b->run->entries[b->run->nr_entries - 1] : NULL;
}

static inline void assert_above(const struct cpc_run_entry *last, uint64_t block, uint64_t nr)
{
	cpc_assert(block + nr >= block);
	cpc_assert(!last ||
		   (block >= last->block && block - last->block >= cpc_run_entry_len(last)));
}

/* True when data of `nr` blocks at `block` can become part of `last`. */
static inline bool continues(const struct cpc_run_entry *last, uint64_t block, uint32_t nr,
			     uint64_t bytenr)
{
	return last && last->bytenr && last->block + last->nr == block &&
	       last->bytenr + ((uint64_t)last->nr << CPC_BLOCK_SHIFT) == bytenr &&
	       last->nr + nr <= CPC_EXTENT_MAX_BLOCKS;
}

/* Adds at most CPC_EXTENT_MAX_BLOCKS blocks of data. */
static inline void builder_map_piece(struct cpc_run_builder *b, uint64_t block, uint32_t nr,
				     uint64_t bytenr, const uint32_t *csums)
{
	struct cpc_run *run = b->run;
	struct cpc_run_entry *last;

	if (cpc_unlikely(run->nr_entries == b->entry_capacity ||
			 run->nr_csums + nr > cpc_min_u64(b->csum_capacity, UINT32_MAX))) {
		builder_grow(b, nr);
		if (b->error)
			return;
	}
	last = builder_last(b);
	assert_above(last, block, nr);
	if (continues(last, block, nr, bytenr)) {
		last->nr += nr;
	} else {
		run->entries[run->nr_entries++] = (struct cpc_run_entry){
		    .block = block, .bytenr = bytenr, .nr = nr, .csum = (uint32_t)run->nr_csums};
	}
	if (nr == 1)
		run->csums[run->nr_csums] = csums[0];
	else
		memcpy(run->csums + run->nr_csums, csums, nr * sizeof(*csums));
	run->nr_csums += nr;
	run->data_blocks += nr;
}

void cpc_run_builder_map(struct cpc_run_builder *b, uint64_t block, uint64_t nr, uint64_t bytenr,
			 const uint32_t *csums)
{
	cpc_assert(bytenr != 0 && bytenr % CPC_BLOCK_SIZE == 0);
	while (nr > 0 && !b->error) {
		uint32_t piece = (uint32_t)cpc_min_u64(nr, CPC_EXTENT_MAX_BLOCKS);

		builder_map_piece(b, block, piece, bytenr, csums);
		block += piece;
		bytenr += (uint64_t)piece << CPC_BLOCK_SHIFT;
		csums += piece;
		nr -= piece;
	}
}

static inline void set_hole_len(struct cpc_run_entry *e, uint64_t len)
{
	e->nr = (uint32_t)len;
	e->csum = (uint32_t)(len >> 32);
}

void cpc_run_builder_hole(struct cpc_run_builder *b, uint64_t block, uint64_t nr)
{
	struct cpc_run_entry *last;

	if (nr == 0 || b->error)
		return;
	last = builder_last(b);
	assert_above(last, block, nr);
	if (last && !last->bytenr && last->block + cpc_run_entry_len(last) == block) {
		set_hole_len(last, cpc_run_entry_len(last) + nr);
		return;
	}
	if (b->run->nr_entries == b->entry_capacity) {
		builder_grow(b, 0);
		if (b->error)
			return;
	}
	last = &b->run->entries[b->run->nr_entries++];
	*last = (struct cpc_run_entry){.block = block};
	set_hole_len(last, nr);
}

/* Gives back capacity when an eighth or more is unused; without memory for it, keeps what it has.
 */
static void builder_trim(struct cpc_run_builder *b)
{
	struct cpc_run *run = b->run;

	if (b->entry_capacity - run->nr_entries > b->entry_capacity / 8)
		(void)set_entry_capacity(b, run->nr_entries);
	if (b->csum_capacity - run->nr_csums > b->csum_capacity / 8)
		(void)set_csum_capacity(b, run->nr_csums);
	run->bytes = sizeof(*run) + b->entry_capacity * sizeof(*run->entries) +
		     b->csum_capacity * sizeof(*run->csums);
}

int cpc_run_builder_finish(struct cpc_run_builder *b, struct cpc_run **out)
{
	int err = b->error;

	if (err) {
		cpc_run_builder_abort(b);
		return err;
	}
	builder_trim(b);
#ifdef CPC_DEBUG_LOCKS
	cpc_run_check(b->run);
#endif
	*out = b->run;
	b->run = NULL;
	return 0;
}

void cpc_run_builder_abort(struct cpc_run_builder *b)
{
	if (b->run)
		run_free(b->run);
	b->run = NULL;
}

/* --- merge ---------------------------------------------------------------------------------- */

/* Where a merge stands in one run: [start, stop) is what is left of entry `e`. */
struct cursor {
	uint64_t start, stop; /* UINT64_MAX at the end of the run */
	const struct cpc_run_entry *e, *end;
	const uint32_t *csums; /* of the run */
};

struct merge {
	struct cursor *cursors; /* one a run, the newest first */
	struct cursor **order;	/* the same by (start, age): order[0] is next */
	size_t nr;
	struct cpc_run_builder *b; /* first walk, else NULL */
	bool overlap;		   /* two data entries covered one block */
	cpc_run_drop_fn drop;	   /* second walk */
	void *ctx;
	uint64_t drop_bytenr, drop_nr; /* gathered, not yet told */
};

static inline void cursor_open(struct cursor *c)
{
	if (c->e == c->end) {
		c->start = c->stop = UINT64_MAX;
		return;
	}
	c->start = c->e->block;
	c->stop = c->e->block + cpc_run_entry_len(c->e);
}

/* The pool address of the first block left in the cursor's entry, 0 in a hole. */
static inline uint64_t cursor_bytenr(const struct cursor *c)
{
	return c->e->bytenr ? c->e->bytenr + ((c->start - c->e->block) << CPC_BLOCK_SHIFT) : 0;
}

/* Adds the first `nr` blocks left in the cursor's entry to the result. */
static inline void emit(struct merge *m, const struct cursor *c, uint64_t nr)
{
	uint64_t bytenr = cursor_bytenr(c);

	if (!m->b || m->b->error)
		return;
	if (!bytenr)
		cpc_run_builder_hole(m->b, c->start, nr);
	else
		builder_map_piece(m->b, c->start, (uint32_t)nr, bytenr,
				  c->csums + c->e->csum + (c->start - c->e->block));
}

static inline void cursor_advance(struct cursor *c, uint64_t nr)
{
	c->start += nr;
	if (c->start == c->stop) {
		c->e++;
		cursor_open(c);
	}
}

static void tell_drop(struct merge *m)
{
	if (m->drop_nr)
		m->drop(m->ctx, m->drop_bytenr, m->drop_nr);
	m->drop_nr = 0;
}

static void drop_range(struct merge *m, uint64_t bytenr, uint64_t nr)
{
	if (m->drop_nr && m->drop_bytenr + (m->drop_nr << CPC_BLOCK_SHIFT) == bytenr) {
		m->drop_nr += nr;
		return;
	}
	tell_drop(m);
	m->drop_bytenr = bytenr;
	m->drop_nr = nr;
}

/* True when a cursor before `order[i]` maps the block where both stand to the same place. */
static bool repeated(const struct merge *m, size_t i)
{
	uint64_t bytenr = cursor_bytenr(m->order[i]);

	for (size_t j = 0; j < i; j++) {
		if (cursor_bytenr(m->order[j]) == bytenr)
			return true;
	}
	return false;
}

/* Handles that `order[i]` maps `nr` blocks for which a newer run speaks. */
static void covered(struct merge *m, size_t i, uint64_t nr)
{
	uint64_t bytenr = cursor_bytenr(m->order[i]);

	if (!bytenr)
		return;
	m->overlap = true;
	if (m->drop && !m->b && !repeated(m, i))
		drop_range(m, bytenr, nr);
}

static inline bool before(const struct cursor *a, const struct cursor *b)
{
	return a->start < b->start || (a->start == b->start && a < b);
}

/* Moves order[i] up to where it belongs; all above it are in order. */
static inline void reorder(struct merge *m, size_t i)
{
	struct cursor *c = m->order[i];

	for (; i + 1 < m->nr && before(m->order[i + 1], c); i++)
		m->order[i] = m->order[i + 1];
	m->order[i] = c;
}

/* Where order[i] begins; the end of everything when there is none. */
static inline uint64_t start_of(const struct merge *m, size_t i)
{
	return i < m->nr ? m->order[i]->start : UINT64_MAX;
}

/* Takes one elementary segment, which the first cursors of the order cover. */
static void merge_segment(struct merge *m)
{
	uint64_t pos = m->order[0]->start, end = m->order[0]->stop;
	size_t n;

	for (n = 1; start_of(m, n) == pos; n++)
		end = cpc_min_u64(end, m->order[n]->stop);
	end = cpc_min_u64(end, start_of(m, n));
	emit(m, m->order[0], end - pos);
	for (size_t i = 1; i < n; i++)
		covered(m, i, end - pos);
	while (n-- > 0) {
		cursor_advance(m->order[n], end - pos);
		reorder(m, n);
	}
}

/* Takes entries of the first cursor whole that end at or before `limit`, where another begins. */
static inline void merge_alone(struct merge *m, uint64_t limit)
{
	struct cursor *c = m->order[0];

	do {
		emit(m, c, c->stop - c->start);
		c->e++;
		cursor_open(c);
	} while (c->stop <= limit && c->e != c->end);
	reorder(m, 0);
}

static void merge_walk(struct merge *m)
{
	while (start_of(m, 0) != UINT64_MAX && !(m->b && m->b->error)) {
		uint64_t limit = start_of(m, 1);

		if (m->order[0]->stop <= limit)
			merge_alone(m, limit);
		else
			merge_segment(m);
	}
}

static void merge_start(struct merge *m, struct cpc_run *const *runs)
{
	for (size_t i = m->nr; i-- > 0;) {
		struct cursor *c = &m->cursors[i];

		c->e = runs[i]->entries;
		c->end = runs[i]->entries + runs[i]->nr_entries;
		c->csums = runs[i]->csums;
		cursor_open(c);
		m->order[i] = c;
		reorder(m, i);
	}
}

static int merge_build(struct merge *m, struct cpc_run *const *runs, struct cpc_run **out)
{
	struct cpc_run_builder b;
	size_t entries = 0, csums = 0;

	for (size_t i = 0; i < m->nr; i++) {
		entries += runs[i]->nr_entries;
		csums += runs[i]->nr_csums;
	}
	cpc_run_builder_init(&b, entries, csums);
	m->b = &b;
	merge_start(m, runs);
	merge_walk(m);
	m->b = NULL;
	return cpc_run_builder_finish(&b, out);
}

int cpc_run_merge(struct cpc_run *const *runs, size_t nr, struct cpc_run **out,
		  cpc_run_drop_fn drop, void *ctx)
{
	struct merge m = {.nr = nr, .drop = drop, .ctx = ctx};
	int err;

	if (nr == 1) {
		*out = cpc_run_get(runs[0]);
		return 0;
	}
	m.cursors = cpc_alloc_array(nr + 1, sizeof(*m.cursors) + sizeof(*m.order));
	if (!m.cursors)
		return -ENOMEM;
	m.order = (struct cursor **)(m.cursors + nr + 1);
	err = merge_build(&m, runs, out);
	if (!err && drop && m.overlap) {
		merge_start(&m, runs);
		merge_walk(&m);
		tell_drop(&m);
	}
	cpc_free(m.cursors);
	return err;
}

/* --- checks --------------------------------------------------------------------------------- */

static void check_entry(const struct cpc_run *run, const struct cpc_run_entry *e, size_t *csums)
{
	cpc_assert(cpc_run_entry_len(e) > 0);
	cpc_assert(e->block + cpc_run_entry_len(e) > e->block);
	if (!e->bytenr)
		return;
	cpc_assert(e->bytenr % CPC_BLOCK_SIZE == 0 && e->nr <= CPC_EXTENT_MAX_BLOCKS);
	cpc_assert(e->csum == *csums);
	*csums += e->nr;
}

void cpc_run_check(const struct cpc_run *run)
{
	size_t csums = 0;

	for (size_t i = 0; i < run->nr_entries; i++) {
		const struct cpc_run_entry *e = &run->entries[i];

		check_entry(run, e, &csums);
		cpc_assert(i == 0 || e[-1].block + cpc_run_entry_len(&e[-1]) <= e->block);
	}
	cpc_assert(csums == run->nr_csums && csums == run->data_blocks);
}
