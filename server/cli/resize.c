/* SPDX-License-Identifier: BSD-3-Clause */
#include "cli/cli.h"

static int run(int argc, char **argv)
{
	struct cpc_cli_session session = {.writes = true};
	bool shrink = false;
	const struct cpc_cli_option options[] = {
	    {"--shrink", &shrink, NULL},
	    {"--control", NULL, &session.control},
	    {.name = NULL},
	};
	struct json_object *request;
	struct cpc_cli_args args;
	uint64_t size;
	int ret = cpc_cli_parse(&cpc_cli_resize, argc, argv, options, 3, 3, &args);

	if (ret >= 0)
		return ret;
	ret = cpc_cli_size("size", args.positional[2], &size);
	if (ret)
		return ret;
	session.pool = args.positional[0];
	request = cpc_cli_add(NULL, "name", args.positional[1]);
	json_object_object_add(request, "size", json_object_new_uint64(size));
	json_object_object_add(request, "shrink", json_object_new_boolean(shrink));
	return cpc_cli_do(&session, "resize", request);
}

const struct cpc_cli_verb cpc_cli_resize = {
    .name = "resize",
    .synopsis = "POOL VOL SIZE [--shrink] [--control PATH]",
    .summary = "change the size of a volume",
    .help = "  --shrink  allow a smaller size: what lies above it is lost\n"
	    "Growing works at any time; clients see the new size when they connect again.\n"
	    "Shrinking is refused while a client has the volume open.\n",
    .run = run,
};
