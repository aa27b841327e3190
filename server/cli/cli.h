/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * cli: the coppice command. main.c finds the verb, one file a verb does it, args.c reads options,
 * session.c gets a request answered by whoever has the pool, render.c prints answers.
 *
 * Exit codes: 0 done, 1 failed, 2 usage, 3 the pool is damaged (check, scrub).
 *
 * Invariants
 *  1. A verb that fails prints one line on stderr that begins with "coppice: " (cpc_cli_fail()).
 *  2. What is meant for programs (--json) is printed on stdout, complete or not at all.
 *
 * One thread. Ownership: strings of argv live for ever, JSON objects are put by who got them.
 */
#ifndef CPC_CLI_CLI_H
#define CPC_CLI_CLI_H

#include <json-c/json.h>
#include <stdio.h>

#include "lib/base.h"

enum cpc_cli_exit { CPC_EXIT_OK, CPC_EXIT_FAILED, CPC_EXIT_USAGE, CPC_EXIT_DAMAGED };

struct cpc_cli_verb {
	const char *name;
	const char *synopsis; /* behind "coppice NAME " */
	const char *summary;  /* one line */
	const char *help;     /* options and remarks, lines end with \n */
	/* argv[0] is the first argument behind the verb. Return: exit code. */
	int (*run)(int argc, char **argv);
};

extern const struct cpc_cli_verb cpc_cli_format, cpc_cli_create, cpc_cli_list, cpc_cli_info,
    cpc_cli_rename, cpc_cli_delete, cpc_cli_resize, cpc_cli_check, cpc_cli_scrub, cpc_cli_stats,
    cpc_cli_dump;

/* Print the error line. Return CPC_EXIT_FAILED and CPC_EXIT_USAGE. */
int cpc_cli_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
int cpc_cli_usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* --- args.c -------------------------------------------------------------------------------- */

/* Prints the help of one verb. */
void cpc_cli_help(FILE *out, const struct cpc_cli_verb *verb);

/* One option; where exactly one of `flag` and `value` is set. */
struct cpc_cli_option {
	const char *name; /* "--json" */
	bool *flag;
	const char **value;
};

#define CPC_CLI_MAX_POSITIONAL 4

struct cpc_cli_args {
	const char *positional[CPC_CLI_MAX_POSITIONAL];
	int nr;
};

/*
 * Reads options (ended by a NULL name) and `min` to `max` other arguments, in any order; "--" ends
 * the options. What begins with "-" and a digit is no option, so that "-5G" is refused as
 * a size. Return: -1 go on; or the code to exit with: 0 after --help, 2 after an error.
 */
int cpc_cli_parse(const struct cpc_cli_verb *verb, int argc, char **argv,
		  const struct cpc_cli_option *options, int min, int max,
		  struct cpc_cli_args *args);

/* Reads a size. Return: 0, or CPC_EXIT_USAGE after an error line that names `what`. */
int cpc_cli_size(const char *what, const char *text, uint64_t *size);

/* --- session.c ----------------------------------------------------------------------------- */

struct cpc_cli_session {
	const char *pool;
	const char *control; /* --control, or NULL */
	bool writes;	     /* opens the pool for writing if nobody has it */
	/* While a verb takes its time in this process; may be NULL. */
	void (*progress)(void *ctx, uint64_t done, uint64_t total);
	void *progress_ctx;
};

/*
 * Gets a request answered: by this process if nobody else has the pool, else by its server. `args`
 * is taken over, NULL is allowed.
 * Return: the reply, which says ok; or NULL after an error line.
 */
struct json_object *cpc_cli_request(const struct cpc_cli_session *session, const char *verb,
				    struct json_object *args);

/* For verbs without an answer to print. Return: exit code. */
int cpc_cli_do(const struct cpc_cli_session *session, const char *verb, struct json_object *args);

/* Adds a string to an object that may be NULL, and returns it. */
struct json_object *cpc_cli_add(struct json_object *args, const char *key, const char *value);

/* --- client.c ------------------------------------------------------------------------------ */

/*
 * Sends one request to a control socket and waits for the reply.
 * Return: 0; -ENOENT, -ECONNREFUSED, -EACCES: nobody there; another errno: broken conversation.
 */
int cpc_cli_ask(const char *path, struct json_object *request, struct json_object **reply);

/* --- progress.c ---------------------------------------------------------------------------- */

/* A bar on stderr, if that is a terminal, and lines that do not run into it. */
struct cpc_cli_progress {
	bool shown;
	int last; /* per mille, to draw only what changed */
};

/* NULL where nobody would see it; ctx is a struct cpc_cli_progress. */
void (*cpc_cli_progress_fn(void))(void *ctx, uint64_t done, uint64_t total);
void cpc_cli_progress_clear(struct cpc_cli_progress *p);
/* Prints a line to stdout, or to stderr beside JSON. */
void cpc_cli_progress_line(struct cpc_cli_progress *p, bool json, const char *line);

/* --- render.c ------------------------------------------------------------------------------ */

/* Return: exit code; a full disk or closed pipe under stdout is a failure. */
int cpc_cli_print_json(struct json_object *object);
int cpc_cli_finish_output(void);

/* Prints "  name:  value" lines. */
void cpc_cli_print_pair(const char *name, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void cpc_cli_print_size(const char *name, uint64_t size);

/* A table whose columns are as wide as their widest cell. */
#define CPC_CLI_MAX_COLUMNS 8

struct cpc_cli_table;
struct cpc_cli_table *cpc_cli_table_new(unsigned columns, unsigned right_mask);
/* Takes `columns` strings. Memory that is missing shows in print. */
void cpc_cli_table_row(struct cpc_cli_table *table, const char *const *cells);
void cpc_cli_table_print(struct cpc_cli_table *table);
void cpc_cli_table_free(struct cpc_cli_table *table);

#define CPC_CLI_TIME_TEXT 24
/* "2024-05-01 12:34:56" in local time, "-" for 0. */
const char *cpc_cli_time(int64_t seconds, char out[CPC_CLI_TIME_TEXT]);

#endif
