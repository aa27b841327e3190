/* SPDX-License-Identifier: BSD-3-Clause */
/* One target under libFuzzer; CPC_TARGET is its name. */
#include <stdlib.h>

#include "target.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	targets_init();
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len)
{
	static const struct target *target;

	if (!target)
		target = target_find(CPC_TARGET);
	target->run(input, len);
	return 0;
}
