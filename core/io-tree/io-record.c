/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Records: where they come from, the list and the index.
 *
 * A record is a cache line out of a chunk. Chunks are allocated without tree->lock, before the
 * call that needs spares has changed anything, and stay until the tree is destroyed: a volume's
 * tree breathes with its dirty set, and the next breath needs the same records again.
 *
 * Records are in a list by address, which makes neighbours, looked at by every merge, one load
 * away. Every sixteenth or so is in the index as well, a red-black tree by address, which leads a
 * search (io-search.c) to where the list is worth walking.
 *
 * Why only some are indexed, and why by dice: hardly a search needs the index, but a record in it
 * costs two or three cache misses when it comes and as many when it goes. The dice begin at a
 * clock's value, so a client cannot place its records where no indexed one is.
 *
 * The clear of everything, which is how a cut takes over what is dirty, walks the chunks instead
 * of the list: records lie in memory in another order than in the volume, and what stays (what is
 * locked) is put together anew.
 *
 * Rejected: every record in the index (in the live server searches and rebalancing took twice the
 * time, docs/performance.md); a B+-tree (a trim of the indexed end must walk to its key, which made
 * trims with a cached record slower by more than the search gained).
 */
#include "lib/hooks.h"
#include "io-tree/io-finger.h"
#include "io-tree/io-tree-internal.h"

enum {
	CHUNK_SMALL = 4096 / sizeof(struct cpc_io_state) - 1,
	CHUNK_LARGE = 65536 / sizeof(struct cpc_io_state) - 1,
};

static bool is_red(const struct cpc_io_state *rec)
{
	return rec && (rec->flags & CPC_IO_REC_RED);
}

static void set_red(struct cpc_io_state *rec, bool red)
{
	rec->flags = (rec->flags & ~CPC_IO_REC_RED) | (red ? CPC_IO_REC_RED : 0);
}

/* Puts `new` (may be NULL) where `old` hangs. */
static void replace(struct cpc_io_tree *tree, struct cpc_io_state *old, struct cpc_io_state *new)
{
	struct cpc_io_state *parent = old->parent;

	if (!parent)
		tree->root = new;
	else
		parent->child[parent->child[1] == old] = new;
	if (new)
		new->parent = parent;
}

/* Moves `x` down to side `dir`, its child from the other side up. */
static void rotate(struct cpc_io_tree *tree, struct cpc_io_state *x, int dir)
{
	struct cpc_io_state *y = x->child[!dir];

	x->child[!dir] = y->child[dir];
	if (y->child[dir])
		y->child[dir]->parent = x;
	replace(tree, x, y);
	y->child[dir] = x;
	x->parent = y;
}

/* Restores the colours above the new red node `n`. */
static void insert_fixup(struct cpc_io_tree *tree, struct cpc_io_state *n)
{
	while (is_red(n->parent)) {
		struct cpc_io_state *p = n->parent, *g = p->parent;
		int dir = p == g->child[1];
		struct cpc_io_state *uncle = g->child[!dir];

		if (is_red(uncle)) {
			set_red(p, false);
			set_red(uncle, false);
			set_red(g, true);
			n = g;
			continue;
		}
		if (n == p->child[!dir]) {
			rotate(tree, p, dir);
			p = n;
		}
		set_red(p, false);
		set_red(g, true);
		rotate(tree, g, !dir);
		break;
	}
	set_red(tree->root, false);
}

/* Moves colour towards `x`, which lacks one black, from below its sibling. */
static void borrow_black(struct cpc_io_tree *tree, struct cpc_io_state *parent,
			 struct cpc_io_state *s, int dir)
{
	if (!is_red(s->child[!dir])) {
		set_red(s->child[dir], false);
		set_red(s, true);
		rotate(tree, s, !dir);
		s = parent->child[!dir];
	}
	set_red(s, is_red(parent));
	set_red(parent, false);
	set_red(s->child[!dir], false);
	rotate(tree, parent, dir);
}

/* Restores the black height below `parent`, where the subtree `x` (may be NULL) lacks one. */
static void erase_fixup(struct cpc_io_tree *tree, struct cpc_io_state *x,
			struct cpc_io_state *parent)
{
	while (x != tree->root && !is_red(x)) {
		int dir = x == parent->child[1];
		struct cpc_io_state *s = parent->child[!dir];

		if (is_red(s)) {
			set_red(s, false);
			set_red(parent, true);
			rotate(tree, parent, dir);
			s = parent->child[!dir];
		}
		if (is_red(s->child[0]) || is_red(s->child[1])) {
			borrow_black(tree, parent, s, dir);
			return;
		}
		set_red(s, true);
		x = parent;
		parent = x->parent;
	}
	if (x)
		set_red(x, false);
}

/* Puts the successor `y` of `z`, which has two children, in its place. Returns as unlink(). */
static struct cpc_io_state *replace_by_next(struct cpc_io_tree *tree, struct cpc_io_state *z,
					    struct cpc_io_state *y, struct cpc_io_state **parentp)
{
	struct cpc_io_state *x = y->child[1];

	*parentp = y;
	if (y->parent != z) {
		*parentp = y->parent;
		replace(tree, y, x);
		y->child[1] = z->child[1];
		y->child[1]->parent = y;
	}
	replace(tree, z, y);
	y->child[0] = z->child[0];
	y->child[0]->parent = y;
	return x;
}

static struct cpc_io_state *leftmost(struct cpc_io_state *rec)
{
	while (rec->child[0])
		rec = rec->child[0];
	return rec;
}

static void index_remove(struct cpc_io_tree *tree, struct cpc_io_state *z)
{
	struct cpc_io_state *x, *parent, *y;
	bool red = is_red(z);

	if (cpc_likely(!(z->flags & CPC_IO_REC_INDEXED)))
		return;
	if (z->child[0] && z->child[1]) {
		y = leftmost(z->child[1]);
		red = is_red(y);
		x = replace_by_next(tree, z, y, &parent);
		set_red(y, is_red(z));
	} else {
		x = z->child[z->child[0] ? 0 : 1];
		parent = z->parent;
		replace(tree, z, x);
	}
	if (!red)
		erase_fixup(tree, x, parent);
}

/* A xorshift generator (Marsaglia, 2003). */
static bool throw_dice(struct cpc_io_tree *tree)
{
	tree->dice ^= tree->dice << 13;
	tree->dice ^= tree->dice >> 7;
	tree->dice ^= tree->dice << 17;
	return !(tree->dice >> 32 & (CPC_IO_INDEX_EVERY - 1));
}

/* Puts `rec` into the index, or not: the dice say. */
static void index_add(struct cpc_io_tree *tree, struct cpc_io_state *rec)
{
	struct cpc_io_state *parent = NULL, **link = &tree->root;

	if (cpc_likely(!throw_dice(tree)))
		return;
	while (*link) {
		parent = *link;
		link = &parent->child[parent->start < rec->start];
	}
	*link = rec;
	rec->parent = parent;
	rec->child[0] = rec->child[1] = NULL;
	rec->flags |= CPC_IO_REC_INDEXED;
	set_red(rec, true);
	insert_fixup(tree, rec);
}

static void list_link(struct cpc_io_tree *tree, struct cpc_io_state *rec, struct cpc_io_state *prev,
		      struct cpc_io_state *next)
{
	rec->prev = prev;
	rec->next = next;
	*(prev ? &prev->next : &tree->first) = rec;
	*(next ? &next->prev : &tree->last) = rec;
}

static void list_unlink(struct cpc_io_tree *tree, struct cpc_io_state *rec)
{
	*(rec->prev ? &rec->prev->next : &tree->first) = rec->next;
	*(rec->next ? &rec->next->prev : &tree->last) = rec->prev;
}

static void set_spares(struct cpc_io_tree *tree, struct cpc_io_state *rec)
{
	__atomic_store_n(&tree->spares, rec, __ATOMIC_RELAXED);
}

static void add_spare(struct cpc_io_tree *tree, struct cpc_io_state *rec)
{
	rec->next = tree->spares;
	set_spares(tree, rec);
	tree->stats.spares++;
}

/* Takes in what was released without tree->lock. */
static void take_returned(struct cpc_io_tree *tree)
{
	struct cpc_io_state *rec, *next;

	rec = __atomic_exchange_n(&tree->returned, NULL, __ATOMIC_ACQUIRE);
	for (; rec; rec = next) {
		next = rec->next;
		add_spare(tree, rec);
	}
}

static void add_chunk(struct cpc_io_tree *tree, struct cpc_io_chunk *chunk)
{
	struct cpc_io_state *rec = (struct cpc_io_state *)chunk;
	size_t nr = chunk->size / sizeof(*rec);

	chunk->next = tree->chunks;
	tree->chunks = chunk;
	tree->stats.chunks++;
	tree->stats.memory += chunk->size;
	while (--nr > 0)
		add_spare(tree, &rec[nr]);
}

static struct cpc_io_chunk *alloc_chunk(uint64_t nr)
{
	size_t size = (nr + 1) * sizeof(struct cpc_io_state);
	struct cpc_io_chunk *chunk = cpc_alloc_aligned(sizeof(struct cpc_io_state), size);

	if (chunk) {
		memset(chunk, 0, size);
		chunk->size = size;
	}
	return chunk;
}

int cpc_io_record_refill(struct cpc_io_op *op, uint64_t need, bool *dropped)
{
	struct cpc_io_tree *tree = op->tree;
	struct cpc_io_chunk *chunk;
	struct cpc_io_fingers *fingers = NULL;
	uint64_t nr, slots;
	unsigned shift;

	take_returned(tree);
	if (tree->stats.spares >= need)
		return 0;

	nr = tree->stats.records > 1024 ? CHUNK_LARGE : CHUNK_SMALL;
	nr = cpc_max_u64(nr, need);
	slots = cpc_io_fingers_wanted(tree, &shift);
	*dropped = true;
	cpc_mutex_unlock(&tree->lock);
	chunk = alloc_chunk(nr);
	if (slots)
		fingers = cpc_io_fingers_alloc(slots, shift);
	cpc_mutex_lock(&tree->lock);
	if (fingers)
		cpc_io_fingers_install(tree, fingers);
	if (chunk)
		add_chunk(tree, chunk);
	if (tree->stopped)
		return -EIO;
	return chunk ? 0 : -ENOMEM;
}

int cpc_io_record_insert(struct cpc_io_op *op, struct cpc_io_state *next, uint64_t start,
			 uint64_t end, uint32_t bits, struct cpc_io_state **recp)
{
	struct cpc_io_tree *tree = op->tree;
	struct cpc_io_state *prev = next ? next->prev : tree->last;
	struct cpc_io_state *rec = tree->spares;

	if (cpc_unlikely(!rec))
		return cpc_io_fatal(op, prev, "no spare record was reserved");
	if (cpc_unlikely(rec->flags & CPC_IO_REC_IN_TREE))
		return cpc_io_fatal(op, rec, "insert of a record that is in the tree");
	if (cpc_unlikely(start >= end || (prev && prev->end > start)))
		return cpc_io_fatal(op, prev, "insert over the record on the left");
	if (cpc_unlikely(next && next->start < end))
		return cpc_io_fatal(op, next, "insert over the record on the right");

	set_spares(tree, rec->next);
	tree->stats.spares--;
	tree->stats.records++;
	tree->stats.inserts++;
	*rec = (struct cpc_io_state){
	    .start = start,
	    .end = end,
	    .bits = bits,
	    .refs = 1,
	    .flags = CPC_IO_REC_IN_TREE,
	};
	list_link(tree, rec, prev, next);
	index_add(tree, rec);
	cpc_io_finger_enter(tree, rec);
	*recp = rec;
	return 0;
}

/* A record that is in the tree no longer. */
static void retire(struct cpc_io_tree *tree, struct cpc_io_state *rec)
{
	tree->stats.records--;
	tree->stats.erases++;
	rec->flags = 0;
	if (--rec->refs == 0)
		add_spare(tree, rec);
}

int cpc_io_record_erase(struct cpc_io_op *op, struct cpc_io_state *rec)
{
	struct cpc_io_tree *tree = op->tree;

	if (cpc_unlikely(!(rec->flags & CPC_IO_REC_IN_TREE)))
		return cpc_io_fatal(op, rec, "erase of a record outside the tree");
	if (cpc_unlikely(rec->flags & CPC_IO_REC_WAITERS))
		return cpc_io_fatal(op, rec, "erase of a record with sleepers");

	cpc_io_finger_leave(tree, rec);
	index_remove(tree, rec);
	list_unlink(tree, rec);
	retire(tree, rec);
	return 0;
}

/* Puts back in a record that a sweep has left, into a tree that has only such. */
static void restore(struct cpc_io_tree *tree, struct cpc_io_state *rec)
{
	struct cpc_io_state *next = cpc_io_record_descend(tree, rec->start);

	rec->flags &= ~(CPC_IO_REC_INDEXED | CPC_IO_REC_RED);
	list_link(tree, rec, next ? next->prev : tree->last, next);
	index_add(tree, rec);
	cpc_io_finger_enter(tree, rec);
}

/* Builds list, index and fingers from what a sweep has left. */
static int rebuild(struct cpc_io_op *op, struct cpc_io_state *left)
{
	struct cpc_io_tree *tree = op->tree;
	struct cpc_io_state *rec, *next;
	int err = 0;

	tree->root = tree->first = tree->last = NULL;
	cpc_io_fingers_empty(tree);
	for (rec = left; rec; rec = next) {
		next = rec->next;
		restore(tree, rec);
	}
	for (rec = tree->first; rec && !err; rec = next) {
		next = rec->next;
		if (cpc_unlikely(rec->prev && rec->prev->end > rec->start))
			return cpc_io_fatal(op, rec, "records overlap after a sweep");
		err = cpc_io_record_merge_left(op, rec);
	}
	return err;
}

int cpc_io_record_sweep(struct cpc_io_op *op,
			int (*change)(struct cpc_io_op *op, struct cpc_io_state *rec))
{
	struct cpc_io_tree *tree = op->tree;
	struct cpc_io_state *left = NULL, *rec;
	struct cpc_io_chunk *chunk;
	uint64_t nr = tree->stats.records;
	int err;

	tree->stats.sweeps++;
	cpc_io_for_each_record (tree, chunk, rec) {
		err = change(op, rec);
		if (cpc_unlikely(err))
			return err;
		nr--;
		if (!rec->bits) {
			retire(tree, rec);
			continue;
		}
		rec->next = left;
		left = rec;
	}
	if (cpc_unlikely(nr))
		return cpc_io_fatal(op, NULL, "a sweep met more or fewer records than there are");
	return rebuild(op, left);
}

int cpc_io_record_split(struct cpc_io_op *op, struct cpc_io_state *rec, uint64_t pos,
			struct cpc_io_state **tailp)
{
	uint64_t end = rec->end;
	int err;

	if (cpc_unlikely(!(rec->flags & CPC_IO_REC_IN_TREE)))
		return cpc_io_fatal(op, rec, "split of a record outside the tree");
	if (cpc_unlikely(pos <= rec->start || pos >= end))
		return cpc_io_fatal(op, rec, "split at no inner point of the record");

	rec->end = pos;
	err = cpc_io_record_insert(op, rec->next, pos, end, rec->bits, tailp);
	if (cpc_unlikely(err))
		return err;
	op->tree->stats.splits++;
	if (cpc_unlikely(rec->flags & CPC_IO_REC_WAITERS))
		cpc_io_move_sleepers(op->tree, rec, *tailp, pos, end);
	return 0;
}

int cpc_io_record_join(struct cpc_io_op *op, struct cpc_io_state *rec)
{
	struct cpc_io_state *prev = rec->prev;

	if (cpc_unlikely(!(prev->flags & CPC_IO_REC_IN_TREE)))
		return cpc_io_fatal(op, prev, "merge with a record outside the tree");
	if (cpc_unlikely(rec->flags & CPC_IO_REC_WAITERS))
		cpc_io_move_sleepers(op->tree, rec, prev, rec->start, rec->end);
	prev->end = rec->end;
	op->tree->stats.merges++;
	return cpc_io_record_erase(op, rec);
}

int cpc_io_record_put(struct cpc_io_op *op, struct cpc_io_state *rec)
{
	bool in_tree = rec->flags & CPC_IO_REC_IN_TREE;

	if (cpc_unlikely(rec->refs < 1u + in_tree))
		return cpc_io_fatal(op, rec, "a cached reference was dropped twice");
	if (--rec->refs == 0)
		op->released = rec;
	return 0;
}

void cpc_io_record_free_released(struct cpc_io_op *op)
{
	struct cpc_io_state *rec = op->released;
	struct cpc_io_state *head = __atomic_load_n(&op->tree->returned, __ATOMIC_RELAXED);

	do {
		rec->next = head;
	} while (!__atomic_compare_exchange_n(&op->tree->returned, &head, rec, true,
					      __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

void cpc_io_record_free_chunks(struct cpc_io_tree *tree)
{
	struct cpc_io_chunk *chunk = tree->chunks, *next;

	for (; chunk; chunk = next) {
		next = chunk->next;
		cpc_free(chunk);
	}
	tree->chunks = NULL;
	cpc_io_fingers_free(tree);
}
