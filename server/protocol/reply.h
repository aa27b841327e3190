/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * reply: the two shapes that an answer on the control socket can have,
 *	{"ok":true, ...}
 *	{"ok":false, "errno":"EBUSY", "error":"one line"}
 * and the limits of the protocol: one JSON object a line, in both directions.
 *
 * Called by verbs, control and cli. Ownership: what is returned belongs to the caller; NULL means
 * that there is no memory.
 */
#ifndef CPC_PROTOCOL_REPLY_H
#define CPC_PROTOCOL_REPLY_H

#include <json-c/json.h>

#include "lib/base.h"

/* The longest request, its newline included. Replies have no limit. */
#define CPC_REQUEST_MAX 65536u

/* Nesting that a request or reply may have. */
#define CPC_JSON_DEPTH 8

struct json_object *cpc_reply_ok(void);

/* `err` is a positive or negative errno. */
struct json_object *cpc_reply_error(int err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

bool cpc_reply_is_ok(struct json_object *reply);

/* The text of an error, or of what is wrong with the reply itself. Lives as long as the reply. */
const char *cpc_reply_text(struct json_object *reply);

/* Parses exactly one JSON object of `len` bytes. `why` gets a static text on failure (NULL). */
struct json_object *cpc_json_parse(const char *text, size_t len, const char **why);

/* Returns a string member, or NULL. */
const char *cpc_json_string(struct json_object *object, const char *key);

/* Returns an integer member, or 0. */
uint64_t cpc_json_u64(struct json_object *object, const char *key);

#endif
