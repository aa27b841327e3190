/* SPDX-License-Identifier: BSD-3-Clause */
#include "cli/cli.h"

#include "backing/backing.h"
#include "check/check.h"

struct check_run {
	struct cpc_cli_progress progress;
	const char *pool;
	bool data, json, repair, roll_back;
	struct json_object *damage; /* told by repair; for JSON */
};

/* Findings go to stdout, or to stderr beside JSON. */
static void report(void *ctx, const char *line)
{
	struct check_run *run = ctx;
	char text[640];

	snprintf(text, sizeof(text), run->repair ? "%s: not repaired" : "%s", line);
	cpc_cli_progress_line(&run->progress, run->json, text);
}

static void damage(void *ctx, const struct cpc_damage *d)
{
	struct check_run *run = ctx;
	struct json_object *o = json_object_new_object();
	char line[CPC_DAMAGE_LINE];

	cpc_damage_line(d, line);
	cpc_cli_progress_line(&run->progress, run->json, line);
	if (!o)
		return;
	json_object_object_add(o, "kind", json_object_new_string(cpc_damage_kind_name(d->kind)));
	json_object_object_add(o, "bytenr", json_object_new_uint64(d->bytenr));
	json_object_object_add(o, "where", json_object_new_string(d->where));
	json_object_object_add(o, "what", json_object_new_string(d->what));
	json_object_object_add(o, "action", json_object_new_string(d->action));
	json_object_object_add(o, "repaired", json_object_new_boolean(d->repaired));
	json_object_array_add(run->damage, o);
}

static int print_json(const struct check_run *run, const struct cpc_check_result *r,
		      uint64_t repaired)
{
	struct json_object *o = json_object_new_object();
	int ret;

	if (!o)
		return cpc_cli_fail("out of memory");
	json_object_object_add(o, "errors", json_object_new_uint64(r->errors));
	json_object_object_add(o, "transid", json_object_new_uint64(r->transid));
	json_object_object_add(o, "volumes", json_object_new_uint64(r->volumes));
	json_object_object_add(o, "nodes", json_object_new_uint64(r->nodes));
	json_object_object_add(o, "nodes_bad", json_object_new_uint64(r->nodes_bad));
	json_object_object_add(o, "data_blocks", json_object_new_uint64(r->data_blocks));
	json_object_object_add(o, "data_bad", json_object_new_uint64(r->data_bad));
	json_object_object_add(o, "supers_bad", json_object_new_uint64(r->supers_bad));
	json_object_object_add(o, "leaked_blocks", json_object_new_uint64(r->leaked_blocks));
	if (run->repair) {
		json_object_object_add(o, "repaired", json_object_new_uint64(repaired));
		json_object_object_add(o, "damage", json_object_get(run->damage));
	}
	ret = cpc_cli_print_json(o);
	json_object_put(o);
	return ret;
}

static int print_result(const char *pool, const struct cpc_check_result *r)
{
	printf("%s: transaction %ju, %ju volumes, %ju nodes (%ju bad copies), %ju data blocks "
	       "(%ju bad), %ju bad superblocks, %ju leaked blocks\n",
	       pool, (uintmax_t)r->transid, (uintmax_t)r->volumes, (uintmax_t)r->nodes,
	       (uintmax_t)r->nodes_bad, (uintmax_t)r->data_blocks, (uintmax_t)r->data_bad,
	       (uintmax_t)r->supers_bad, (uintmax_t)r->leaked_blocks);
	if (r->errors)
		printf("%s: damaged, %ju findings\n", pool, (uintmax_t)r->errors);
	else
		printf("%s: no damage found\n", pool);
	return cpc_cli_finish_output();
}

static int say_failure(const char *pool, bool repair, int ret)
{
	if (ret == -EINVAL)
		return cpc_cli_fail("%s: there is no Coppice pool; if there was one, `coppice "
				    "check --repair` looks for its second ring of superblocks",
				    pool);
	if (ret == -ENOTSUP)
		return cpc_cli_fail("%s: the pool's format is newer than this program%s", pool,
				    repair ? ", which must not write it" : "");
	return cpc_cli_fail("%s: check: %s", pool, strerror(-ret));
}

static int check_backing(struct check_run *run, struct cpc_backing *backing)
{
	struct cpc_repair_options options = {
	    .check =
		{
		    .data = run->data,
		    .progress = cpc_cli_progress_fn(),
		    .report = report,
		    .ctx = run,
		},
	    .roll_back = run->roll_back,
	    .damage = damage,
	};
	struct cpc_repair_result result = {.repaired = 0};
	int ret = run->repair ? cpc_repair(backing, &options, &result)
			      : cpc_check(backing, &options.check, &result.after);

	cpc_cli_progress_clear(&run->progress);
	if (ret == -EUCLEAN) {
		cpc_cli_fail("%s: no superblock is good, or the device is smaller than the pool%s",
			     run->pool,
			     run->repair ? "" : "; `coppice check --repair` searches the device");
		return CPC_EXIT_DAMAGED;
	}
	if (ret)
		return say_failure(run->pool, run->repair, ret);
	if (run->repair && !run->json)
		printf("%s: %ju repaired\n", run->pool, (uintmax_t)result.repaired);
	ret = run->json ? print_json(run, &result.after, result.repaired)
			: print_result(run->pool, &result.after);
	if (ret == CPC_EXIT_OK && result.after.errors)
		ret = CPC_EXIT_DAMAGED;
	return ret;
}

static int run(int argc, char **argv)
{
	struct check_run r = {.pool = NULL};
	const struct cpc_cli_option options[] = {
	    {"--data", &r.data, NULL},
	    {"--json", &r.json, NULL},
	    {"--repair", &r.repair, NULL},
	    {"--roll-back", &r.roll_back, NULL},
	    {.name = NULL},
	};
	struct cpc_backing *backing;
	struct cpc_cli_args args;
	char err[512] = "";
	int ret = cpc_cli_parse(&cpc_cli_check, argc, argv, options, 1, 1, &args);

	if (ret >= 0)
		return ret;
	if (r.roll_back && !r.repair)
		return cpc_cli_usage("check: --roll-back is for --repair");
	r.pool = args.positional[0];
	r.damage = json_object_new_array();
	if (!r.damage)
		return cpc_cli_fail("out of memory");
	ret = cpc_backing_open_file(r.pool, r.repair ? 0 : CPC_BACKING_READONLY, CPC_DIRECT_AUTO,
				    &backing, err, sizeof(err));
	if (ret == 0) {
		ret = check_backing(&r, backing);
		cpc_backing_close(backing);
	} else if (ret == -EBUSY) {
		ret = cpc_cli_fail("%s; check is offline, stop that process first, or use "
				   "`coppice scrub`",
				   err);
	} else {
		ret = cpc_cli_fail("%s", err[0] ? err : strerror(-ret));
	}
	json_object_put(r.damage);
	return ret;
}

const struct cpc_cli_verb cpc_cli_check = {
    .name = "check",
    .synopsis = "POOL [--data] [--repair [--roll-back]] [--json]",
    .summary = "verify a pool that nobody has open",
    .help = "  --data    also read and verify every data block\n"
	    "  --repair  then write what there is a good source for: one copy from the other,\n"
	    "            bitmaps from the trees, a lost ring of superblocks\n"
	    "  --roll-back  with --repair: give up the newest changes where their data cannot\n"
	    "            be read; a flush may have been answered for them\n"
	    "  --json    the result as one object; findings go to stderr\n"
	    "Reads superblocks, every node and mapping, and compares space. Without --repair it\n"
	    "writes nothing.\n"
	    "Exit code 3 when something is damaged, or still is after the repair.\n",
    .run = run,
};
