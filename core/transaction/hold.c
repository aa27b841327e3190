/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * hold: keeps a committed state for a reader beside commits.
 *
 * A commit's pins are released when its last holder puts them: views of volumes, and a hold that
 * was there when the commit was published. Homes of bitmaps are not pinned by anything, so commits
 * do not fold while a hold stands (fold_allowed). A commit that had looked before the hold came
 * writes the homes that are not current, and those the held superblock does not name: the next
 * commit looks again.
 */
#include "transaction/store-internal.h"

#include "lib/mutation.h"

void cpc_store_hold(struct cpc_store *store, struct cpc_store_hold *hold)
{
	cpc_mutex_lock(&store->lock);
	cpc_assert(!store->hold);
	hold->super = store->super;
	hold->pins = NULL;
	store->hold = hold;
	cpc_mutex_unlock(&store->lock);
}

void cpc_store_unhold(struct cpc_store *store, struct cpc_store_hold *hold)
{
	struct cpc_pins *pins, *next;

	cpc_mutex_lock(&store->lock);
	cpc_assert(store->hold == hold);
	store->hold = NULL;
	pins = hold->pins;
	cpc_mutex_unlock(&store->lock);
	for (; pins; pins = next) {
		next = pins->next_held;
		cpc_pins_put(pins);
	}
}

void cpc_hold_pins_locked(struct cpc_store *store, struct cpc_pins *pins)
{
	if (!store->hold || CPC_MUTANT(hold_pins_nothing))
		return;
	pins->next_held = store->hold->pins;
	store->hold->pins = cpc_pins_get(pins);
}

bool cpc_store_held(struct cpc_store *store)
{
	bool held;

	cpc_mutex_lock(&store->lock);
	held = store->hold;
	cpc_mutex_unlock(&store->lock);
	return held;
}
