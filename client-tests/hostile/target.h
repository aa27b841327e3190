/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * target: what hostile bytes are given to. Each takes any bytes and must come back: without a
 * crash, a sanitizer's finding, or more memory or time than it may take.
 *
 * Called by hostile.c, which makes random inputs and replays a corpus, and by libfuzzer.c.
 */
#ifndef CPC_HOSTILE_TARGET_H
#define CPC_HOSTILE_TARGET_H

#include "lib/base.h"

#define TARGET_INPUT_MAX 4096u

struct target {
	const char *name;
	void (*run)(const uint8_t *input, size_t len);
	/* An input that makes sense, to be changed: number `i` of as many as there are; at most
	 * TARGET_INPUT_MAX bytes. Return: its length. NULL: `mutate` makes them. */
	size_t (*sample)(unsigned i, uint8_t *input);
	/* Makes another input of `input`, or one from nothing when `len` is 0, of at most `max`
	 * bytes. Return: its length. NULL: bytes are changed. */
	size_t (*mutate)(uint64_t *state, uint8_t *input, size_t len, size_t max);
};

/* NULL behind the last. */
const struct target *target_at(unsigned i);
const struct target *target_find(const char *name);
/* Once, before anything is run. */
void targets_init(void);

/* Counted over all runs. */
struct target_counts {
	uint64_t opened, refused, requests, findings, scrubs;
	uint64_t repairs, repaired; /* images, and blocks of them that were written */
	uint64_t max_bytes;	    /* the most memory above the cache that a run took */
};
extern struct target_counts target_counts;

/* The targets in files of their own. */
void pool_target_init(void);
void pool_target_run(const uint8_t *input, size_t len);
size_t pool_target_mutate(uint64_t *state, uint8_t *input, size_t len, size_t max);
void super_target_run(const uint8_t *input, size_t len);
void entries_target_run(const uint8_t *input, size_t len);
void node_target_run(const uint8_t *input, size_t len);
size_t super_target_sample(unsigned i, uint8_t *input);
size_t entries_target_sample(unsigned i, uint8_t *input);
size_t node_target_sample(unsigned i, uint8_t *input);
void control_target_run(const uint8_t *input, size_t len);
size_t control_target_sample(unsigned i, uint8_t *input);
void text_target_run(const uint8_t *input, size_t len);
size_t text_target_sample(unsigned i, uint8_t *input);

/* Says what is wrong and aborts; the caller's input is then what a fuzzer keeps. */
_Noreturn void target_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
