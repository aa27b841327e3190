/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * scrub takes hours, so a request starts it, or joins the one that runs, and the answer says how
 * far it is; who wants to see the end asks again, with "from" for the damage not yet told. Offline
 * the pool is closed after one request, so that one waits for the end.
 */
#include "verbs-internal.h"

#include "check/check.h"

#define STEP_NS 200000000ull

static void add_u64(struct json_object *o, const char *key, uint64_t value)
{
	json_object_object_add(o, key, json_object_new_uint64(value));
}

static void add_string(struct json_object *o, const char *key, const char *value)
{
	json_object_object_add(o, key, json_object_new_string(value));
}

static void add_damage(void *ctx, const struct cpc_damage *damage)
{
	struct json_object *o = json_object_new_object();

	if (!o)
		return;
	add_string(o, "kind", cpc_damage_kind_name(damage->kind));
	add_u64(o, "bytenr", damage->bytenr);
	add_string(o, "where", damage->where);
	if (damage->volume) {
		add_string(o, "volume", damage->volume);
		add_u64(o, "offset", damage->offset);
	}
	add_string(o, "what", damage->what);
	add_string(o, "action", damage->action);
	json_object_object_add(o, "repaired", json_object_new_boolean(damage->repaired));
	json_object_array_add(ctx, o);
}

static struct json_object *status_json(struct cpc_pool *pool, uint64_t from)
{
	static const char *const states[] = {"none", "running", "done", "stopped"};
	struct json_object *o = json_object_new_object(), *damage = json_object_new_array();
	struct cpc_scrub_status s;

	if (!o || !damage) {
		json_object_put(o);
		json_object_put(damage);
		return NULL;
	}
	cpc_pool_scrub_status(pool, &s, from, add_damage, damage);
	add_string(o, "state", states[s.state]);
	add_u64(o, "done", s.done);
	add_u64(o, "total", s.total);
	add_u64(o, "supers", s.result.supers);
	add_u64(o, "nodes", s.result.nodes);
	add_u64(o, "bitmaps", s.result.bitmaps);
	add_u64(o, "log_records", s.result.log_records);
	add_u64(o, "data_blocks", s.result.data_blocks);
	add_u64(o, "repaired", s.result.repaired);
	add_u64(o, "unrepaired", s.result.unrepaired);
	if (s.error)
		add_string(o, "error", strerror(-s.error));
	json_object_object_add(o, "damage", damage);
	add_u64(o, "next", s.nr_damage);
	return o;
}

static void wait_here(const struct cpc_verbs *verbs)
{
	struct cpc_scrub_status s;

	do {
		cpc_pool_scrub_wait(verbs->pool, STEP_NS);
		cpc_pool_scrub_status(verbs->pool, &s, 0, NULL, NULL);
		if (verbs->progress)
			verbs->progress(verbs->progress_ctx, s.done, s.total);
	} while (s.state == CPC_SCRUB_RUNNING);
}

struct json_object *cpc_verb_scrub(const struct cpc_verbs *verbs, struct json_object *args)
{
	struct json_object *start = args ? json_object_object_get(args, "start") : NULL;
	struct json_object *status, *reply;
	struct cpc_error err = {0};
	int ret = 0;

	if (start && json_object_get_boolean(start))
		ret = cpc_pool_scrub_start(verbs->pool, &err);
	if (ret)
		return cpc_reply_error(ret, "%s", err.text);
	if (!verbs->online)
		wait_here(verbs);
	status = status_json(verbs->pool, args ? cpc_json_u64(args, "from") : 0);
	reply = status ? cpc_reply_ok() : NULL;
	if (reply)
		json_object_object_add(reply, "scrub", status);
	else
		json_object_put(status);
	return reply;
}
