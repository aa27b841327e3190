/* SPDX-License-Identifier: BSD-3-Clause */
/* scrub-internal: what the files of scrub share. */
#ifndef CPC_CHECK_SCRUB_INTERNAL_H
#define CPC_CHECK_SCRUB_INTERNAL_H

#include "check/check-internal.h"
#include "check/scrub.h"

#define SCRUB_NODES  64u
#define SCRUB_BLOCKS 512u

struct scrub {
	struct cpc_store *store;
	struct cpc_log *log;
	const struct cpc_scrub_options *opts;
	struct cpc_scrub_result *result;
	struct cpc_store_hold hold;
	uint64_t held_at; /* ns */
	uint64_t done, total;
	char volume[CPC_NAME_MAX + 1]; /* being looked at */
	struct cpc_data_batch data;
	struct cpc_findings no_findings;
	uint8_t *node[CPC_MAX_LEVEL + 1]; /* one a level */
	uint8_t *copy;			  /* a node to compare with */
	bool stop;
};

/* scrub.c */
void cpc_scrub_hold(struct scrub *s);
/* Ends the batch: lets others in, and says how far it is. */
void cpc_scrub_release(struct scrub *s);
void cpc_scrub_advance(struct scrub *s, uint64_t blocks);
/* Writes good content over a bad copy. NULL `good`: there is none. Reports either way. */
void cpc_scrub_heal(struct scrub *s, struct cpc_damage *damage, const void *good, size_t len);
void cpc_scrub_damage(struct scrub *s, struct cpc_damage *damage, const char *action);

/* Trees that the superblock names; other keys are those of the root tree. */
#define SCRUB_ROOT     0u
#define SCRUB_FREE_LOG 1u

/* scrub-tree.c: a tree that a key of the root tree names, or one of the two that the superblock
 * does. Return: 0 or -ENOMEM. */
int cpc_scrub_tree(struct scrub *s, uint64_t root_key, uint64_t owner);
/* scrub-fixed.c: what stands at fixed places. Under a hold: */
void cpc_scrub_home(struct scrub *s, uint64_t group, const struct cpc_disk_group *item);
/* Without: */
int cpc_scrub_supers(struct scrub *s);
int cpc_scrub_log(struct scrub *s);

#endif
