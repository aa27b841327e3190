/* SPDX-License-Identifier: BSD-3-Clause */
/* stats: gathers the counters of all modules under their public names (docs/statistics.md). */
#include "pool/pool-internal.h"

struct emitter {
	void (*emit)(void *ctx, const struct cpc_stat *stat);
	void *ctx;
};

static void counter(const struct emitter *out, const char *name, const char *help, uint64_t value)
{
	struct cpc_stat stat = {name, help, CPC_STAT_COUNTER, value, NULL};

	out->emit(out->ctx, &stat);
}

static void gauge(const struct emitter *out, const char *name, const char *help, uint64_t value)
{
	struct cpc_stat stat = {name, help, CPC_STAT_GAUGE, value, NULL};

	out->emit(out->ctx, &stat);
}

static void histogram(const struct emitter *out, const char *name, const char *help,
		      const struct cpc_hist_summary *summary)
{
	struct cpc_stat stat = {name, help, CPC_STAT_HISTOGRAM, 0, summary};

	out->emit(out->ctx, &stat);
}

static void emit_client(const struct emitter *out, const struct cpc_engine_stats *s)
{
	counter(out, "client.reads", "Reads by clients, failed ones included", s->reads);
	counter(out, "client.writes", "Writes by clients, failed ones included", s->writes);
	counter(out, "client.bytes_written", "Bytes of client writes that succeeded",
		s->bytes_written);
	counter(out, "client.trims", "Trims by clients", s->trims);
	counter(out, "client.zeroes", "Write-zeroes by clients", s->zeroes);
	counter(out, "client.flushes", "Flushes by clients", s->flushes);
	counter(out, "client.fua_writes", "Writes, trims and zeroes with FUA", s->fua_writes);
}

static void emit_backing(const struct emitter *out, struct cpc_store *store)
{
	struct cpc_backing_stats b;
	struct cpc_flush_epoch_stats f;

	cpc_backing_get_stats(store->backing, &b);
	cpc_flush_epoch_get_stats(&store->fe, &f);
	counter(out, "backing.reads", "Reads of the device", b.reads);
	counter(out, "backing.writes", "Writes of the device", b.writes);
	counter(out, "backing.flushes", "Flushes of the device", b.flushes);
	counter(out, "backing.discards", "Discards of the device", b.discards);
	counter(out, "backing.bytes_read", "Bytes read from the device", b.bytes_read);
	counter(out, "backing.bytes_written", "Bytes written to the device", b.bytes_written);
	counter(out, "backing.bytes_written_data",
		"Bytes written to the device for blocks of volumes",
		b.bytes_written_by[CPC_CAUSE_DATA]);
	counter(out, "backing.bytes_written_metadata",
		"Bytes written to the device for nodes, bitmaps and superblocks",
		b.bytes_written_by[CPC_CAUSE_METADATA] + b.bytes_written_by[CPC_CAUSE_SUPER]);
	counter(out, "backing.bytes_written_log", "Bytes written to the device for the log",
		b.bytes_written_by[CPC_CAUSE_LOG]);
	counter(out, "backing.errors", "Calls that the device answered with an error", b.errors);
	counter(out, "backing.flushes_log",
		"Device flushes led by a client flush or a change of names",
		f.flushes[CPC_FLUSH_LOG]);
	counter(out, "backing.flushes_commit", "Device flushes led by a commit",
		f.flushes[CPC_FLUSH_COMMIT]);
	counter(out, "backing.flushes_pressure",
		"Device flushes led because much was written and not flushed",
		f.flushes[CPC_FLUSH_PRESSURE]);
	counter(out, "backing.flushes_open", "Device flushes led by opening the pool",
		f.flushes[CPC_FLUSH_OPEN]);
	counter(out, "backing.flushes_repair", "Device flushes led after a failed one",
		f.flushes[CPC_FLUSH_REPAIR]);
}

static void emit_log(const struct emitter *out, const struct cpc_log_stats *s)
{
	gauge(out, "log.size", "Bytes of one copy of the log", s->size);
	gauge(out, "log.used", "Bytes of the log written since the last commit", s->used);
	counter(out, "log.records", "Log records written", s->records);
	counter(out, "log.entries", "Entries in log records written", s->entries);
	counter(out, "log.bytes", "Bytes written to the log, both copies", s->bytes);
	counter(out, "log.marks", "Log records that only say what is durable", s->marks);
	counter(out, "log.flushes_joined", "Flushes that another one had covered",
		s->flushes_joined);
	gauge(out, "log.last_seq", "Sequence number of the newest log record", s->last_seq);
	gauge(out, "log.durable_seq", "Sequence number of the newest log record known durable",
	      s->durable_seq);
}

static void emit_transaction(const struct emitter *out, struct cpc_store *store)
{
	struct cpc_hist_summary s;

	cpc_hist_summary(&store->commit_us, &s);
	counter(out, "transaction.commits", "Commits that became durable",
		atomic_load(&store->commits));
	counter(out, "transaction.failures", "Commits that did not become durable",
		atomic_load(&store->commit_failures));
	histogram(out, "transaction.commit_us", "Microseconds of commits", &s);
}

static void emit_engine(const struct emitter *out, const struct cpc_engine_stats *s)
{
	counter(out, "write_wait_us", "Microseconds that writers waited because too much was dirty",
		s->write_wait_us);
	histogram(out, "flush_us", "Microseconds of client flushes", &s->flush_us);
	histogram(out, "write_us",
		  "Microseconds of writes, trims and zeroes without the flush of FUA",
		  &s->write_us);
	histogram(out, "read_us", "Microseconds of reads", &s->read_us);
	histogram(out, "io_tree.clear_ns",
		  "Nanoseconds of calls that clear range bits, with stats=detail", &s->clear_ns);
	histogram(out, "io_tree.set_ns",
		  "Nanoseconds of calls that set range bits, with stats=detail", &s->set_ns);
	counter(out, "io_tree.trims", "Range records that a clear shortened in place", s->io_trims);
	counter(out, "io_tree.wakeups", "Sleepers woken because a range became free",
		s->io_wakeups);
	counter(out, "io_tree.wakeups_skipped", "Range records that lost bits with nobody waiting",
		s->io_wakeups_skipped);
	counter(out, "cache.hits", "Blocks read from the data cache", s->cache_hits);
	counter(out, "cache.misses", "Blocks read from the pool, or known to be holes",
		s->cache_misses);
	counter(out, "cache.read_ahead",
		"Blocks of them that had been read before they were asked for", s->read_ahead);
	gauge(out, "cache.dirty_bytes", "Bytes written by clients and not yet on the device",
	      s->dirty_bytes);
	gauge(out, "extent_map.bytes", "Bytes of mapping changes since the last commit",
	      s->map_bytes);
}

static void emit_nodes(const struct emitter *out, const struct cpc_eb_stats *eb)
{
	gauge(out, "extent_buffer.dirty_bytes", "Bytes of nodes to be written", eb->dirty_bytes);
	gauge(out, "extent_buffer.writeback_bytes", "Bytes of nodes being written",
	      eb->writeback_bytes);
	gauge(out, "extent_buffer.cached_bytes", "Bytes of all nodes in memory", eb->cached_bytes);
	counter(out, "extent_buffer.written", "Nodes written", eb->written);
	counter(out, "extent_buffer.batches", "Device writes that wrote nodes", eb->batches);
}

static void emit_space(const struct emitter *out, struct cpc_store *store,
		       const struct cpc_engine_stats *s)
{
	struct cpc_store_info info;

	cpc_store_info(store, &info);
	gauge(out, "space.total", "Bytes of the pool", store->geo.nr_blocks << CPC_BLOCK_SHIFT);
	gauge(out, "space.used", "Bytes in use as of the last commit",
	      info.used_blocks << CPC_BLOCK_SHIFT);
	gauge(out, "space.free", "Bytes not in use",
	      (store->geo.nr_blocks - info.used_blocks) << CPC_BLOCK_SHIFT);
	gauge(out, "space.pinned", "Bytes freed and not yet to be reused",
	      s->pinned_blocks << CPC_BLOCK_SHIFT);
	gauge(out, "space.reserved", "Bytes free and promised",
	      s->reserved_blocks << CPC_BLOCK_SHIFT);
	gauge(out, "space.lost_groups", "Block groups whose bitmap could not be read",
	      s->lost_groups);
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
	gauge(&out, "open_us", "Microseconds that opening the pool took", cpc_pool_open_us(pool));
	emit_transaction(&out, store);
	emit_engine(&out, &s);
	emit_nodes(&out, &eb);
	gauge(&out, "memory.bytes", "Bytes of memory that the engine holds",
	      s.memory_bytes + eb.cached_bytes);
	emit_space(&out, store, &s);
	counter(&out, "checksum.data_errors",
		"Blocks of data that could not be read or did not match", s.data_errors);
	counter(&out, "checksum.metadata_errors",
		"Copies of metadata that could not be read or did not match",
		eb.errors + atomic_load(&store->scrub_errors));
	counter(&out, "checksum.healed",
		"Copies of metadata that were written again from the other one",
		eb.healed + atomic_load(&store->scrub_healed));
}
