/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugin/log-limit.h"

/* FNV-1a over what is no digit. */
static uint32_t line_kind(const char *line)
{
	uint32_t hash = 2166136261u;

	for (; *line; line++) {
		if (*line >= '0' && *line <= '9')
			continue;
		hash = (hash ^ (uint8_t)*line) * 16777619u;
	}
	return hash;
}

bool cpc_log_limit_pass(struct cpc_log_limit *limit, const char *line, uint64_t now_ns,
			unsigned *held)
{
	uint32_t i = line_kind(line) % CPC_LOG_LIMIT_SLOTS;

	*held = 0;
	if (limit->slot[i].passed == 0 || now_ns - limit->slot[i].start_ns >= CPC_LOG_LIMIT_NS) {
		*held = limit->slot[i].held;
		limit->slot[i].start_ns = now_ns;
		limit->slot[i].passed = 0;
		limit->slot[i].held = 0;
	}
	if (limit->slot[i].passed == CPC_LOG_LIMIT_LINES) {
		limit->slot[i].held++;
		return false;
	}
	limit->slot[i].passed++;
	return true;
}
