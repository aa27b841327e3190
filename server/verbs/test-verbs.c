/* SPDX-License-Identifier: BSD-3-Clause */
/* Verbs on a real pool in a temporary file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <stdio.h>
#include <unistd.h>

#include "protocol/reply.h"
#include "verbs/verbs.h"

#define POOL_SIZE (16ull << 20)

static char path[64];
static struct cpc_verbs verbs;

static int setup(void **state)
{
	struct cpc_format_options format = {.size = POOL_SIZE, .label = "test"};
	struct cpc_pool_options options;
	struct cpc_error err = {0};
	struct cpc_pool *pool;

	snprintf(path, sizeof(path), "/tmp/cpc-verbs-%d", (int)getpid());
	cpc_pool_options_init(&options);
	options.cache = 4u << 20;
	if (cpc_pool_format(path, &format, &err) || cpc_pool_open(path, &options, &pool, &err) ||
	    cpc_pool_start(pool, &err)) {
		fprintf(stderr, "%s\n", err.text);
		return -1;
	}
	return cpc_verbs_init(&verbs, pool, path, true);
}

static int teardown(void **state)
{
	int ret = cpc_pool_shutdown(verbs.pool);

	cpc_pool_close(verbs.pool);
	unlink(path);
	return ret;
}

/* Runs one request given as text. */
static struct json_object *ask(const char *text)
{
	const char *why;
	struct json_object *request = cpc_json_parse(text, strlen(text), &why), *reply;

	if (!request)
		fail_msg("%s: %s", text, why);
	reply = cpc_verbs_run(&verbs, request);
	assert_non_null(reply);
	json_object_put(request);
	return reply;
}

static void works(const char *text)
{
	struct json_object *reply = ask(text);

	if (!cpc_reply_is_ok(reply))
		fail_msg("%s: %s", text, cpc_reply_text(reply));
	json_object_put(reply);
}

static void fails(const char *text, const char *code)
{
	struct json_object *reply = ask(text);

	assert_false(cpc_reply_is_ok(reply));
	if (strcmp(cpc_json_string(reply, "errno"), code) != 0)
		fail_msg("%s: %s instead of %s", text, cpc_json_string(reply, "errno"), code);
	assert_true(strlen(cpc_reply_text(reply)) > 0);
	json_object_put(reply);
}

static size_t volumes(void)
{
	struct json_object *reply = ask("{\"verb\":\"list\"}");
	size_t nr = json_object_array_length(json_object_object_get(reply, "volumes"));

	json_object_put(reply);
	return nr;
}

static void volumes_are_made_renamed_resized_and_deleted(void **state)
{
	struct json_object *reply, *volume;

	works("{\"verb\":\"create\",\"args\":{\"name\":\"a\",\"size\":1000000}}");
	fails("{\"verb\":\"create\",\"args\":{\"name\":\"a\",\"size\":1000000}}", "EEXIST");
	works("{\"verb\":\"create\",\"args\":{\"name\":\"b\",\"size\":9223372036854775808}}");
	works("{\"verb\":\"rename\",\"args\":{\"old\":\"a\",\"new\":\"c\"}}");
	fails("{\"verb\":\"rename\",\"args\":{\"old\":\"a\",\"new\":\"d\"}}", "ENOENT");
	fails("{\"verb\":\"rename\",\"args\":{\"old\":\"b\",\"new\":\"c\"}}", "EEXIST");
	works("{\"verb\":\"resize\",\"args\":{\"name\":\"c\",\"size\":2000000}}");
	fails("{\"verb\":\"resize\",\"args\":{\"name\":\"c\",\"size\":5}}", "EINVAL");
	works("{\"verb\":\"resize\",\"args\":{\"name\":\"c\",\"size\":5,\"shrink\":true}}");
	reply = ask("{\"verb\":\"info\",\"args\":{\"name\":\"c\"}}");
	volume = json_object_object_get(reply, "volume");
	assert_string_equal(cpc_json_string(volume, "name"), "c");
	assert_true(cpc_json_u64(volume, "size") == 5);
	json_object_put(reply);
	assert_int_equal(volumes(), 2);
	works("{\"verb\":\"delete\",\"args\":{\"name\":\"c\"}}");
	works("{\"verb\":\"delete\",\"args\":{\"name\":\"b\"}}");
	fails("{\"verb\":\"delete\",\"args\":{\"name\":\"b\"}}", "ENOENT");
	assert_int_equal(volumes(), 0);
}

static void an_open_volume_is_busy(void **state)
{
	struct cpc_volume *volume;

	works("{\"verb\":\"create\",\"args\":{\"name\":\"a\",\"size\":1000000}}");
	assert_int_equal(cpc_pool_open_volume(verbs.pool, "a", &volume), 0);
	fails("{\"verb\":\"delete\",\"args\":{\"name\":\"a\"}}", "EBUSY");
	fails("{\"verb\":\"resize\",\"args\":{\"name\":\"a\",\"size\":5,\"shrink\":true}}",
	      "EBUSY");
	works("{\"verb\":\"resize\",\"args\":{\"name\":\"a\",\"size\":3000000}}");
	cpc_pool_close_volume(verbs.pool, volume);
	works("{\"verb\":\"delete\",\"args\":{\"name\":\"a\"}}");
}

static void requests_that_do_not_fit_are_einval(void **state)
{
	static const char *const bad[] = {
	    "{}",
	    "{\"verb\":1}",
	    "{\"verb\":\"what\"}",
	    "{\"verb\":\"create\"}",
	    "{\"verb\":\"create\",\"args\":{}}",
	    "{\"verb\":\"create\",\"args\":[]}",
	    "{\"verb\":\"create\",\"args\":{\"name\":\"a\"}}",
	    "{\"verb\":\"create\",\"args\":{\"name\":\"a\",\"size\":0}}",
	    "{\"verb\":\"create\",\"args\":{\"name\":\"a\",\"size\":-1}}",
	    "{\"verb\":\"create\",\"args\":{\"name\":\"a\",\"size\":1.5}}",
	    "{\"verb\":\"create\",\"args\":{\"name\":\"a\",\"size\":\"1\"}}",
	    "{\"verb\":\"create\",\"args\":{\"name\":\"a\",\"size\":18446744073709551615}}",
	    "{\"verb\":\"create\",\"args\":{\"name\":1,\"size\":1}}",
	    "{\"verb\":\"create\",\"args\":{\"name\":null,\"size\":1}}",
	    "{\"verb\":\"create\",\"args\":{\"name\":\"\",\"size\":1}}",
	    "{\"verb\":\"create\",\"args\":{\"name\":\"a\\u0000b\",\"size\":1}}",
	    "{\"verb\":\"create\",\"args\":{\"name\":\"a\",\"size\":1,\"more\":1}}",
	    "{\"verb\":\"list\",\"args\":{\"name\":\"a\"}}",
	    "{\"verb\":\"resize\",\"args\":{\"name\":\"a\",\"size\":1,\"shrink\":1}}",
	};

	for (size_t i = 0; i < CPC_ARRAY_SIZE(bad); i++)
		fails(bad[i], "EINVAL");
	assert_int_equal(volumes(), 0);
}

static void a_request_for_another_pool_is_refused(void **state)
{
	char text[128];

	snprintf(text, sizeof(text), "{\"verb\":\"list\",\"pool\":{\"dev\":%ju,\"ino\":%ju}}",
		 (uintmax_t)verbs.id.dev, (uintmax_t)verbs.id.ino);
	works(text);
	fails("{\"verb\":\"list\",\"pool\":{\"dev\":1,\"ino\":2}}", "ESTALE");
	fails("{\"verb\":\"list\",\"pool\":\"x\"}", "ESTALE");
}

static void offline_verbs_are_refused_with_the_pid(void **state)
{
	struct json_object *reply = ask("{\"verb\":\"check\"}");
	char pid[16];

	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	assert_non_null(strstr(cpc_reply_text(reply), pid));
	json_object_put(reply);
	fails("{\"verb\":\"dump\"}", "EBUSY");
}

static void info_shows_the_pool(void **state)
{
	struct json_object *reply = ask("{\"verb\":\"info\"}");
	struct json_object *pool = json_object_object_get(reply, "pool");

	assert_string_equal(cpc_json_string(pool, "label"), "test");
	assert_string_equal(cpc_json_string(pool, "health"), "ok");
	assert_true(cpc_json_u64(pool, "capacity") == POOL_SIZE);
	assert_true(cpc_json_u64(pool, "served_by") == (uint64_t)getpid());
	assert_true(cpc_json_u64(pool, "used") + cpc_json_u64(pool, "free") == POOL_SIZE);
	json_object_put(reply);
}

static void stats_and_metrics_have_the_same_counters(void **state)
{
	struct json_object *reply = ask("{\"verb\":\"stats\"}"),
			   *text = ask("{\"verb\":\"metrics\"}");
	const char *metrics = cpc_json_string(text, "text");
	char name[128];

	assert_non_null(metrics);
	json_object_object_foreach(json_object_object_get(reply, "stats"), key, value)
	{
		assert_true(json_object_is_type(value, json_type_int) ||
			    json_object_is_type(value, json_type_object));
		snprintf(name, sizeof(name), "coppice_%s", key);
		for (char *p = name; *p; p++)
			*p = *p == '.' ? '_' : *p;
		if (!strstr(metrics, name))
			fail_msg("no metric %s", name);
	}
	json_object_put(reply);
	json_object_put(text);
}

static void only_counters_and_refusals_are_quick(void **state)
{
	static const struct {
		const char *text;
		bool quick;
	} requests[] = {
	    {"{\"verb\":\"stats\"}", true},   {"{\"verb\":\"metrics\"}", true},
	    {"{\"verb\":\"what\"}", true},    {"{}", true},
	    {"{\"verb\":\"create\"}", false}, {"{\"verb\":\"list\"}", false},
	    {"{\"verb\":\"delete\"}", false},
	};
	struct json_object *request;
	const char *why;

	for (size_t i = 0; i < CPC_ARRAY_SIZE(requests); i++) {
		request = cpc_json_parse(requests[i].text, strlen(requests[i].text), &why);
		assert_int_equal(cpc_verbs_quick(request), requests[i].quick);
		json_object_put(request);
	}
}

#define with_pool(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    with_pool(volumes_are_made_renamed_resized_and_deleted),
	    with_pool(an_open_volume_is_busy),
	    with_pool(requests_that_do_not_fit_are_einval),
	    with_pool(a_request_for_another_pool_is_refused),
	    with_pool(offline_verbs_are_refused_with_the_pid),
	    with_pool(info_shows_the_pool),
	    with_pool(stats_and_metrics_have_the_same_counters),
	    cmocka_unit_test(only_counters_and_refusals_are_quick),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
