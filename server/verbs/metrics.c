/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The counters of a pool in Prometheus' text form, version 0.0.4.
 *
 * A name is that of docs/statistics.md with "coppice_" before it and "_" for ".", and "_total"
 * behind what only grows. A histogram becomes _bucket, _sum and _count, which a collector can add
 * up over servers and take rates and percentiles of, and a gauge of its own for the exact maximum.
 */
#include "verbs-internal.h"

#include <stdio.h>
#include <stdlib.h>

#define NAME_MAX_LEN 96

/*
 * Buckets end at each power of two from 1 to 2^27: in microseconds 134 seconds. A time is rounded
 * down to whole units, so what is counted below 2^i took less than 2^i.
 */
#define NR_BUCKETS 28

struct metrics {
	FILE *out;
	const char *uuid;
};

static void head(const struct metrics *m, const char *name, const char *help, const char *type)
{
	fprintf(m->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void sample(const struct metrics *m, const char *name, uint64_t value)
{
	fprintf(m->out, "%s{pool=\"%s\"} %ju\n", name, m->uuid, (uintmax_t)value);
}

static void emit_plain(const struct metrics *m, const char *name, const struct cpc_stat *stat,
		       const char *type)
{
	head(m, name, stat->help, type);
	sample(m, name, stat->value);
}

static void emit_max(const struct metrics *m, const char *base, const struct cpc_stat *stat)
{
	char name[NAME_MAX_LEN + 8], help[256];

	snprintf(name, sizeof(name), "%s_max", base);
	snprintf(help, sizeof(help), "%s: the longest", stat->help);
	head(m, name, help, "gauge");
	sample(m, name, stat->histogram->max);
}

static void emit_histogram(const struct metrics *m, const char *name, const struct cpc_stat *stat)
{
	const struct cpc_hist_summary *h = stat->histogram;

	head(m, name, stat->help, "histogram");
	for (unsigned int i = 0; i < NR_BUCKETS; i++)
		fprintf(m->out, "%s_bucket{pool=\"%s\",le=\"%ju\"} %ju\n", name, m->uuid,
			(uintmax_t)1 << i, (uintmax_t)h->below[i]);
	fprintf(m->out, "%s_bucket{pool=\"%s\",le=\"+Inf\"} %ju\n", name, m->uuid,
		(uintmax_t)h->count);
	fprintf(m->out, "%s_sum{pool=\"%s\"} %ju\n", name, m->uuid, (uintmax_t)h->sum);
	fprintf(m->out, "%s_count{pool=\"%s\"} %ju\n", name, m->uuid, (uintmax_t)h->count);
	emit_max(m, name, stat);
}

static void metrics_emit(void *ctx, const struct cpc_stat *stat)
{
	const struct metrics *m = ctx;
	char name[NAME_MAX_LEN];

	snprintf(name, sizeof(name), "coppice_%s%s", stat->name,
		 stat->kind == CPC_STAT_COUNTER ? "_total" : "");
	for (char *p = name; *p; p++) {
		if (*p == '.')
			*p = '_';
	}
	switch (stat->kind) {
	case CPC_STAT_COUNTER:
		emit_plain(m, name, stat, "counter");
		break;
	case CPC_STAT_GAUGE:
		emit_plain(m, name, stat, "gauge");
		break;
	case CPC_STAT_HISTOGRAM:
		emit_histogram(m, name, stat);
		break;
	}
}

static void emit_health(const struct metrics *m, struct cpc_pool *pool)
{
	head(m, "coppice_healthy", "1 while the pool accepts writes, 0 when an error ended that",
	     "gauge");
	sample(m, "coppice_healthy", cpc_pool_healthy(pool, NULL, 0));
}

char *cpc_verbs_metrics(const struct cpc_verbs *verbs)
{
	struct metrics m = {.uuid = verbs->uuid};
	char *text = NULL;
	bool complete;
	size_t len;

	m.out = open_memstream(&text, &len);
	if (!m.out)
		return NULL;
	emit_health(&m, verbs->pool);
	cpc_pool_stats(verbs->pool, metrics_emit, &m);
	complete = !ferror(m.out);
	if (fclose(m.out) == 0 && complete)
		return text;
	free(text);
	return NULL;
}

struct json_object *cpc_verb_metrics(const struct cpc_verbs *verbs, struct json_object *args)
{
	char *text = cpc_verbs_metrics(verbs);
	struct json_object *reply;

	if (!text)
		return NULL;
	reply = cpc_reply_ok();
	if (reply)
		json_object_object_add(reply, "text", json_object_new_string(text));
	free(text);
	return reply;
}
