/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The change of one range: every set, clear, convert, lock and unlock ends here.
 *
 * One walk over the records of the range, in order. A gap gets a record (or stretches a neighbour
 * with the same bits). A record whose bits do not change is left alone. One that loses its last
 * bits goes: erased if the range covers it, cut out of its middle with one spare, and in the
 * common case of a range that covers one of its ends trimmed where it stands. Any other is
 * split at the ends of the range, changed, and joined with its left neighbour.
 *
 * A clear of everything by a caller who does not ask for the pieces in order goes by the chunks of
 * memory instead (cpc_io_record_sweep): that is how a cut takes over tens of thousands of records.
 *
 * Why a trim is allowed to change keys in place: the record stays between its neighbours, so its
 * place in the tree and in the list stays the same.
 *
 * CPC_IO_TREE_NO_TRIM compiles the trims out: for the benchmark, which shows what they save.
 */
#include "io-tree/io-finger.h"
#include "io-tree/io-tree-internal.h"

#ifdef CPC_IO_TREE_NO_TRIM
#define TRIM 0
#else
#define TRIM 1
#endif

static uint32_t bits_after(const struct cpc_io_op *op, const struct cpc_io_state *rec)
{
	return (rec->bits & ~op->clear) | op->set;
}

/* The spares that changing `rec` takes at most. */
static unsigned need_of_record(const struct cpc_io_op *op, const struct cpc_io_state *rec)
{
	unsigned front = rec->start<op->start, back = rec->end> op->end;
	uint32_t after = bits_after(op, rec);

	if (after == rec->bits)
		return 0;
	if (TRIM && !after)
		return front & back;
	return front + back;
}

uint64_t cpc_io_change_need(const struct cpc_io_op *op, const struct cpc_io_state *rec)
{
	uint64_t pos = op->start, need = 0, gaps = 0;

	for (; rec && rec->start < op->end; rec = rec->next) {
		gaps += rec->start > pos;
		need += need_of_record(op, rec);
		pos = rec->end;
	}
	gaps += pos < op->end;
	return op->set ? need + gaps : need;
}

/* Adds one changed piece, of `rec` or before it, to the changeset. LOCKED stays out of it. */
static int report(struct cpc_io_op *op, const struct cpc_io_state *rec, uint64_t start,
		  uint64_t end, uint32_t set, uint32_t cleared)
{
	struct cpc_changeset *cs = op->cs;

	set &= ~(uint32_t)CPC_IO_LOCKED;
	cleared &= ~(uint32_t)CPC_IO_LOCKED;
	if (!cs || !(set | cleared))
		return 0;
	if (set)
		cs->set_bytes += end - start;
	if (cleared)
		cs->cleared_bytes += end - start;
	if (cs->add && cpc_unlikely(cs->add(cs, start, end - start, (enum cpc_io_bits)set,
					    (enum cpc_io_bits)cleared)))
		return cpc_io_fatal(op, rec, "the changeset failed to take a change");
	return 0;
}

/* What every record met on the way must be. */
static int step(struct cpc_io_op *op, const struct cpc_io_state *rec, uint64_t pos)
{
	if (cpc_unlikely(!(rec->flags & CPC_IO_REC_IN_TREE)))
		return cpc_io_fatal(op, rec, "met a record outside the tree");
	if (cpc_unlikely(rec->start >= rec->end || !rec->bits))
		return cpc_io_fatal(op, rec, "met an empty record");
	if (cpc_unlikely(rec->end <= pos || (rec->start < pos && pos != op->start)))
		return cpc_io_fatal(op, rec, "met a record out of order");
	return 0;
}

/* Tells changeset and sleepers that [start, end) of `rec` gets the bits `after`. */
static int announce(struct cpc_io_op *op, struct cpc_io_state *rec, uint64_t start, uint64_t end,
		    uint32_t after)
{
	uint32_t cleared = rec->bits & ~after;

	if (cleared)
		cpc_io_wake(op, rec, start, end, cleared);
	return report(op, rec, start, end, after & ~(uint32_t)rec->bits, cleared);
}

/*
 * Stretches a neighbour of [*pos, end) over it, if one has just the bits to set. A neighbour on
 * the right is then met at *pos, unchanged; after one on the left *pos is `end`.
 */
static bool stretch(struct cpc_io_op *op, struct cpc_io_state *prev, struct cpc_io_state *next,
		    uint64_t *pos, uint64_t end)
{
	if (op->set & CPC_IO_LOCKED)
		return false;
	if (prev && prev->end == *pos && prev->bits == op->set) {
		prev->end = *pos = end;
		return true;
	}
	if (next && next->start == end && next->bits == op->set) {
		cpc_io_finger_move_start(op->tree, next, *pos);
		return true;
	}
	return false;
}

/* Sets bits from *pos up to `rec`, the next record, or the end of the range. */
static int fill_gap(struct cpc_io_op *op, struct cpc_io_state *rec, uint64_t *pos)
{
	struct cpc_io_state *prev = rec ? rec->prev : op->tree->last;
	uint64_t start = *pos, end = rec ? cpc_min_u64(rec->start, op->end) : op->end;
	struct cpc_io_state *new;
	int err;

	op->gap = !op->set;
	if (op->gap) {
		*pos = end;
		return 0;
	}
	err = report(op, rec, start, end, op->set, 0);
	if (cpc_unlikely(err) || stretch(op, prev, rec, pos, end))
		return err;
	*pos = end;
	err = cpc_io_record_insert(op, rec, start, end, op->set, &new);
	if (cpc_likely(!err) && start == op->start)
		op->first = new;
	return err;
}

/* Takes [start, end) out of a record that keeps no bit there. Sets *recp to what comes after. */
static int cut_out(struct cpc_io_op *op, struct cpc_io_state **recp, uint64_t start, uint64_t end)
{
	struct cpc_io_state *rec = *recp;
	int err;

	if (rec->start >= start && rec->end <= end) {
		*recp = rec->next;
		return cpc_io_record_erase(op, rec);
	}
	if (rec->end <= end) {
		rec->end = start;
		*recp = rec->next;
	} else if (rec->start >= start) {
		cpc_io_finger_move_start(op->tree, rec, end);
	} else {
		err = cpc_io_record_split(op, rec, end, recp);
		rec->end = start;
		return err;
	}
	op->tree->stats.trims++;
	return 0;
}

/* Splits `*recp` so that it lies inside the range. */
static int isolate(struct cpc_io_op *op, struct cpc_io_state **recp)
{
	struct cpc_io_state *tail;
	int err = 0;

	if ((*recp)->start < op->start)
		err = cpc_io_record_split(op, *recp, op->start, recp);
	if (cpc_likely(!err) && (*recp)->end > op->end)
		err = cpc_io_record_split(op, *recp, op->end, &tail);
	return err;
}

/* Gives `rec`, which lies inside the range, its bits. */
static int change_whole(struct cpc_io_op *op, struct cpc_io_state *rec, uint32_t after)
{
	int err = announce(op, rec, rec->start, rec->end, after);

	if (cpc_unlikely(err))
		return err;
	if (!after)
		return cpc_io_record_erase(op, rec);
	rec->bits = (uint16_t)after;
	if (rec->start == op->start)
		op->first = rec;
	return cpc_io_record_merge_left(op, rec);
}

/* Changes the part of *recp in the range; *recp and *pos move on to what comes after. */
static int change_record(struct cpc_io_op *op, struct cpc_io_state **recp, uint64_t *pos)
{
	struct cpc_io_state *rec = *recp;
	uint32_t after = bits_after(op, rec);
	uint64_t start = cpc_max_u64(rec->start, op->start);
	int err = step(op, rec, *pos);

	if (cpc_unlikely(err))
		return err;
	*pos = cpc_min_u64(rec->end, op->end);
	op->gap = !after;
	if (after == rec->bits) {
		*recp = rec->next;
		return cpc_io_record_merge_left(op, rec);
	}
	if (TRIM && !after) {
		err = announce(op, rec, start, *pos, 0);
		return cpc_unlikely(err) ? err : cut_out(op, recp, start, *pos);
	}
	err = isolate(op, &rec);
	if (cpc_unlikely(err))
		return err;
	*recp = rec->next;
	return change_whole(op, rec, after);
}

/* Is it a clear of everything, of many records, with no use for their order? */
static bool sweeps(const struct cpc_io_op *op)
{
	const struct cpc_io_tree *tree = op->tree;

	return tree->stats.records >= tree->sweep_records && !op->set && !(op->cs && op->cs->add) &&
	       tree->stats.records >= tree->stats.spares / CPC_IO_SWEEP_SPARES &&
	       op->start <= tree->first->start && tree->last->end <= op->end;
}

static int change_swept(struct cpc_io_op *op, struct cpc_io_state *rec)
{
	uint32_t after = bits_after(op, rec);
	int err = step(op, rec, op->start);

	if (cpc_unlikely(err))
		return err;
	err = announce(op, rec, rec->start, rec->end, after);
	if (cpc_unlikely(!after && (rec->flags & CPC_IO_REC_WAITERS)))
		return cpc_io_fatal(op, rec, "erase of a record with sleepers");
	rec->bits = (uint16_t)after;
	return err;
}

int cpc_io_change(struct cpc_io_op *op, struct cpc_io_state *rec)
{
	uint64_t pos = op->start;
	int err = 0;

	if (cpc_unlikely(sweeps(op)))
		return cpc_io_record_sweep(op, change_swept);
	while (cpc_likely(!err) && pos < op->end) {
		if (!rec || rec->start > pos)
			err = fill_gap(op, rec, &pos);
		else
			err = change_record(op, &rec, &pos);
	}
	/* beside a gap there is nothing to merge, and `rec` need not be looked at */
	if (cpc_likely(!err) && rec && !op->gap)
		err = cpc_io_record_merge_left(op, rec);
	return err;
}
