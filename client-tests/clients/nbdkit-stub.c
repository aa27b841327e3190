/* SPDX-License-Identifier: BSD-3-Clause */
#include "nbdkit-stub.h"

#include <stdio.h>
#include <stdlib.h>

static _Thread_local const char *export_name = "";
static _Thread_local int error;
static _Thread_local char interned[512];

void stub_set_export(const char *name)
{
	export_name = name;
}

int stub_take_error(void)
{
	int was = error;

	error = 0;
	return was;
}

void nbdkit_error(const char *fmt, ...)
{
}

void nbdkit_debug(const char *fmt, ...)
{
}

void nbdkit_set_error(int err)
{
	error = err;
}

char *nbdkit_absolute_path(const char *path)
{
	return strdup(path);
}

int nbdkit_parse_bool(const char *text)
{
	return strcmp(text, "true") == 0;
}

int64_t nbdkit_parse_size(const char *text)
{
	return strtoll(text, NULL, 10);
}

int nbdkit_parse_unsigned(const char *what, const char *text, unsigned *value)
{
	*value = (unsigned)strtoul(text, NULL, 10);
	return 0;
}

int nbdkit_parse_uint16_t(const char *what, const char *text, uint16_t *value)
{
	*value = (uint16_t)strtoul(text, NULL, 10);
	return 0;
}

const char *nbdkit_export_name(void)
{
	return export_name;
}

/* Lives until the thread's next one. */
const char *nbdkit_strdup_intern(const char *text)
{
	snprintf(interned, sizeof(interned), "%s", text);
	return interned;
}

int nbdkit_add_export(struct nbdkit_exports *exports, const char *name, const char *description)
{
	exports->nr++;
	return 0;
}

int nbdkit_add_extent(struct nbdkit_extents *e, uint64_t offset, uint64_t len, uint32_t type)
{
	if (offset != e->at || len == 0 || offset < e->start || len > e->end - offset)
		e->wrong = true;
	e->at = offset + len;
	return 0;
}
