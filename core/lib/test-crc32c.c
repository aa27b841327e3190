/* SPDX-License-Identifier: BSD-3-Clause */
/* crc32c: values, pieces, and the state in which it leaves the processor. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif
#include <cmocka.h>
#include "lib/crc32c.h"

/* One bit at a time, as the definition says. */
static uint32_t crc_by_definition(const uint8_t *p, size_t len)
{
	uint32_t crc = ~0u;

	while (len--) {
		crc ^= *p++;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	return ~crc;
}

static void every_length_and_piece_gives_the_defined_value(void **state)
{
	enum { MAX = 700 };
	uint8_t data[MAX];

	assert_int_equal(cpc_crc32c(0, "123456789", 9), 0xe3069283);
	for (size_t i = 0; i < MAX; i++)
		data[i] = (uint8_t)(i * 151 + (i >> 3));
	for (size_t len = 0; len < MAX; len++) {
		uint32_t expected = crc_by_definition(data, len);
		size_t cut = len * 3 / 7;

		assert_int_equal(cpc_crc32c(0, data, len), expected);
		assert_int_equal(cpc_crc32c(cpc_crc32c(0, data, cut), data + cut, len - cut),
				 expected);
	}
}

#ifdef __x86_64__
enum { UPPER_YMM = 1 << 2, UPPER_ZMM = 1 << 6 };

/* Which parts of the state are in use (XINUSE), or -1 if the processor does not tell. */
static int64_t state_in_use(void)
{
	uint32_t a, b, c, d;

	if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) ||
	    !__get_cpuid_count(13, 1, &a, &b, &c, &d) || !(a & 1 << 2))
		return -1;
	__asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(1));
	return a;
}

static void no_upper_half_of_a_vector_register_stays_in_use(void **state)
{
	uint8_t *data = calloc(1, 4096);
	int64_t after;

	assert_non_null(data);
	if (state_in_use() < 0) {
		free(data);
		skip();
	}
	cpc_crc32c(0, data, 4096);
	after = state_in_use();
	free(data);
	assert_int_equal(after & (UPPER_YMM | UPPER_ZMM), 0);
}
#else
static void no_upper_half_of_a_vector_register_stays_in_use(void **state)
{
	skip();
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_length_and_piece_gives_the_defined_value),
	    cmocka_unit_test(no_upper_half_of_a_vector_register_stays_in_use),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
