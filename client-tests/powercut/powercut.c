/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * powercut: does what comes back after a power cut keep the promises?
 *
 *   powercut [--seed N] [--ops N] [--states N] [--per-instant N] [--state PATH]
 *
 * Runs workloads, small ones whose every device write is an instant to cut the power at, and long
 * ones of which some are, until --states states have been tried (CPC_TEST_STATES). At an instant
 * with up to --per-instant states all are tried. A failure prints the command that tries its state
 * alone. See workload.h and explore.h.
 */
#include "explore.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct options {
	uint64_t seed, states;
	unsigned ops; /* 0: drawn */
	unsigned per_instant;
	const char *state;
};

static void parse(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = {
	    {"per-instant", 1, 0, 'i'}, {"seed", 1, 0, 's'},  {"ops", 1, 0, 'o'},
	    {"states", 1, 0, 'n'},	{"state", 1, 0, 'p'}, {NULL, 0, 0, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 's') {
			o->seed = rig_number(optarg, "--seed");
		} else if (c == 'o') {
			o->ops = (unsigned)rig_number(optarg, "--ops");
		} else if (c == 'i') {
			o->per_instant = (unsigned)rig_number(optarg, "--per-instant");
		} else if (c == 'n') {
			o->states = rig_number(optarg, "--states");
		} else if (c == 'p') {
			o->state = optarg;
		} else {
			fprintf(stderr, "usage: powercut [--seed N] [--ops N] [--states N] "
					"[--per-instant N] [--state PATH]\n");
			exit(2);
		}
	}
}

/* Three in four are small. */
static void run_workload(struct explorer *x, const struct options *o, uint64_t seed)
{
	struct workload w = {.seed = seed, .only_event = UINT64_MAX, .save_one_in = 1};
	bool small = seed % 4;

	w.nr_ops = o->ops ? o->ops : small ? 12 + (unsigned)(seed % 29) : 300;
	if (w.nr_ops > 60)
		w.save_one_in = 12;
	x->rnd.state = seed;
	rig_set_rerun("%s --seed %llu --ops %u --states 1", x->program, (unsigned long long)seed,
		      w.nr_ops);
	workload_run(&w);
	x->faults += w.nr_faults;
	x->failed += w.nr_failed;
	explore(x, &w, o->per_instant);
	workload_free(&w);
}

static void run_state(struct explorer *x, const struct options *o)
{
	struct workload w = {.seed = o->seed, .nr_ops = o->ops, .save_one_in = 1};

	w.only_event = strtoull(o->state + (*o->state == 'E'), NULL, 10);
	rig_set_rerun("%s --seed %llu --ops %u --state %s", x->program, (unsigned long long)o->seed,
		      o->ops, o->state);
	workload_run(&w);
	explore_path(x, &w, o->state);
	workload_free(&w);
	printf("powercut: state %s is as promised\n", o->state);
}

static void run_all(struct explorer *x, const struct options *o)
{
	uint64_t workloads = 0;

	for (; x->states < o->states; workloads++)
		run_workload(x, o, o->seed + workloads);
	printf("powercut: %llu workloads, %llu instants, %llu states tried, %llu of them distinct: "
	       "%llu torn, %llu inside recovery, %llu of these at the third cut; %llu used and "
	       "emptied, %llu checks; %llu device errors injected, %llu operations failed\n",
	       (unsigned long long)workloads, (unsigned long long)x->events,
	       (unsigned long long)x->states, (unsigned long long)x->distinct,
	       (unsigned long long)x->torn, (unsigned long long)(x->by_depth[2] + x->by_depth[3]),
	       (unsigned long long)x->by_depth[3], (unsigned long long)x->used,
	       (unsigned long long)x->checks, (unsigned long long)x->faults,
	       (unsigned long long)x->failed);
}

int main(int argc, char **argv)
{
	struct options o = {.seed = rig_env("CPC_TEST_SEED", (uint64_t)time(NULL) * 1009),
			    .states =
				rig_env("CPC_TEST_STATES", rig_env("CPC_TEST_OPS", 400000) / 20),
			    .per_instant = 16};
	struct explorer x = {.program = argv[0]};

	parse(argc, argv, &o);
	printf("powercut: seed %llu\n", (unsigned long long)o.seed);
	if (o.state)
		run_state(&x, &o);
	else
		run_all(&x, &o);
	explorer_free(&x);
	return 0;
}
