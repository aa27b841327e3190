/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The structural check: invariants 1 to 4, 6 and 10 over the whole tree. Linear in records, times
 * sleepers; for tests, debugging and fault reports, not for the request path.
 */
#include <stdio.h>
#include "io-tree/io-finger.h"
#include "io-tree/io-tree-internal.h"

struct check {
	const struct cpc_io_tree *tree;
	const struct cpc_io_state *next; /* indexed one of the list; the index is walked in order */
	const char *broken;		 /* the first thing found */
};

static void expect(struct check *c, bool ok, const char *what)
{
	if (!ok && !c->broken)
		c->broken = what;
}

static const struct cpc_io_state *next_indexed(const struct cpc_io_state *rec)
{
	while (rec && !(rec->flags & CPC_IO_REC_INDEXED))
		rec = rec->next;
	return rec;
}

/* Returns the black height of the subtree. */
static unsigned check_subtree(struct check *c, const struct cpc_io_state *rec,
			      const struct cpc_io_state *parent)
{
	bool red;
	unsigned left, right;

	if (!rec || c->broken)
		return 1;
	red = rec->flags & CPC_IO_REC_RED;
	expect(c, rec->parent == parent, "wrong parent");
	expect(c, !(red && (!parent || (parent->flags & CPC_IO_REC_RED))), "red below red");
	left = check_subtree(c, rec->child[0], rec);
	expect(c, rec == c->next, "list and index differ");
	if (c->broken)
		return 1;
	c->next = next_indexed(rec->next);
	right = check_subtree(c, rec->child[1], rec);
	expect(c, left == right, "black heights differ");
	return left + !red;
}

static void check_record(struct check *c, const struct cpc_io_state *rec)
{
	const struct cpc_io_state *prev = rec->prev;

	expect(c, rec->flags & CPC_IO_REC_IN_TREE, "record not marked as in the tree");
	expect(c, rec->refs >= 1, "record without reference");
	expect(c, rec->start < rec->end && rec->end <= CPC_IO_TREE_END, "empty record");
	expect(c, rec->bits && !(rec->bits & ~CPC_IO_ALL), "record with no bits or unknown ones");
	if (!prev) {
		expect(c, c->tree->first == rec, "list does not begin at the first record");
		return;
	}
	expect(c, prev->next == rec, "list broken");
	expect(c, prev->end <= rec->start, "records overlap or are out of order");
	expect(c, prev->end < rec->start || prev->bits != rec->bits || (rec->bits & CPC_IO_LOCKED),
	       "neighbours not merged");
}

static void check_sleepers(struct check *c)
{
	const struct cpc_list *pos;

	cpc_list_for_each (pos, &c->tree->sleepers) {
		const struct cpc_io_waiter *w = cpc_list_entry(pos, struct cpc_io_waiter, node);
		const struct cpc_io_state *rec = w->record;

		expect(c, !rec != !w->behind, "sleeper waits for nothing or for two things");
		if (!rec)
			continue;
		expect(c, (rec->flags & CPC_IO_REC_IN_TREE) && (rec->flags & CPC_IO_REC_WAITERS),
		       "sleeper on a record that does not know");
		expect(c, rec->bits & w->bits, "sleeper waits for bits that are gone");
		expect(c, rec->start < w->end && w->start < rec->end, "sleeper does not overlap");
	}
}

static void check_spares(struct check *c)
{
	const struct cpc_io_state *rec;
	uint64_t nr = 0;

	for (rec = c->tree->spares; rec; rec = rec->next, nr++)
		expect(c, !(rec->flags & CPC_IO_REC_IN_TREE) && !rec->refs, "spare in use");
	expect(c, nr == c->tree->stats.spares, "number of spares");
}

/* Invariant 10. What a slot points to is not looked at, since a stale one points to anything. */
static void check_fingers(struct check *c)
{
	const struct cpc_io_finger_level *l;
	const struct cpc_io_state *rec;
	uint64_t used, good, i;

	cpc_io_for_each_level (c->tree->fingers, l) {
		used = good = 0;
		for (i = 0; i <= l->mask; i++)
			used += l->slots[i].rec != NULL;
		for (rec = c->tree->first; rec; rec = rec->next)
			good += cpc_io_finger(l, rec->start)->rec == rec;
		expect(c, used == good, "a finger points to no record that uses it");
	}
}

int cpc_io_tree_check(struct cpc_io_tree *tree, char *why, size_t size)
{
	struct check c = {.tree = tree};
	const struct cpc_io_state *rec;
	uint64_t nr = 0;

	cpc_mutex_lock(&tree->lock);
	for (rec = tree->first; rec && !c.broken; rec = rec->next, nr++) {
		check_record(&c, rec);
		expect(&c, rec->next || tree->last == rec, "list does not end at the last");
	}
	expect(&c, c.broken || nr == tree->stats.records, "number of records");
	c.next = next_indexed(tree->first);
	check_subtree(&c, tree->root, NULL);
	expect(&c, c.next == NULL, "record marked as indexed is not in the index");
	if (!c.broken)
		check_sleepers(&c);
	if (!c.broken)
		check_spares(&c);
	if (!c.broken)
		check_fingers(&c);
	cpc_mutex_unlock(&tree->lock);
	if (!c.broken)
		return 0;
	snprintf(why, size, "%s", c.broken);
	return -EUCLEAN;
}
