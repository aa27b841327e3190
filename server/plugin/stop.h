/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * stop: the process leaves within 5 seconds of SIGTERM (INT, QUIT, HUP).
 *
 * nbdkit alone stops accepting and then waits until the last client has gone, for ever if it is
 * idle. Here a thread notices the signal, has the pool shut down (last commit; later requests get
 * ESHUTDOWN), gives nbdkit one second to end by itself, which it does when no client is left, and
 * then ends the process.
 *
 *	SERVING   --signal-->         STOPPING, for 3.75 s at most, then _exit(1): the device hangs
 *	SERVING   --cpc_stop_join-->  ENDING, as long as it takes, if no signal comes
 *	STOPPING, ENDING  --the pool is shut down-->  STOPPED, for 1 s at most, then _exit(0)
 *	STOPPED   --cpc_stop_end-->   nbdkit ends the process
 *
 * The second after STOPPED holds for nbdkit's own end too. nbdkit 1.32 counts a connection in the
 * connection's thread: one accepted in the very moment of the signal is not waited for, and
 * then holds up nbdkit's unload until it goes, which a silent client never does.
 *
 * How the signal is noticed: nbdkit's handlers stay, ours come before them, write to an eventfd and
 * call them. nbdkit_nanosleep would tell as well, but it logs an error at each normal
 * stop, and aborts in `nbdkit -s` when the only connection ends.
 *
 * Called by plugin.c. Locks: `lock` (CPC_RANK_LEAF) protects the state. Errors: negative errno.
 */
#ifndef CPC_PLUGIN_STOP_H
#define CPC_PLUGIN_STOP_H

#include <stdbool.h>

struct cpc_stop_actions {
	void (*shutdown)(void); /* may block; called once */
	void (*leave)(void);	/* last act before _exit: quick and without locks */
};

/* Starts to watch. Context: after_fork. `actions` is immutable and lives for ever. */
int cpc_stop_watch(const struct cpc_stop_actions *actions);

/*
 * For nbdkit's cleanup: returns when the pool is shut down, by a shutdown that is running or one
 * that begins now. The process ends one second later, unless unload comes first. False: nothing
 * watches, the shutdown is the caller's.
 */
bool cpc_stop_join(void);

/* For nbdkit's unload, after cleanup: no client holds up the end any more, so the watch ends. */
void cpc_stop_end(void);

#endif
