/* SPDX-License-Identifier: BSD-3-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "protocol/control-path.h"
#include "protocol/pool-id.h"
#include "protocol/reply.h"
#include "protocol/size.h"

/* --- sizes --------------------------------------------------------------------------------- */

static void size_is(const char *text, uint64_t expected)
{
	const char *why;
	uint64_t size = 0;

	assert_int_equal(cpc_size_parse(text, &size, &why), 0);
	assert_true(size == expected);
}

static void sizes_with_units_are_read(void **state)
{
	size_is("1", 1);
	size_is("4096", 4096);
	size_is("7b", 7);
	size_is("512M", 512ull << 20);
	size_is("2g", 2ull << 30);
	size_is("2GiB", 2ull << 30);
	size_is("1T", 1ull << 40);
	size_is("3P", 3ull << 50);
	size_is("8E", 1ull << 63);
	size_is("9223372036854775807", INT64_MAX);
}

static void sizes_that_are_none_are_refused_with_a_reason(void **state)
{
	static const char *const bad[] = {
	    "",
	    "0",
	    "0G",
	    "-1",
	    "-5G",
	    "x",
	    "1.5G",
	    "1,5G",
	    "G",
	    "1 G",
	    " 1",
	    "1GB",
	    "1Gi",
	    "1BiB",
	    "1X",
	    "0x10",
	    "1e9",
	    "+1",
	    "8193P",
	    "9E",
	    "99999999999999999999",
	    "9223372036854775809",
	    "18446744073709551616",
	};
	const char *why;
	uint64_t size;

	for (size_t i = 0; i < CPC_ARRAY_SIZE(bad); i++) {
		why = NULL;
		if (cpc_size_parse(bad[i], &size, &why) == 0)
			fail_msg("'%s' was taken for a size", bad[i]);
		assert_non_null(why);
	}
}

static void text_is(uint64_t size, const char *expected)
{
	char text[CPC_SIZE_TEXT];

	assert_string_equal(cpc_size_format(size, text), expected);
}

static void sizes_are_written_to_the_nearest_tenth(void **state)
{
	text_is(0, "0 B");
	text_is(1023, "1023 B");
	text_is(1024, "1 KiB");
	text_is(1536, "1.5 KiB");
	text_is(1ull << 30, "1 GiB");
	text_is((1ull << 63) - 4096, "8 EiB");
	text_is(UINT64_MAX, "16 EiB");
}

/* --- JSON ---------------------------------------------------------------------------------- */

static void one_json_object_is_read(void **state)
{
	static const char text[] = " {\"verb\":\"list\",\"n\":18446744073709551615} \r\n";
	const char *why;
	struct json_object *o = cpc_json_parse(text, strlen(text), &why);

	assert_non_null(o);
	assert_string_equal(cpc_json_string(o, "verb"), "list");
	assert_true(cpc_json_u64(o, "n") == UINT64_MAX);
	assert_null(cpc_json_string(o, "n"));
	assert_true(cpc_json_u64(o, "verb") == 0);
	json_object_put(o);
}

static void what_is_not_one_json_object_is_refused(void **state)
{
	static const char *const bad[] = {
	    "",
	    "\n",
	    "{",
	    "[]",
	    "1",
	    "\"x\"",
	    "null",
	    "{}x",
	    "{}{}",
	    "{\"a\":",
	    "{a}",
	    "\xff\xfe",
	    "{\"a\":[[[[[[[[[[[[1]]]]]]]]]]]]}",
	};
	const char *why;

	for (size_t i = 0; i < CPC_ARRAY_SIZE(bad); i++) {
		why = NULL;
		if (cpc_json_parse(bad[i], strlen(bad[i]), &why))
			fail_msg("'%s' was taken for a request", bad[i]);
		assert_non_null(why);
	}
	assert_null(cpc_json_parse("{}\0", 3, &why));
	assert_null(cpc_json_parse("{\"a\":\"\0\"}", 9, &why));
}

static void an_error_reply_names_its_errno(void **state)
{
	struct json_object *r = cpc_reply_error(-EBUSY, "volume '%s' is open", "a");

	assert_false(cpc_reply_is_ok(r));
	assert_string_equal(cpc_json_string(r, "errno"), "EBUSY");
	assert_string_equal(cpc_reply_text(r), "volume 'a' is open");
	json_object_put(r);
	r = cpc_reply_ok();
	assert_true(cpc_reply_is_ok(r));
	json_object_put(r);
}

/* --- paths --------------------------------------------------------------------------------- */

static const uint8_t uuid[CPC_UUID_SIZE] = {0xd3, 0x0c};

static void the_control_path_follows_from_the_uuid(void **state)
{
	char path[CPC_CONTROL_PATH_MAX];

	assert_int_equal(cpc_control_path(uuid, path), 0);
	assert_non_null(strstr(path, "/d30c0000-0000-0000-0000-000000000000.sock"));
	assert_true(path[0] == '/');
}

static void a_directory_others_may_write_to_is_not_trusted(void **state)
{
	char dir[] = "/tmp/cpc-test-XXXXXX", path[64];

	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/x.sock", dir);
	assert_int_equal(cpc_control_make_dir(path), 0);
	assert_int_equal(cpc_control_check_dir(path), 0);
	assert_int_equal(chmod(dir, 0777), 0);
	assert_int_equal(cpc_control_check_dir(path), -EPERM);
	assert_int_equal(rmdir(dir), 0);
	assert_int_equal(cpc_control_check_dir(path), -ENOENT);
}

/* --- the uuid of a file -------------------------------------------------------------------- */

#define POOL_SIZE (16u << 20)

static void put_super(int fd, unsigned ring, unsigned slot, uint8_t id)
{
	struct cpc_super super = {
	    .incompat = CPC_INCOMPAT_DUP,
	    .transid = 1,
	    .total_bytes = POOL_SIZE,
	    .nodesize = 16384,
	    .slot = slot,
	    .log_size = CPC_LOG_SIZE_MIN,
	};
	uint64_t start = ring ? POOL_SIZE - CPC_SUPER_SLOTS * CPC_BLOCK_SIZE : 0;
	struct cpc_disk_super disk;

	super.uuid[0] = id;
	cpc_super_encode(&disk, &super);
	assert_int_equal(pwrite(fd, &disk, sizeof(disk), (off_t)(start + slot * CPC_BLOCK_SIZE)),
			 sizeof(disk));
}

static void the_uuid_is_found_in_any_slot_of_either_ring(void **state)
{
	char path[] = "/tmp/cpc-test-XXXXXX";
	uint8_t found[CPC_UUID_SIZE];
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	assert_int_equal(cpc_pool_read_uuid(path, found), -EINVAL);
	assert_int_equal(ftruncate(fd, POOL_SIZE), 0);
	assert_int_equal(cpc_pool_read_uuid(path, found), -EINVAL);
	put_super(fd, 1, 5, 7);
	assert_int_equal(cpc_pool_read_uuid(path, found), 0);
	assert_int_equal(found[0], 7);
	put_super(fd, 0, 3, 9);
	assert_int_equal(cpc_pool_read_uuid(path, found), 0);
	assert_int_equal(found[0], 9);
	close(fd);
	unlink(path);
	assert_int_equal(cpc_pool_read_uuid(path, found), -ENOENT);
}

static void a_request_for_a_copy_of_the_pool_does_not_match(void **state)
{
	struct cpc_pool_id id = {1, 2}, copy = {1, 3};
	struct json_object *json = cpc_pool_id_to_json(&id);

	assert_true(cpc_pool_id_matches(&id, json));
	assert_false(cpc_pool_id_matches(&copy, json));
	assert_true(cpc_pool_id_matches(&copy, NULL));
	json_object_put(json);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(sizes_with_units_are_read),
	    cmocka_unit_test(sizes_that_are_none_are_refused_with_a_reason),
	    cmocka_unit_test(sizes_are_written_to_the_nearest_tenth),
	    cmocka_unit_test(one_json_object_is_read),
	    cmocka_unit_test(what_is_not_one_json_object_is_refused),
	    cmocka_unit_test(an_error_reply_names_its_errno),
	    cmocka_unit_test(the_control_path_follows_from_the_uuid),
	    cmocka_unit_test(a_directory_others_may_write_to_is_not_trusted),
	    cmocka_unit_test(the_uuid_is_found_in_any_slot_of_either_ring),
	    cmocka_unit_test(a_request_for_a_copy_of_the_pool_does_not_match),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
