/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * past: everything that a few small volumes have been since something was last durable for sure,
 * and whether what a pool shows is one instant of it.
 *
 * Each 512-byte sector is stamped with a number that says which volume and which operation wrote
 * it, and is filled from that number, so a sector that is torn or of another volume is seen.
 *
 * Each operation makes a new state before it is issued. When it is answered with success it may
 * raise the floor, the oldest state that a crash may bring back. An operation that failed is
 * looked up in the pool: it has happened as a whole or not at all.
 */
#ifndef CPC_POWERCUT_PAST_H
#define CPC_POWERCUT_PAST_H

#include "rig.h"

#define PAST_VOLUMES 6u	 /* volumes made between two collapses */
#define PAST_BLOCKS  12u /* of the largest volume */
#define PAST_SECTORS (PAST_BLOCKS * 8)
#define PAST_STATES  64u
#define PAST_FILLER  "filler" /* a volume that only takes room: not judged */

struct content {
	uint32_t sectors; /* the size */
	uint32_t stamp[PAST_SECTORS];
};

struct volume_past {
	uint64_t id; /* 0: made by an operation that a crash has cut off */
	unsigned nr, floor;
	unsigned resized; /* the state that the last resize has made */
	struct content state[PAST_STATES];
};

struct table {
	char name[PAST_VOLUMES][4]; /* "": there is none */
};

struct past {
	uint64_t last_id; /* of all volumes that were durable; none is used twice */
	uint32_t clock;
	unsigned nr_volumes;
	struct volume_past volume[PAST_VOLUMES];
	unsigned nr_tables, floor;
	struct table table[PAST_STATES];
};

void past_init(struct past *p);

/* The newest state. */
struct content *past_content(struct past *p, unsigned v);
struct table *past_table(struct past *p);
bool past_exists(struct past *p, unsigned v);
/* True when there is no room for one more operation. */
bool past_full(const struct past *p);

/* A new state, a copy of the newest, for an operation to change; and taking it back. */
struct content *past_push(struct past *p, unsigned v);
struct table *past_push_table(struct past *p);
void past_pop(struct past *p, unsigned v);
void past_pop_table(struct past *p);
/* Adds a volume without content. Return: its index. */
unsigned past_add_volume(struct past *p, uint32_t sectors);
/* A new stamp for sectors of a volume. */
uint32_t past_stamp(struct past *p, unsigned v);
void past_fill(uint32_t stamp, void *sector);

/* The newest state of a volume, of the table, of all is durable by an answer. */
void past_durable(struct past *p, unsigned v);
/* Names and sizes, and with a size what the volume was then. */
void past_names_durable(struct past *p);
void past_all_durable(struct past *p);

/* Reads a volume. Return: 0 or the error of a read. Sectors that nobody has written fail. */
int past_read(struct past *p, struct cpc_volume *vol, struct content *content);
bool past_same(const struct content *a, const struct content *b);
/* What the pool lists, by volume; a volume that is new gets its id. */
void past_list(struct past *p, struct cpc_pool *pool, struct table *table);

/* Fails unless the pool shows one instant of the table and of each volume in it, not before the
 * floor. `settled`: what is there is durable, and the past is no more than that. */
void past_judge(struct past *p, struct cpc_pool *pool, bool settled);

#endif
