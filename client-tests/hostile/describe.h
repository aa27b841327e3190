/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * describe: makes and changes descriptions of hostile pools (pool-target.c) so that what they
 * change is a field of a structure that is there.
 *
 * Called by `hostile` for inputs from nothing, by libfuzzer.c as its custom mutator. What an image
 * looks like after the changes, checksums and all, is image.c's.
 */
#ifndef CPC_HOSTILE_DESCRIBE_H
#define CPC_HOSTILE_DESCRIBE_H

#include "image.h"

#define DESCRIPTION_HEADER 2u /* which base; how it is sealed and used */
#define DESCRIPTION_STEP   8u /* a change, or a request when the top bit of the first byte is set */
#define DESCRIPTION_STEPS  64u

/* A description from nothing (`len` below DESCRIPTION_HEADER), or another one like `input`.
 * Return: its length, at most `max`. */
size_t describe(const struct image images[IMAGE_BASES], uint64_t *state, uint8_t *input, size_t len,
		size_t max);

#endif
