/* SPDX-License-Identifier: BSD-3-Clause */
#include "cli/cli.h"

#include "protocol/reply.h"
#include "protocol/size.h"

static void add_row(struct cpc_cli_table *table, struct json_object *volume)
{
	char size[CPC_SIZE_TEXT], used[CPC_SIZE_TEXT], exclusive[CPC_SIZE_TEXT], open[24];
	char created[CPC_CLI_TIME_TEXT];
	const char *name = cpc_json_string(volume, "name");
	const char *cells[] = {
	    name ? name : "?",
	    cpc_size_format(cpc_json_u64(volume, "size"), size),
	    cpc_size_format(cpc_json_u64(volume, "used"), used),
	    cpc_size_format(cpc_json_u64(volume, "exclusive"), exclusive),
	    open,
	    cpc_cli_time((int64_t)cpc_json_u64(volume, "created"), created),
	};

	snprintf(open, sizeof(open), "%ju", (uintmax_t)cpc_json_u64(volume, "open"));
	cpc_cli_table_row(table, cells);
}

static int print_table(struct json_object *volumes)
{
	static const char *const head[] = {"NAME", "SIZE", "USED", "EXCLUSIVE", "OPEN", "CREATED"};
	struct cpc_cli_table *table = cpc_cli_table_new(CPC_ARRAY_SIZE(head), 0x1e);
	size_t nr = json_object_array_length(volumes);

	cpc_cli_table_row(table, head);
	for (size_t i = 0; i < nr; i++)
		add_row(table, json_object_array_get_idx(volumes, i));
	cpc_cli_table_print(table);
	cpc_cli_table_free(table);
	return cpc_cli_finish_output();
}

static int print_reply(struct json_object *reply, bool json)
{
	struct json_object *volumes;

	if (!json_object_object_get_ex(reply, "volumes", &volumes) ||
	    !json_object_is_type(volumes, json_type_array))
		return cpc_cli_fail("the server's answer has no list of volumes");
	if (!json)
		return print_table(volumes);
	json_object_object_del(reply, "ok");
	return cpc_cli_print_json(reply);
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
	struct json_object *reply;
	struct cpc_cli_args args;
	int ret = cpc_cli_parse(&cpc_cli_list, argc, argv, options, 1, 1, &args);

	if (ret >= 0)
		return ret;
	session.pool = args.positional[0];
	reply = cpc_cli_request(&session, "list", NULL);
	if (!reply)
		return CPC_EXIT_FAILED;
	ret = print_reply(reply, json);
	json_object_put(reply);
	return ret;
}

const struct cpc_cli_verb cpc_cli_list = {
    .name = "list",
    .synopsis = "POOL [--json] [--control PATH]",
    .summary = "list the volumes",
    .help = "  --json  {\"volumes\":[{\"name\":...,\"size\":...,\"used\":...}, ...]}, in bytes\n"
	    "USED is what the volume's data takes, EXCLUSIVE what deleting it would free,\n"
	    "OPEN how many connections use it.\n",
    .run = run,
};
