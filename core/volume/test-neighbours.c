/* SPDX-License-Identifier: BSD-3-Clause */
/* Writers that share no byte, but a block: the range lock is of whole blocks. */
#include "volume/test-rig.h"

#include <stdio.h>

enum { BLOCK = 4096, PART = 512, PAIRS = 4, ROUNDS = 100000 };

struct writer {
	struct rig *r;
	bool whole; /* 4 KiB, at the pair's start or half into its second block; else 512 bytes */
	pthread_t thread;
};

/* Writes its number into its bytes of a pair of blocks, and must find it there. */
static void *write_rounds(void *arg)
{
	struct writer *w = arg;
	uint8_t data[BLOCK], back[BLOCK];

	for (unsigned n = 0; n < ROUNDS; n++) {
		unsigned turn = n / PAIRS;
		uint64_t at = w->whole ? turn % 2 * (BLOCK / 2)
				       : BLOCK + BLOCK / 2 + turn % 4 * (uint64_t)PART;
		size_t len = w->whole ? BLOCK : PART;

		at += n % PAIRS * 2 * BLOCK;
		memset(data, (int)(n % 251), len);
		if (cpc_volume_write(w->r->vol, data, len, at, 0) ||
		    cpc_volume_read(w->r->vol, back, len, at) || memcmp(data, back, len) != 0) {
			fprintf(stderr, "lost in round %u, %zu bytes at %llu\n", n, len,
				(unsigned long long)at);
			return (void *)1;
		}
	}
	return NULL;
}

static void writers_of_neighbouring_blocks_lose_no_byte(void **state)
{
	struct rig r = {.threads = true};
	struct writer writers[] = {{.r = &r, .whole = true}, {.r = &r}};
	void *lost[2];

	rig_make(&r);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(
		    pthread_create(&writers[i].thread, NULL, write_rounds, &writers[i]), 0);
	for (unsigned i = 0; i < 2; i++)
		pthread_join(writers[i].thread, &lost[i]);
	assert_null(lost[0]);
	assert_null(lost[1]);
	rig_check_accounts(&r);
	rig_finish(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(writers_of_neighbouring_blocks_lose_no_byte),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
