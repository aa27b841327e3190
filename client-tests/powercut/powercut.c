/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * powercut: does what a power cut leaves keep the promises?
 *
 *   powercut [--seed N] [--states N | --seconds N] [--per-instant N] [--per-epoch N] [--json]
 *            [--ops N | --sequence A,B,C] [--state PATH]
 *
 * Runs workloads until --states states have been tried (CPC_TEST_STATES), or --seconds have passed.
 * Three in four are sequences: all of one and of two operations in an order that the seed gives,
 * then three drawn. Of the others three in four are small, their every device write an instant to
 * cut the power at, and one is long. --per-instant and --per-epoch say how many states are tried at
 * a write and before a flush. --ops and --sequence say what each workload is.
 *
 * A failure prints the command that tries its state alone. See workload.h and explore.h.
 */
#include "explore.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "lib/hooks.h"

struct options {
	uint64_t seed, states, seconds;
	unsigned ops; /* 0: drawn */
	struct sequence sequence;
	const char *state;
	bool json;
};

static void usage(void)
{
	fprintf(stderr,
		"usage: powercut [--seed N] [--states N | --seconds N] [--per-instant N]\n"
		"       [--per-epoch N] [--json] [--ops N | --sequence A,B,C] [--state PATH]\n");
	exit(2);
}

static void parse(int argc, char **argv, struct options *o, struct explorer *x)
{
	static const struct option longs[] = {
	    {"per-instant", 1, 0, 'i'}, {"per-epoch", 1, 0, 'e'},
	    {"seed", 1, 0, 's'},	{"ops", 1, 0, 'o'},
	    {"sequence", 1, 0, 'q'},	{"states", 1, 0, 'n'},
	    {"seconds", 1, 0, 't'},	{"state", 1, 0, 'p'},
	    {"json", 0, 0, 'j'},	{NULL, 0, 0, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 's')
			o->seed = rig_number(optarg, "--seed");
		else if (c == 'o')
			o->ops = (unsigned)rig_number(optarg, "--ops");
		else if (c == 'i')
			x->per_instant = (unsigned)rig_number(optarg, "--per-instant");
		else if (c == 'e')
			x->per_epoch = (unsigned)rig_number(optarg, "--per-epoch");
		else if (c == 'n')
			o->states = rig_number(optarg, "--states");
		else if (c == 't')
			o->seconds = rig_number(optarg, "--seconds");
		else if (c == 'p')
			o->state = optarg;
		else if (c == 'j')
			o->json = true;
		else if (c != 'q' || !sequence_parse(optarg, &o->sequence))
			usage();
	}
}

/* The n-th sequence of a run: each of one operation, each of two, and then three of them. */
static struct sequence nth_sequence(const struct options *o, uint64_t n)
{
	uint64_t ones = nr_sequence_ops, twos = ones * ones;

	if (n < ones)
		return sequence_numbered(1, n);
	if (n < ones + twos) /* in another order for each seed: 7 divides no power of 15 */
		return sequence_numbered(2, (o->seed + 7 * n) % twos);
	return sequence_numbered(3, rnd_below(&(struct rnd){o->seed + n}, twos * ones));
}

static void choose(struct workload *w, const struct options *o, uint64_t n)
{
	bool small = w->seed % 4;

	w->save_one_in = 1;
	w->only_event = UINT64_MAX;
	w->nr_ops = o->ops ? o->ops : small ? 12 + (unsigned)(w->seed % 29) : 300;
	if (o->sequence.nr)
		w->sequence = o->sequence;
	else if (!o->ops && n % 4)
		w->sequence = nth_sequence(o, n - n / 4 - 1);
	else if (w->nr_ops > 60)
		w->save_one_in = 12;
}

static void run_workload(struct explorer *x, const struct options *o, uint64_t n)
{
	struct workload w = {.seed = o->seed + n};

	choose(&w, o, n);
	x->rnd.state = w.seed;
	if (w.sequence.nr && w.sequence.nr <= 2 && !o->sequence.nr)
		x->sequences++;
	explorer_run(x, &w);
	explore(x, &w);
	workload_free(&w);
}

static void run_state(struct explorer *x, const struct options *o)
{
	struct workload w = {
	    .seed = o->seed, .nr_ops = o->ops, .sequence = o->sequence, .save_one_in = 1};

	w.only_event = strtoull(o->state + (*o->state == 'E'), NULL, 10);
	explorer_run(x, &w);
	explore_path(x, &w, o->state);
	workload_free(&w);
	printf("powercut: state %s is as promised\n", o->state);
}

static void print(const struct explorer *x, const struct options *o, uint64_t workloads)
{
	printf(o->json
		   ? "{\"program\":\"powercut\",\"seed\":%llu,\"workloads\":%llu,"
		     "\"sequences\":%llu,\"instants\":%llu,\"states\":%llu,\"distinct\":%llu,"
		     "\"torn\":%llu,\"inside_recovery\":%llu,\"third_cut\":%llu,\"emptied\":%llu,"
		     "\"io_faults\":%llu,\"failed_operations\":%llu}\n"
		   : "powercut: seed %llu: %llu workloads, %llu of them sequences of one or two; "
		     "%llu instants, %llu states tried, %llu of them distinct: %llu torn, %llu "
		     "inside recovery, %llu of these at the third cut; %llu used and emptied; "
		     "%llu device errors injected, %llu operations failed\n",
	       (unsigned long long)o->seed, (unsigned long long)workloads,
	       (unsigned long long)x->sequences, (unsigned long long)x->events,
	       (unsigned long long)x->states, (unsigned long long)x->distinct,
	       (unsigned long long)x->torn, (unsigned long long)(x->by_depth[2] + x->by_depth[3]),
	       (unsigned long long)x->by_depth[3], (unsigned long long)x->used,
	       (unsigned long long)x->faults, (unsigned long long)x->failed);
}

static void run_all(struct explorer *x, const struct options *o)
{
	uint64_t end = cpc_hooks_default.monotonic_ns() + o->seconds * 1000000000;
	uint64_t n = 0;

	while (o->seconds ? cpc_hooks_default.monotonic_ns() < end : x->states < o->states)
		run_workload(x, o, n++);
	print(x, o, n);
}

int main(int argc, char **argv)
{
	struct options o = {.seed = rig_env("CPC_TEST_SEED", (uint64_t)time(NULL) * 1009),
			    .states =
				rig_env("CPC_TEST_STATES", rig_env("CPC_TEST_OPS", 400000) / 20)};
	struct explorer x = {.program = argv[0], .per_instant = 4, .per_epoch = 64};

	parse(argc, argv, &o, &x);
	if (!o.json)
		printf("powercut: seed %llu\n", (unsigned long long)o.seed);
	if (o.state)
		run_state(&x, &o);
	else
		run_all(&x, &o);
	explorer_free(&x);
	return 0;
}
