/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * server-version: which nbdkit runs this plugin, and whether it survives a client that vanishes.
 *
 * From 1.32.4 until the fix in 1.33.10, nbdkit aborts in its parallel thread model when a client
 * disconnects with several requests in flight: one worker closes the connection's socket while
 * another one is about to answer on it. With one request at a time per connection this cannot
 * happen.
 *
 * The version a plugin was compiled against says nothing about the server that loads it, and
 * nbdkit has no call for its own version, nor do its symbols tell the versions in question apart.
 * So the server's program is asked: /proc/self/exe --version. Where that fails (no
 * /proc, valgrind, a sandbox), the server counts as one that aborts: serializing is always safe.
 */
#ifndef CPC_PLUGIN_SERVER_VERSION_H
#define CPC_PLUGIN_SERVER_VERSION_H

#include "lib/base.h"

struct cpc_server_version {
	unsigned major, minor, micro;
};

/* Reads "nbdkit 1.32.5 (...)". Return: 0 or -EINVAL. */
int cpc_server_version_parse(const char *text, struct cpc_server_version *version);

/* Asks the running program. Context: before threads. Return: 0 or negative errno. */
int cpc_server_version_get(struct cpc_server_version *version);

bool cpc_server_version_aborts(const struct cpc_server_version *version);

#endif
