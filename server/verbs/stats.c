/* SPDX-License-Identifier: BSD-3-Clause */
/* The counters of a pool, as one JSON object and in Prometheus' text form. */
#include "verbs-internal.h"

#include <stdio.h>
#include <stdlib.h>

/* --- JSON ---------------------------------------------------------------------------------- */

static void add_histogram(struct json_object *stats, const struct cpc_stat *stat)
{
	struct json_object *h = json_object_new_object();

	if (!h)
		return;
	json_object_object_add(h, "count", json_object_new_uint64(stat->count));
	json_object_object_add(h, "mean", json_object_new_uint64(stat->mean));
	json_object_object_add(h, "p50", json_object_new_uint64(stat->p50));
	json_object_object_add(h, "p90", json_object_new_uint64(stat->p90));
	json_object_object_add(h, "p99", json_object_new_uint64(stat->p99));
	json_object_object_add(h, "max", json_object_new_uint64(stat->max));
	json_object_object_add(stats, stat->name, h);
}

static void json_emit(void *ctx, const struct cpc_stat *stat)
{
	if (stat->histogram)
		add_histogram(ctx, stat);
	else
		json_object_object_add(ctx, stat->name, json_object_new_uint64(stat->value));
}

struct json_object *cpc_verb_stats(const struct cpc_verbs *verbs, struct json_object *args)
{
	struct json_object *reply = cpc_reply_ok(), *stats = json_object_new_object();

	if (!reply || !stats) {
		json_object_put(reply);
		json_object_put(stats);
		return NULL;
	}
	cpc_pool_stats(verbs->pool, json_emit, stats);
	json_object_object_add(reply, "stats", stats);
	return reply;
}

/* --- Prometheus ---------------------------------------------------------------------------- */

struct metrics {
	FILE *out;
	const char *uuid;
};

/* Values that can go down. All others only grow while the server runs. */
static bool is_gauge(const char *name)
{
	static const char *const gauges[] = {
	    "log.size",		 "log.used",	     "extent_buffer.dirty_bytes",
	    "memory.bytes",	 "extent_map.bytes", "extent_buffer.writeback_bytes",
	    "cache.dirty_bytes", "open_us",	     "extent_buffer.cached_bytes",
	};

	if (strncmp(name, "space.", 6) == 0)
		return true;
	for (size_t i = 0; i < CPC_ARRAY_SIZE(gauges); i++) {
		if (strcmp(name, gauges[i]) == 0)
			return true;
	}
	return false;
}

static void metric_name(const char *name, char *out, size_t len)
{
	snprintf(out, len, "coppice_%s", name);
	for (char *p = out; *p; p++) {
		if (*p == '.' || *p == '-')
			*p = '_';
	}
}

static void metric_summary(struct metrics *m, const char *name, const struct cpc_stat *stat)
{
	fprintf(m->out, "# TYPE %s summary\n", name);
	fprintf(m->out, "%s{pool=\"%s\",quantile=\"0.5\"} %ju\n", name, m->uuid,
		(uintmax_t)stat->p50);
	fprintf(m->out, "%s{pool=\"%s\",quantile=\"0.9\"} %ju\n", name, m->uuid,
		(uintmax_t)stat->p90);
	fprintf(m->out, "%s{pool=\"%s\",quantile=\"0.99\"} %ju\n", name, m->uuid,
		(uintmax_t)stat->p99);
	fprintf(m->out, "%s{pool=\"%s\",quantile=\"1\"} %ju\n", name, m->uuid,
		(uintmax_t)stat->max);
	fprintf(m->out, "%s_sum{pool=\"%s\"} %ju\n", name, m->uuid,
		(uintmax_t)(stat->mean * stat->count));
	fprintf(m->out, "%s_count{pool=\"%s\"} %ju\n", name, m->uuid, (uintmax_t)stat->count);
}

static void metric_emit(void *ctx, const struct cpc_stat *stat)
{
	struct metrics *m = ctx;
	char name[128];

	metric_name(stat->name, name, sizeof(name));
	if (stat->histogram) {
		metric_summary(m, name, stat);
	} else if (is_gauge(stat->name)) {
		fprintf(m->out, "# TYPE %s gauge\n%s{pool=\"%s\"} %ju\n", name, name, m->uuid,
			(uintmax_t)stat->value);
	} else {
		fprintf(m->out, "# TYPE %s_total counter\n%s_total{pool=\"%s\"} %ju\n", name, name,
			m->uuid, (uintmax_t)stat->value);
	}
}

/* Returns the text, to be freed, or NULL. */
static char *metrics_text(const struct cpc_verbs *verbs)
{
	struct metrics m;
	char *text = NULL;
	size_t len;

	m.out = open_memstream(&text, &len);
	if (!m.out)
		return NULL;
	m.uuid = verbs->uuid;
	fprintf(m.out, "# TYPE coppice_healthy gauge\ncoppice_healthy{pool=\"%s\"} %d\n", m.uuid,
		cpc_pool_healthy(verbs->pool, NULL, 0));
	cpc_pool_stats(verbs->pool, metric_emit, &m);
	if (fclose(m.out) == 0)
		return text;
	free(text);
	return NULL;
}

struct json_object *cpc_verb_metrics(const struct cpc_verbs *verbs, struct json_object *args)
{
	char *text = metrics_text(verbs);
	struct json_object *reply;

	if (!text)
		return NULL;
	reply = cpc_reply_ok();
	if (reply)
		json_object_object_add(reply, "text", json_object_new_string(text));
	free(text);
	return reply;
}
