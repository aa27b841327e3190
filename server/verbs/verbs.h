/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * verbs: what can be asked of an open pool, as one JSON object in and one out. The control socket
 * (server/control) and the tool that has opened the pool itself (server/cli) call the same
 * function, so that a user need not know which of the two answers him.
 *
 * Request: {"verb":"create", "args":{"name":"disk0","size":1073741824}, "pool":{"dev":1,"ino":2}};
 * `args` may be missing where none is needed, `pool` always (see protocol/pool-id.h).
 *
 *	verb	args			answer, beside "ok":true
 *	create	name, size		-
 *	list				"volumes":[{...}, ...] in order of name
 *	info	[name]			"volume":{...} or "pool":{...}
 *	rename	old, new		-
 *	delete	name			-
 *	resize	name, size, [shrink]	-
 *	stats				"stats":{"client.reads":1, "flush_us":{"count":...}, ...}
 *	metrics				"text":"..." for Prometheus
 *	scrub	[start], [from]		"scrub":{"state":"running", "done":1, "damage":[...], ...}
 *	check, dump			always refused: they are offline verbs
 *
 * Invariants
 *  1. Any request gets an answer, whatever is in it (verb_check() refuses what does not fit).
 *  2. A *quick* verb takes no lock that a commit or a name change holds while it waits for the
 *     device, so that it can be answered by a thread that others wait for.
 *
 * Locks: none; any thread may call. Ownership: request stays the caller's, the reply is the
 * caller's; NULL means that there is no memory.
 */
#ifndef CPC_VERBS_VERBS_H
#define CPC_VERBS_VERBS_H

#include <json-c/json.h>

#include "pool/pool.h"
#include "protocol/pool-id.h"

/* Immutable after init. The pool is the caller's and outlives it. */
struct cpc_verbs {
	struct cpc_pool *pool;
	struct cpc_pool_id id;
	char uuid[37];
	bool online; /* a server; `info` says its pid */
	/* Offline, where nobody can ask again: called while a verb takes its time; may be NULL. */
	void (*progress)(void *ctx, uint64_t done, uint64_t total);
	void *progress_ctx;
};

/* `path` is what the pool was opened by. */
int cpc_verbs_init(struct cpc_verbs *verbs, struct cpc_pool *pool, const char *path, bool online);

struct json_object *cpc_verbs_run(const struct cpc_verbs *verbs, struct json_object *request);

/* What the verb `metrics` answers, to be given to free(), or NULL: no memory. */
char *cpc_verbs_metrics(const struct cpc_verbs *verbs);

/* True for requests that never wait for the device, wrong ones included. */
bool cpc_verbs_quick(struct json_object *request);

#endif
