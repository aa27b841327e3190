/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * size: sizes as people write and read them. "512M", "2GiB", "8e"; powers of 1024, no fractions.
 * Called by cli and plugin. Locks, ownership: none.
 */
#ifndef CPC_PROTOCOL_SIZE_H
#define CPC_PROTOCOL_SIZE_H

#include "lib/base.h"

/*
 * Reads a size from 1 to 2^63. Return: 0; -EINVAL or -ERANGE, and `*why` is a static text that
 * fits behind "size 'x': ".
 */
int cpc_size_parse(const char *text, uint64_t *size, const char **why);

#define CPC_SIZE_TEXT 16

/* Writes a size with a unit and at most one decimal: "8 GiB", "1.5 MiB", "700 B". */
const char *cpc_size_format(uint64_t size, char out[CPC_SIZE_TEXT]);

#endif
