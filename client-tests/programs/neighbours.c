/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * neighbours URI WRITES: two connections write side by side to pairs of blocks, one request in
 * flight to each pair. One writes 4 KiB, every other time not the first block of the pair but from
 * its middle into the second; the other writes 512 bytes of the second half of the second block.
 * No byte is written by both, but both write parts of one block of the server. Each reads all of
 * its bytes back after each write: no byte may be lost, whatever the other does meanwhile. At the
 * end a third connection reads all.
 *
 * neighbours --compare URI WRITES: only that last reading, of a disk on which the same was done.
 */
#include "client.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 4096u
#define PART  512u
#define PAIRS 4u
#define FIRST (BLOCK + BLOCK / 2) /* bytes of a pair that the first writer owns */

struct writer {
	const char *uri;
	uint64_t writes; /* a multiple of PAIRS */
	bool whole;	 /* writes 4 KiB */
	pthread_t thread;
	unsigned char bytes[PAIRS][2 * BLOCK]; /* what its own bytes must be */
};

/* The n-th write of a writer: where in the pair, and how long. */
static void place(const struct writer *w, uint64_t n, size_t *at, size_t *len)
{
	uint64_t turn = n / PAIRS;

	*at = w->whole ? turn % 2 * (BLOCK / 2) : FIRST + turn % 4 * PART;
	*len = w->whole ? BLOCK : PART;
}

/* Writes the bytes of the n-th write into the copy. */
static unsigned char *apply(struct writer *w, uint64_t n, size_t *at, size_t *len)
{
	struct rng rng = {.state = n * 2 + w->whole};
	unsigned char *to;

	place(w, n, at, len);
	to = w->bytes[n % PAIRS] + *at;
	rng_fill(&rng, to, *len);
	return to;
}

static void complete(struct nbd_handle *nbd, const int64_t *cookies)
{
	for (unsigned i = 0; i < PAIRS; i++) {
		int done = 0;

		while (cookies[i] >= 0 &&
		       (done = nbd_aio_command_completed(nbd, cookies[i])) == 0) {
			if (nbd_poll(nbd, -1) < 0)
				break;
		}
		if (done <= 0)
			fail("request: %s", nbd_get_error());
	}
}

/* Reads what is the writer's in all pairs. `n`: its writes so far. */
static void compare(const struct writer *w, struct nbd_handle *nbd, uint64_t n)
{
	size_t at = w->whole ? 0 : FIRST, len = w->whole ? FIRST : 2 * BLOCK - FIRST;
	unsigned char got[PAIRS][FIRST];
	int64_t cookies[PAIRS];

	for (unsigned pair = 0; pair < PAIRS; pair++)
		cookies[pair] = nbd_aio_pread(nbd, got[pair], len, pair * 2 * BLOCK + at,
					      NBD_NULL_COMPLETION, 0);
	complete(nbd, cookies);
	for (size_t i = 0; i < PAIRS * len; i++) {
		if (got[i / len][i % len] != w->bytes[i / len][at + i % len])
			fail("after %" PRIu64
			     " writes: byte %zu of pair %zu, of the writer of %s, is lost",
			     n, at + i % len, i / len, w->whole ? "4 KiB" : "512 bytes");
	}
}

static void *run(void *arg)
{
	struct writer *w = arg;
	struct nbd_handle *nbd = client_connect(w->uri);

	for (uint64_t n = 0; n < w->writes; n += PAIRS) {
		int64_t cookies[PAIRS];

		for (uint64_t pair = 0; pair < PAIRS; pair++) {
			size_t at, len;
			const unsigned char *data = apply(w, n + pair, &at, &len);

			cookies[pair] = nbd_aio_pwrite(nbd, data, len, pair * 2 * BLOCK + at,
						       NBD_NULL_COMPLETION, 0);
		}
		complete(nbd, cookies);
		compare(w, nbd, n + PAIRS);
	}
	if (nbd_flush(nbd, 0))
		fail("flush: %s", nbd_get_error());
	nbd_close(nbd);
	return NULL;
}

static void compare_all(struct writer *writers)
{
	struct nbd_handle *nbd = client_connect(writers[0].uri);

	compare(&writers[0], nbd, writers[0].writes);
	compare(&writers[1], nbd, writers[1].writes);
	nbd_close(nbd);
}

int main(int argc, char **argv)
{
	bool only_compare = argc == 4 && strcmp(argv[1], "--compare") == 0;
	static struct writer writers[2];
	size_t at, len;

	if (argc != 3 + only_compare) {
		fprintf(stderr, "usage: neighbours [--compare] URI WRITES\n");
		return 2;
	}
	for (unsigned i = 0; i < 2; i++) {
		writers[i].uri = argv[1 + only_compare];
		writers[i].writes = strtoull(argv[2 + only_compare], NULL, 10) / PAIRS * PAIRS;
		writers[i].whole = i == 0;
	}
	if (only_compare) {
		for (uint64_t n = 0; n < 2 * writers[0].writes; n++)
			apply(&writers[n % 2], n / 2, &at, &len);
	} else {
		for (unsigned i = 0; i < 2; i++)
			pthread_create(&writers[i].thread, NULL, run, &writers[i]);
		for (unsigned i = 0; i < 2; i++)
			pthread_join(writers[i].thread, NULL);
	}
	compare_all(writers);
	printf("%" PRIu64 " writes on each connection\n", writers[0].writes);
	return 0;
}
