/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A server scrubs in a thread of its own; this program only looks on, and prints what has been
 * found since it last asked. So it may be interrupted, and called again.
 */
#include "cli/cli.h"

#include <unistd.h>

#include "check/check.h"

#define ASK_PAUSE 200000u /* microseconds */

struct scrub_run {
	struct cpc_cli_session session;
	struct cpc_cli_progress progress;
	bool json;
	struct json_object *damage; /* all that has been told */
};

static const char *member(struct json_object *o, const char *key)
{
	struct json_object *value = json_object_object_get(o, key);

	return value ? json_object_get_string(value) : "?";
}

static uint64_t number(struct json_object *o, const char *key)
{
	struct json_object *value = json_object_object_get(o, key);

	return value ? json_object_get_uint64(value) : 0;
}

static void print_damage(struct scrub_run *run, struct json_object *damage)
{
	char line[CPC_DAMAGE_LINE + CPC_NAME_MAX];

	snprintf(line, sizeof(line), "%s at %s (%s): %s: %s", member(damage, "kind"),
		 member(damage, "bytenr"), member(damage, "where"), member(damage, "what"),
		 member(damage, "action"));
	cpc_cli_progress_line(&run->progress, run->json, line);
	json_object_array_add(run->damage, json_object_get(damage));
}

/* Prints what is new in a status. Return: whether the scrub goes on. */
static bool look_at(struct scrub_run *run, struct json_object *status)
{
	struct json_object *damage = json_object_object_get(status, "damage");
	size_t nr =
	    json_object_is_type(damage, json_type_array) ? json_object_array_length(damage) : 0;

	for (size_t i = 0; i < nr; i++)
		print_damage(run, json_object_array_get_idx(damage, i));
	if (run->session.progress)
		run->session.progress(&run->progress, number(status, "done"),
				      number(status, "total"));
	return strcmp(member(status, "state"), "running") == 0;
}

/* Return: the last status, which the caller puts; NULL after an error line. */
static struct json_object *follow(struct scrub_run *run)
{
	bool start = true;

	for (;;) {
		struct json_object *args = json_object_new_object(), *reply, *status = NULL;
		size_t from = json_object_array_length(run->damage);

		if (args && start)
			json_object_object_add(args, "start", json_object_new_boolean(true));
		if (args && from)
			json_object_object_add(args, "from", json_object_new_uint64(from));
		start = false;
		reply = cpc_cli_request(&run->session, "scrub", args);
		if (!reply)
			return NULL;
		json_object_object_get_ex(reply, "scrub", &status);
		status = json_object_get(status);
		json_object_put(reply);
		if (!status || !look_at(run, status))
			return status;
		json_object_put(status);
		usleep(ASK_PAUSE);
	}
}

static int print_result(struct scrub_run *run, struct json_object *status)
{
	const char *pool = run->session.pool;

	if (run->json) {
		json_object_object_del(status, "next");
		json_object_object_add(status, "damage", json_object_get(run->damage));
		return cpc_cli_print_json(status);
	}
	printf("%s: %s nodes, %s data blocks, %s bitmaps, %s log records: %s repaired, %s not "
	       "repaired\n",
	       pool, member(status, "nodes"), member(status, "data_blocks"),
	       member(status, "bitmaps"), member(status, "log_records"), member(status, "repaired"),
	       member(status, "unrepaired"));
	if (number(status, "unrepaired"))
		printf("%s: damaged; see \"Damage\" in coppice(8)\n", pool);
	else
		printf("%s: no damage left\n", pool);
	return cpc_cli_finish_output();
}

static int finish(struct scrub_run *run, struct json_object *status)
{
	const char *state = member(status, "state");
	int ret;

	cpc_cli_progress_clear(&run->progress);
	if (strcmp(state, "done") != 0)
		return cpc_cli_fail("%s: the scrub ended before its end (%s)", run->session.pool,
				    json_object_object_get(status, "error")
					? member(status, "error")
				    : strcmp(state, "none") == 0 ? "its server has gone"
								 : "its server was stopped");
	ret = print_result(run, status);
	if (ret == CPC_EXIT_OK && number(status, "unrepaired"))
		ret = CPC_EXIT_DAMAGED;
	return ret;
}

static int run(int argc, char **argv)
{
	struct scrub_run r = {.session = {.writes = true}};
	const struct cpc_cli_option options[] = {
	    {"--json", &r.json, NULL},
	    {"--control", NULL, &r.session.control},
	    {.name = NULL},
	};
	struct json_object *status;
	struct cpc_cli_args args;
	int ret = cpc_cli_parse(&cpc_cli_scrub, argc, argv, options, 1, 1, &args);

	if (ret >= 0)
		return ret;
	r.session.pool = args.positional[0];
	r.session.progress = cpc_cli_progress_fn();
	r.session.progress_ctx = &r.progress;
	r.damage = json_object_new_array();
	if (!r.damage)
		return cpc_cli_fail("out of memory");
	status = follow(&r);
	cpc_cli_progress_clear(&r.progress);
	ret = status ? finish(&r, status) : CPC_EXIT_FAILED;
	json_object_put(status);
	json_object_put(r.damage);
	return ret;
}

const struct cpc_cli_verb cpc_cli_scrub = {
    .name = "scrub",
    .synopsis = "POOL [--json] [--control PATH]",
    .summary = "verify all of a pool and heal what has a good copy, online too",
    .help = "  --json  the result as one object; what was found also goes to stderr\n"
	    "Reads both copies of all metadata, and all data; a server goes on serving. A server\n"
	    "that is read-only only reports. When this command is interrupted the server's scrub\n"
	    "goes on; calling it again shows it.\n"
	    "Exit code 3 when damage is left.\n",
    .run = run,
};
