/* SPDX-License-Identifier: BSD-3-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <stdio.h>

#include "plugin/extent-sink.h"
#include "plugin/log-limit.h"
#include "plugin/nbd-errno.h"
#include "plugin/server-version.h"

/* --- errno --------------------------------------------------------------------------------- */

static void damage_and_unknown_errors_are_eio(void **state)
{
	static const int errors[] = {EUCLEAN, EAGAIN, EINTR,  ETIMEDOUT, ESTALE,  EBUSY,
				     ENODEV,  ENXIO,  EFAULT, EOVERFLOW, EBADMSG, ENOENT};

	for (size_t i = 0; i < CPC_ARRAY_SIZE(errors); i++)
		assert_int_equal(cpc_nbd_errno(-errors[i], true), EIO);
}

static void errors_that_nbd_knows_stay(void **state)
{
	assert_int_equal(cpc_nbd_errno(-EIO, false), EIO);
	assert_int_equal(cpc_nbd_errno(-ENOMEM, false), ENOMEM);
	assert_int_equal(cpc_nbd_errno(-ENOSPC, false), ENOSPC);
	assert_int_equal(cpc_nbd_errno(-EDQUOT, false), ENOSPC);
	assert_int_equal(cpc_nbd_errno(-EINVAL, false), EINVAL);
	assert_int_equal(cpc_nbd_errno(-EROFS, false), EROFS);
	assert_int_equal(cpc_nbd_errno(-ESHUTDOWN, false), ESHUTDOWN);
}

static void not_supported_is_said_only_to_a_fast_zero(void **state)
{
	assert_int_equal(cpc_nbd_errno(-EOPNOTSUPP, true), EOPNOTSUPP);
	assert_int_equal(cpc_nbd_errno(-EOPNOTSUPP, false), EIO);
}

/* --- extents ------------------------------------------------------------------------------- */

struct got {
	uint64_t offset[8], len[8];
	bool hole[8];
	unsigned nr;
	int error;
};

static int got_add(void *ctx, uint64_t offset, uint64_t len, bool hole)
{
	struct got *got = ctx;

	assert_true(got->nr < 8);
	got->offset[got->nr] = offset;
	got->len[got->nr] = len;
	got->hole[got->nr++] = hole;
	return got->error;
}

static void sink_init(struct cpc_extent_sink *sink, struct got *got, uint64_t offset, uint64_t len,
		      unsigned max)
{
	memset(got, 0, sizeof(*got));
	cpc_extent_sink_init(sink, offset, len, max);
	sink->add = got_add;
	sink->ctx = got;
}

static void extents_are_cut_to_the_range(void **state)
{
	struct cpc_extent_sink sink;
	struct got got;

	sink_init(&sink, &got, 1000, UINT32_MAX, 10);
	assert_int_equal(cpc_extent_sink_emit(&sink, 0, 1ull << 62, true), 1);
	assert_int_equal(cpc_extent_sink_finish(&sink), 0);
	assert_int_equal(got.nr, 1);
	assert_true(got.offset[0] == 1000 && got.len[0] == UINT32_MAX && got.hole[0]);
}

static void neighbours_of_one_kind_are_joined(void **state)
{
	struct cpc_extent_sink sink;
	struct got got;

	sink_init(&sink, &got, 0, 100, 10);
	assert_int_equal(cpc_extent_sink_emit(&sink, 0, 10, true), 0);
	assert_int_equal(cpc_extent_sink_emit(&sink, 10, 10, true), 0);
	assert_int_equal(cpc_extent_sink_emit(&sink, 20, 10, false), 0);
	assert_int_equal(cpc_extent_sink_emit(&sink, 30, 0, true), 0);
	assert_int_equal(cpc_extent_sink_emit(&sink, 30, 5, false), 0);
	assert_int_equal(cpc_extent_sink_emit(&sink, 35, 65, true), 1);
	assert_int_equal(cpc_extent_sink_finish(&sink), 0);
	assert_int_equal(got.nr, 3);
	assert_true(got.len[0] == 20 && got.len[1] == 15 && got.len[2] == 65);
	assert_true(got.offset[2] == 35 && got.hole[0] && !got.hole[1] && got.hole[2]);
}

static void one_extent_is_whole_and_alone(void **state)
{
	struct cpc_extent_sink sink;
	struct got got;

	sink_init(&sink, &got, 0, 100, 1);
	assert_int_equal(cpc_extent_sink_emit(&sink, 0, 10, false), 0);
	assert_int_equal(cpc_extent_sink_emit(&sink, 10, 10, false), 0);
	assert_int_equal(cpc_extent_sink_emit(&sink, 20, 10, true), 1);
	assert_int_equal(cpc_extent_sink_finish(&sink), 0);
	assert_int_equal(got.nr, 1);
	assert_true(got.len[0] == 20 && !got.hole[0]);
}

static void an_answer_has_no_more_extents_than_allowed(void **state)
{
	struct cpc_extent_sink sink;
	struct got got;
	unsigned i = 0;

	sink_init(&sink, &got, 0, 1000, 5);
	while (cpc_extent_sink_emit(&sink, i * 10, 10, i % 2) == 0)
		i++;
	assert_int_equal(cpc_extent_sink_finish(&sink), 0);
	assert_int_equal(got.nr, 5);
	assert_int_equal(i, 5);
}

static void a_gap_or_nothing_at_all_is_an_error(void **state)
{
	struct cpc_extent_sink sink;
	struct got got;

	sink_init(&sink, &got, 0, 100, 5);
	assert_int_equal(cpc_extent_sink_finish(&sink), -EIO);
	sink_init(&sink, &got, 0, 100, 5);
	assert_int_equal(cpc_extent_sink_emit(&sink, 10, 10, true), 1);
	assert_int_equal(cpc_extent_sink_finish(&sink), -EIO);
}

static void an_error_of_the_taker_ends_the_answer(void **state)
{
	struct cpc_extent_sink sink;
	struct got got;

	sink_init(&sink, &got, 0, 100, 5);
	got.error = -ENOMEM;
	assert_int_equal(cpc_extent_sink_emit(&sink, 0, 10, true), 0);
	assert_int_equal(cpc_extent_sink_emit(&sink, 10, 10, false), 1);
	assert_int_equal(cpc_extent_sink_finish(&sink), -ENOMEM);
	assert_int_equal(got.nr, 1);
}

/* --- log limit ----------------------------------------------------------------------------- */

#define SECOND 1000000000ull

static void a_flood_of_one_kind_is_held_back_and_counted(void **state)
{
	static struct cpc_log_limit limit;
	unsigned passed = 0, held;
	char line[64];

	for (unsigned i = 0; i < 1000; i++) {
		snprintf(line, sizeof(line), "read at %u failed", i * 4096);
		passed += cpc_log_limit_pass(&limit, line, SECOND + i, &held);
		assert_int_equal(held, 0);
	}
	assert_int_equal(passed, CPC_LOG_LIMIT_LINES);
	assert_true(cpc_log_limit_pass(&limit, "read at 5 failed", 12 * SECOND, &held));
	assert_int_equal(held, 1000 - CPC_LOG_LIMIT_LINES);
}

static void another_kind_passes_during_a_flood(void **state)
{
	static struct cpc_log_limit limit;
	unsigned held;

	for (unsigned i = 0; i < 100; i++)
		cpc_log_limit_pass(&limit, "read at 1 failed", SECOND, &held);
	assert_true(cpc_log_limit_pass(&limit, "the pool is read-only now", SECOND, &held));
}

/* --- version ------------------------------------------------------------------------------- */

static bool aborts(const char *text)
{
	struct cpc_server_version v;

	assert_int_equal(cpc_server_version_parse(text, &v), 0);
	return cpc_server_version_aborts(&v);
}

static void versions_that_abort_are_known(void **state)
{
	assert_false(aborts("nbdkit 1.24.0"));
	assert_false(aborts("nbdkit 1.32.3"));
	assert_true(aborts("nbdkit 1.32.4"));
	assert_true(aborts("nbdkit 1.32.5\n"));
	assert_true(aborts("nbdkit 1.33.9 (fedora)"));
	assert_false(aborts("nbdkit 1.33.10"));
	assert_false(aborts("nbdkit 1.34.0"));
	assert_false(aborts("nbdkit 2.0.0"));
}

static void what_is_no_version_is_refused(void **state)
{
	struct cpc_server_version v;

	assert_int_equal(cpc_server_version_parse("", &v), -EINVAL);
	assert_int_equal(cpc_server_version_parse("qemu-nbd 7.2.9", &v), -EINVAL);
	assert_int_equal(cpc_server_version_parse("nbdkit 1.32", &v), -EINVAL);
	/* this test is not nbdkit, and is not asked */
	assert_int_equal(cpc_server_version_get(&v), -ENOENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(damage_and_unknown_errors_are_eio),
	    cmocka_unit_test(errors_that_nbd_knows_stay),
	    cmocka_unit_test(not_supported_is_said_only_to_a_fast_zero),
	    cmocka_unit_test(extents_are_cut_to_the_range),
	    cmocka_unit_test(neighbours_of_one_kind_are_joined),
	    cmocka_unit_test(one_extent_is_whole_and_alone),
	    cmocka_unit_test(an_answer_has_no_more_extents_than_allowed),
	    cmocka_unit_test(a_gap_or_nothing_at_all_is_an_error),
	    cmocka_unit_test(an_error_of_the_taker_ends_the_answer),
	    cmocka_unit_test(a_flood_of_one_kind_is_held_back_and_counted),
	    cmocka_unit_test(another_kind_passes_during_a_flood),
	    cmocka_unit_test(versions_that_abort_are_known),
	    cmocka_unit_test(what_is_no_version_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
