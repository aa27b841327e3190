/* SPDX-License-Identifier: BSD-3-Clause */
#include "cli/cli.h"

#include "backing/backing.h"
#include "check/check.h"

static void print_line(void *ctx, const char *line)
{
	puts(line);
}

static bool takes_argument(const char *what)
{
	return strcmp(what, "tree") == 0 || strcmp(what, "block") == 0;
}

/* Return: 0, or CPC_EXIT_USAGE after an error line. */
static int check_words(const struct cpc_cli_args *args, const char *what)
{
	if (strcmp(what, "super") != 0 && strcmp(what, "log") != 0 && !takes_argument(what)) {
		return cpc_cli_usage("dump: '%s' is not super, tree, log or block", what);
	}
	if (takes_argument(what) != (args->nr == 3)) {
		return cpc_cli_usage("dump: %s takes %s", what,
				     takes_argument(what) ? "one argument" : "no argument");
	}
	return 0;
}

static int dump_backing(const char *pool, struct cpc_backing *backing, const char *what,
			const char *arg)
{
	int ret = cpc_dump(backing, what, arg, print_line, NULL), out = cpc_cli_finish_output();

	if (ret == -ENOENT)
		return cpc_cli_fail("%s: there is no tree '%s'", pool, arg);
	if (ret == -EINVAL)
		return cpc_cli_fail("%s: there is no pool, or no %s '%s' in it", pool, what,
				    arg ? arg : "");
	if (ret == -ENOTSUP)
		return cpc_cli_fail("%s: the pool's format is newer than this program", pool);
	if (ret == -EUCLEAN)
		return cpc_cli_fail("%s: damaged; run coppice check", pool);
	if (ret)
		return cpc_cli_fail("%s: dump %s: %s", pool, what, strerror(-ret));
	return out;
}

static int run(int argc, char **argv)
{
	const struct cpc_cli_option options[] = {{.name = NULL}};
	struct cpc_backing *backing;
	struct cpc_cli_args args;
	char err[512] = "";
	const char *what;
	int ret = cpc_cli_parse(&cpc_cli_dump, argc, argv, options, 1, 3, &args);

	if (ret >= 0)
		return ret;
	what = args.nr > 1 ? args.positional[1] : "super";
	ret = check_words(&args, what);
	if (ret)
		return ret;
	ret = cpc_backing_open_file(args.positional[0], CPC_BACKING_READONLY, CPC_DIRECT_AUTO,
				    &backing, err, sizeof(err));
	if (ret == -EBUSY)
		return cpc_cli_fail("%s; dump is offline, stop that process first", err);
	if (ret)
		return cpc_cli_fail("%s", err[0] ? err : strerror(-ret));
	ret = dump_backing(args.positional[0], backing, what, args.positional[2]);
	cpc_backing_close(backing);
	return ret;
}

const struct cpc_cli_verb cpc_cli_dump = {
    .name = "dump",
    .synopsis = "POOL [super | tree TREE | log | block BYTENR]",
    .summary = "print structures of a pool that nobody has open",
    .help = "TREE is root, free-log, the name of a volume or the number of a tree. For debugging:\n"
	    "the output may change at any time. The default is super.\n",
    .run = run,
};
