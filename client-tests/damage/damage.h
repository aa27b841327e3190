/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * damage: what the files of this program share: a small pool with known content, and judging what
 * a reader gets from it.
 */
#ifndef CPC_DAMAGE_DAMAGE_H
#define CPC_DAMAGE_DAMAGE_H

#include <stdatomic.h>

#include "backing/powercut.h"
#include "format/format.h"
#include "lib/hooks.h"
#include "rig.h"
#include "transaction/store.h"

#define VOLUMES	      3u /* the last one takes the writes that a crash may take back */
#define VOLUME_BLOCKS 64u

/* Block `b` of volume `v` holds what stamp[v][b] fills; 0: zeroes. */
struct content {
	uint64_t stamp[VOLUMES][VOLUME_BLOCKS];
	uint64_t before[VOLUME_BLOCKS]; /* of the last volume, before its last flush */
};

struct subject {
	struct rig rig;
	struct content content;
	struct rnd rnd;
	struct cpc_backing peek;
};

struct counts {
	uint64_t flips, flips_repaired, flips_eio, offline, offline_refused, offline_repaired;
	uint64_t writes, writes_without_effect, writes_refused, writes_eio;
	uint64_t lost, misdirected, stale, swapped;
};

/* The pool's lives: formatted, filled, killed with records in the log. */
void subject_create(struct subject *s, uint64_t seed, bool single);
void subject_write(struct subject *s, unsigned v, uint64_t block);
int subject_try_write(struct subject *s, unsigned v, uint64_t block);
void subject_flush(struct subject *s, unsigned v);
struct cpc_volume *subject_volume(struct subject *s, unsigned v);
/* Reads everything. Wrong bytes fail the program. Return: blocks that gave an error. `relaxed`:
 * the last volume's last flush may have been taken back. */
uint64_t subject_read(struct subject *s, bool relaxed);

/* A handle that only reads, beside the one of the life that runs. Closed by nobody. */
struct cpc_backing *subject_peek(struct subject *s);

/* The blocks of the newest state. */
struct places {
	struct cpc_super super;
	struct cpc_geometry geo;
	uint64_t *meta; /* block numbers: both copies of nodes, current homes */
	size_t nr_meta;
	uint64_t *data;
	size_t nr_data;
	uint64_t *log; /* of durable records, both copies */
	size_t nr_log;
	uint64_t super_slot[2]; /* block numbers of the newest superblock */
};
void places_find(struct subject *s, struct places *at);
void places_free(struct places *at);

/* flips.c and writes.c. Until `nr` cases have been tried, or the time (0: none) has come. */
void sweep_flips(uint64_t seed, uint64_t nr, uint64_t until_ns, struct counts *counts);
void sweep_writes(uint64_t seed, uint64_t from, uint64_t nr, uint64_t until_ns,
		  struct counts *counts);
static inline bool time_is_up(uint64_t until_ns)
{
	return until_ns && cpc_hooks_default.monotonic_ns() >= until_ns;
}

#endif
