/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * stop: the process leaves within 5 seconds of SIGTERM (INT, QUIT, HUP).
 *
 * nbdkit alone stops accepting and then waits until the last client has gone, for ever if it is
 * idle. Here a thread notices the signal, has the pool shut down (last commit; later requests get
 * ESHUTDOWN), gives nbdkit one second to end by itself, which it does when no client is left, and
 * then ends the process.
 *
 *	SERVING --signal--> STOPPING --pool is shut down--> STOPPED --1 s, clients left--> _exit(0)
 *	   |                   |  \                            |
 *	   |                   |   +-- 4 s, device hangs -----> _exit(1)
 *	   +---cpc_stop_join---+---------cpc_stop_join---------+--> LEAVING (nbdkit ends by itself)
 *
 * How the signal is noticed: nbdkit's handlers stay, ours come before them, write to an eventfd and
 * call them. nbdkit_nanosleep would tell as well, but it logs an error at each normal
 * stop, and aborts in `nbdkit -s` when the only connection ends.
 *
 * Called by plugin.c. Locks: `lock` (CPC_RANK_LEAF) protects the state. Errors: negative errno.
 */
#ifndef CPC_PLUGIN_STOP_H
#define CPC_PLUGIN_STOP_H

struct cpc_stop_actions {
	void (*shutdown)(void); /* may block; called once, unless cpc_stop_join comes first */
	void (*leave)(void);	/* last act before _exit: quick and without locks */
};

/* Starts to watch. Context: after_fork. `actions` is immutable and lives for ever. */
int cpc_stop_watch(const struct cpc_stop_actions *actions);

/*
 * For nbdkit's cleanup: from now on the process is not ended here, except when 5 seconds have
 * passed since the signal. Waits for a shutdown that is running; one that is not is the caller's.
 */
void cpc_stop_join(void);

#endif
