/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * one-instant: writes, zeroes and flushes a disk over several connections until the server dies,
 * connects again when a new one is there, and checks that the disk reads as it did at one single
 * instant, not earlier than its last answered flush. Repeats that for a number of lives.
 *
 * The caller kills and restarts the server; "life N" on stdout says that life N's requests run.
 *
 * Each write has a number that fills its blocks. Two requests in flight never overlap (range
 * locks), so that a block's writes have one order and what it holds after the crash divides them
 * into those the instant has ("in") and those it has not ("out"). A counter gives each request the
 * stamp of its issue and of its answer. The claims, over all blocks:
 *
 *  1. A block holds what it held when the life began, or one of the life's writes, whole.
 *  2. No request is in at one block and out at another.
 *  3. No request that is out was answered before one that is in was issued.
 *  4. No request that is out was answered before an answered flush, or an answered request with
 *     FUA, was issued; and no answered request with FUA is out.
 *
 * A zeroed block has no number, so a block is zeroed at most once a life, and only when it cannot
 * be mistaken for what the life began with.
 */
#include "client.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK		  4096u
#define LARGE_BLOCKS	  1024u /* 4 MiB, the largest request */
#define RECONNECT_SECONDS 120u
#define NEVER		  UINT64_MAX

static struct {
	const char *uri;
	unsigned connections, lives;
	uint64_t seed;
	uint64_t nr_blocks;
} options = {.connections = 6, .lives = 5, .seed = 1, .nr_blocks = 8192};

/* A write or zero of the current life. */
struct change {
	uint64_t number;	   /* fills its blocks, 0 for a zero */
	uint64_t start, len;	   /* blocks */
	uint64_t issued, answered; /* stamps; NEVER: not answered */
	bool fua;
	bool in, out; /* verdict: its blocks after the crash have it, have not */
	struct change *next;
};

/* One block: what it held when the life began, and its changes since, in their order. */
struct block {
	uint64_t base;
	struct change **changes;
	unsigned nr_changes, room;
};

static struct block *blocks; /* each under the range lock of its block */
static struct range_locks locks;
static struct change *all_changes; /* under list_mutex */
static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint_fast64_t stamp;
static atomic_uint_fast64_t last_number;
static atomic_uint_fast64_t durable_before; /* issue stamp of the newest answered flush or FUA */
static atomic_uint_fast64_t nr_flushes;

struct client {
	pthread_t thread;
	struct rng rng;
	struct nbd_handle *nbd;
	uint64_t *buf; /* LARGE_BLOCKS blocks */
};

/* --- a life ---------------------------------------------------------------------------------- */

static void raise_durable(uint64_t issued)
{
	uint64_t old = atomic_load(&durable_before);

	while (old < issued && !atomic_compare_exchange_weak(&durable_before, &old, issued))
		;
}

/* Tells the end of the life from an error of a live server, which fails the program. */
static bool answered(const struct client *client, int rc, const char *what)
{
	if (rc == 0)
		return true;
	if (nbd_get_errno() == ESHUTDOWN || nbd_aio_is_dead(client->nbd) ||
	    nbd_aio_is_closed(client->nbd))
		return false;
	fail("%s: %s", what, nbd_get_error());
}

static void remember(struct change *change)
{
	for (uint64_t i = change->start; i < change->start + change->len; i++) {
		struct block *block = &blocks[i];

		if (block->nr_changes == block->room) {
			block->room = block->room ? block->room * 2 : 4;
			block->changes =
			    reallocarray(block->changes, block->room, sizeof(*block->changes));
			if (!block->changes)
				fail("out of memory");
		}
		block->changes[block->nr_changes++] = change;
	}
	pthread_mutex_lock(&list_mutex);
	change->next = all_changes;
	all_changes = change;
	pthread_mutex_unlock(&list_mutex);
}

static bool may_zero(uint64_t start, uint64_t len)
{
	for (uint64_t i = start; i < start + len; i++) {
		if (blocks[i].base == 0)
			return false;
		for (unsigned j = 0; j < blocks[i].nr_changes; j++)
			if (blocks[i].changes[j]->number == 0)
				return false;
	}
	return true;
}

static uint64_t pick_length(struct rng *rng)
{
	uint64_t kind = rng_below(rng, 1000);

	if (kind < 700)
		return 1 + rng_below(rng, 4);
	if (kind < 950)
		return 1 + rng_below(rng, 32);
	if (kind < 995)
		return 1 + rng_below(rng, 256);
	return 1 + rng_below(rng, LARGE_BLOCKS);
}

/* Sends one write or zero. Context: its range is locked. Return: false when the server is gone. */
static bool send_change(struct client *client, struct change *change)
{
	uint32_t flags = change->fua ? LIBNBD_CMD_FLAG_FUA : 0;
	int rc;

	change->issued = atomic_fetch_add(&stamp, 1);
	if (change->number) {
		for (uint64_t i = 0; i < change->len * BLOCK / sizeof(uint64_t); i++)
			client->buf[i] = change->number;
		rc = nbd_pwrite(client->nbd, client->buf, change->len * BLOCK,
				change->start * BLOCK, flags);
	} else {
		rc = nbd_zero(client->nbd, change->len * BLOCK, change->start * BLOCK, flags);
	}
	if (!answered(client, rc, change->number ? "write" : "zero"))
		return false;
	change->answered = atomic_fetch_add(&stamp, 1);
	if (change->fua)
		raise_durable(change->issued);
	return true;
}

static bool one_change(struct client *client)
{
	struct change *change = calloc(1, sizeof(*change));
	struct range_lock *lock;
	bool alive;

	if (!change)
		fail("out of memory");
	change->len = pick_length(&client->rng);
	if (change->len > options.nr_blocks)
		change->len = options.nr_blocks;
	change->start = rng_below(&client->rng, options.nr_blocks - change->len + 1);
	change->answered = NEVER;
	change->fua = rng_percent(&client->rng, 3);
	lock = range_lock(&locks, change->start, change->len, false);
	if (!rng_percent(&client->rng, 5) || !may_zero(change->start, change->len))
		change->number = atomic_fetch_add(&last_number, 1) + 1;
	remember(change);
	alive = send_change(client, change);
	range_unlock(&locks, lock);
	return alive;
}

static bool one_flush(struct client *client)
{
	uint64_t issued = atomic_fetch_add(&stamp, 1);

	if (!answered(client, nbd_flush(client->nbd, 0), "flush"))
		return false;
	raise_durable(issued);
	atomic_fetch_add(&nr_flushes, 1);
	return true;
}

static void *client_main(void *opaque)
{
	struct client *client = opaque;
	bool alive;

	do {
		alive = rng_percent(&client->rng, 5) ? one_flush(client) : one_change(client);
	} while (alive);
	nbd_close(client->nbd);
	return NULL;
}

static void run_life(struct client *clients, unsigned life)
{
	for (unsigned i = 0; i < options.connections; i++)
		clients[i].nbd = client_connect_wait(options.uri, RECONNECT_SECONDS);
	for (unsigned i = 0; i < options.connections; i++)
		if (pthread_create(&clients[i].thread, NULL, client_main, &clients[i]) != 0)
			fail("cannot start a thread");
	printf("life %u\n", life);
	fflush(stdout);
	for (unsigned i = 0; i < options.connections; i++)
		pthread_join(clients[i].thread, NULL);
}

/* --- the verdict ----------------------------------------------------------------------------- */

/* Claim 1: the block's number; fails when its words differ. */
static uint64_t number_of_block(const uint64_t *words, uint64_t index)
{
	for (unsigned i = 1; i < BLOCK / sizeof(*words); i++)
		if (words[i] != words[0])
			fail("block %" PRIu64 " is torn: number %" PRIu64 " at its start, %" PRIu64
			     " at byte %zu",
			     index, words[0], words[i], i * sizeof(*words));
	return words[0];
}

/* Divides the block's changes into in and out by what it holds now. */
static void judge_block(struct block *block, uint64_t index, uint64_t number)
{
	unsigned nr_in = block->nr_changes;

	while (nr_in > 0 && block->changes[nr_in - 1]->number != number)
		nr_in--;
	if (nr_in == 0 && number != block->base)
		fail("block %" PRIu64 " holds number %" PRIu64
		     ", which is neither its old one, %" PRIu64 ", nor one of its %u writes since",
		     index, number, block->base, block->nr_changes);
	for (unsigned i = 0; i < block->nr_changes; i++)
		*(i < nr_in ? &block->changes[i]->in : &block->changes[i]->out) = true;
	block->base = number;
	block->nr_changes = 0;
}

static void read_disk(void)
{
	struct nbd_handle *nbd = client_connect_wait(options.uri, RECONNECT_SECONDS);
	uint64_t *buf = malloc((size_t)LARGE_BLOCKS * BLOCK);

	if (!buf)
		fail("out of memory");
	for (uint64_t start = 0; start < options.nr_blocks; start += LARGE_BLOCKS) {
		uint64_t left = options.nr_blocks - start;
		uint64_t len = left < LARGE_BLOCKS ? left : LARGE_BLOCKS;

		if (nbd_pread(nbd, buf, len * BLOCK, start * BLOCK, 0) != 0)
			fail("read: %s", nbd_get_error());
		for (uint64_t i = 0; i < len; i++)
			judge_block(&blocks[start + i], start + i,
				    number_of_block(buf + i * BLOCK / sizeof(*buf), start + i));
	}
	free(buf);
	nbd_shutdown(nbd, 0);
	nbd_close(nbd);
}

static void describe(const char *word, const struct change *change)
{
	printf("  %s: number %" PRIu64 ", blocks %" PRIu64 " + %" PRIu64 ", issued %" PRIu64
	       ", answered %" PRId64 "%s\n",
	       word, change->number, change->start, change->len, change->issued,
	       (int64_t)change->answered, change->fua ? ", FUA" : "");
}

/* Claims 2 to 4, then forgets the life's changes. */
static void judge_life(unsigned life)
{
	const struct change *newest_in = NULL, *oldest_out = NULL;
	uint64_t nr = 0, nr_out = 0, durable = atomic_load(&durable_before);

	for (struct change *change = all_changes; change; change = change->next) {
		nr++;
		nr_out += change->out;
		if (change->in && change->out) {
			describe("half", change);
			fail("life %u: a request is visible in part", life);
		}
		if (change->out && change->fua && change->answered != NEVER) {
			describe("lost", change);
			fail("life %u: an answered FUA request is lost", life);
		}
		if (change->in && (!newest_in || change->issued > newest_in->issued))
			newest_in = change;
		if (change->out && (!oldest_out || change->answered < oldest_out->answered))
			oldest_out = change;
	}
	if (oldest_out && oldest_out->answered < durable) {
		describe("lost", oldest_out);
		fail("life %u: a request answered before the flush issued at %" PRIu64 " is lost",
		     life, durable);
	}
	if (oldest_out && newest_in && oldest_out->answered < newest_in->issued) {
		describe("lost", oldest_out);
		describe("kept", newest_in);
		fail("life %u: a request is lost, one issued after its answer is not", life);
	}
	printf("life %u: %" PRIu64 " requests, %" PRIu64 " flushes, %" PRIu64
	       " of the last requests lost: one instant\n",
	       life, nr, (uint64_t)atomic_exchange(&nr_flushes, 0), nr_out);
	fflush(stdout);

	while (all_changes) {
		struct change *change = all_changes;

		all_changes = change->next;
		free(change);
	}
	atomic_store(&durable_before, 0);
}

/* --- whole runs ------------------------------------------------------------------------------ */

static _Noreturn void usage(void)
{
	fputs("usage: one-instant [--connections N] [--lives N] [--seed N] [--blocks N] URI\n",
	      stderr);
	exit(2);
}

static void parse_options(int argc, char **argv)
{
	static const struct option known[] = {
	    {"connections", required_argument, NULL, 'c'},
	    {"lives", required_argument, NULL, 'l'},
	    {"seed", required_argument, NULL, 's'},
	    {"blocks", required_argument, NULL, 'b'},
	    {0},
	};
	int opt;

	while ((opt = getopt_long(argc, argv, "", known, NULL)) != -1) {
		uint64_t value = optarg ? strtoull(optarg, NULL, 0) : 0;

		switch (opt) {
		case 'c':
			options.connections = (unsigned)value;
			break;
		case 'l':
			options.lives = (unsigned)value;
			break;
		case 's':
			options.seed = value;
			break;
		case 'b':
			options.nr_blocks = value;
			break;
		default:
			usage();
		}
	}
	if (optind != argc - 1 || options.connections < 1 ||
	    options.connections > RANGE_LOCKS_MAX || options.nr_blocks == 0)
		usage();
	options.uri = argv[optind];
}

int main(int argc, char **argv)
{
	struct client *clients;

	parse_options(argc, argv);
	range_locks_init(&locks);
	blocks = calloc(options.nr_blocks, sizeof(*blocks));
	clients = calloc(options.connections, sizeof(*clients));
	if (!blocks || !clients)
		fail("out of memory");
	for (unsigned i = 0; i < options.connections; i++) {
		clients[i].rng.state = options.seed * 1000003 + i;
		clients[i].buf = malloc((size_t)LARGE_BLOCKS * BLOCK);
		if (!clients[i].buf)
			fail("out of memory");
	}
	for (unsigned life = 1; life <= options.lives; life++) {
		run_life(clients, life);
		read_disk();
		judge_life(life);
	}
	for (unsigned i = 0; i < options.connections; i++)
		free(clients[i].buf);
	for (uint64_t i = 0; i < options.nr_blocks; i++)
		free(blocks[i].changes);
	free(clients);
	free(blocks);
	return 0;
}
