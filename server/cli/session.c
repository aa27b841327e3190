/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Who answers a request. The pool is opened first: that either works, and then nobody else has it,
 * or the refusal proves that it has an owner, who is then looked for at the pool's default control
 * path. The other order would ask a server that perhaps serves a copy of this pool.
 *
 * An owner that cannot be reached may be a server that is just starting, or another tool that will
 * be gone in a moment; so both are tried again for a short while.
 */
#include "cli/cli.h"

#include <unistd.h>

#include "pool/pool.h"
#include "protocol/control-path.h"
#include "protocol/pool-id.h"
#include "protocol/reply.h"
#include "verbs/verbs.h"

#define TOOL_CACHE  (64ull << 20)
#define RETRIES	    20
#define RETRY_PAUSE 100000u /* microseconds */

/* --- ask a server -------------------------------------------------------------------------- */

/* Return: 0 and a reply; or errno, `-ENOENT`, `-ECONNREFUSED`: nobody there. */
static int ask_server(const char *path, const char *pool, struct json_object *request,
		      struct json_object **reply)
{
	struct cpc_pool_id id;
	int ret = cpc_pool_id_get(pool, &id);

	if (ret)
		return ret;
	json_object_object_add(request, "pool", cpc_pool_id_to_json(&id));
	return cpc_cli_ask(path, request, reply);
}

static int default_path(const char *pool, char path[CPC_CONTROL_PATH_MAX])
{
	uint8_t uuid[CPC_UUID_SIZE];
	int ret = cpc_pool_read_uuid(pool, uuid);

	if (ret == 0)
		ret = cpc_control_path(uuid, path);
	return ret ? ret : cpc_control_check_dir(path);
}

/* --- do it here ---------------------------------------------------------------------------- */

static int run_here(const struct cpc_cli_session *session, struct cpc_pool *pool,
		    struct json_object *request, struct json_object **reply, struct cpc_error *err)
{
	struct cpc_verbs verbs;
	int ret = cpc_pool_start(pool, err), ret2;

	if (ret == 0)
		ret = cpc_verbs_init(&verbs, pool, session->pool, false);
	if (ret == 0) {
		verbs.progress = session->progress;
		verbs.progress_ctx = session->progress_ctx;
		*reply = cpc_verbs_run(&verbs, request);
		ret = *reply ? 0 : -ENOMEM;
		ret2 = cpc_pool_shutdown(pool);
		if (ret == 0 && ret2 && cpc_reply_is_ok(*reply)) {
			json_object_put(*reply);
			*reply = NULL;
			ret = ret2;
		}
	}
	cpc_pool_close(pool);
	return ret;
}

static int try_here(const struct cpc_cli_session *session, struct json_object *request,
		    struct json_object **reply, struct cpc_error *err)
{
	struct cpc_pool_options options;
	struct cpc_pool *pool;
	int ret;

	err->text[0] = '\0';
	cpc_pool_options_init(&options);
	options.cache = TOOL_CACHE;
	options.read_only = !session->writes;
	ret = cpc_pool_open(session->pool, &options, &pool, err);
	return ret ? ret : run_here(session, pool, request, reply, err);
}

/* --- both ---------------------------------------------------------------------------------- */

static struct json_object *say(const char *pool, int ret, const struct cpc_error *err)
{
	if (err->text[0])
		cpc_cli_fail("%s", err->text);
	else
		cpc_cli_fail("%s: %s", pool, strerror(-ret));
	return NULL;
}

/* The pool has an owner (`err` names it) that cannot be asked. */
static struct json_object *say_unreachable(const char *path, int ret, const struct cpc_error *err)
{
	if (ret == -EACCES)
		cpc_cli_fail("%s; its control socket %s is another user's", err->text, path);
	else
		cpc_cli_fail("%s; it does not answer at the control socket %s, name another with "
			     "--control PATH",
			     err->text, path[0] ? path : "that follows from the pool");
	return NULL;
}

static bool nobody_there(int ret)
{
	return ret == -ENOENT || ret == -ECONNREFUSED;
}

static struct json_object *find_answer(const struct cpc_cli_session *session,
				       struct json_object *request)
{
	char path[CPC_CONTROL_PATH_MAX] = "";
	struct json_object *reply = NULL;
	struct cpc_error err;
	int here, there = 0;

	for (int i = 0; i < RETRIES; i++) {
		here = try_here(session, request, &reply, &err);
		if (here == 0)
			return reply;
		if (here != -EBUSY)
			return say(session->pool, here, &err);
		there = default_path(session->pool, path);
		if (there == 0)
			there = ask_server(path, session->pool, request, &reply);
		if (there == 0)
			return reply;
		if (!nobody_there(there))
			break;
		usleep(RETRY_PAUSE);
	}
	return say_unreachable(path, there, &err);
}

static struct json_object *ask_named(const struct cpc_cli_session *session,
				     struct json_object *request)
{
	struct json_object *reply;
	int ret = ask_server(session->control, session->pool, request, &reply);

	if (ret == 0)
		return reply;
	cpc_cli_fail("control socket %s: %s", session->control, strerror(-ret));
	return NULL;
}

struct json_object *cpc_cli_request(const struct cpc_cli_session *session, const char *verb,
				    struct json_object *args)
{
	struct json_object *request = json_object_new_object(), *reply = NULL;

	if (!request) {
		json_object_put(args);
		cpc_cli_fail("out of memory");
		return NULL;
	}
	json_object_object_add(request, "verb", json_object_new_string(verb));
	if (args)
		json_object_object_add(request, "args", args);
	reply = session->control ? ask_named(session, request) : find_answer(session, request);
	json_object_put(request);
	if (reply && !cpc_reply_is_ok(reply)) {
		cpc_cli_fail("%s", cpc_reply_text(reply));
		json_object_put(reply);
		return NULL;
	}
	return reply;
}

int cpc_cli_do(const struct cpc_cli_session *session, const char *verb, struct json_object *args)
{
	struct json_object *reply = cpc_cli_request(session, verb, args);

	if (!reply)
		return CPC_EXIT_FAILED;
	json_object_put(reply);
	return CPC_EXIT_OK;
}

struct json_object *cpc_cli_add(struct json_object *args, const char *key, const char *value)
{
	if (!args)
		args = json_object_new_object();
	if (args)
		json_object_object_add(args, key, json_object_new_string(value));
	return args;
}
