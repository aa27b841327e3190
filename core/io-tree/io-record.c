/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Records: where they come from and how they are found.
 *
 * A record is a cache line out of a chunk. Chunks are allocated without tree->lock, before the
 * call that needs spares has changed anything, and stay until the tree is destroyed: a volume's
 * tree breathes with its dirty set, and the next breath needs the same records again.
 *
 * Records are in a red-black tree and in a list, both by address. The list makes neighbours,
 * which every merge looks at, one load away, and says where a new record hangs in the tree: at
 * the right of its left neighbour if nothing is there, else at the left of its right one (of two
 * adjacent nodes one is below the other). So a call searches once, or not at all with a cached
 * record; a search begins at a record near by, if the tree knows one (io-finger.h), else at the
 * root.
 *
 * Rejected: a B+-tree in place of the red-black tree. It has fewer cache misses in a search, but a
 * trim of the indexed end must walk to its key, which made trims with a cached record slower by
 * more than the search in a volume's tree (thousands of records) gained; see docs/performance.md.
 */
#include <stdlib.h>
#include "lib/hooks.h"
#include "io-tree/io-finger.h"
#include "io-tree/io-tree-internal.h"

/* Records are `records_of(chunk)`; the header takes a record's place. */
struct cpc_io_chunk {
	struct cpc_io_chunk *next;
	size_t size;
};

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

static void tree_erase(struct cpc_io_tree *tree, struct cpc_io_state *z)
{
	struct cpc_io_state *x, *parent, *y = z->next;
	bool red = is_red(z);

	if (z->child[0] && z->child[1]) {
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

static void tree_insert(struct cpc_io_tree *tree, struct cpc_io_state *rec)
{
	struct cpc_io_state *prev = rec->prev, *next = rec->next;

	rec->child[0] = rec->child[1] = NULL;
	if (prev && !prev->child[1]) {
		prev->child[1] = rec;
		rec->parent = prev;
	} else if (next) {
		next->child[0] = rec;
		rec->parent = next;
	} else {
		tree->root = rec;
		rec->parent = NULL;
	}
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

/* The first record that ends after `pos`, from the root. */
static struct cpc_io_state *descend(const struct cpc_io_tree *tree, uint64_t pos)
{
	struct cpc_io_state *node = tree->root, *found = NULL;

	while (node) {
		bool right = node->end <= pos;

		found = right ? found : node;
		node = node->child[right];
	}
	return found;
}

/* The same from `rec`, in a few steps. Returns false if it is further. */
static bool walk(struct cpc_io_state *rec, uint64_t pos, struct cpc_io_state **found)
{
	unsigned steps = CPC_IO_FINGER_STEPS;

	if (rec->end <= pos) {
		do {
			rec = rec->next;
		} while (rec && rec->end <= pos && --steps);
	} else {
		for (; rec->prev && rec->prev->end > pos && steps; steps--)
			rec = rec->prev;
	}
	*found = rec;
	return steps;
}

/* Larger or smaller regions, after enough searches that a finger did not help. */
static void adapt_fingers(struct cpc_io_tree *tree, bool too_far)
{
	tree->finger_balance += too_far ? 1 : -1;
	if (cpc_likely((uint64_t)labs(tree->finger_balance) <= tree->finger_mask))
		return;
	tree->finger_balance = 0;
	if (too_far && tree->finger_shift > 0)
		tree->finger_shift--;
	else if (!too_far && tree->finger_shift < CPC_IO_FINGER_SHIFT_MAX)
		tree->finger_shift++;
	memset(tree->fingers, 0, (tree->finger_mask + 1) * sizeof(*tree->fingers));
}

/* A record in the region of `pos` or the next or the previous one, or NULL. */
static struct cpc_io_state *nearby(const struct cpc_io_tree *tree, uint64_t pos)
{
	uint64_t size = UINT64_C(1) << tree->finger_shift;
	const uint64_t at[] = {pos, pos + size, pos - size};
	unsigned i;

	for (i = 0; i < CPC_ARRAY_SIZE(at); i++) {
		struct cpc_io_state *rec = *cpc_io_finger(tree, at[i]);

		if (rec && cpc_io_finger_same(tree, rec->start, at[i]))
			return rec;
	}
	return NULL;
}

struct cpc_io_state *cpc_io_record_seek(struct cpc_io_tree *tree, uint64_t pos)
{
	struct cpc_io_state *near, *found;

	if (!tree->fingers)
		return descend(tree, pos);
	near = nearby(tree, pos);
	if (near && walk(near, pos, &found)) {
		tree->stats.finger_hits++;
		return found;
	}
	tree->stats.finger_misses++;
	found = descend(tree, pos);
	if (found)
		cpc_io_finger_enter(tree, found);
	adapt_fingers(tree, near);
	return found;
}

static void add_spare(struct cpc_io_tree *tree, struct cpc_io_state *rec)
{
	rec->next = tree->spares;
	tree->spares = rec;
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

static void add_fingers(struct cpc_io_tree *tree, struct cpc_io_state **fingers)
{
	if (!fingers)
		return;
	tree->finger_mask = CPC_IO_FINGERS - 1;
	tree->fingers = fingers;
	tree->stats.memory += CPC_IO_FINGERS * sizeof(*fingers);
}

int cpc_io_record_refill(struct cpc_io_op *op, uint64_t need, bool *dropped)
{
	struct cpc_io_tree *tree = op->tree;
	struct cpc_io_chunk *chunk;
	struct cpc_io_state **fingers = NULL;
	bool want_fingers;
	uint64_t nr;

	take_returned(tree);
	if (tree->stats.spares >= need)
		return 0;

	nr = tree->stats.records > 1024 ? CHUNK_LARGE : CHUNK_SMALL;
	nr = cpc_max_u64(nr, need);
	want_fingers = !tree->fingers_tried && tree->stats.records >= CPC_IO_FINGERS_RECORDS;
	tree->fingers_tried |= want_fingers;
	*dropped = true;
	cpc_mutex_unlock(&tree->lock);
	chunk = alloc_chunk(nr);
	if (want_fingers)
		fingers = cpc_zalloc(CPC_IO_FINGERS * sizeof(*fingers));
	cpc_mutex_lock(&tree->lock);
	add_fingers(tree, fingers);
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

	tree->spares = rec->next;
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
	tree_insert(tree, rec);
	cpc_io_finger_enter(tree, rec);
	*recp = rec;
	return 0;
}

int cpc_io_record_erase(struct cpc_io_op *op, struct cpc_io_state *rec)
{
	struct cpc_io_tree *tree = op->tree;

	if (cpc_unlikely(!(rec->flags & CPC_IO_REC_IN_TREE)))
		return cpc_io_fatal(op, rec, "erase of a record outside the tree");
	if (cpc_unlikely(rec->flags & CPC_IO_REC_WAITERS))
		return cpc_io_fatal(op, rec, "erase of a record with sleepers");

	cpc_io_finger_leave(tree, rec);
	tree_erase(tree, rec);
	list_unlink(tree, rec);
	tree->stats.records--;
	tree->stats.erases++;
	rec->flags = 0;
	if (--rec->refs == 0)
		add_spare(tree, rec);
	return 0;
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
	cpc_free(tree->fingers);
	tree->fingers = NULL;
}
