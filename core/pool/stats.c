/* SPDX-License-Identifier: BSD-3-Clause */
/* stats: gathers the counters of all modules under their public names (docs/statistics.md). */
#include "pool/pool-internal.h"

struct emitter {
	void (*emit)(void *ctx, const struct cpc_stat *stat);
	void *ctx;
};

static void value(const struct emitter *out, const char *name, uint64_t v)
{
	struct cpc_stat stat = {.name = name, .value = v};

	out->emit(out->ctx, &stat);
}

static void histogram(const struct emitter *out, const char *name, const struct cpc_hist_summary *s)
{
	struct cpc_stat stat = {
	    .name = name,
	    .histogram = true,
	    .count = s->count,
	    .mean = s->mean,
	    .p50 = s->p50,
	    .p90 = s->p90,
	    .p99 = s->p99,
	    .max = s->max,
	};

	out->emit(out->ctx, &stat);
}

static void emit_client(const struct emitter *out, const struct cpc_engine_stats *s)
{
	value(out, "client.reads", s->reads);
	value(out, "client.writes", s->writes);
	value(out, "client.bytes_written", s->bytes_written);
	value(out, "client.trims", s->trims);
	value(out, "client.zeroes", s->zeroes);
	value(out, "client.flushes", s->flushes);
	value(out, "client.fua_writes", s->fua_writes);
}

static void emit_backing(const struct emitter *out, struct cpc_store *store)
{
	struct cpc_backing_stats b;
	struct cpc_flush_epoch_stats f;

	cpc_backing_get_stats(store->backing, &b);
	cpc_flush_epoch_get_stats(&store->fe, &f);
	value(out, "backing.reads", b.reads);
	value(out, "backing.writes", b.writes);
	value(out, "backing.flushes", b.flushes);
	value(out, "backing.discards", b.discards);
	value(out, "backing.bytes_read", b.bytes_read);
	value(out, "backing.bytes_written", b.bytes_written);
	value(out, "backing.bytes_written_data", b.bytes_written_by[CPC_CAUSE_DATA]);
	value(out, "backing.bytes_written_metadata",
	      b.bytes_written_by[CPC_CAUSE_METADATA] + b.bytes_written_by[CPC_CAUSE_SUPER]);
	value(out, "backing.bytes_written_log", b.bytes_written_by[CPC_CAUSE_LOG]);
	value(out, "backing.errors", b.errors);
	value(out, "backing.flushes_log", f.flushes[CPC_FLUSH_LOG]);
	value(out, "backing.flushes_commit", f.flushes[CPC_FLUSH_COMMIT]);
	value(out, "backing.flushes_pressure", f.flushes[CPC_FLUSH_PRESSURE]);
	value(out, "backing.flushes_open", f.flushes[CPC_FLUSH_OPEN]);
	value(out, "backing.flushes_repair", f.flushes[CPC_FLUSH_REPAIR]);
}

static void emit_log(const struct emitter *out, const struct cpc_log_stats *s)
{
	value(out, "log.size", s->size);
	value(out, "log.used", s->used);
	value(out, "log.records", s->records);
	value(out, "log.entries", s->entries);
	value(out, "log.bytes", s->bytes);
	value(out, "log.marks", s->marks);
	value(out, "log.flushes_joined", s->flushes_joined);
	value(out, "log.last_seq", s->last_seq);
	value(out, "log.durable_seq", s->durable_seq);
}

static void emit_transaction(const struct emitter *out, struct cpc_store *store)
{
	struct cpc_hist_summary s;

	cpc_hist_summary(&store->commit_us, &s);
	value(out, "transaction.commits", atomic_load(&store->commits));
	value(out, "transaction.failures", atomic_load(&store->commit_failures));
	histogram(out, "transaction.commit_us", &s);
}

static void emit_engine(const struct emitter *out, const struct cpc_engine_stats *s)
{
	value(out, "write_wait_us", s->write_wait_us);
	histogram(out, "flush_us", &s->flush_us);
	histogram(out, "write_us", &s->write_us);
	histogram(out, "read_us", &s->read_us);
	histogram(out, "io_tree.clear_ns", &s->clear_ns);
	histogram(out, "io_tree.set_ns", &s->set_ns);
	value(out, "io_tree.trims", s->io_trims);
	value(out, "io_tree.wakeups", s->io_wakeups);
	value(out, "io_tree.wakeups_skipped", s->io_wakeups_skipped);
	value(out, "cache.hits", s->cache_hits);
	value(out, "cache.misses", s->cache_misses);
	value(out, "cache.dirty_bytes", s->dirty_bytes);
	value(out, "extent_map.bytes", s->map_bytes);
}

static void emit_nodes(const struct emitter *out, const struct cpc_eb_stats *eb)
{
	value(out, "extent_buffer.dirty_bytes", eb->dirty_bytes);
	value(out, "extent_buffer.writeback_bytes", eb->writeback_bytes);
	value(out, "extent_buffer.cached_bytes", eb->cached_bytes);
	value(out, "extent_buffer.written", eb->written);
	value(out, "extent_buffer.batches", eb->batches);
}

static void emit_space(const struct emitter *out, struct cpc_store *store,
		       const struct cpc_engine_stats *s)
{
	struct cpc_store_info info;

	cpc_store_info(store, &info);
	value(out, "space.total", store->geo.nr_blocks << CPC_BLOCK_SHIFT);
	value(out, "space.used", info.used_blocks << CPC_BLOCK_SHIFT);
	value(out, "space.free", (store->geo.nr_blocks - info.used_blocks) << CPC_BLOCK_SHIFT);
	value(out, "space.pinned", s->pinned_blocks << CPC_BLOCK_SHIFT);
	value(out, "space.reserved", s->reserved_blocks << CPC_BLOCK_SHIFT);
}

void cpc_pool_stats(struct cpc_pool *pool, void (*emit)(void *ctx, const struct cpc_stat *stat),
		    void *ctx)
{
	struct emitter out = {emit, ctx};
	struct cpc_store *store = cpc_pool_store(pool);
	struct cpc_engine_stats s;
	struct cpc_eb_stats eb;

	cpc_engine_get_stats(cpc_pool_engine(pool), &s);
	cpc_eb_stats(store->ebc, &eb);
	emit_client(&out, &s);
	emit_backing(&out, store);
	emit_log(&out, &s.log);
	value(&out, "open_us", cpc_pool_open_us(pool));
	emit_transaction(&out, store);
	emit_engine(&out, &s);
	emit_nodes(&out, &eb);
	value(&out, "memory.bytes", s.memory_bytes + eb.cached_bytes);
	emit_space(&out, store, &s);
	value(&out, "checksum.data_errors", s.data_errors);
	value(&out, "checksum.metadata_errors", eb.errors);
	value(&out, "checksum.healed", eb.healed);
}
