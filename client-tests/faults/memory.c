/* SPDX-License-Identifier: BSD-3-Clause */
#include "memory.h"

#include "lib/hooks.h"

static struct {
	uint64_t live, until, failures;
	bool armed, sticky, paused;
} memory;

static bool fails(void)
{
	if (!memory.armed || memory.paused)
		return false;
	if (memory.until > 1) {
		memory.until--;
		return false;
	}
	memory.armed = memory.sticky;
	memory.failures++;
	return true;
}

static void *counted_alloc(size_t align, size_t size)
{
	void *p = fails() ? NULL : cpc_hooks_default.alloc(align, size);

	memory.live += p != NULL;
	return p;
}

static void counted_free(void *p)
{
	memory.live--;
	cpc_hooks_default.free(p);
}

void memory_init(void)
{
	cpc_hooks.alloc = counted_alloc;
	cpc_hooks.free = counted_free;
}

void memory_fail(uint64_t nth, bool sticky)
{
	memory.armed = true;
	memory.until = nth;
	memory.sticky = sticky;
	memory.failures = 0;
}

void memory_heal(void)
{
	memory.armed = false;
}

void memory_pause(bool pause)
{
	memory.paused = pause;
}

uint64_t memory_failures(void)
{
	return memory.failures;
}

uint64_t memory_live(void)
{
	return memory.live;
}
