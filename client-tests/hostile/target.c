/* SPDX-License-Identifier: BSD-3-Clause */
#include "target.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/log.h"

static const struct target targets[] = {
    {"pool", pool_target_run, NULL, pool_target_mutate},
    {"super", super_target_run, super_target_sample, NULL},
    {"entries", entries_target_run, entries_target_sample, NULL},
    {"node", node_target_run, node_target_sample, NULL},
    {"control", control_target_run, control_target_sample, NULL},
    {"text", text_target_run, text_target_sample, NULL},
};

const struct target *target_at(unsigned i)
{
	return i < CPC_ARRAY_SIZE(targets) ? &targets[i] : NULL;
}

const struct target *target_find(const char *name)
{
	for (unsigned i = 0; i < CPC_ARRAY_SIZE(targets); i++) {
		if (strcmp(name, targets[i].name) == 0)
			return &targets[i];
	}
	return NULL;
}

static void no_message(enum cpc_log_level level, const char *line)
{
	if (getenv("CPC_TEST_VERBOSE"))
		fprintf(stderr, "  engine: %s\n", line);
}

void targets_init(void)
{
	cpc_log_set_sink(no_message);
	pool_target_init();
}

void target_fail(const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "FAILED: ");
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "\n");
	abort();
}
