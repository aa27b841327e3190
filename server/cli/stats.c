/* SPDX-License-Identifier: BSD-3-Clause */
#include "cli/cli.h"

#include <unistd.h>

#include "protocol/reply.h"

#define WATCH_SECONDS 2u

struct mode {
	bool json, prometheus, watch;
};

static const char *number(struct json_object *o, const char *key, char text[24])
{
	snprintf(text, 24, "%ju", (uintmax_t)cpc_json_u64(o, key));
	return text;
}

/* How much a counter grew in a second since the last time, "" when it is not known. */
static const char *rate(struct json_object *before, const char *name, uint64_t now, char text[24])
{
	uint64_t was;

	text[0] = '\0';
	if (!before)
		return text;
	was = cpc_json_u64(before, name);
	if (now > was)
		snprintf(text, 24, "%ju/s", (uintmax_t)((now - was) / WATCH_SECONDS));
	return text;
}

static void print_counters(struct json_object *stats, struct json_object *before)
{
	struct cpc_cli_table *table = cpc_cli_table_new(3, 0x6);
	char value_text[24], rate_text[24];

	json_object_object_foreach(stats, name, value)
	{
		const char *cells[3] = {name, number(stats, name, value_text)};

		if (!json_object_is_type(value, json_type_int))
			continue;
		cells[2] = rate(before, name, json_object_get_uint64(value), rate_text);
		cpc_cli_table_row(table, cells);
	}
	cpc_cli_table_print(table);
	cpc_cli_table_free(table);
}

static void print_histograms(struct json_object *stats)
{
	static const char *const head[] = {"histogram", "count", "mean", "p50",
					   "p90",	"p99",	 "max"};
	struct cpc_cli_table *table = cpc_cli_table_new(CPC_ARRAY_SIZE(head), 0x7e);
	char text[CPC_ARRAY_SIZE(head)][24];
	const char *cells[CPC_ARRAY_SIZE(head)];

	cpc_cli_table_row(table, head);
	json_object_object_foreach(stats, name, value)
	{
		if (!json_object_is_type(value, json_type_object))
			continue;
		cells[0] = name;
		for (size_t i = 1; i < CPC_ARRAY_SIZE(head); i++)
			cells[i] = number(value, head[i], text[i]);
		cpc_cli_table_row(table, cells);
	}
	cpc_cli_table_print(table);
	cpc_cli_table_free(table);
}

static int print_json_line(struct json_object *stats)
{
	puts(json_object_to_json_string_ext(stats, JSON_C_TO_STRING_PLAIN));
	return cpc_cli_finish_output();
}

static int print_stats(struct json_object *stats, struct json_object *before,
		       const struct mode *mode)
{
	if (mode->json)
		return mode->watch ? print_json_line(stats) : cpc_cli_print_json(stats);
	if (mode->watch && isatty(STDOUT_FILENO))
		fputs("\033[H\033[2J", stdout);
	print_counters(stats, before);
	putchar('\n');
	print_histograms(stats);
	return cpc_cli_finish_output();
}

static int stats_once(const struct cpc_cli_session *session, const struct mode *mode,
		      struct json_object **before)
{
	struct json_object *reply = cpc_cli_request(session, "stats", NULL), *stats;
	int ret;

	if (!reply)
		return CPC_EXIT_FAILED;
	if (json_object_object_get_ex(reply, "stats", &stats))
		ret = print_stats(stats, *before, mode);
	else
		ret = cpc_cli_fail("the server's answer has no counters");
	if (ret == CPC_EXIT_OK) {
		json_object_put(*before);
		*before = json_object_get(stats);
	}
	json_object_put(reply);
	return ret;
}

static int stats_loop(const struct cpc_cli_session *session, const struct mode *mode)
{
	struct json_object *before = NULL;
	int ret = stats_once(session, mode, &before);

	while (ret == CPC_EXIT_OK && mode->watch) {
		sleep(WATCH_SECONDS);
		ret = stats_once(session, mode, &before);
	}
	json_object_put(before);
	return ret;
}

static int print_metrics(const struct cpc_cli_session *session)
{
	struct json_object *reply = cpc_cli_request(session, "metrics", NULL);
	const char *text;

	if (!reply)
		return CPC_EXIT_FAILED;
	text = cpc_json_string(reply, "text");
	fputs(text ? text : "", stdout);
	json_object_put(reply);
	return cpc_cli_finish_output();
}

static int run(int argc, char **argv)
{
	struct cpc_cli_session session = {.writes = false};
	struct mode mode = {0};
	const struct cpc_cli_option options[] = {
	    {"--json", &mode.json, NULL},
	    {"--prometheus", &mode.prometheus, NULL},
	    {"--watch", &mode.watch, NULL},
	    {"--control", NULL, &session.control},
	    {.name = NULL},
	};
	struct cpc_cli_args args;
	int ret = cpc_cli_parse(&cpc_cli_stats, argc, argv, options, 1, 1, &args);

	if (ret >= 0)
		return ret;
	session.pool = args.positional[0];
	return mode.prometheus ? print_metrics(&session) : stats_loop(&session, &mode);
}

const struct cpc_cli_verb cpc_cli_stats = {
    .name = "stats",
    .synopsis = "POOL [--json|--prometheus] [--watch] [--control PATH]",
    .summary = "show the counters of the server that has the pool",
    .help = "  --json        one object; with --watch one a line\n"
	    "  --prometheus  text for a Prometheus collector\n"
	    "  --watch       again every 2 seconds, with rates\n"
	    "Counters begin when a server opens the pool; without a server they say little.\n",
    .run = run,
};
