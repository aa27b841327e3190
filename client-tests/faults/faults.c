/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * faults: the n-th allocation, read, write, flush or discard fails, once or from then on, with EIO
 * or ENOSPC, for each n until the workload has no n-th call any more. See script.h.
 *
 *   faults [--workload NAME] [--kind alloc|read|write|flush|discard] [--error eio|enospc]
 *          [--once | --sticky] [--n N] [--every K] [--seed N] [--count N] [--seconds N] [--json]
 *
 * What is not given is tried in all its values, and then with the next seed, until --count faults
 * have been injected or --seconds have passed; without either, for one seed. --every K takes one n
 * in K. A failure prints the command that repeats it alone. An operation that does not end is a
 * failure after a minute.
 */
#include "script.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "memory.h"

#define HANG_S 60

struct options {
	const char *workload;
	int kind, error, sticky; /* -1: all */
	uint64_t n, every, seed, count, seconds;
	bool json;
};

struct counts {
	uint64_t runs, io_faults, alloc_failures; /* runs in which the fault fired, by kind */
	uint64_t calls, operations;		  /* that failed */
	uint64_t broken;
	uint64_t seeds;
	time_t start;
};

static void usage(void)
{
	fprintf(stderr, "usage: faults [--workload NAME] [--kind KIND] [--error eio|enospc] "
			"[--once | --sticky]\n       [--n N] [--every K] [--seed N] [--count N] "
			"[--seconds N] [--json]\n");
	exit(2);
}

static int parse_kind(const char *text)
{
	for (int kind = 0; kind < NR_FAULT_KINDS; kind++) {
		if (strcmp(text, fault_kind_name((enum fault_kind)kind)) == 0)
			return kind;
	}
	usage();
	return -1;
}

static int parse_error(const char *text)
{
	if (strcmp(text, "eio") != 0 && strcmp(text, "enospc") != 0)
		usage();
	return text[1] == 'i' ? EIO : ENOSPC;
}

static void parse(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = {
	    {"workload", 1, 0, 'w'}, {"kind", 1, 0, 'k'},   {"error", 1, 0, 'e'},
	    {"once", 0, 0, 'o'},     {"sticky", 0, 0, 'y'}, {"n", 1, 0, 'n'},
	    {"every", 1, 0, 'v'},    {"seed", 1, 0, 's'},   {"count", 1, 0, 'c'},
	    {"seconds", 1, 0, 't'},  {"json", 0, 0, 'j'},   {NULL, 0, 0, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 'w')
			o->workload = optarg;
		else if (c == 'k')
			o->kind = parse_kind(optarg);
		else if (c == 'e')
			o->error = parse_error(optarg);
		else if (c == 'o' || c == 'y')
			o->sticky = c == 'y';
		else if (c == 'n')
			o->n = rig_number(optarg, "--n");
		else if (c == 'v')
			o->every = rig_number(optarg, "--every");
		else if (c == 's')
			o->seed = rig_number(optarg, "--seed");
		else if (c == 'c')
			o->count = rig_number(optarg, "--count");
		else if (c == 't')
			o->seconds = rig_number(optarg, "--seconds");
		else if (c == 'j')
			o->json = true;
		else
			usage();
	}
	if (optind < argc || !o->every)
		usage();
}

static bool enough(const struct options *o, const struct counts *c)
{
	if (o->count && c->io_faults + c->alloc_failures >= o->count)
		return true;
	if (o->seconds)
		return time(NULL) - c->start >= (time_t)o->seconds;
	return !o->count && c->seeds > 0;
}

/* Return: whether the fault fired. */
static bool run(struct counts *c, struct script *s)
{
	const struct fault *f = &s->fault;
	struct itimerval limit = {.it_value.tv_sec = HANG_S};

	rig_set_rerun("faults --workload %s --kind %s --error %s %s --n %llu --seed %llu",
		      script_workload(s->workload), fault_kind_name(f->kind),
		      f->error == -EIO ? "eio" : "enospc", f->sticky ? "--sticky" : "--once",
		      (unsigned long long)f->nth, (unsigned long long)s->seed);
	setitimer(ITIMER_REAL, &limit, NULL);
	rig_seed_engine(s->seed);
	script_run(s);
	c->runs++;
	c->calls += s->fired;
	c->operations += s->failed;
	c->broken += s->broke;
	if (s->fired)
		*(f->kind == FAULT_ALLOC ? &c->alloc_failures : &c->io_faults) += 1;
	return s->fired;
}

static void run_series(const struct options *o, struct counts *c, unsigned workload, uint64_t seed,
		       const struct fault *fault)
{
	uint64_t first = o->n ? o->n : 1 + (seed + workload) % o->every;
	bool fired = true;

	for (uint64_t n = first; fired && !enough(o, c); n += o->every) {
		struct script s = {.workload = workload, .seed = seed, .fault = *fault};

		s.fault.nth = n;
		fired = run(c, &s) && !o->n;
	}
}

/* Room is what writes and flushes may lack. */
static bool may_say(int kind, int error)
{
	return error == EIO || kind == FAULT_WRITE || kind == FAULT_FLUSH;
}

static void run_kind(const struct options *o, struct counts *c, unsigned workload, uint64_t seed,
		     int kind)
{
	static const int errors[] = {EIO, ENOSPC};

	for (int sticky = 0; sticky < 2; sticky++) {
		for (unsigned e = 0; e < CPC_ARRAY_SIZE(errors); e++) {
			struct fault f = {
			    .kind = (enum fault_kind)kind, .sticky = sticky, .error = -errors[e]};

			if ((o->sticky < 0 || o->sticky == sticky) &&
			    (o->error < 0 || o->error == errors[e]) && may_say(kind, errors[e]))
				run_series(o, c, workload, seed, &f);
		}
	}
}

static void run_seed(const struct options *o, struct counts *c, uint64_t seed)
{
	for (unsigned w = 0; script_workload(w); w++) {
		if (o->workload && strcmp(o->workload, script_workload(w)) != 0)
			continue;
		for (int kind = 0; kind < NR_FAULT_KINDS; kind++) {
			if (o->kind < 0 || o->kind == kind)
				run_kind(o, c, w, seed, kind);
		}
	}
}

static void print_counts(const struct options *o, const struct counts *c)
{
	const char *format =
	    o->json ? "{\"program\":\"faults\",\"seed\":%llu,\"seeds\":%llu,\"runs\":%llu,"
		      "\"io_faults\":%llu,\"allocation_failures\":%llu,\"failed_calls\":%llu,"
		      "\"failed_operations\":%llu,\"pools_read_only\":%llu}\n"
		    : "faults: seed %llu and on, %llu of them, %llu runs: %llu device errors and "
		      "%llu allocation failures injected, %llu calls and %llu operations failed, "
		      "%llu pools became read-only\n";

	printf(format, (unsigned long long)o->seed, (unsigned long long)c->seeds,
	       (unsigned long long)c->runs, (unsigned long long)c->io_faults,
	       (unsigned long long)c->alloc_failures, (unsigned long long)c->calls,
	       (unsigned long long)c->operations, (unsigned long long)c->broken);
}

static void on_hang(int sig)
{
	static const char text[] = "FAILED: no end after a minute\n";

	if (write(2, text, sizeof(text) - 1) < 0)
		_exit(1);
	abort();
}

int main(int argc, char **argv)
{
	struct options o = {.kind = -1,
			    .error = -1,
			    .sticky = -1,
			    .every = 1,
			    .seed = rig_env("CPC_TEST_SEED", (uint64_t)time(NULL))};
	struct counts c = {.start = time(NULL)};

	parse(argc, argv, &o);
	if (!o.json)
		printf("faults: CPC_TEST_SEED=%llu\n", (unsigned long long)o.seed);
	rig_init(o.seed);
	memory_init();
	signal(SIGALRM, on_hang);
	do {
		run_seed(&o, &c, o.seed + c.seeds);
		c.seeds++;
	} while (!o.n && !enough(&o, &c));
	print_counts(&o, &c);
	return 0;
}
