/* SPDX-License-Identifier: BSD-3-Clause */
#include "lib/mutation.h"

#include <stdlib.h>

static const char *chosen;

__attribute__((constructor)) static void choose(void)
{
	chosen = getenv("CPC_MUTANT");
}

bool cpc_mutant(const char *name)
{
	return chosen && !strcmp(chosen, name);
}
