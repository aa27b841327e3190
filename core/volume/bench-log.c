/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What the log costs: device flushes for each client flush when clients share them, and the time
 * that an opening takes for a full ring. The device is in memory, so what is measured is the
 * engine.
 *
 *   bench-log flush  [--json] [--clients N] [--every N] [--flushes N] [--delay US]
 *   bench-log replay [--json] [--log-size BYTES] [--every N]
 *
 * flush: N clients on one volume write 4 KiB blocks at random and flush every so many writes; a
 * device flush takes --delay microseconds. Without --clients: 1, 8 and 16 clients as fio's jobs
 * have them. replay: random writes, flushed every so many, until the ring is full; then the process
 * is gone, as it were, and the next one opens the pool.
 */
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "backing/powercut.h"
#include "lib/hooks.h"
#include "pool/pool.h"
#include "volume/volume.h"

#define MIB	    (1ull << 20)
#define VOLUME_SIZE (1024 * MIB)

struct options {
	bool json;
	unsigned clients, every, flushes, delay;
	uint64_t log_size;
};

struct bench {
	struct options o;
	struct cpc_powercut *pc;
	struct cpc_pool *pool;
	struct cpc_volume *vol;
};

static void must(int ret, const char *what)
{
	if (ret) {
		fprintf(stderr, "bench-log: %s: %s\n", what, strerror(-ret));
		exit(1);
	}
}

static void open_pool(struct bench *b, bool threads)
{
	struct cpc_backing *backing;
	struct cpc_pool_options opts;
	struct cpc_error err;

	cpc_pool_options_init(&opts);
	opts.no_threads = !threads;
	must(cpc_powercut_reopen(b->pc, &backing), "device");
	must(cpc_pool_open_backing(backing, &opts, &b->pool, &err), "open");
	must(cpc_pool_start(b->pool, &err), "start");
}

static void create(struct bench *b, uint64_t log_size, bool threads)
{
	const struct cpc_format_options fo = {.log_size = log_size};
	struct cpc_backing *backing;
	struct cpc_error err;

	must(cpc_powercut_create(16 * log_size + 4 * VOLUME_SIZE, &b->pc), "device");
	must(cpc_powercut_reopen(b->pc, &backing), "device");
	must(cpc_pool_format_backing(backing, &fo, &err), "format");
	cpc_backing_close(backing);
	open_pool(b, threads);
	must(cpc_pool_create_volume(b->pool, "v", VOLUME_SIZE, &err), "create");
	must(cpc_pool_open_volume(b->pool, "v", &b->vol), "volume");
}

static void destroy(struct bench *b)
{
	cpc_pool_close_volume(b->pool, b->vol);
	cpc_pool_close(b->pool);
	cpc_powercut_destroy(b->pc);
}

struct wanted {
	const char *name;
	uint64_t value;
};

static void note(void *ctx, const struct cpc_stat *stat)
{
	struct wanted *w = ctx;

	if (!strcmp(stat->name, w->name))
		w->value = stat->value;
}

static uint64_t counter(struct bench *b, const char *name)
{
	struct wanted w = {.name = name};

	cpc_pool_stats(b->pool, note, &w);
	return w.value;
}

static void write_one(struct bench *b, uint64_t *rng, uint8_t *buf)
{
	*rng = *rng * 6364136223846793005ull + 1442695040888963407ull;
	memcpy(buf, rng, sizeof(*rng));
	must(cpc_volume_write(b->vol, buf, CPC_BLOCK_SIZE,
			      (*rng >> 20) % (VOLUME_SIZE / CPC_BLOCK_SIZE) * CPC_BLOCK_SIZE, 0),
	     "write");
}

/* --- flush --- */

struct client {
	struct bench *b;
	pthread_t thread;
	uint64_t rng;
};

static void *run_client(void *arg)
{
	uint8_t buf[CPC_BLOCK_SIZE] = {0};
	struct client *c = arg;

	for (unsigned i = 0; i < c->b->o.flushes; i++) {
		for (unsigned w = 0; w < c->b->o.every; w++)
			write_one(c->b, &c->rng, buf);
		must(cpc_volume_flush(c->b->vol), "flush");
	}
	return NULL;
}

static void flush_job(struct options o)
{
	struct client *clients = calloc(o.clients, sizeof(*clients));
	uint64_t flushes, bytes, nr = (uint64_t)o.clients * o.flushes;
	struct bench b = {.o = o};

	if (!clients)
		exit(1);
	create(&b, 64 * MIB, true);
	cpc_powercut_set_flush_delay(b.pc, o.delay);
	flushes = counter(&b, "backing.flushes_log");
	bytes = counter(&b, "backing.bytes_written");
	for (unsigned i = 0; i < o.clients; i++) {
		clients[i] = (struct client){.b = &b, .rng = i + 1};
		must(-pthread_create(&clients[i].thread, NULL, run_client, &clients[i]), "thread");
	}
	for (unsigned i = 0; i < o.clients; i++)
		pthread_join(clients[i].thread, NULL);
	flushes = counter(&b, "backing.flushes_log") - flushes;
	bytes = counter(&b, "backing.bytes_written") - bytes;
	printf(o.json ? "{\"job\": \"flush\", \"clients\": %u, \"every\": %u, \"delay_us\": %u, "
			"\"device_flushes\": %.4f, \"bytes_a_write\": %.0f}\n"
		      : "%2u clients, a flush every %u writes, %u us a device flush: %.4f device "
			"flushes a client flush, %.0f device bytes a write\n",
	       o.clients, o.every, o.delay, (double)flushes / (double)nr,
	       (double)bytes / (double)(nr * o.every));
	cpc_powercut_set_flush_delay(b.pc, 0);
	destroy(&b);
	free(clients);
}

static void flush_jobs(struct options o)
{
	static const unsigned jobs[][2] = {{1, 1}, {8, 8}, {16, 4}};

	if (o.clients) {
		o.every = o.every ? o.every : 1;
		flush_job(o);
		return;
	}
	for (unsigned i = 0; i < CPC_ARRAY_SIZE(jobs); i++) {
		o.clients = jobs[i][0];
		o.every = jobs[i][1];
		flush_job(o);
	}
}

/* --- replay --- */

static void write_and_flush(struct bench *b, uint64_t *rng)
{
	uint8_t buf[CPC_BLOCK_SIZE] = {0};

	for (unsigned w = 0; w < b->o.every; w++)
		write_one(b, rng, buf);
	must(cpc_volume_flush(b->vol), "flush");
}

/* The first time it is full, the engine makes room: so many flushes fit, less one. */
static void fill_ring(struct bench *b)
{
	uint64_t commits = counter(b, "transaction.commits"), rng = 1, nr = 0;

	for (; counter(b, "transaction.commits") == commits; nr++)
		write_and_flush(b, &rng);
	must(cpc_pool_commit(b->pool), "commit");
	for (uint64_t i = 0; i + 2 < nr; i++)
		write_and_flush(b, &rng);
}

static double open_ms(struct bench *b)
{
	uint64_t start = cpc_now_ns();

	cpc_pool_close_volume(b->pool, b->vol);
	cpc_pool_close(b->pool);
	start = cpc_now_ns();
	open_pool(b, false);
	start = cpc_now_ns() - start;
	must(cpc_pool_open_volume(b->pool, "v", &b->vol), "volume");
	return (double)start / 1e6;
}

static void replay_job(struct options o)
{
	uint64_t entries, records, used;
	struct bench b = {.o = o};
	double full, empty;

	create(&b, o.log_size, false);
	fill_ring(&b);
	used = counter(&b, "log.used");
	records = counter(&b, "log.records") / 2;
	entries = counter(&b, "log.entries") / 2;
	full = open_ms(&b);
	empty = open_ms(&b);
	printf(o.json ? "{\"job\": \"replay\", \"log_size\": %" PRIu64 ", \"used\": %" PRIu64
			", \"records\": %" PRIu64 ", \"entries\": %" PRIu64
			", \"open_ms\": %.1f, \"open_empty_ms\": %.1f, "
			"\"entries_a_second\": %.0f}\n"
		      : "log of %" PRIu64 " bytes, %" PRIu64 " used, %" PRIu64 " records, %" PRIu64
			" entries: open %.1f ms (empty log %.1f), %.0f "
			"entries a second\n",
	       o.log_size, used, records, entries, full, empty,
	       (double)entries / (full - empty) * 1e3);
	destroy(&b);
}

static void replay_jobs(struct options o)
{
	o.every = o.every ? o.every : 4;
	if (o.log_size) {
		replay_job(o);
		return;
	}
	for (o.log_size = 64 * MIB; o.log_size <= 256 * MIB; o.log_size *= 4)
		replay_job(o);
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
	    {"json", 0, 0, 'j'},    {"clients", 1, 0, 'c'}, {"every", 1, 0, 'e'},
	    {"flushes", 1, 0, 'f'}, {"delay", 1, 0, 'd'},   {"log-size", 1, 0, 'l'},
	    {NULL, 0, 0, 0},
	};
	struct options o = {.flushes = 300, .delay = 1000};
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 'j')
			o.json = true;
		else if (c == 'c')
			o.clients = (unsigned)strtoul(optarg, NULL, 10);
		else if (c == 'e')
			o.every = (unsigned)strtoul(optarg, NULL, 10);
		else if (c == 'f')
			o.flushes = (unsigned)strtoul(optarg, NULL, 10);
		else if (c == 'd')
			o.delay = (unsigned)strtoul(optarg, NULL, 10);
		else if (c == 'l')
			o.log_size = strtoull(optarg, NULL, 10);
		else
			return 2;
	}
	if (optind + 1 == argc && !strcmp(argv[optind], "flush"))
		flush_jobs(o);
	else if (optind + 1 == argc && !strcmp(argv[optind], "replay"))
		replay_jobs(o);
	else
		return 2;
	return 0;
}
