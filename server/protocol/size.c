/* SPDX-License-Identifier: BSD-3-Clause */
#include "protocol/size.h"

#include <stdio.h>

#define SIZE_LIMIT (1ull << 63)

static const char units[] = "BKMGTPE";

static int refuse(const char **why, const char *text, int err)
{
	*why = text;
	return err;
}

/* The power of two behind a suffix: "", "b", "k", "K", "KiB" ... or -1. */
static int suffix_shift(const char *text)
{
	const char *unit;
	char first;

	if (!*text)
		return 0;
	first = *text >= 'a' && *text <= 'z' ? (char)(*text - 'a' + 'A') : *text;
	unit = strchr(units, first);
	if (!unit)
		return -1;
	text++;
	if (*text && (unit == units || strcmp(text, "iB") != 0))
		return -1;
	return 10 * (int)(unit - units);
}

int cpc_size_parse(const char *text, uint64_t *size, const char **why)
{
	const char *p = text;
	uint64_t v = 0;
	int shift;

	if (*p == '-')
		return refuse(why, "a size cannot be negative", -EINVAL);
	if (*p < '0' || *p > '9')
		return refuse(why, "not a size; write it like 512M, 2G or 1T", -EINVAL);
	for (; *p >= '0' && *p <= '9'; p++) {
		if (__builtin_mul_overflow(v, 10u, &v) ||
		    __builtin_add_overflow(v, (unsigned)(*p - '0'), &v))
			return refuse(why, "too large; the limit is 8E (2^63 bytes)", -ERANGE);
	}
	if (*p == '.' || *p == ',')
		return refuse(why, "fractions are not understood; use a smaller unit", -EINVAL);
	shift = suffix_shift(p);
	if (shift < 0)
		return refuse(why, "unknown unit; use B, K, M, G, T, P or E", -EINVAL);
	if (v == 0)
		return refuse(why, "a size cannot be 0", -EINVAL);
	if (v > SIZE_LIMIT >> shift)
		return refuse(why, "too large; the limit is 8E (2^63 bytes)", -ERANGE);
	*size = v << shift;
	return 0;
}

/* To the nearest tenth: 2^63 - 4096 bytes are 8 EiB for a reader. */
const char *cpc_size_format(uint64_t size, char out[CPC_SIZE_TEXT])
{
	unsigned unit = 0, tenths;
	uint64_t whole = size, below = 0;

	while (whole >= 1024) {
		below = whole % 1024;
		whole /= 1024;
		unit++;
	}
	tenths = (unsigned)((below * 10 + 512) / 1024);
	if (tenths == 10) {
		tenths = 0;
		whole++;
	}
	if (unit == 0)
		snprintf(out, CPC_SIZE_TEXT, "%u B", (unsigned)whole);
	else if (tenths == 0)
		snprintf(out, CPC_SIZE_TEXT, "%u %ciB", (unsigned)whole, units[unit]);
	else
		snprintf(out, CPC_SIZE_TEXT, "%u.%u %ciB", (unsigned)whole, tenths, units[unit]);
	return out;
}
