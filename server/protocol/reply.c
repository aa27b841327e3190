/* SPDX-License-Identifier: BSD-3-Clause */
#include "protocol/reply.h"

#include <stdarg.h>
#include <stdio.h>

struct json_object *cpc_reply_ok(void)
{
	struct json_object *reply = json_object_new_object();

	if (reply)
		json_object_object_add(reply, "ok", json_object_new_boolean(1));
	return reply;
}

struct json_object *cpc_reply_error(int err, const char *fmt, ...)
{
	struct json_object *reply = json_object_new_object();
	const char *name = strerrorname_np(err < 0 ? -err : err);
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (!reply)
		return NULL;
	json_object_object_add(reply, "ok", json_object_new_boolean(0));
	json_object_object_add(reply, "errno", json_object_new_string(name ? name : "EIO"));
	json_object_object_add(reply, "error", json_object_new_string(text));
	return reply;
}

bool cpc_reply_is_ok(struct json_object *reply)
{
	struct json_object *ok;

	return json_object_object_get_ex(reply, "ok", &ok) &&
	       json_object_is_type(ok, json_type_boolean) && json_object_get_boolean(ok);
}

const char *cpc_reply_text(struct json_object *reply)
{
	const char *text = cpc_json_string(reply, "error");

	return text ? text : "the server's answer makes no sense";
}

/* What follows the object may only be white space. */
static bool only_space(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r' && text[i] != '\n')
			return false;
	}
	return true;
}

static const char *parse_error(struct json_tokener *tok)
{
	enum json_tokener_error err = json_tokener_get_error(tok);

	return err == json_tokener_continue ? "unfinished JSON" : json_tokener_error_desc(err);
}

struct json_object *cpc_json_parse(const char *text, size_t len, const char **why)
{
	struct json_tokener *tok = json_tokener_new_ex(CPC_JSON_DEPTH);
	struct json_object *object = NULL;
	size_t end = 0;

	*why = "out of memory";
	if (!tok)
		return NULL;
	if (len > INT32_MAX || memchr(text, '\0', len)) {
		*why = "too long, or a NUL byte in it";
	} else {
		object = json_tokener_parse_ex(tok, text, (int)len);
		*why = parse_error(tok);
		end = json_tokener_get_parse_end(tok);
	}
	if (object && (!json_object_is_type(object, json_type_object) ||
		       !only_space(text + end, len - end))) {
		*why = "not one JSON object";
		json_object_put(object);
		object = NULL;
	}
	json_tokener_free(tok);
	return object;
}

const char *cpc_json_string(struct json_object *object, const char *key)
{
	struct json_object *value;

	if (!json_object_object_get_ex(object, key, &value) ||
	    !json_object_is_type(value, json_type_string))
		return NULL;
	return json_object_get_string(value);
}

uint64_t cpc_json_u64(struct json_object *object, const char *key)
{
	struct json_object *value;

	if (!json_object_object_get_ex(object, key, &value) ||
	    !json_object_is_type(value, json_type_int))
		return 0;
	return json_object_get_uint64(value);
}
