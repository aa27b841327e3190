/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * mutation: bugs that a test build can be given, one at a time, to see that the tests find them.
 *
 * CPC_MUTANT(name) stands where a rule is kept, and is a constant false in every build but that of
 * the preset `mutation`; there it is true when the environment says CPC_MUTANT=name. The list of
 * mutants, with what has to find each, is client-tests/mutation/every-mutant-is-found.
 */
#ifndef CPC_LIB_MUTATION_H
#define CPC_LIB_MUTATION_H

#include "lib/base.h"

#ifdef CPC_MUTATION
bool cpc_mutant(const char *name);
#define CPC_MUTANT(name) cpc_mutant(#name)
#else
#define CPC_MUTANT(name) false
#endif

#endif
