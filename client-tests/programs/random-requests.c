/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * random-requests: several connections read, write, zero, trim, flush and map one disk at random
 * offsets and sizes, mostly unaligned, and check all they see against a copy in memory.
 *
 * A request holds a lock on its range for its whole time, so that the copy says exactly what it
 * must find, whichever connection wrote it: what one connection was answered, all others see.
 * Trim leaves old bytes or zeros, block by block as the server likes; what is read back right
 * after it goes to the copy and must stay.
 *
 * --save writes the copy to a file at the end; --compare FILE only reads the disk and compares,
 * after a restart of the server for example. The sequence of requests of each connection follows
 * from the seed; how the connections interleave does not.
 */
#include "client.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB	    (1u << 20)
#define REQUEST_MAX (32u * MIB)

static struct {
	const char *uri;
	unsigned connections;
	uint64_t operations; /* over all connections */
	uint64_t seed;
	uint64_t base; /* the range of the disk that is used */
	uint64_t size;
	const char *save, *compare;
} options = {.connections = 8, .operations = 20000, .seed = 1, .size = 64 * MIB};

static unsigned char *copy; /* of [base, base + size), its bytes under the range locks */
static struct range_locks locks;

struct client {
	pthread_t thread;
	unsigned number;
	struct rng rng;
	struct nbd_handle *nbd;
	unsigned char *buf; /* REQUEST_MAX bytes */
	uint64_t requests;
};

/* --- ranges ---------------------------------------------------------------------------------- */

static uint64_t pick_length(struct rng *rng)
{
	uint64_t kind = rng_below(rng, 1000);

	if (kind < 350)
		return 1 + rng_below(rng, 8192);
	if (kind < 650)
		return 4096 * (1 + rng_below(rng, 16));
	if (kind < 900)
		return 1 + rng_below(rng, 128 << 10);
	if (kind < 990)
		return 1 + rng_below(rng, MIB);
	if (kind < 999)
		return 1 + rng_below(rng, 4 * MIB);
	return 1 + rng_below(rng, REQUEST_MAX);
}

/* Picks a range relative to base: small and large, odd and aligned, more often near its ends. */
static void pick_range(struct rng *rng, uint64_t *start, uint64_t *len)
{
	*len = pick_length(rng);
	if (*len > options.size)
		*len = options.size;
	*start = rng_below(rng, options.size - *len + 1);
	if (*len % 4096 == 0 && rng_percent(rng, 90))
		*start -= *start % 4096;
	else if (rng_percent(rng, 2))
		*start = rng_percent(rng, 50) ? 0 : options.size - *len;
}

/* --- requests; each is called with its range locked ------------------------------------------ */

/* Fails unless buf holds what the copy has at `start`. */
static void compare_bytes(const struct client *client, const unsigned char *buf, uint64_t start,
			  uint64_t len, const char *what)
{
	uint64_t i = 0;

	if (memcmp(buf, copy + start, len) == 0)
		return;
	while (buf[i] == copy[start + i])
		i++;
	fail("%s, connection %u, request %" PRIu64 ": offset %" PRIu64 " (range %" PRIu64
	     " + %" PRIu64 "): got %02x, expected %02x",
	     what, client->number, client->requests, options.base + start + i, options.base + start,
	     len, buf[i], copy[start + i]);
}

static void expect_done(const struct client *client, int rc, const char *what, uint64_t start,
			uint64_t len)
{
	if (rc != 0)
		fail("%s, connection %u, request %" PRIu64 ", range %" PRIu64 " + %" PRIu64 ": %s",
		     what, client->number, client->requests, options.base + start, len,
		     nbd_get_error());
}

static void do_read(struct client *client, uint64_t start, uint64_t len)
{
	memset(client->buf, 0xa5, len);
	expect_done(client, nbd_pread(client->nbd, client->buf, len, options.base + start, 0),
		    "read", start, len);
	compare_bytes(client, client->buf, start, len, "read");
}

static uint32_t pick_fua(struct client *client)
{
	return rng_percent(&client->rng, 4) ? LIBNBD_CMD_FLAG_FUA : 0;
}

static void do_write(struct client *client, uint64_t start, uint64_t len)
{
	rng_fill(&client->rng, client->buf, len);
	expect_done(
	    client,
	    nbd_pwrite(client->nbd, client->buf, len, options.base + start, pick_fua(client)),
	    "write", start, len);
	memcpy(copy + start, client->buf, len);
}

static void do_zero(struct client *client, uint64_t start, uint64_t len)
{
	uint32_t flags = pick_fua(client);
	int rc;

	if (rng_percent(&client->rng, 30))
		flags |= LIBNBD_CMD_FLAG_NO_HOLE;
	if (rng_percent(&client->rng, 10) && nbd_can_fast_zero(client->nbd) == 1)
		flags |= LIBNBD_CMD_FLAG_FAST_ZERO;
	rc = nbd_zero(client->nbd, len, options.base + start, flags);
	if (rc != 0 && (flags & LIBNBD_CMD_FLAG_FAST_ZERO) && nbd_get_errno() == ENOTSUP)
		return; /* "not fast", and then nothing is changed */
	expect_done(client, rc, "zero", start, len);
	memset(copy + start, 0, len);
}

static void do_trim(struct client *client, uint64_t start, uint64_t len)
{
	expect_done(client, nbd_trim(client->nbd, len, options.base + start, pick_fua(client)),
		    "trim", start, len);
	expect_done(client, nbd_pread(client->nbd, client->buf, len, options.base + start, 0),
		    "read after trim", start, len);
	for (uint64_t i = 0; i < len; i++)
		if (client->buf[i] == 0)
			copy[start + i] = 0;
	compare_bytes(client, client->buf, start, len, "read after trim");
}

struct map_context {
	const struct client *client;
	uint64_t start, len;
};

/* Checks that what the server calls zero is zero in the copy. */
static int check_extents(void *opaque, const char *metacontext, uint64_t offset, uint32_t *entries,
			 size_t nr_entries, int *error)
{
	const struct map_context *map = opaque;
	uint64_t at = offset - options.base, end = map->start + map->len;

	for (size_t i = 0; i + 1 < nr_entries && at < end; i += 2) {
		uint64_t stop = at + entries[i] < end ? at + entries[i] : end;

		for (uint64_t j = at; (entries[i + 1] & LIBNBD_STATE_ZERO) && j < stop; j++)
			if (copy[j])
				fail("map, connection %u, request %" PRIu64 ": offset %" PRIu64
				     " is called zero and holds data",
				     map->client->number, map->client->requests, options.base + j);
		at += entries[i];
	}
	return 0;
}

static void do_map(struct client *client, uint64_t start, uint64_t len)
{
	struct map_context map = {.client = client, .start = start, .len = len};
	nbd_extent_callback callback = {.callback = check_extents, .user_data = &map};
	uint32_t flags = rng_percent(&client->rng, 50) ? LIBNBD_CMD_FLAG_REQ_ONE : 0;

	expect_done(client,
		    nbd_block_status(client->nbd, len, options.base + start, callback, flags),
		    "map", start, len);
}

static void do_cache(struct client *client, uint64_t start, uint64_t len)
{
	if (nbd_can_cache(client->nbd) == 1)
		expect_done(client, nbd_cache(client->nbd, len, options.base + start, 0), "cache",
			    start, len);
}

static void do_flush(struct client *client, uint64_t start, uint64_t len)
{
	expect_done(client, nbd_flush(client->nbd, 0), "flush", start, len);
}

static const struct request {
	unsigned percent;
	bool shared;
	void (*run)(struct client *client, uint64_t start, uint64_t len);
} requests[] = {
    {40, true, do_read}, {38, false, do_write}, {8, false, do_zero}, {6, false, do_trim},
    {4, true, do_map},	 {1, true, do_cache},	{3, true, do_flush},
};

static void *client_main(void *opaque)
{
	struct client *client = opaque;
	uint64_t count = options.operations / options.connections;

	for (client->requests = 0; client->requests < count; client->requests++) {
		uint64_t choice = rng_below(&client->rng, 100), start, len;
		const struct request *request = requests;
		struct range_lock *lock;

		while (choice >= request->percent)
			choice -= (request++)->percent;
		pick_range(&client->rng, &start, &len);
		lock = range_lock(&locks, start, len, request->shared);
		request->run(client, start, len);
		range_unlock(&locks, lock);
	}
	return NULL;
}

/* --- whole runs ------------------------------------------------------------------------------ */

static void client_open(struct client *client, unsigned number)
{
	client->number = number;
	client->rng.state = options.seed * 1000003 + number;
	client->nbd = client_connect(options.uri);
	client->buf = malloc(REQUEST_MAX);
	if (!client->buf)
		fail("out of memory");
}

static void client_close(struct client *client)
{
	nbd_shutdown(client->nbd, 0);
	nbd_close(client->nbd);
	free(client->buf);
}

/* Reads the range over one new connection and compares it with the copy. */
static void compare_all(const char *what)
{
	struct client client = {0};

	client_open(&client, options.connections);
	for (uint64_t start = 0; start < options.size; start += MIB) {
		uint64_t len = options.size - start < MIB ? options.size - start : MIB;

		expect_done(&client,
			    nbd_pread(client.nbd, client.buf, len, options.base + start, 0), what,
			    start, len);
		compare_bytes(&client, client.buf, start, len, what);
	}
	client_close(&client);
}

/* Takes what the disk holds now as the start of the copy. */
static void load_copy(void)
{
	struct client client = {0};

	client_open(&client, options.connections);
	for (uint64_t start = 0; start < options.size; start += MIB) {
		uint64_t len = options.size - start < MIB ? options.size - start : MIB;

		expect_done(&client,
			    nbd_pread(client.nbd, copy + start, len, options.base + start, 0),
			    "first read", start, len);
	}
	client_close(&client);
}

static void transfer_copy(const char *path, const char *mode)
{
	FILE *file = fopen(path, mode);
	size_t done;

	if (!file)
		fail("%s: %s", path, strerror(errno));
	done =
	    *mode == 'r' ? fread(copy, 1, options.size, file) : fwrite(copy, 1, options.size, file);
	if (done != options.size || fclose(file) != 0)
		fail("%s: short transfer", path);
}

static void run_clients(void)
{
	struct client *clients = calloc(options.connections, sizeof(*clients));

	if (!clients)
		fail("out of memory");
	for (unsigned i = 0; i < options.connections; i++)
		client_open(&clients[i], i);
	if (options.connections > 1 && nbd_can_multi_conn(clients[0].nbd) != 1)
		fail("the server does not offer multi-conn");
	for (unsigned i = 0; i < options.connections; i++)
		if (pthread_create(&clients[i].thread, NULL, client_main, &clients[i]) != 0)
			fail("cannot start a thread");
	for (unsigned i = 0; i < options.connections; i++)
		pthread_join(clients[i].thread, NULL);
	expect_done(&clients[0], nbd_flush(clients[0].nbd, 0), "last flush", 0, 0);
	for (unsigned i = 0; i < options.connections; i++)
		client_close(&clients[i]);
	free(clients);
}

static _Noreturn void usage(void)
{
	fputs(
	    "usage: random-requests [--connections N] [--operations N] [--seed N] [--base OFFSET]\n"
	    "                       [--size BYTES] [--save FILE | --compare FILE] URI\n",
	    stderr);
	exit(2);
}

static void parse_options(int argc, char **argv)
{
	static const struct option known[] = {
	    {"connections", required_argument, NULL, 'c'},
	    {"operations", required_argument, NULL, 'o'},
	    {"seed", required_argument, NULL, 's'},
	    {"base", required_argument, NULL, 'b'},
	    {"size", required_argument, NULL, 'z'},
	    {"save", required_argument, NULL, 'w'},
	    {"compare", required_argument, NULL, 'r'},
	    {0},
	};
	int opt;

	while ((opt = getopt_long(argc, argv, "", known, NULL)) != -1) {
		uint64_t value = optarg ? strtoull(optarg, NULL, 0) : 0;

		switch (opt) {
		case 'c':
			options.connections = (unsigned)value;
			break;
		case 'o':
			options.operations = value;
			break;
		case 's':
			options.seed = value;
			break;
		case 'b':
			options.base = value;
			break;
		case 'z':
			options.size = value;
			break;
		case 'w':
			options.save = optarg;
			break;
		case 'r':
			options.compare = optarg;
			break;
		default:
			usage();
		}
	}
	if (optind != argc - 1 || options.connections < 1 ||
	    options.connections > RANGE_LOCKS_MAX || options.size == 0)
		usage();
	options.uri = argv[optind];
}

int main(int argc, char **argv)
{
	parse_options(argc, argv);
	range_locks_init(&locks);
	copy = malloc(options.size);
	if (!copy)
		fail("out of memory");
	if (options.compare) {
		transfer_copy(options.compare, "r");
	} else {
		load_copy();
		run_clients();
	}
	compare_all("final read");
	if (options.save)
		transfer_copy(options.save, "w");
	printf("%" PRIu64 " requests over %u connections, seed %" PRIu64 ": all as expected\n",
	       options.compare ? 0 : options.operations, options.connections, options.seed);
	free(copy);
	return 0;
}
