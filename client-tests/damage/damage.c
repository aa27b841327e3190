/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * damage: silent damage, one case after the other. Right data, repaired data or an error: never
 * wrong data; and scrub or check names the block.
 *
 *   damage [--seed N] [--flips N] [--writes N] [--seconds N] [--from N] [--json]
 *
 * --flips   cases of flips.c             --writes  cases of writes.c that had an effect
 * --seconds ends each of the two after so long, if its count has not come before
 * --from    the first case of writes.c, to run one again
 * --json    prints the counts as one line of JSON at the end
 */
#include "damage.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct options {
	uint64_t seed, flips, writes, seconds, from;
	bool json;
};

static void parse(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = {
	    {"seed", 1, 0, 's'},    {"flips", 1, 0, 'f'}, {"writes", 1, 0, 'w'},
	    {"seconds", 1, 0, 't'}, {"from", 1, 0, 'n'},  {"json", 0, 0, 'j'},
	    {NULL, 0, 0, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		uint64_t *number = c == 's'   ? &o->seed
				   : c == 'f' ? &o->flips
				   : c == 'w' ? &o->writes
				   : c == 't' ? &o->seconds
				   : c == 'n' ? &o->from
					      : NULL;

		if (number) {
			*number = rig_number(optarg, "the option's value");
		} else if (c == 'j') {
			o->json = true;
		} else {
			fprintf(stderr, "usage: damage [--seed N] [--flips N] [--writes N] "
					"[--seconds N] [--from N] [--json]\n");
			exit(2);
		}
	}
}

static uint64_t deadline(const struct options *o)
{
	return o->seconds ? cpc_hooks_default.monotonic_ns() + o->seconds * 1000000000u : 0;
}

static void print(const struct options *o, const struct counts *c)
{
	const char *format =
	    o->json
		? "{\"seed\":%llu,\"flips\":%llu,\"flips_repaired\":%llu,\"flips_offline\":%llu,"
		  "\"offline_refused\":%llu,\"offline_repaired\":%llu,\"undetected\":0,"
		  "\"writes\":%llu,\"lost\":%llu,\"misdirected\":%llu,\"stale\":%llu,"
		  "\"swapped\":%llu,\"writes_refused\":%llu,\"writes_without_effect\":%llu,"
		  "\"blocks_eio\":%llu}\n"
		: "damage: seed %llu: %llu bits flipped below an open pool, each named by scrub, "
		  "%llu repaired; %llu below a closed one (%llu refused, %llu repaired); none "
		  "undetected\n"
		  "damage: %llu false writes, all detected: of all cases %llu lost, %llu "
		  "misdirected, %llu stale, %llu swapped; %llu pools refused, %llu cases without "
		  "effect, %llu blocks gave errors\n";

	printf(format, (unsigned long long)o->seed, (unsigned long long)c->flips,
	       (unsigned long long)c->flips_repaired, (unsigned long long)c->offline,
	       (unsigned long long)c->offline_refused, (unsigned long long)c->offline_repaired,
	       (unsigned long long)c->writes, (unsigned long long)c->lost,
	       (unsigned long long)c->misdirected, (unsigned long long)c->stale,
	       (unsigned long long)c->swapped, (unsigned long long)c->writes_refused,
	       (unsigned long long)c->writes_without_effect, (unsigned long long)c->writes_eio);
}

int main(int argc, char **argv)
{
	struct options o = {.seed = rig_env("CPC_TEST_SEED", (uint64_t)time(NULL)),
			    .flips = rig_env("CPC_TEST_OPS", 4000),
			    .writes = rig_env("CPC_TEST_OPS", 4000) / 20};
	struct counts counts = {.flips = 0};

	parse(argc, argv, &o);
	rig_init(o.seed);
	if (!o.json)
		printf("damage: seed %llu\n", (unsigned long long)o.seed);
	sweep_flips(o.seed, o.flips, deadline(&o), &counts);
	sweep_writes(o.seed, o.from, o.writes, deadline(&o), &counts);
	print(&o, &counts);
	return 0;
}
