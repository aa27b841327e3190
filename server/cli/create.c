/* SPDX-License-Identifier: BSD-3-Clause */
#include "cli/cli.h"

static int run(int argc, char **argv)
{
	struct cpc_cli_session session = {.writes = true};
	const struct cpc_cli_option options[] = {{"--control", NULL, &session.control},
						 {.name = NULL}};
	struct json_object *request;
	struct cpc_cli_args args;
	uint64_t size;
	int ret = cpc_cli_parse(&cpc_cli_create, argc, argv, options, 3, 3, &args);

	if (ret >= 0)
		return ret;
	ret = cpc_cli_size("size", args.positional[2], &size);
	if (ret)
		return ret;
	session.pool = args.positional[0];
	request = cpc_cli_add(NULL, "name", args.positional[1]);
	json_object_object_add(request, "size", json_object_new_uint64(size));
	return cpc_cli_do(&session, "create", request);
}

const struct cpc_cli_verb cpc_cli_create = {
    .name = "create",
    .synopsis = "POOL VOL SIZE [--control PATH]",
    .summary = "make a thin volume",
    .help = "SIZE is from 1 byte to 8E (which is rounded down to 2^63 - 4096 bytes); it takes no\n"
	    "space until it is written to. VOL is 1 to 255 letters, digits, '.', '_' or '-', and\n"
	    "does not start with '-' or '.'.\n",
    .run = run,
};
