/* SPDX-License-Identifier: BSD-3-Clause */
#include "cli/cli.h"

static int run(int argc, char **argv)
{
	struct cpc_cli_session session = {.writes = true};
	const struct cpc_cli_option options[] = {{"--control", NULL, &session.control},
						 {.name = NULL}};
	struct json_object *request;
	struct cpc_cli_args args;
	int ret = cpc_cli_parse(&cpc_cli_rename, argc, argv, options, 3, 3, &args);

	if (ret >= 0)
		return ret;
	session.pool = args.positional[0];
	request = cpc_cli_add(NULL, "old", args.positional[1]);
	request = cpc_cli_add(request, "new", args.positional[2]);
	return cpc_cli_do(&session, "rename", request);
}

const struct cpc_cli_verb cpc_cli_rename = {
    .name = "rename",
    .synopsis = "POOL OLD NEW [--control PATH]",
    .summary = "give a volume another name",
    .help = "Works while clients are attached; they go on, and new ones use the new name.\n",
    .run = run,
};
