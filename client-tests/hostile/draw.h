/* SPDX-License-Identifier: BSD-3-Clause */
/* draw: random numbers that follow from a seed (splitmix64), for whoever makes inputs. */
#ifndef CPC_HOSTILE_DRAW_H
#define CPC_HOSTILE_DRAW_H

#include "lib/base.h"

/* Return: 0 to `below` - 1. */
static inline uint64_t draw(uint64_t *state, uint64_t below)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15u;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	x ^= x >> 31;
	return (uint64_t)(((__uint128_t)x * below) >> 64);
}

#endif
