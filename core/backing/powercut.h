/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * powercut: a device in memory that can lose power. It keeps a *stable image* and the ordered list
 * of *pending* writes and discards, those that no good flush has covered; reads see the newest
 * content. A crash leaves the stable image with any subset of the pending ones applied, each whole
 * or torn at 512-byte sectors. It can also fail, lie, lose, misplace and rot. Used by tests and by
 * the model and fuzz programs above; calls nothing of the engine.
 *
 * Terms: a *life* is the time between an open and a crash or kill; a backing handle is good for
 * one life, and answers -EIO afterwards, so that the engine over it can still be torn down. A
 * *fate* is what a crash makes of one pending write. *Acked* = the call has returned success.
 *
 * Invariants:
 *  1. A flush makes stable exactly the writes acked when it began; the held ones stay pending
 *     (settle()).
 *  2. Pages are immutable once they can be seen and shared by reference counts, so a saved state
 *     costs a few words per block.
 *  3. Memory is proportional to what was written, not to the size; zero pages are shared.
 *
 * Locks: one mutex, CPC_RANK_BACKING, held while hooks are called: a hook calls nothing here and
 * takes only locks of rank CPC_RANK_STATS and above.
 *
 * Ownership: cpc_powercut_destroy() frees all; every handle has been closed by then. Memory comes
 * from libc and not from cpc_hooks, so that a failing N-th allocation hits the engine and not the
 * device under it; without memory the program stops.
 *
 * Errors: as injected; -EIO on a handle of an earlier life. Durable: what a crash must keep.
 */
#ifndef CPC_BACKING_POWERCUT_H
#define CPC_BACKING_POWERCUT_H

#include "backing/backing.h"

#define CPC_SECTOR_SIZE 512u

struct cpc_powercut;

/* A device of `size` bytes, a multiple of 4096; unwritten blocks read as zeroes. */
int cpc_powercut_create(uint64_t size, struct cpc_powercut **pc);
void cpc_powercut_destroy(struct cpc_powercut *pc);

/* Blocks never written, or discarded, read as this byte from now on. */
void cpc_powercut_set_fill(struct cpc_powercut *pc, uint8_t fill);

/* ---- lives ---- */

/* Starts a life over the image as it is. Ends the earlier one as cpc_powercut_kill() does. */
int cpc_powercut_reopen(struct cpc_powercut *pc, struct cpc_backing **b);

/* kill -9: the handle is dead, pending writes stay pending and visible; held ones complete. */
void cpc_powercut_kill(struct cpc_powercut *pc);

enum cpc_crash_fate {
	CPC_FATE_LOST,
	CPC_FATE_KEPT,
	CPC_FATE_PREFIX,  /* the first `sectors` sectors landed */
	CPC_FATE_SUFFIX,  /* the last `sectors` sectors landed */
	CPC_FATE_SECTORS, /* each sector by a bit drawn from `seed` */
	CPC_FATE_GARBAGE  /* the first `sectors` landed, the next one holds noise from `seed` */
};

struct cpc_crash_write {
	enum cpc_crash_fate fate;
	uint64_t sectors;
	uint64_t seed;
};

/* One fate for each pending write, in the order of issue. */
struct cpc_crash_choice {
	size_t nr;
	struct cpc_crash_write *writes;
};

/* Pending writes and discards now, held ones included. */
size_t cpc_powercut_nr_pending(struct cpc_powercut *pc);

/* What pending write `i` is; false when there is none. */
struct cpc_powercut_pending {
	uint64_t bytenr, len;
	enum cpc_cause cause;
	bool discard, acked;
};
bool cpc_powercut_pending(struct cpc_powercut *pc, size_t i, struct cpc_powercut_pending *p);

/* Makes a choice with the same fate for all that is pending now; freed by _choice_free. */
void cpc_crash_choice_all(struct cpc_powercut *pc, enum cpc_crash_fate fate,
			  struct cpc_crash_choice *choice);
/* ... with random fates; the same seed and pending list give the same choice. */
void cpc_crash_choice_random(struct cpc_powercut *pc, uint64_t seed,
			     struct cpc_crash_choice *choice);
void cpc_crash_choice_free(struct cpc_crash_choice *choice);

/* Writes one letter a fate, "KL5p..." for a failing test's message; cut to fit, always ended. */
void cpc_crash_choice_print(const struct cpc_crash_choice *choice, char *buf, size_t len);

/* Cuts the power: ends the life and applies the choice, whose nr is the number pending. */
void cpc_powercut_crash(struct cpc_powercut *pc, const struct cpc_crash_choice *choice);
/* Convenience: crash with random fates. */
void cpc_powercut_crash_random(struct cpc_powercut *pc, uint64_t seed);

/*
 * The states worth trying for the pending list as it is: all subsets up to 10 pending, else all
 * prefixes, single losses, single survivors, pairs lost and pairs kept (a sample above 1000), and
 * 64 random ones; and behind these, for each write, torn from either side at each boundary between
 * sectors, of a write above 64 KiB at 127 of them, and once with noise. State numbers are stable
 * for the same pending list.
 */
uint64_t cpc_crash_nr_states(struct cpc_powercut *pc);
/* The states below this number tear nothing but, in random ones, what chance tears. */
uint64_t cpc_crash_nr_whole(struct cpc_powercut *pc);
void cpc_crash_state(struct cpc_powercut *pc, uint64_t i, struct cpc_crash_choice *choice);

/* Saves image and pending list; restore ends the life (reopen for the next one). */
struct cpc_powercut_saved;
struct cpc_powercut_saved *cpc_powercut_save(struct cpc_powercut *pc);
void cpc_powercut_restore(struct cpc_powercut *pc, const struct cpc_powercut_saved *saved);
void cpc_powercut_saved_free(struct cpc_powercut_saved *saved);

/* ---- watching ---- */

/* Each may be NULL. Called under the device's mutex, also for calls that will then fail. */
struct cpc_powercut_hooks {
	void (*before_write)(void *ctx, uint64_t bytenr, uint64_t len, enum cpc_cause cause);
	void (*before_discard)(void *ctx, uint64_t bytenr, uint64_t len);
	void (*before_flush)(void *ctx);
	void (*after_flush)(void *ctx); /* a good flush has just made its writes stable */
};
/* NULL takes them away. The table is copied. */
void cpc_powercut_set_hooks(struct cpc_powercut *pc, const struct cpc_powercut_hooks *hooks,
			    void *ctx);

/* ---- faults ---- */

enum cpc_powercut_op {
	CPC_POWERCUT_READ,
	CPC_POWERCUT_WRITE,
	CPC_POWERCUT_FLUSH,
	CPC_POWERCUT_DISCARD,
	CPC_POWERCUT_NR_OPS
};

enum cpc_powercut_action {
	CPC_FAULT_FAIL,	       /* nothing happens, `error` is returned */
	CPC_FAULT_FAIL_LANDED, /* it happens, `error` is returned; a flush makes its writes stable
				*/
	CPC_FAULT_FAIL_TORN,   /* writes: the first half of the sectors land; `error` */
	CPC_FAULT_DROP, /* flushes: `error`; what was pending is gone, reads show old bytes */
	CPC_FAULT_DROP_CACHED, /* flushes: the same, but reads show the new bytes until the crash */
	CPC_FAULT_LOSE,	       /* writes: success, nothing lands */
	CPC_FAULT_MISDIRECT    /* writes: success, lands at `target` */
};

struct cpc_powercut_fault {
	enum cpc_powercut_op op;
	enum cpc_powercut_action action;
	uint64_t nth;	      /* fires at the nth matching call from now; 1 = the next */
	bool sticky;	      /* and at all after that */
	uint64_t bytenr, len; /* only calls that overlap; len 0: anywhere */
	unsigned cause_mask;  /* writes: 1 << cause; 0: any */
	int error;	      /* negative errno */
	uint64_t target;
};

/* The first armed fault that matches wins; up to 16 at a time. */
void cpc_powercut_add_fault(struct cpc_powercut *pc, const struct cpc_powercut_fault *fault);
void cpc_powercut_clear_faults(struct cpc_powercut *pc);
/* Convenience: the nth call of that kind fails with `error`. */
void cpc_powercut_fail(struct cpc_powercut *pc, enum cpc_powercut_op op, uint64_t nth, bool sticky,
		       int error);

/* Calls of this kind so far, failed ones included, in all lives. */
uint64_t cpc_powercut_count(struct cpc_powercut *pc, enum cpc_powercut_op op);

/* Inverts one bit on the medium and in what reads see: byte address and bit 0 to 7. */
void cpc_powercut_flip(struct cpc_powercut *pc, uint64_t byte, unsigned bit);
/* Reads the newest content; neither counted nor failed. bytenr and len as in backing.h. */
void cpc_powercut_peek(struct cpc_powercut *pc, uint64_t bytenr, void *buf, size_t len);
/* Reads what is stable. */
void cpc_powercut_peek_stable(struct cpc_powercut *pc, uint64_t bytenr, void *buf, size_t len);
/* Puts bytes on the medium and in what reads see, for stale or foreign blocks. */
void cpc_powercut_poke(struct cpc_powercut *pc, uint64_t bytenr, const void *buf, size_t len);

/* ---- timing ---- */

#define CPC_HOLD_WRITE(cause) (1u << (cause))
#define CPC_HOLD_WRITES	      ((1u << CPC_NR_CAUSES) - 1)
#define CPC_HOLD_READ	      (1u << 8)
#define CPC_HOLD_FLUSH	      (1u << 9)

/*
 * Calls of these kinds block from now on. A held write may already have landed, so it is pending
 * and not acked; a held flush has begun: it covers what was acked at its call.
 */
void cpc_powercut_hold(struct cpc_powercut *pc, unsigned mask);
/* Lets all held calls go on and holds no more. Crash and kill do it too. */
void cpc_powercut_release(struct cpc_powercut *pc);
/* Waits until at least `nr` calls are held. */
void cpc_powercut_wait_held(struct cpc_powercut *pc, unsigned nr);
/* Each flush takes this long, without the mutex. */
void cpc_powercut_set_flush_delay(struct cpc_powercut *pc, unsigned us);

#endif
