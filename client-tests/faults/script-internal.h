/* SPDX-License-Identifier: BSD-3-Clause */
/* script-internal: what the files of script share. */
#ifndef CPC_FAULTS_SCRIPT_INTERNAL_H
#define CPC_FAULTS_SCRIPT_INTERNAL_H

#include "script.h"

/* States of the names between two openings, at most. */
#define SCRIPT_TABLES 64u

/* Of one volume, up to RESIZE but for COMMIT; REOPEN to REPAIR end a life of the pool, but SCRUB.
 */
enum op {
	WRITE,
	TRIM,
	ZERO,
	READ,
	FLUSH,
	COMMIT,
	CREATE,
	DELETE,
	RENAME,
	RESIZE,
	REOPEN,
	CRASH,
	CHECK,
	SCRUB,
	REPAIR,
	NR_OPS
};

/* --- the fault (script.c) --- */

/* How often the fault has fired. */
uint64_t script_fired(const struct script *s);
/* Counts an error, which the fault has to explain. Return: true when it succeeded. */
bool script_succeeded(struct script *s, int ret, const char *what);

/* --- volumes (volumes.c) --- */

/* What the pool says; asking is not what is tested. */
void script_read_names(struct script *s, struct table *t);
bool script_names_equal(const struct table *a, const struct table *b);
/* As the last answered change of names left it. size_of: in bytes, of one that exists. */
bool script_exists(struct script *s, unsigned i);
uint64_t script_size(struct script *s, unsigned i);
/* close_handle: nothing to do where none is open. */
void script_open_handle(struct script *s, unsigned i);
void script_close_handle(struct script *s, unsigned i);
/* Notes that nothing older than the present may come back. */
void script_all_durable(struct script *s);

/* The volume has to exist, but for script_create. */
void script_create(struct script *s, unsigned i);
void script_write(struct script *s, unsigned i);
void script_read(struct script *s, unsigned i);
void script_flush(struct script *s, unsigned i);
/* Return: whether it succeeded. */
bool script_commit(struct script *s);
/* Any operation up to RESIZE but COMMIT; creates the volume where there is none. */
void script_operate(struct script *s, enum op op, unsigned i);

/* --- lives (lives.c) --- */

/* Return: whether the pool is open, and all that it holds has been judged. */
bool script_open_pool(struct script *s);
void script_close_pool(struct script *s);
/* By kill -9 or a power cut. */
void script_crash(struct script *s);
/* Ends the life as `op` (REOPEN, CRASH, CHECK, REPAIR) says and opens again, if that can be. */
void script_reopen(struct script *s, enum op op);
void script_scrub(struct script *s);
/* Healthy: completes a repair that was interrupted. */
void script_repair_again(struct script *s);

#endif
