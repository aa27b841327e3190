/* SPDX-License-Identifier: BSD-3-Clause */
#include "lib/log.h"

#include <stdarg.h>
#include <stdio.h>

static void default_sink(enum cpc_log_level level, const char *line)
{
	if (level <= CPC_LOG_INFO)
		fprintf(stderr, "coppice: %s\n", line);
}

static cpc_log_sink current_sink = default_sink;

void cpc_log_set_sink(cpc_log_sink sink)
{
	current_sink = sink ? sink : default_sink;
}

void cpc_log(enum cpc_log_level level, const char *fmt, ...)
{
	char line[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	current_sink(level, line);
}
