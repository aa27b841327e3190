/* SPDX-License-Identifier: BSD-3-Clause */
#include "cli/cli.h"

#include <stdarg.h>
#include <stdlib.h>
#include <time.h>

#include "protocol/size.h"

/* One line it is, whatever names a user or a server has put into it. */
static void print_line(char *text)
{
	for (char *p = text; *p; p++) {
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			*p = '?';
	}
	fprintf(stderr, "coppice: %s\n", text);
}

static void fail_line(const char *fmt, va_list ap)
{
	char text[4096];

	vsnprintf(text, sizeof(text), fmt, ap);
	fflush(stdout);
	print_line(text);
}

int cpc_cli_fail(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fail_line(fmt, ap);
	va_end(ap);
	return CPC_EXIT_FAILED;
}

int cpc_cli_usage(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fail_line(fmt, ap);
	va_end(ap);
	return CPC_EXIT_USAGE;
}

int cpc_cli_finish_output(void)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return CPC_EXIT_OK;
	return cpc_cli_fail("writing the output: %s", strerror(errno));
}

int cpc_cli_print_json(struct json_object *object)
{
	const char *text = json_object_to_json_string_ext(
	    object, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_NOSLASHESCAPE);

	if (!text)
		return cpc_cli_fail("out of memory");
	puts(text);
	return cpc_cli_finish_output();
}

void cpc_cli_print_pair(const char *name, const char *fmt, ...)
{
	va_list ap;

	printf("%-12s ", name);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
}

void cpc_cli_print_size(const char *name, uint64_t size)
{
	char text[CPC_SIZE_TEXT];

	cpc_cli_print_pair(name, "%s (%ju bytes)", cpc_size_format(size, text), (uintmax_t)size);
}

const char *cpc_cli_time(int64_t seconds, char out[CPC_CLI_TIME_TEXT])
{
	time_t t = (time_t)seconds;
	struct tm tm;

	if (seconds <= 0 || !localtime_r(&t, &tm) ||
	    strftime(out, CPC_CLI_TIME_TEXT, "%Y-%m-%d %H:%M:%S", &tm) == 0)
		memcpy(out, "-", 2);
	return out;
}

/* --- table --------------------------------------------------------------------------------- */

struct cpc_cli_table {
	unsigned columns, right_mask;
	size_t width[CPC_CLI_MAX_COLUMNS];
	char **cell;
	size_t nr_cells, room;
	bool failed;
};

struct cpc_cli_table *cpc_cli_table_new(unsigned columns, unsigned right_mask)
{
	struct cpc_cli_table *table = calloc(1, sizeof(*table));

	if (!table)
		return NULL;
	table->columns = columns;
	table->right_mask = right_mask;
	return table;
}

static bool make_room(struct cpc_cli_table *table)
{
	size_t room = table->room * 2 + 16 * CPC_CLI_MAX_COLUMNS;
	char **cell;

	if (table->nr_cells + table->columns <= table->room)
		return true;
	cell = realloc(table->cell, room * sizeof(*cell));
	if (!cell)
		return false;
	table->cell = cell;
	table->room = room;
	return true;
}

void cpc_cli_table_row(struct cpc_cli_table *table, const char *const *cells)
{
	if (!table || !make_room(table)) {
		if (table)
			table->failed = true;
		return;
	}
	for (unsigned i = 0; i < table->columns; i++) {
		char *copy = strdup(cells[i]);
		size_t len = strlen(cells[i]);

		table->failed |= !copy;
		table->cell[table->nr_cells++] = copy;
		if (len > table->width[i])
			table->width[i] = len;
	}
}

static void print_row(const struct cpc_cli_table *table, char **cell)
{
	for (unsigned i = 0; i < table->columns; i++) {
		int width = (int)table->width[i];
		bool last = i + 1 == table->columns;

		if (table->right_mask & 1u << i)
			printf("%*s", width, cell[i]);
		else
			printf("%-*s", last ? 0 : width, cell[i]);
		fputs(last ? "\n" : "  ", stdout);
	}
}

void cpc_cli_table_print(struct cpc_cli_table *table)
{
	if (!table || table->failed) {
		cpc_cli_fail("out of memory");
		return;
	}
	for (size_t i = 0; i < table->nr_cells; i += table->columns)
		print_row(table, table->cell + i);
}

void cpc_cli_table_free(struct cpc_cli_table *table)
{
	if (!table)
		return;
	for (size_t i = 0; i < table->nr_cells; i++)
		free(table->cell[i]);
	free(table->cell);
	free(table);
}
