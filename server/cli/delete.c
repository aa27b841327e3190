/* SPDX-License-Identifier: BSD-3-Clause */
#include "cli/cli.h"

static int run(int argc, char **argv)
{
	struct cpc_cli_session session = {.writes = true};
	const struct cpc_cli_option options[] = {{"--control", NULL, &session.control},
						 {.name = NULL}};
	struct cpc_cli_args args;
	int ret = cpc_cli_parse(&cpc_cli_delete, argc, argv, options, 2, 2, &args);

	if (ret >= 0)
		return ret;
	session.pool = args.positional[0];
	return cpc_cli_do(&session, "delete", cpc_cli_add(NULL, "name", args.positional[1]));
}

const struct cpc_cli_verb cpc_cli_delete = {
    .name = "delete",
    .synopsis = "POOL NAME [--control PATH]",
    .summary = "delete a volume and all its data",
    .help = "Refused while a client has the volume open.\n",
    .run = run,
};
