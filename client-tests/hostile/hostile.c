/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * hostile: gives hostile bytes to the targets, without a fuzzer.
 *
 *   hostile [--target NAME] [--seed N] [--count N] [--seconds N] [--json] [FILE...]
 *
 * Replays files, one input each, or one a line in hexadecimal digits (corpus/pool.hex; the name is
 * the target's); or makes --count random inputs, or as many as there is time for, for one target or
 * for all in turn. An input that takes more than 2 seconds of processor time, 10 with a sanitizer,
 * is a failure. What fails is kept in the file hostile-failure-TARGET of the working directory,
 * which can be given as FILE.
 */
#include <fcntl.h>
#include <getopt.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "draw.h"
#include "target.h"

#ifdef __SANITIZE_ADDRESS__
#define LIMIT_S 10
#else
#define LIMIT_S 2
#endif

struct options {
	const struct target *target; /* NULL: all */
	uint64_t seed, count, seconds;
	bool json;
};

/* --- random inputs --- */

static uint64_t state;

/* A few bytes of something that makes sense become others. */
static size_t change_sample(const struct target *t, uint8_t *input)
{
	size_t len = t->sample((unsigned)draw(&state, 1 << 16), input);

	for (uint64_t i = 1 + draw(&state, 4); i && len; i--) {
		static const uint8_t bytes[] = {0, 1, 0xff, 0x80, 0x7f, '"', '}', '9'};
		size_t at = draw(&state, len);

		if (draw(&state, 8) == 0)
			len = at + 1;
		else if (draw(&state, 2))
			input[at] = (uint8_t)draw(&state, 256);
		else
			input[at] = bytes[draw(&state, sizeof(bytes))];
	}
	return len;
}

/* --- running one --- */

static const struct target *running;
static uint8_t current[TARGET_INPUT_MAX];
static size_t current_len;

static void keep(int sig)
{
	char name[64] = "hostile-failure-";
	int fd;

	signal(sig, SIG_DFL);
	strncat(name, running->name, 20);
	fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	if (fd >= 0 && write(fd, current, current_len) == (ssize_t)current_len)
		fprintf(stderr, "to run it again: hostile %s\n", name);
	raise(sig);
}

static void on_limit(int sig)
{
	target_fail("more than %d s of processor time", LIMIT_S);
}

static void run(const struct target *t)
{
	struct itimerval limit = {.it_value.tv_sec = LIMIT_S};

	running = t;
	setitimer(ITIMER_PROF, &limit, NULL);
	t->run(current, current_len);
}

static void run_random(const struct target *t)
{
	current_len =
	    t->mutate ? t->mutate(&state, current, 0, sizeof(current)) : change_sample(t, current);
	run(t);
}

/* The target that a file's name names: pool.hex, hostile-failure-pool. */
static const struct target *target_of(const char *path)
{
	char copy[4096], *name;

	snprintf(copy, sizeof(copy), "%s", path);
	name = basename(copy);
	if (strncmp(name, "hostile-failure-", 16) == 0)
		name += 16;
	name[strcspn(name, ".")] = '\0';
	return target_find(name);
}

/* A line of the corpus: hexadecimal digits. */
static void run_line(const struct target *t, const char *line)
{
	unsigned byte;

	for (current_len = 0; current_len < sizeof(current) && sscanf(line, "%2x", &byte) == 1;
	     line += 2)
		current[current_len++] = (uint8_t)byte;
	run(t);
}

/* Return: inputs. */
static uint64_t run_file(const char *path)
{
	const struct target *t = target_of(path);
	size_t len = strlen(path), cap = 0;
	FILE *f = fopen(path, "rb");
	char *line = NULL;
	uint64_t nr = 0;

	if (!f || !t) {
		fprintf(stderr, "hostile: %s: cannot be read, or its name names no target\n", path);
		exit(2);
	}
	if (len > 4 && strcmp(path + len - 4, ".hex") == 0) {
		for (; getline(&line, &cap, f) > 0; nr++)
			run_line(t, line);
	} else {
		current_len = fread(current, 1, sizeof(current), f);
		run(t);
		nr++;
	}
	free(line);
	fclose(f);
	return nr;
}

/* --- the whole --- */

static const struct target *parse_target(const char *name)
{
	const struct target *t = target_find(name);

	if (!t) {
		fprintf(stderr, "hostile: no target '%s'\n", name);
		exit(2);
	}
	return t;
}

static void parse(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = {
	    {"target", 1, 0, 't'},  {"seed", 1, 0, 's'}, {"count", 1, 0, 'c'},
	    {"seconds", 1, 0, 'l'}, {"json", 0, 0, 'j'}, {NULL, 0, 0, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 't') {
			o->target = parse_target(optarg);
		} else if (c == 's') {
			o->seed = strtoull(optarg, NULL, 0);
		} else if (c == 'c') {
			o->count = strtoull(optarg, NULL, 0);
		} else if (c == 'l') {
			o->seconds = strtoull(optarg, NULL, 0);
		} else if (c == 'j') {
			o->json = true;
		} else {
			fprintf(stderr, "usage: hostile [--target NAME] [--seed N] [--count N] "
					"[--seconds N] [--json] [FILE...]\n");
			exit(2);
		}
	}
}

static uint64_t run_all_random(const struct options *o)
{
	time_t start = time(NULL);
	uint64_t n = 0;

	while (o->seconds ? time(NULL) - start < (time_t)o->seconds : n < o->count) {
		/* Half of them are pools: there is the most to find. */
		unsigned i = n % 2 ? 1 + (unsigned)(n / 2 % 5) : 0;

		state = o->seed + n++;
		run_random(o->target ? o->target : target_at(i));
	}
	return n;
}

int main(int argc, char **argv)
{
	struct options o = {.count = 10000, .seed = (uint64_t)time(NULL) << 20};
	const struct target_counts *c = &target_counts;
	uint64_t n = 0;

	if (getenv("CPC_TEST_SEED"))
		o.seed = strtoull(getenv("CPC_TEST_SEED"), NULL, 0);
	parse(argc, argv, &o);
	signal(SIGABRT, keep);
	signal(SIGSEGV, keep);
	signal(SIGPROF, on_limit);
	targets_init();
	for (int i = optind; i < argc; i++)
		n += run_file(argv[i]);
	if (optind == argc) {
		if (!o.json)
			printf("hostile: CPC_TEST_SEED=%llu\n", (unsigned long long)o.seed);
		fflush(stdout);
		n = run_all_random(&o);
	}
	printf(o.json ? "{\"program\":\"hostile\",\"executions\":%llu,\"pools_opened\":%llu,"
			"\"pools_refused\":%llu,\"requests\":%llu,\"scrubs\":%llu,"
			"\"repairs\":%llu,\"repaired\":%llu,\"check_findings\":%llu,"
			"\"max_bytes_above_cache\":%llu}\n"
		      : "hostile: %llu executions, %llu pools opened, %llu refused, %llu requests, "
			"%llu scrubs, %llu repairs of %llu blocks, %llu findings of checks, at "
			"most %llu bytes above the cache\n",
	       (unsigned long long)n, (unsigned long long)c->opened, (unsigned long long)c->refused,
	       (unsigned long long)c->requests, (unsigned long long)c->scrubs,
	       (unsigned long long)c->repairs, (unsigned long long)c->repaired,
	       (unsigned long long)c->findings, (unsigned long long)c->max_bytes);
	return 0;
}
