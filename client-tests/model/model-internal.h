/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * model-internal: the model of one thread, shared by model.c (names, lives, rounds) and data.c
 * (requests on volumes).
 */
#ifndef CPC_MODEL_MODEL_INTERNAL_H
#define CPC_MODEL_MODEL_INTERNAL_H

#include "model.h"

#define MIB	    (1ull << 20)
#define MAX_VOLUMES 6u
#define NR_NAMES    9u
#define BUF_BYTES   (8 * MIB) /* of each of the two buffers: the longest request */

struct volume {
	unsigned name; /* index in names */
	struct ref ref;
	struct cpc_volume *handle;
};

struct model {
	struct rig rig;
	struct rnd rnd;
	uint64_t clock; /* stamps */
	unsigned nr;
	struct volume volume[MAX_VOLUMES];
	uint8_t *buf, *buf2;
	uint64_t max_io;
	uint64_t used_fresh; /* bytes in use of the empty pool */
	uint64_t counts[32];
};

const char *model_name(const struct volume *v);

/* --- data.c: there is a volume --- */

struct volume *model_pick_volume(struct model *m);
/* All that has been answered is durable. */
void model_all_durable(struct model *m);
void model_write(struct model *m);
void model_read(struct model *m);
void model_trim(struct model *m);
void model_zero(struct model *m);
void model_flush(struct model *m);
void model_cache(struct model *m);
void model_extents(struct model *m);
void model_beyond(struct model *m);

#endif
