/* SPDX-License-Identifier: BSD-3-Clause */
/* What comes as text: requests on the control socket, sizes and names on a command line. */
#include <json-c/json.h>
#include <stdlib.h>

#include "device.h"
#include "protocol/size.h"
#include "target.h"
#include "verbs/verbs.h"

#define POOL_BYTES (4u << 20)

/* A pool for the requests, made anew when one of them has made many volumes. */
static struct {
	struct device device;
	uint8_t *base;
	struct cpc_verbs verbs;
	unsigned runs;
} served;

static void start_pool(void)
{
	struct cpc_format_options format = {.nodesize = 4096};
	struct cpc_pool_options opts;
	struct cpc_backing *b;

	if (!served.base) {
		served.base = calloc(1, POOL_BYTES);
		cpc_assert(served.base);
		device_init(&served.device, served.base, POOL_BYTES);
	}
	device_reset(&served.device);
	b = device_open(&served.device);
	cpc_assert(cpc_pool_format_backing(b, &format, NULL) == 0);
	cpc_backing_close(b);
	cpc_pool_options_init(&opts);
	opts.cache = CPC_CACHE_MIN;
	opts.no_threads = true;
	b = device_open(&served.device);
	cpc_assert(cpc_pool_open_backing(b, &opts, &served.verbs.pool, NULL) == 0);
	cpc_assert(cpc_pool_start(served.verbs.pool, NULL) == 0);
	served.runs = 0;
}

static void stop_pool(void)
{
	if (served.verbs.pool)
		cpc_pool_close(served.verbs.pool);
	served.verbs.pool = NULL;
}

void control_target_run(const uint8_t *input, size_t len)
{
	struct json_object *request, *reply, *ok;
	char *line = calloc(1, len + 1);

	cpc_assert(line);
	if (!served.verbs.pool)
		start_pool();
	memcpy(line, input, len);
	request = json_tokener_parse(line);
	cpc_verbs_quick(request);
	reply = cpc_verbs_run(&served.verbs, request);
	if (!reply || !json_object_object_get_ex(reply, "ok", &ok))
		target_fail("a request has no answer that says ok or not");
	target_counts.requests++;
	json_object_put(reply);
	json_object_put(request);
	free(line);
	if (++served.runs == 200)
		stop_pool();
}

size_t control_target_sample(unsigned i, uint8_t *input)
{
	static const char *const lines[] = {
	    "{\"verb\":\"create\",\"args\":{\"name\":\"disk0\",\"size\":1073741824}}",
	    "{\"verb\":\"list\"}",
	    "{\"verb\":\"info\",\"args\":{\"name\":\"disk0\"}}",
	    "{\"verb\":\"info\",\"pool\":{\"dev\":0,\"ino\":0}}",
	    "{\"verb\":\"rename\",\"args\":{\"old\":\"disk0\",\"new\":\"disk1\"}}",
	    "{\"verb\":\"delete\",\"args\":{\"name\":\"disk1\"}}",
	    "{\"verb\":\"resize\",\"args\":{\"name\":\"disk0\",\"size\":4096,\"shrink\":true}}",
	    "{\"verb\":\"stats\"}",
	    "{\"verb\":\"metrics\"}",
	    "{\"verb\":\"check\",\"args\":{}}",
	    "[[[[{\"a\":[1e309,-0,\"\\ud800\",null]}]]]]",
	};
	const char *line = lines[i % CPC_ARRAY_SIZE(lines)];

	memcpy(input, line, strlen(line));
	return strlen(line);
}

/* What is read as a size is written, and read again, as no larger one. */
void text_target_run(const uint8_t *input, size_t len)
{
	char *text = calloc(1, len + 1), out[CPC_SIZE_TEXT];
	const char *why = NULL;
	uint64_t size;
	int ret;

	cpc_assert(text);
	memcpy(text, input, len);
	ret = cpc_size_parse(text, &size, &why);
	if (ret ? !why : size == 0 || size > 1ull << 63)
		target_fail("the size '%s' is %llu, %d", text, (unsigned long long)size, ret);
	if (!ret)
		cpc_size_format(size, out);
	if (cpc_name_valid(text, len) && (memchr(text, '/', len) || memchr(text, 0, len)))
		target_fail("'%s' is a legal name", text);
	free(text);
}

size_t text_target_sample(unsigned i, uint8_t *input)
{
	static const char *const texts[] = {"1",    "512M",    "2GiB", "8e", "9223372036854775808",
					    "0x10", "a.b_c-d", "-1",   "1 K"};
	const char *text = texts[i % CPC_ARRAY_SIZE(texts)];

	memcpy(input, text, strlen(text));
	return strlen(text);
}
