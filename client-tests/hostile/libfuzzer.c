/* SPDX-License-Identifier: BSD-3-Clause */
/* One target under libFuzzer; CPC_TARGET is its name. A target that can change its own inputs does
 * so three times in four, else libFuzzer changes bytes. */
#include <stdlib.h>

#include "draw.h"
#include "target.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len);
size_t LLVMFuzzerCustomMutator(uint8_t *input, size_t len, size_t max, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *input, size_t len, size_t max);

static const struct target *target;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	targets_init();
	target = target_find(CPC_TARGET);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len)
{
	target->run(input, len);
	return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *input, size_t len, size_t max, unsigned seed)
{
	uint64_t state = seed;

	if (!target->mutate || draw(&state, 4) == 0)
		return LLVMFuzzerMutate(input, len, max);
	return target->mutate(&state, input, len, max);
}
