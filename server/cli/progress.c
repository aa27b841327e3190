/* SPDX-License-Identifier: BSD-3-Clause */
/* The bar of a long verb: on stderr, and only where that is a terminal. */
#include "cli/cli.h"

#include <unistd.h>

#define BAR_WIDTH 40

static void draw_bar(void *ctx, uint64_t done, uint64_t total)
{
	struct cpc_cli_progress *p = ctx;
	int mille = total ? (int)((double)done * 1000.0 / (double)total) : 0;
	int filled;

	if (mille > 1000)
		mille = 1000;
	if (p->shown && mille == p->last)
		return;
	p->shown = true;
	p->last = mille;
	filled = mille * BAR_WIDTH / 1000;
	fprintf(stderr, "\r[%.*s%*s] %3d.%d%%", filled, "########################################",
		BAR_WIDTH - filled, "", mille / 10, mille % 10);
	fflush(stderr);
}

void (*cpc_cli_progress_fn(void))(void *ctx, uint64_t done, uint64_t total)
{
	return isatty(STDERR_FILENO) ? draw_bar : NULL;
}

void cpc_cli_progress_clear(struct cpc_cli_progress *p)
{
	if (p->shown)
		fprintf(stderr, "\r%*s\r", BAR_WIDTH + 12, "");
	p->shown = false;
}

void cpc_cli_progress_line(struct cpc_cli_progress *p, bool json, const char *line)
{
	cpc_cli_progress_clear(p);
	fprintf(json ? stderr : stdout, "%s\n", line);
}
