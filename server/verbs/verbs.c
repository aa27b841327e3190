/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A table says for each verb what it takes; one function checks a request against it, so that the
 * functions behind it find their arguments present and of the right type.
 */
#include "verbs-internal.h"

#include <unistd.h>

enum arg_type { ARG_STRING, ARG_SIZE, ARG_BOOL };

struct arg {
	const char *name;
	enum arg_type type;
	bool optional;
};

#define MAX_ARGS 4

struct verb {
	const char *name;
	bool quick;
	struct json_object *(*run)(const struct cpc_verbs *verbs, struct json_object *args);
	struct arg args[MAX_ARGS]; /* ends with a NULL name */
};

static struct json_object *done(int ret, const struct cpc_error *err)
{
	if (ret == 0)
		return cpc_reply_ok();
	if (err->text[0])
		return cpc_reply_error(ret, "%s", err->text);
	return cpc_reply_error(ret, "%s", strerror(-ret));
}

/* --- volumes ------------------------------------------------------------------------------- */

static struct json_object *run_create(const struct cpc_verbs *verbs, struct json_object *args)
{
	struct cpc_error err = {0};

	return done(cpc_pool_create_volume(verbs->pool, cpc_json_string(args, "name"),
					   cpc_json_u64(args, "size"), &err),
		    &err);
}

static struct json_object *run_rename(const struct cpc_verbs *verbs, struct json_object *args)
{
	struct cpc_error err = {0};

	return done(cpc_pool_rename(verbs->pool, cpc_json_string(args, "old"),
				    cpc_json_string(args, "new"), &err),
		    &err);
}

static struct json_object *run_delete(const struct cpc_verbs *verbs, struct json_object *args)
{
	struct cpc_error err = {0};

	return done(cpc_pool_delete(verbs->pool, cpc_json_string(args, "name"), &err), &err);
}

static struct json_object *run_resize(const struct cpc_verbs *verbs, struct json_object *args)
{
	struct json_object *shrink = json_object_object_get(args, "shrink");
	struct cpc_error err = {0};

	return done(cpc_pool_resize(verbs->pool, cpc_json_string(args, "name"),
				    cpc_json_u64(args, "size"),
				    shrink && json_object_get_boolean(shrink), &err),
		    &err);
}

static void add_string(struct json_object *o, const char *key, const char *value)
{
	json_object_object_add(o, key, json_object_new_string(value));
}

static void add_u64(struct json_object *o, const char *key, uint64_t value)
{
	json_object_object_add(o, key, json_object_new_uint64(value));
}

static void add_bool(struct json_object *o, const char *key, bool value)
{
	json_object_object_add(o, key, json_object_new_boolean(value));
}

static struct json_object *volume_json(const struct cpc_volume_info *info)
{
	struct json_object *o = json_object_new_object();
	char uuid[37];

	if (!o)
		return NULL;
	cpc_uuid_format(info->uuid, uuid);
	add_string(o, "name", info->name);
	add_u64(o, "size", info->size);
	add_u64(o, "used", info->used);
	add_u64(o, "exclusive", info->exclusive);
	json_object_object_add(o, "created", json_object_new_int64(info->created));
	add_u64(o, "open", info->open);
	add_bool(o, "read_only", info->read_only);
	add_u64(o, "id", info->id);
	add_string(o, "uuid", uuid);
	return o;
}

static int list_add(void *ctx, const struct cpc_volume_info *info)
{
	struct json_object *volume = volume_json(info);

	if (!volume || json_object_array_add(ctx, volume) != 0) {
		json_object_put(volume);
		return -ENOMEM;
	}
	return 0;
}

static struct json_object *run_list(const struct cpc_verbs *verbs, struct json_object *args)
{
	struct json_object *array = json_object_new_array(), *reply;
	int ret;

	cpc_pool_settle(verbs->pool);
	ret = array ? cpc_pool_list(verbs->pool, list_add, array) : -ENOMEM;
	if (ret) {
		json_object_put(array);
		return cpc_reply_error(ret, "cannot list the volumes: %s", strerror(-ret));
	}
	reply = cpc_reply_ok();
	if (reply)
		json_object_object_add(reply, "volumes", array);
	else
		json_object_put(array);
	return reply;
}

/* --- info ---------------------------------------------------------------------------------- */

static struct json_object *pool_json(const struct cpc_verbs *verbs)
{
	struct json_object *o = json_object_new_object();
	struct cpc_pool_info info;

	if (!o)
		return NULL;
	cpc_pool_info(verbs->pool, &info);
	add_string(o, "uuid", info.uuid_text);
	add_string(o, "label", info.label);
	add_string(o, "health", info.health);
	add_u64(o, "capacity", info.capacity);
	add_u64(o, "used", info.used);
	add_u64(o, "free", info.free);
	add_u64(o, "pinned", info.pinned);
	add_u64(o, "reserved", info.reserved);
	add_u64(o, "generation", info.generation);
	add_u64(o, "volumes", info.volumes);
	add_u64(o, "nodesize", info.nodesize);
	add_string(o, "metadata", info.copies > 1 ? "dup" : "single");
	add_u64(o, "log_size", info.log_size);
	add_bool(o, "read_only", info.read_only);
	if (verbs->online)
		add_u64(o, "served_by", (uint64_t)getpid());
	return o;
}

static struct json_object *run_info(const struct cpc_verbs *verbs, struct json_object *args)
{
	const char *name = cpc_json_string(args, "name");
	struct json_object *reply;
	struct cpc_volume_info info;
	int ret = 0;

	cpc_pool_settle(verbs->pool);
	if (name)
		ret = cpc_pool_volume_info(verbs->pool, name, &info);
	if (ret == -ENOENT)
		return cpc_reply_error(ret, "there is no volume '%s'; `coppice list` shows all",
				       name);
	if (ret)
		return cpc_reply_error(ret, "volume '%s': %s", name, strerror(-ret));
	reply = cpc_reply_ok();
	if (reply)
		json_object_object_add(reply, name ? "volume" : "pool",
				       name ? volume_json(&info) : pool_json(verbs));
	return reply;
}

/* --- offline verbs ------------------------------------------------------------------------- */

static struct json_object *run_offline(const struct cpc_verbs *verbs, struct json_object *args)
{
	return cpc_reply_error(EBUSY,
			       "the pool is served by pid %ld, and check and dump are offline "
			       "verbs; stop that server first",
			       (long)getpid());
}

/* --- dispatch ------------------------------------------------------------------------------ */

static const struct verb verb_table[] = {
    {"create", false, run_create, {{"name", ARG_STRING, false}, {"size", ARG_SIZE, false}}},
    {"list", false, run_list, {{.name = NULL}}},
    {"info", false, run_info, {{"name", ARG_STRING, true}}},
    {"rename", false, run_rename, {{"old", ARG_STRING, false}, {"new", ARG_STRING, false}}},
    {"delete", false, run_delete, {{"name", ARG_STRING, false}}},
    {"resize",
     false,
     run_resize,
     {{"name", ARG_STRING, false}, {"size", ARG_SIZE, false}, {"shrink", ARG_BOOL, true}}},
    {"stats", true, cpc_verb_stats, {{.name = NULL}}},
    {"metrics", true, cpc_verb_metrics, {{.name = NULL}}},
    {"scrub", true, cpc_verb_scrub, {{"start", ARG_BOOL, true}, {"from", ARG_SIZE, true}}},
    {"check", true, run_offline, {{.name = NULL}}},
    {"dump", true, run_offline, {{.name = NULL}}},
};

static const struct verb *verb_find(struct json_object *request)
{
	const char *name = cpc_json_string(request, "verb");

	for (size_t i = 0; name && i < CPC_ARRAY_SIZE(verb_table); i++) {
		if (strcmp(verb_table[i].name, name) == 0)
			return &verb_table[i];
	}
	return NULL;
}

/* Text of what is wrong with a value, or NULL. A string with a NUL inside is cut by C: refused. */
static const char *arg_wrong(const struct arg *arg, struct json_object *value)
{
	const char *text;

	switch (arg->type) {
	case ARG_STRING:
		if (!json_object_is_type(value, json_type_string))
			return "must be a string";
		text = json_object_get_string(value);
		if (strlen(text) != (size_t)json_object_get_string_len(value))
			return "must not contain a NUL";
		return NULL;
	case ARG_SIZE:
		if (!json_object_is_type(value, json_type_int))
			return "must be a whole number of bytes";
		return json_object_get_int64(value) <= 0 ? "must be at least 1" : NULL;
	case ARG_BOOL:
		return json_object_is_type(value, json_type_boolean) ? NULL
								     : "must be true or false";
	}
	return "is not understood";
}

static bool arg_known(const struct verb *verb, const char *key)
{
	for (const struct arg *arg = verb->args; arg->name; arg++) {
		if (strcmp(arg->name, key) == 0)
			return true;
	}
	return false;
}

static struct json_object *unknown_arg(const struct verb *verb, struct json_object *args)
{
	json_object_object_foreach(args, key, value)
	{
		(void)value;
		if (!arg_known(verb, key))
			return cpc_reply_error(EINVAL, "%s: unknown argument '%.64s'", verb->name,
					       key);
	}
	return NULL;
}

/* Returns an error reply when the arguments do not fit the verb, else NULL. */
static struct json_object *verb_check(const struct verb *verb, struct json_object *args)
{
	struct json_object *value;
	const char *wrong;

	if (args && !json_object_is_type(args, json_type_object))
		return cpc_reply_error(EINVAL, "%s: \"args\" must be an object", verb->name);
	for (const struct arg *arg = verb->args; arg->name; arg++) {
		if (!args || !json_object_object_get_ex(args, arg->name, &value)) {
			if (arg->optional)
				continue;
			return cpc_reply_error(EINVAL, "%s: argument '%s' is missing", verb->name,
					       arg->name);
		}
		wrong = arg_wrong(arg, value);
		if (wrong)
			return cpc_reply_error(EINVAL, "%s: argument '%s' %s", verb->name,
					       arg->name, wrong);
	}
	return args ? unknown_arg(verb, args) : NULL;
}

struct json_object *cpc_verbs_run(const struct cpc_verbs *verbs, struct json_object *request)
{
	const struct verb *verb = verb_find(request);
	struct json_object *args = NULL, *id = NULL, *reply;

	if (!verb) {
		const char *name = cpc_json_string(request, "verb");

		return cpc_reply_error(EINVAL, "unknown verb '%.64s'", name ? name : "");
	}
	json_object_object_get_ex(request, "pool", &id);
	if (!cpc_pool_id_matches(&verbs->id, id))
		return cpc_reply_error(ESTALE,
				       "this server (pid %ld) serves another pool with the "
				       "same uuid, perhaps a copy",
				       (long)getpid());
	json_object_object_get_ex(request, "args", &args);
	reply = verb_check(verb, args);
	return reply ? reply : verb->run(verbs, args);
}

int cpc_verbs_init(struct cpc_verbs *verbs, struct cpc_pool *pool, const char *path, bool online)
{
	struct cpc_pool_info info;

	cpc_pool_info(pool, &info);
	verbs->pool = pool;
	verbs->online = online;
	verbs->progress = NULL;
	memcpy(verbs->uuid, info.uuid_text, sizeof(verbs->uuid));
	return cpc_pool_id_get(path, &verbs->id);
}

bool cpc_verbs_quick(struct json_object *request)
{
	const struct verb *verb = verb_find(request);

	return !verb || verb->quick;
}
