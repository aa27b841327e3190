/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * log-limit: keeps a failing device or a hostile client from filling the log. Lines that differ
 * only in their numbers are of one kind; of each kind 5 lines pass in 10 seconds, and the first
 * line after that says how many did not.
 *
 * Kinds share a slot when their hashes collide; then they share the 5 lines as well.
 *
 * Locks: the caller's. Errors: none.
 */
#ifndef CPC_PLUGIN_LOG_LIMIT_H
#define CPC_PLUGIN_LOG_LIMIT_H

#include "lib/base.h"

#define CPC_LOG_LIMIT_LINES 5u
#define CPC_LOG_LIMIT_NS    (10ull * 1000000000ull)
#define CPC_LOG_LIMIT_SLOTS 64u

/* Zeroed memory is a limit that has seen nothing. */
struct cpc_log_limit {
	struct {
		uint64_t start_ns;
		unsigned passed, held;
	} slot[CPC_LOG_LIMIT_SLOTS];
};

/* Says whether a line may pass, and how many of its kind were held back since the last one. */
bool cpc_log_limit_pass(struct cpc_log_limit *limit, const char *line, uint64_t now_ns,
			unsigned *held);

#endif
