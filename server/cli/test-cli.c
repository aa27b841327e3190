/* SPDX-License-Identifier: BSD-3-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <unistd.h>

#include "cli/cli.h"

static const struct cpc_cli_verb verb = {
    .name = "try", .synopsis = "POOL [NAME]", .summary = "a verb of this test", .help = ""};

static bool json;
static const char *label;
static const struct cpc_cli_option options[] = {
    {"--json", &json, NULL}, {"--label", NULL, &label}, {.name = NULL}};

/* Parses up to eight words, NULL ends them. */
static int parse(struct cpc_cli_args *args, int min, int max, ...)
{
	char *argv[8];
	int argc = 0;
	va_list ap;

	json = false;
	label = NULL;
	va_start(ap, max);
	while ((argv[argc] = va_arg(ap, char *)))
		argc++;
	va_end(ap);
	return cpc_cli_parse(&verb, argc, argv, options, min, max, args);
}

static void options_may_stand_anywhere(void **state)
{
	struct cpc_cli_args args;

	assert_int_equal(parse(&args, 1, 2, "--json", "pool", "--label", "x", "name", NULL), -1);
	assert_true(json);
	assert_string_equal(label, "x");
	assert_int_equal(args.nr, 2);
	assert_string_equal(args.positional[0], "pool");
	assert_string_equal(args.positional[1], "name");
	assert_int_equal(parse(&args, 1, 2, "pool", "--label=a=b", NULL), -1);
	assert_string_equal(label, "a=b");
	assert_int_equal(parse(&args, 1, 2, "pool", "--label=", NULL), -1);
	assert_string_equal(label, "");
}

static void two_dashes_end_the_options(void **state)
{
	struct cpc_cli_args args;

	assert_int_equal(parse(&args, 1, 2, "--", "--json", "-x", NULL), -1);
	assert_false(json);
	assert_string_equal(args.positional[0], "--json");
	assert_string_equal(args.positional[1], "-x");
}

static void a_negative_number_is_no_option(void **state)
{
	struct cpc_cli_args args;

	assert_int_equal(parse(&args, 1, 2, "pool", "-5G", NULL), -1);
	assert_string_equal(args.positional[1], "-5G");
}

static void wrong_usage_is_exit_code_2(void **state)
{
	struct cpc_cli_args args;

	assert_int_equal(parse(&args, 1, 2, NULL), CPC_EXIT_USAGE);
	assert_int_equal(parse(&args, 1, 2, "a", "b", "c", NULL), CPC_EXIT_USAGE);
	assert_int_equal(parse(&args, 1, 2, "a", "--what", NULL), CPC_EXIT_USAGE);
	assert_int_equal(parse(&args, 1, 2, "a", "-j", NULL), CPC_EXIT_USAGE);
	assert_int_equal(parse(&args, 1, 2, "a", "--label", NULL), CPC_EXIT_USAGE);
	assert_int_equal(parse(&args, 1, 2, "a", "--json=yes", NULL), CPC_EXIT_USAGE);
	assert_int_equal(parse(&args, 1, 2, "a", "--jso", NULL), CPC_EXIT_USAGE);
	assert_int_equal(parse(&args, 1, 2, "a", "--label x", NULL), CPC_EXIT_USAGE);
}

static void help_is_no_error(void **state)
{
	struct cpc_cli_args args;

	assert_int_equal(parse(&args, 1, 2, "--help", NULL), CPC_EXIT_OK);
}

static void every_verb_has_help_and_refuses_no_arguments(void **state)
{
	static const struct cpc_cli_verb *const verbs[] = {
	    &cpc_cli_format, &cpc_cli_create, &cpc_cli_list,  &cpc_cli_info,  &cpc_cli_rename,
	    &cpc_cli_delete, &cpc_cli_resize, &cpc_cli_check, &cpc_cli_stats, &cpc_cli_dump,
	};
	char help[] = "--help", *argv[] = {help, NULL};

	for (size_t i = 0; i < CPC_ARRAY_SIZE(verbs); i++) {
		assert_int_equal(verbs[i]->run(1, argv), CPC_EXIT_OK);
		assert_int_equal(verbs[i]->run(0, argv + 1), CPC_EXIT_USAGE);
	}
}

static void bad_values_are_refused_before_the_pool_is_looked_at(void **state)
{
	char pool[] = "/nonexistent/pool", zero[] = "0", name[] = "v", size[] = "--size=0";
	char node[] = "--nodesize=5000", meta[] = "--metadata=triple", sparse[] = "--sparse";
	char word[] = "everything", tree[] = "tree";
	char *create[] = {pool, name, zero}, *bad_size[] = {pool, size}, *bad_node[] = {pool, node};
	char *bad_meta[] = {pool, meta}, *bad_sparse[] = {pool, sparse}, *bad_dump[] = {pool, word};
	char *no_id[] = {pool, tree};

	assert_int_equal(cpc_cli_create.run(3, create), CPC_EXIT_USAGE);
	assert_int_equal(cpc_cli_resize.run(3, create), CPC_EXIT_USAGE);
	assert_int_equal(cpc_cli_format.run(2, bad_size), CPC_EXIT_USAGE);
	assert_int_equal(cpc_cli_format.run(2, bad_node), CPC_EXIT_USAGE);
	assert_int_equal(cpc_cli_format.run(2, bad_meta), CPC_EXIT_USAGE);
	assert_int_equal(cpc_cli_format.run(2, bad_sparse), CPC_EXIT_USAGE);
	assert_int_equal(cpc_cli_dump.run(2, bad_dump), CPC_EXIT_USAGE);
	assert_int_equal(cpc_cli_dump.run(2, no_id), CPC_EXIT_USAGE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(options_may_stand_anywhere),
	    cmocka_unit_test(two_dashes_end_the_options),
	    cmocka_unit_test(a_negative_number_is_no_option),
	    cmocka_unit_test(wrong_usage_is_exit_code_2),
	    cmocka_unit_test(help_is_no_error),
	    cmocka_unit_test(every_verb_has_help_and_refuses_no_arguments),
	    cmocka_unit_test(bad_values_are_refused_before_the_pool_is_looked_at),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
