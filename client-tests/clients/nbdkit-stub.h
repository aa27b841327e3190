/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * nbdkit-stub: what the plugin takes from nbdkit, so that its callbacks can be called from a plain
 * program. Each thread is a connection: it has an export name, the error set last, and the extents
 * of the request that runs.
 */
#ifndef CPC_CLIENTS_NBDKIT_STUB_H
#define CPC_CLIENTS_NBDKIT_STUB_H

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "lib/base.h"

struct nbdkit_extents {
	uint64_t start, end; /* of the request */
	uint64_t at;	     /* reported up to here */
	bool wrong;	     /* something that nbdkit would refuse */
};

struct nbdkit_exports {
	unsigned nr;
};

void stub_set_export(const char *name);
/* The error of the last callback that failed; cleared by asking. */
int stub_take_error(void);
/* The plugin. */
struct nbdkit_plugin *plugin_init(void);

#endif
