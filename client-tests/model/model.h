/* SPDX-License-Identifier: BSD-3-Clause */
/* model: what model.c and threads.c share. */
#ifndef CPC_MODEL_MODEL_H
#define CPC_MODEL_MODEL_H

#include "rig.h"

#define MODEL_MAX_THREADS 16u

/* One round of many threads on one pool. Return: operations done. */
uint64_t model_threads(struct rig *rig, uint64_t seed, unsigned nr_threads, uint64_t nr_ops);

#endif
