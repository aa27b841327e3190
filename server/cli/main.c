/* SPDX-License-Identifier: BSD-3-Clause */
#include "cli/cli.h"

#include <signal.h>

#include "lib/log.h"

static const struct cpc_cli_verb *const verbs[] = {
    &cpc_cli_format, &cpc_cli_create, &cpc_cli_list,   &cpc_cli_info,
    &cpc_cli_rename, &cpc_cli_delete, &cpc_cli_resize, &cpc_cli_check,
    &cpc_cli_scrub,  &cpc_cli_stats,  &cpc_cli_dump,
};

static void help_all(FILE *out)
{
	fprintf(out, "usage: coppice VERB POOL [ARGUMENTS]\n"
		     "\n"
		     "Works on a Coppice pool of virtual disks. POOL is its device or file. If a "
		     "server\nhas the pool, the verb goes to that server.\n\n");
	for (size_t i = 0; i < CPC_ARRAY_SIZE(verbs); i++)
		fprintf(out, "  %-8s %s\n", verbs[i]->name, verbs[i]->summary);
	fprintf(out, "\n`coppice VERB --help` says more; so does coppice(8).\n"
		     "Exit codes: 0 done, 1 failed, 2 usage, 3 the pool is damaged.\n");
}

static const struct cpc_cli_verb *find_verb(const char *name)
{
	for (size_t i = 0; i < CPC_ARRAY_SIZE(verbs); i++) {
		if (strcmp(verbs[i]->name, name) == 0)
			return verbs[i];
	}
	return NULL;
}

/* What the engine says on the way; what it returns is said by the verb. */
static void log_sink(enum cpc_log_level level, const char *line)
{
	if (level == CPC_LOG_ERROR || level == CPC_LOG_WARN)
		fprintf(stderr, "coppice: %s\n", line);
}

/* "coppice help [VERB]" and "coppice --help" */
static int help(int argc, char **argv)
{
	const struct cpc_cli_verb *verb = argc > 0 ? find_verb(argv[0]) : NULL;

	if (verb)
		cpc_cli_help(stdout, verb);
	else
		help_all(stdout);
	return cpc_cli_finish_output();
}

int main(int argc, char **argv)
{
	const struct cpc_cli_verb *verb;

	signal(SIGPIPE, SIG_IGN);
	cpc_log_set_sink(log_sink);
	if (argc < 2) {
		help_all(stderr);
		return CPC_EXIT_USAGE;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0)
		return help(argc - 2, argv + 2);
	if (strcmp(argv[1], "--version") == 0) {
		printf("coppice %s\n", CPC_VERSION);
		return cpc_cli_finish_output();
	}
	verb = find_verb(argv[1]);
	if (!verb) {
		return cpc_cli_usage("unknown verb '%s'; `coppice --help` lists all", argv[1]);
	}
	return verb->run(argc - 2, argv + 2);
}
