/* SPDX-License-Identifier: BSD-3-Clause */
#include "cli/cli.h"

#include <unistd.h>

#include "backing/backing.h"
#include "check/check.h"

#define BAR_WIDTH 40

struct progress {
	bool shown;
	bool json;
	int last; /* per mille, to draw only what changed */
};

static void draw_bar(void *ctx, uint64_t done, uint64_t total)
{
	struct progress *p = ctx;
	int mille = total ? (int)((double)done * 1000.0 / (double)total) : 0;
	int filled;

	if (mille > 1000)
		mille = 1000;
	if (p->shown && mille == p->last)
		return;
	p->shown = true;
	p->last = mille;
	filled = mille * BAR_WIDTH / 1000;
	fprintf(stderr, "\r[%.*s%*s] %3d.%d%%", filled, "########################################",
		BAR_WIDTH - filled, "", mille / 10, mille % 10);
	fflush(stderr);
}

static void clear_bar(struct progress *p)
{
	if (p->shown)
		fprintf(stderr, "\r%*s\r", BAR_WIDTH + 12, "");
	p->shown = false;
}

/* Findings go to stdout, or to stderr beside JSON. */
static void report(void *ctx, const char *line)
{
	struct progress *p = ctx;

	clear_bar(p);
	fprintf(p->json ? stderr : stdout, "%s\n", line);
}

static int print_json(const struct cpc_check_result *r)
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

static int say_failure(const char *pool, int ret)
{
	if (ret == -EINVAL)
		return cpc_cli_fail("%s: there is no Coppice pool", pool);
	if (ret == -ENOTSUP)
		return cpc_cli_fail("%s: the pool's format is newer than this program", pool);
	return cpc_cli_fail("%s: check: %s", pool, strerror(-ret));
}

static int check_backing(const char *pool, struct cpc_backing *backing, bool data, bool json)
{
	struct progress p = {.json = json};
	struct cpc_check_options options = {
	    .data = data,
	    .progress = isatty(STDERR_FILENO) ? draw_bar : NULL,
	    .report = report,
	    .ctx = &p,
	};
	struct cpc_check_result result = {0};
	int ret = cpc_check(backing, &options, &result);

	clear_bar(&p);
	if (ret == -EUCLEAN) {
		cpc_cli_fail("%s: no superblock is good, or the device is smaller than the pool",
			     pool);
		return CPC_EXIT_DAMAGED;
	}
	if (ret)
		return say_failure(pool, ret);
	ret = json ? print_json(&result) : print_result(pool, &result);
	if (ret == CPC_EXIT_OK && result.errors)
		ret = CPC_EXIT_DAMAGED;
	return ret;
}

static int run(int argc, char **argv)
{
	bool data = false, json = false;
	const struct cpc_cli_option options[] = {
	    {"--data", &data, NULL},
	    {"--json", &json, NULL},
	    {.name = NULL},
	};
	struct cpc_backing *backing;
	struct cpc_cli_args args;
	char err[512] = "";
	int ret = cpc_cli_parse(&cpc_cli_check, argc, argv, options, 1, 1, &args);

	if (ret >= 0)
		return ret;
	ret = cpc_backing_open_file(args.positional[0], CPC_BACKING_READONLY, CPC_DIRECT_AUTO,
				    &backing, err, sizeof(err));
	if (ret == -EBUSY)
		return cpc_cli_fail("%s; check is offline, stop that process first", err);
	if (ret)
		return cpc_cli_fail("%s", err[0] ? err : strerror(-ret));
	ret = check_backing(args.positional[0], backing, data, json);
	cpc_backing_close(backing);
	return ret;
}

const struct cpc_cli_verb cpc_cli_check = {
    .name = "check",
    .synopsis = "POOL [--data] [--json]",
    .summary = "verify a pool that nobody has open",
    .help = "  --data  also read and verify every data block\n"
	    "  --json  the result as one object; findings go to stderr\n"
	    "Reads superblocks, every node and mapping, and compares space. Writes nothing.\n"
	    "Exit code 3 when something is damaged.\n",
    .run = run,
};
