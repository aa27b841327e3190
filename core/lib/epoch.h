/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * epoch: memory that readers without a lock may still be looking at is freed only when no such
 * reader is left (epoch-based reclamation).
 *
 * Called by whoever publishes pointers to lock-free readers (xarray, caches, views). Calls
 * hooks only through the free functions it is given. One domain for the whole process.
 *
 * Terms. A *read section* is what a thread does between cpc_epoch_enter() and the matching
 * cpc_epoch_exit(); sections nest, only the outermost counts. A *grace period* is over when each
 * thread that was in a section at its start has left that section.
 *
 * Use. A reader loads shared pointers with acquire (or stronger) inside a section and uses what
 * they point to until its end. A writer makes an object unreachable, then retires it; the free
 * function runs after a grace period.
 *
 * Invariants
 *  1. Exits match enters (cpc_epoch_exit()).
 *  2. A thread that drains is in no section and in no free function (cpc_epoch_drain()).
 *  3. A thread ends outside of sections (thread_unregister() in epoch.c).
 *  4. An entry is retired at most once and not touched by its owner afterwards. Not checked.
 *
 * Locks. enter and exit take none, except that a thread's first enter takes the registry mutex.
 * That mutex has no rank because it is inside all others: nothing is called while it is held.
 * Free functions run in whichever thread calls cpc_epoch_retire(), cpc_epoch_reclaim() or
 * cpc_epoch_drain(), and so under that thread's locks: they take no lock of a rank below
 * CPC_RANK_MEMORY, and these three are not called with one of CPC_RANK_MEMORY or above held,
 * unless all free functions in the process do nothing but return memory.
 *
 * Ownership. The entry is a member of the retired object: retiring allocates nothing and cannot
 * fail. The thread's record is thread-local and leaves the registry when the thread ends. The
 * process does not fork once more than one thread has used this module.
 *
 * Errors: none; a broken invariant aborts.
 */
#ifndef CPC_LIB_EPOCH_H
#define CPC_LIB_EPOCH_H

#include <stdatomic.h>
#include "lib/base.h"

/* Part of an object that is retired. Its content is epoch's from retire to the free function. */
struct cpc_epoch_entry {
	struct cpc_epoch_entry *next;
	void (*free_fn)(struct cpc_epoch_entry *entry);
};

/* A thread's record. Private to epoch; here because enter and exit are inline. */
struct cpc_epoch_thread {
	_Alignas(64) _Atomic(uint64_t) section; /* generation seen at enter, 0 outside */
	uint64_t passed; /* last grace period that need not wait for us; registry lock */
	struct cpc_epoch_thread *next, *prev; /* registry lock */
	unsigned int nest;		      /* this thread only, as the rest */
	bool registered;
	bool freeing;
};

extern _Thread_local struct cpc_epoch_thread cpc_epoch_self
    __attribute__((tls_model("initial-exec")));
extern _Atomic(uint64_t) cpc_epoch_generation; /* number of the newest grace period */

void cpc_epoch_register(void);

/*
 * Returns this thread's record. The empty asm hides where the address comes from: gcc 12 tests it
 * for NULL (in UBSan builds) with the flags of the addition that computes it, and the linker turns
 * that addition into an instruction that sets no flags.
 */
static inline struct cpc_epoch_thread *cpc_epoch_this_thread(void)
{
	struct cpc_epoch_thread *self = &cpc_epoch_self;

	__asm__("" : "+r"(self));
	return self;
}

/* Starts a read section. Context: any; blocks only in a thread's first call, shortly. */
static inline void cpc_epoch_enter(void)
{
	struct cpc_epoch_thread *self = cpc_epoch_this_thread();

	if (self->nest++)
		return;
	if (cpc_unlikely(!self->registered))
		cpc_epoch_register();
	/* An exchange, not a store: see "Why readers are seen" in epoch.c. */
	atomic_exchange_explicit(&self->section,
				 atomic_load_explicit(&cpc_epoch_generation, memory_order_acquire),
				 memory_order_acq_rel);
}

/* Ends a read section. Pointers loaded in it are no longer used if it was the outermost one. */
static inline void cpc_epoch_exit(void)
{
	struct cpc_epoch_thread *self = cpc_epoch_this_thread();

	cpc_assert(self->nest > 0);
	if (--self->nest == 0)
		atomic_store_explicit(&self->section, 0, memory_order_release);
}

/* Says whether this thread is in a read section, for assertions. */
static inline bool cpc_epoch_inside(void)
{
	return cpc_epoch_this_thread()->nest > 0;
}

/*
 * Has `free_fn(entry)` called when no reader can see the object any more. The object is
 * unreachable for readers that start now.
 * Context: any, also in a read section; does not wait. Every 32nd call runs cpc_epoch_reclaim(),
 * so that what waits stays bounded without anybody's care.
 */
void cpc_epoch_retire(struct cpc_epoch_entry *entry,
		      void (*free_fn)(struct cpc_epoch_entry *entry));

/*
 * Frees some of what is safe to free, at most 64 objects; one atomic load if nothing is retired.
 * Context: any, also in a read section (which then holds back what was retired since its start);
 * does not wait for readers. Does nothing while another thread is at it.
 */
void cpc_epoch_reclaim(void);

/*
 * Frees everything that was retired before the call, waiting for readers.
 * Context: outside of read sections and free functions, without locks that a reader in a section
 * may wait for.
 */
void cpc_epoch_drain(void);

/* Returns the number of objects that are retired and not yet freed. Context: any. */
size_t cpc_epoch_outstanding(void);

#endif
