/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * log: one-line messages to whoever runs the engine. The plugin sends them to nbdkit, the tool
 * to stderr. The sink is set before other engine calls and may be called from any thread.
 */
#ifndef CPC_LIB_LOG_H
#define CPC_LIB_LOG_H

#include "lib/base.h"

enum cpc_log_level { CPC_LOG_ERROR, CPC_LOG_WARN, CPC_LOG_INFO, CPC_LOG_DEBUG };

typedef void (*cpc_log_sink)(enum cpc_log_level level, const char *line);

/* NULL restores the default: errors, warnings and infos to stderr. */
void cpc_log_set_sink(cpc_log_sink sink);

void cpc_log(enum cpc_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define cpc_error(...) cpc_log(CPC_LOG_ERROR, __VA_ARGS__)
#define cpc_warn(...)  cpc_log(CPC_LOG_WARN, __VA_ARGS__)
#define cpc_info(...)  cpc_log(CPC_LOG_INFO, __VA_ARGS__)
#define cpc_debug(...) cpc_log(CPC_LOG_DEBUG, __VA_ARGS__)

#endif
