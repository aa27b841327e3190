/* SPDX-License-Identifier: BSD-3-Clause */
#include "cli/cli.h"

#include "protocol/size.h"

void cpc_cli_help(FILE *out, const struct cpc_cli_verb *verb)
{
	fprintf(out, "usage: coppice %s %s\n\n%s\n", verb->name, verb->synopsis, verb->summary);
	if (verb->help[0])
		fprintf(out, "\n%s", verb->help);
}

static int usage(const struct cpc_cli_verb *verb, const char *what, const char *arg)
{
	return cpc_cli_usage("%s: %s%s%s%s; usage: coppice %s %s", verb->name, what,
			     arg ? " '" : "", arg ? arg : "", arg ? "'" : "", verb->name,
			     verb->synopsis);
}

static bool looks_like_option(const char *arg)
{
	return arg[0] == '-' && arg[1] != '\0' && !(arg[1] >= '0' && arg[1] <= '9');
}

static const struct cpc_cli_option *find_option(const struct cpc_cli_option *options,
						const char *arg, size_t len)
{
	for (; options->name; options++) {
		if (strlen(options->name) == len && memcmp(options->name, arg, len) == 0)
			return options;
	}
	return NULL;
}

/* Reads the option at argv[*i], and its value. Return: 0 or CPC_EXIT_USAGE. */
static int take_option(const struct cpc_cli_verb *verb, const struct cpc_cli_option *options,
		       int argc, char **argv, int *i)
{
	const char *arg = argv[*i], *equals = strchr(arg, '=');
	size_t len = equals ? (size_t)(equals - arg) : strlen(arg);
	const struct cpc_cli_option *option = find_option(options, arg, len);

	if (!option)
		return usage(verb, "unknown option", arg);
	if (option->flag && equals)
		return usage(verb, "this option takes no value:", arg);
	if (option->flag) {
		*option->flag = true;
		return 0;
	}
	if (!equals && *i + 1 >= argc)
		return usage(verb, "a value is missing behind", arg);
	*option->value = equals ? equals + 1 : argv[++*i];
	return 0;
}

int cpc_cli_parse(const struct cpc_cli_verb *verb, int argc, char **argv,
		  const struct cpc_cli_option *options, int min, int max, struct cpc_cli_args *args)
{
	bool options_end = false;

	memset(args, 0, sizeof(*args));
	for (int i = 0; i < argc; i++) {
		if (!options_end && strcmp(argv[i], "--") == 0) {
			options_end = true;
		} else if (!options_end && strcmp(argv[i], "--help") == 0) {
			cpc_cli_help(stdout, verb);
			return cpc_cli_finish_output();
		} else if (!options_end && looks_like_option(argv[i])) {
			if (take_option(verb, options, argc, argv, &i))
				return CPC_EXIT_USAGE;
		} else if (args->nr == max) {
			return usage(verb, "too many arguments:", argv[i]);
		} else {
			args->positional[args->nr++] = argv[i];
		}
	}
	return args->nr < min ? usage(verb, "too few arguments", NULL) : -1;
}

int cpc_cli_size(const char *what, const char *text, uint64_t *size)
{
	const char *why;

	if (cpc_size_parse(text, size, &why) == 0)
		return 0;
	return cpc_cli_usage("%s '%s': %s", what, text, why);
}
