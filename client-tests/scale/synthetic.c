/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * synthetic: makes a pool file with one full volume in it, without writing the volume's data.
 *
 *   synthetic PATH [--size SIZE] [--pool SIZE] [--run BLOCKS] [--spread SIZE] [--nodesize SIZE]
 *             [--log-size SIZE] [--single] [--name NAME] [--seed N]
 *
 * See mapping.h. By default 1 TiB of single blocks in a pool larger by a quarter, with the pool's
 * default nodesize and log. The file is sparse: it takes what its metadata takes, 18 GiB for a
 * terabyte of single blocks. PATH must not exist.
 */
#include "mapping.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/hooks.h"
#include "pool/pool.h"

#define TIB (1ull << 40)

struct options {
	struct cpc_format_options format;
	struct mapping mapping;
};

static _Noreturn void usage(void)
{
	fprintf(stderr, "usage: synthetic PATH [--size SIZE] [--pool SIZE] [--run BLOCKS] "
			"[--spread SIZE]\n"
			"       [--nodesize SIZE] [--log-size SIZE] [--single] [--name NAME] "
			"[--seed N]\n");
	exit(2);
}

static uint64_t number(const char *text)
{
	static const char units[] = "KMGT";
	char *end;
	uint64_t n = strtoull(text, &end, 10);
	const char *unit = *end ? strchr(units, *end) : NULL;

	if (end == text || (*end && (!unit || end[1])))
		usage();
	return unit ? n << (10 * (unit - units + 1)) : n;
}

static void parse_one(struct options *o, int c, const char *arg)
{
	if (c == 'n')
		o->mapping.name = arg;
	else if (c == '1')
		o->format.single = true;
	else if (c == 's')
		o->mapping.size = number(arg);
	else if (c == 'p')
		o->format.size = number(arg);
	else if (c == 'r')
		o->mapping.run = (uint32_t)number(arg);
	else if (c == 'w')
		o->mapping.spread = number(arg);
	else if (c == 'N')
		o->format.nodesize = (uint32_t)number(arg);
	else if (c == 'l')
		o->format.log_size = number(arg);
	else if (c == 'S')
		o->mapping.seed = number(arg);
	else
		usage();
}

static const char *parse(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = {
	    {"size", 1, 0, 's'},   {"pool", 1, 0, 'p'},	    {"run", 1, 0, 'r'},
	    {"spread", 1, 0, 'w'}, {"nodesize", 1, 0, 'N'}, {"log-size", 1, 0, 'l'},
	    {"single", 0, 0, '1'}, {"name", 1, 0, 'n'},	    {"seed", 1, 0, 'S'},
	    {NULL, 0, 0, 0},
	};
	int c;

	*o = (struct options){
	    .format = {.sparse = true},
	    .mapping = {.name = "disk", .size = TIB, .run = 1, .seed = 1},
	};
	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1)
		parse_one(o, c, optarg);
	if (optind + 1 != argc)
		usage();
	if (!o->format.size)
		o->format.size = cpc_max_u64(o->mapping.size, o->mapping.spread) / 4 * 5;
	return argv[optind];
}

static int make(const char *path, const struct options *o, struct cpc_error *err)
{
	struct cpc_backing *backing;
	const char *why;
	int ret = cpc_pool_format(path, &o->format, err);

	if (ret)
		return ret;
	ret =
	    cpc_backing_open_file(path, 0, CPC_DIRECT_AUTO, &backing, err->text, sizeof(err->text));
	if (ret)
		return ret;
	ret = mapping_make(backing, &o->mapping, &why);
	cpc_backing_close(backing);
	if (ret)
		snprintf(err->text, sizeof(err->text), "%s: %s", why, strerror(-ret));
	return ret;
}

int main(int argc, char **argv)
{
	struct cpc_error err = {""};
	struct options o;
	const char *path = parse(argc, argv, &o);
	uint64_t start = cpc_now_ns();

	if (access(path, F_OK) == 0) {
		fprintf(stderr, "synthetic: %s exists\n", path);
		return 1;
	}
	if (make(path, &o, &err)) {
		fprintf(stderr, "synthetic: %s: %s\n", path, err.text);
		unlink(path);
		return 1;
	}
	printf("synthetic: %s: %llu GiB in extents of %u blocks, made in %.1f s\n", path,
	       (unsigned long long)(o.mapping.size >> 30), o.mapping.run,
	       (double)(cpc_now_ns() - start) / 1e9);
	return 0;
}
