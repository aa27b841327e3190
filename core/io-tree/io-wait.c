/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Sleepers, wake-ups and the fatal stop.
 *
 * A sleeper is a structure on its thread's stack, in the list of all sleepers and pointing at the
 * record that it waits for. The record has only a flag, looked at under tree->lock by whoever
 * clears bits: no flag, no list walk, no barrier, no system call. With the flag the list (as long
 * as there are sleeping threads) says whom the cleared bits concern. They leave the list under
 * tree->lock and are woken after it; then each looks again from the start, because a wake-up
 * promises nothing. Between looking and being in the list tree->lock is not dropped, so no
 * wake-up can be lost.
 *
 *      look (cpc_io_tree_lock, _wait) --blocked--> asleep (cpc_io_sleep)
 *        ^                                            |
 *        +--- woken: cpc_io_wake, _calm, _wake_all ---+
 *
 * Overtaking is allowed, since who runs already is quicker than who must be woken; but a large
 * range could wait for ever under many small ones. So who was woken CPC_IO_PATIENCE times in vain
 * is impatient: who comes later and overlaps sleeps behind it. Impatient sleepers are ordered
 * by the time of losing patience, and a sleeper is only ever behind an earlier one, so there is no
 * circle.
 *
 * Rejected: a condition variable for each record (48 bytes more in each, of which nearly none
 * is ever slept on); queues from the first conflict on (a hand-over costs a context switch, also
 * where the range is free in between).
 */
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "lib/log.h"
#include "io-tree/io-tree-internal.h"

#define waiter_of(n) cpc_list_entry(n, struct cpc_io_waiter, node)

static void futex_wait(uint32_t *word)
{
	while (!__atomic_load_n(word, __ATOMIC_ACQUIRE))
		syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}

/* The sleeper's stack may be gone as soon as the word is set; waking a stranger is harmless. */
static void futex_wake(uint32_t *word)
{
	__atomic_store_n(word, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void cpc_io_wake_chosen(struct cpc_io_op *op)
{
	while (!cpc_list_empty(&op->woken)) {
		struct cpc_io_waiter *w = waiter_of(op->woken.next);

		cpc_list_del(&w->node);
		futex_wake(&w->woken);
	}
}

/* Takes a sleeper out, to be woken when the call has dropped tree->lock. */
static void choose(struct cpc_io_op *op, struct cpc_io_waiter *w)
{
	cpc_list_del(&w->node);
	cpc_list_add_tail(&op->woken, &w->node);
	w->record = NULL;
	w->behind = NULL;
}

void cpc_io_call_fatal(struct cpc_io_tree *tree)
{
	if (tree->config.fatal) {
		tree->config.fatal(tree->config.fatal_arg, tree->message);
		return;
	}
	cpc_error("%s", tree->message);
	abort();
}

int cpc_io_sleep(struct cpc_io_op *op, struct cpc_io_waiter *w)
{
	struct cpc_io_tree *tree = op->tree;

	if (w->record)
		w->record->flags |= CPC_IO_REC_WAITERS;
	w->woken = 0;
	cpc_list_add_tail(&tree->sleepers, &w->node);
	tree->stats.lock_waits++;

	cpc_mutex_unlock(&tree->lock);
	cpc_io_wake_chosen(op);
	futex_wait(&w->woken);
	cpc_mutex_lock(&tree->lock);

	if (w->locks && ++w->rounds == CPC_IO_PATIENCE) {
		w->impatient = true;
		cpc_list_add_tail(&tree->impatient, &w->impatience);
	}
	return tree->stopped ? -EIO : 0;
}

struct cpc_io_waiter *cpc_io_find_elder(const struct cpc_io_op *op, const struct cpc_io_waiter *w)
{
	struct cpc_list *pos;

	cpc_list_for_each (pos, &op->tree->impatient) {
		struct cpc_io_waiter *other = cpc_list_entry(pos, struct cpc_io_waiter, impatience);

		if (other == w)
			return NULL;
		if (other->start < op->end && op->start < other->end)
			return other;
	}
	return NULL;
}

void cpc_io_calm(struct cpc_io_op *op, struct cpc_io_waiter *w)
{
	struct cpc_list *pos, *tmp;

	w->impatient = false;
	cpc_list_del(&w->impatience);
	cpc_list_for_each_safe (pos, tmp, &op->tree->sleepers) {
		if (waiter_of(pos)->behind == w)
			choose(op, waiter_of(pos));
	}
}

unsigned cpc_io_choose_sleepers(struct cpc_io_op *op, struct cpc_io_state *rec, uint64_t start,
				uint64_t end, uint32_t cleared)
{
	struct cpc_list *pos, *tmp;
	unsigned nr = 0;

	rec->flags &= ~CPC_IO_REC_WAITERS;
	cpc_list_for_each_safe (pos, tmp, &op->tree->sleepers) {
		struct cpc_io_waiter *w = waiter_of(pos);

		if (w->record != rec)
			continue;
		if ((w->bits & cleared) && w->start < end && start < w->end) {
			choose(op, w);
			nr++;
		} else {
			rec->flags |= CPC_IO_REC_WAITERS;
		}
	}
	return nr;
}

void cpc_io_move_sleepers(struct cpc_io_tree *tree, struct cpc_io_state *from,
			  struct cpc_io_state *to, uint64_t start, uint64_t end)
{
	struct cpc_list *pos;

	from->flags &= ~CPC_IO_REC_WAITERS;
	cpc_list_for_each (pos, &tree->sleepers) {
		struct cpc_io_waiter *w = waiter_of(pos);

		if (w->record != from)
			continue;
		if (w->start < end && start < w->end)
			w->record = to;
		w->record->flags |= CPC_IO_REC_WAITERS;
	}
}

void cpc_io_wake_all(struct cpc_io_op *op)
{
	while (!cpc_list_empty(&op->tree->sleepers))
		choose(op, waiter_of(op->tree->sleepers.next));
}

__attribute__((cold)) int cpc_io_fatal_at(struct cpc_io_op *op, const struct cpc_io_state *rec,
					  const char *what, const char *file, int line,
					  const char *func)
{
	struct cpc_io_tree *tree = op->tree;
	const char *slash = strrchr(file, '/');
	char record[96] = "no record";

	if (tree->stopped)
		return -EIO;
	tree->stopped = true;
	tree->fatal_pending = true;
	if (rec)
		snprintf(record, sizeof(record), "record [%llu, %llu) bits 0x%x",
			 (unsigned long long)rec->start, (unsigned long long)rec->end, rec->bits);
	snprintf(tree->message, sizeof(tree->message),
		 "io tree broken: %s at %s:%d %s(): %s of [%llu, %llu): %s", what,
		 slash ? slash + 1 : file, line, func, op->name, (unsigned long long)op->start,
		 (unsigned long long)op->end, record);
	cpc_io_wake_all(op);
	return -EIO;
}
