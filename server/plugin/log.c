/* SPDX-License-Identifier: BSD-3-Clause */
/* Lines of the engine and of the plugin, through the limit, to nbdkit's log. */
#include "server.h"

#include <stdarg.h>
#include <stdio.h>

#include "lib/hooks.h"
#include "lib/log.h"
#include "plugin/log-limit.h"

/* nbdkit -D coppice.engine=1 shows the engine's debug messages as well (with -v). */
NBDKIT_DLL_PUBLIC int coppice_debug_engine;

static struct cpc_mutex limit_lock;
static struct cpc_log_limit limit; /* limit_lock */

static void limited_error(const char *line)
{
	unsigned held;
	bool pass;

	cpc_mutex_lock(&limit_lock);
	pass = cpc_log_limit_pass(&limit, line, cpc_now_ns(), &held);
	cpc_mutex_unlock(&limit_lock);
	if (pass && held)
		nbdkit_error("%s (%u lines like this were left out before it)", line, held);
	else if (pass)
		nbdkit_error("%s", line);
}

static void log_sink(enum cpc_log_level level, const char *line)
{
	if (level == CPC_LOG_ERROR || level == CPC_LOG_WARN)
		limited_error(line);
	else if (level == CPC_LOG_INFO || coppice_debug_engine)
		nbdkit_debug("coppice: %s", line);
}

void cpc_plugin_log_init(void)
{
	cpc_mutex_init(&limit_lock, "log limit", CPC_RANK_MESSAGE);
	cpc_log_set_sink(log_sink);
}

void cpc_plugin_error(const char *fmt, ...)
{
	char line[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	limited_error(line);
}
