/* SPDX-License-Identifier: BSD-3-Clause */
/* fixes: what a check has found a good source for; and how damage is told. */
#include "check/check-internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "lib/hooks.h"

/* --- damage --- */

const char *cpc_damage_kind_name(enum cpc_damage_kind kind)
{
	static const char *const names[] = {"super", "node", "bitmap", "log", "data"};

	return names[kind];
}

void cpc_damage_line(const struct cpc_damage *d, char line[CPC_DAMAGE_LINE])
{
	snprintf(line, CPC_DAMAGE_LINE, "%s at %" PRIu64 " (%s): %s: %s",
		 cpc_damage_kind_name(d->kind), d->bytenr, d->where, d->what, d->action);
}

/* --- fixes --- */

static bool make_room(struct cpc_fixes *fixes)
{
	size_t cap = fixes->cap ? 2 * fixes->cap : 64;
	struct cpc_fix *bigger;

	if (fixes->nr < fixes->cap)
		return true;
	bigger = fixes->nr < CPC_FIXES_MAX ? cpc_alloc_array(cap, sizeof(*bigger)) : NULL;
	if (!bigger)
		return false;
	if (fixes->nr)
		memcpy(bigger, fixes->fix, fixes->nr * sizeof(*bigger));
	cpc_free(fixes->fix);
	fixes->fix = bigger;
	fixes->cap = cap;
	return true;
}

static char *copy_text(const char *text)
{
	size_t len = strlen(text) + 1;
	char *copy = cpc_alloc(len);

	return copy ? memcpy(copy, text, len) : NULL;
}

void cpc_finding_fix(struct cpc_findings *f, struct cpc_fixes *fixes, const struct cpc_fix *fix,
		     const void *content, const char *fmt, ...)
{
	char where[CPC_DAMAGE_WHERE];
	struct cpc_fix *added;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(where, sizeof(where), fmt, ap);
	va_end(ap);
	if (!fixes || !make_room(fixes)) {
		cpc_finding(f, "%s at %" PRIu64 ": %s", where, fix->to, fix->what);
		return;
	}
	f->errors++;
	added = &fixes->fix[fixes->nr++];
	*added = *fix;
	added->csum = content ? cpc_csum(content, fix->len) : 0;
	added->where = copy_text(where);
}

void cpc_fixes_destroy(struct cpc_fixes *fixes)
{
	for (size_t i = 0; i < fixes->nr; i++)
		cpc_free(fixes->fix[i].where);
	cpc_free(fixes->fix);
	memset(fixes, 0, sizeof(*fixes));
}
