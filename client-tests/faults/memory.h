/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * memory: the engine's allocations, counted, and the n-th made to fail. One thread.
 */
#ifndef CPC_FAULTS_MEMORY_H
#define CPC_FAULTS_MEMORY_H

#include "lib/base.h"

/* Puts itself into cpc_hooks. */
void memory_init(void);
/* The nth allocation from now fails; with `sticky` all later ones too. */
void memory_fail(uint64_t nth, bool sticky);
void memory_heal(void);
/* Meanwhile nothing fails or counts towards the nth. */
void memory_pause(bool pause);
/* Allocations that failed since memory_fail. */
uint64_t memory_failures(void);
/* Allocations not freed. */
uint64_t memory_live(void);

#endif
