/* SPDX-License-Identifier: BSD-3-Clause */
#include "cli/cli.h"

#include "protocol/reply.h"

static const char *text_of(struct json_object *o, const char *key)
{
	const char *text = cpc_json_string(o, key);

	return text ? text : "?";
}

static bool flag_of(struct json_object *o, const char *key)
{
	struct json_object *value;

	return json_object_object_get_ex(o, key, &value) && json_object_get_boolean(value);
}

static int print_volume(struct json_object *o)
{
	char created[CPC_CLI_TIME_TEXT];

	cpc_cli_print_pair("name", "%s", text_of(o, "name"));
	cpc_cli_print_size("size", cpc_json_u64(o, "size"));
	cpc_cli_print_size("used", cpc_json_u64(o, "used"));
	cpc_cli_print_size("exclusive", cpc_json_u64(o, "exclusive"));
	cpc_cli_print_pair("created", "%s",
			   cpc_cli_time((int64_t)cpc_json_u64(o, "created"), created));
	cpc_cli_print_pair("open", "%ju", (uintmax_t)cpc_json_u64(o, "open"));
	cpc_cli_print_pair("read-only", "%s", flag_of(o, "read_only") ? "yes" : "no");
	cpc_cli_print_pair("uuid", "%s", text_of(o, "uuid"));
	return cpc_cli_finish_output();
}

static int print_pool(struct json_object *o)
{
	if (*text_of(o, "label"))
		cpc_cli_print_pair("label", "%s", text_of(o, "label"));
	cpc_cli_print_pair("uuid", "%s", text_of(o, "uuid"));
	cpc_cli_print_pair("health", "%s", text_of(o, "health"));
	cpc_cli_print_size("capacity", cpc_json_u64(o, "capacity"));
	cpc_cli_print_size("used", cpc_json_u64(o, "used"));
	cpc_cli_print_size("free", cpc_json_u64(o, "free"));
	cpc_cli_print_size("pinned", cpc_json_u64(o, "pinned"));
	cpc_cli_print_size("reserved", cpc_json_u64(o, "reserved"));
	cpc_cli_print_pair("volumes", "%ju", (uintmax_t)cpc_json_u64(o, "volumes"));
	cpc_cli_print_pair("generation", "%ju", (uintmax_t)cpc_json_u64(o, "generation"));
	cpc_cli_print_pair("metadata", "%s, nodes of %ju bytes", text_of(o, "metadata"),
			   (uintmax_t)cpc_json_u64(o, "nodesize"));
	cpc_cli_print_size("log", cpc_json_u64(o, "log_size"));
	if (cpc_json_u64(o, "served_by"))
		cpc_cli_print_pair("served by", "pid %ju%s",
				   (uintmax_t)cpc_json_u64(o, "served_by"),
				   flag_of(o, "read_only") ? ", read-only" : "");
	return cpc_cli_finish_output();
}

static int print_reply(struct json_object *reply, bool json)
{
	struct json_object *o;
	bool volume = json_object_object_get_ex(reply, "volume", &o);

	if (!volume && !json_object_object_get_ex(reply, "pool", &o))
		return cpc_cli_fail("the server's answer has no information");
	if (json)
		return cpc_cli_print_json(o);
	return volume ? print_volume(o) : print_pool(o);
}

static int run(int argc, char **argv)
{
	struct cpc_cli_session session = {.writes = false};
	bool json = false;
	const struct cpc_cli_option options[] = {
	    {"--json", &json, NULL},
	    {"--control", NULL, &session.control},
	    {.name = NULL},
	};
	struct json_object *reply, *request = NULL;
	struct cpc_cli_args args;
	int ret = cpc_cli_parse(&cpc_cli_info, argc, argv, options, 1, 2, &args);

	if (ret >= 0)
		return ret;
	session.pool = args.positional[0];
	if (args.nr == 2)
		request = cpc_cli_add(NULL, "name", args.positional[1]);
	reply = cpc_cli_request(&session, "info", request);
	if (!reply)
		return CPC_EXIT_FAILED;
	ret = print_reply(reply, json);
	json_object_put(reply);
	return ret;
}

const struct cpc_cli_verb cpc_cli_info = {
    .name = "info",
    .synopsis = "POOL [NAME] [--json] [--control PATH]",
    .summary = "show a pool, or one volume of it",
    .help = "  --json  one object, sizes in bytes\n",
    .run = run,
};
