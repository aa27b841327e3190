/* SPDX-License-Identifier: BSD-3-Clause */
/* The counters of a pool as one JSON object. */
#include "verbs-internal.h"

static void add_histogram(struct json_object *stats, const struct cpc_stat *stat)
{
	const struct cpc_hist_summary *summary = stat->histogram;
	struct json_object *h = json_object_new_object();

	if (!h)
		return;
	json_object_object_add(h, "count", json_object_new_uint64(summary->count));
	json_object_object_add(h, "mean", json_object_new_uint64(summary->mean));
	json_object_object_add(h, "p50", json_object_new_uint64(summary->p50));
	json_object_object_add(h, "p90", json_object_new_uint64(summary->p90));
	json_object_object_add(h, "p99", json_object_new_uint64(summary->p99));
	json_object_object_add(h, "max", json_object_new_uint64(summary->max));
	json_object_object_add(stats, stat->name, h);
}

static void json_emit(void *ctx, const struct cpc_stat *stat)
{
	if (stat->kind == CPC_STAT_HISTOGRAM)
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
