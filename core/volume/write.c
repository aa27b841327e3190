/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * write: writes, trims and zeroes of a volume.
 *
 * Two ways. Buffered: fresh buffers are filled, then swapped into the cache under a ticket.
 * Direct, for large requests, trims and zeroes: data goes to new places of the pool first, then,
 * under a ticket, the covered buffers leave the cache and one run that names all of it is linked.
 * In both the change becomes visible, and part of a cut, as a whole.
 *
 * Order in both (else newer content could get into an older cut, or a writer that waits for memory
 * could hold up the cut that would free it): reserve; lock the range in the io tree; read what
 * partial blocks need; then the ticket, under which there are memory operations only.
 */
#include "volume/volume-internal.h"

#include "lib/mutation.h"

/* Requests of so many blocks, or an eighth of the dirty bound if that is less, go direct. */
#define DIRECT_BLOCKS 64u

struct writer {
	struct cpc_volume *vol;
	const uint8_t *src; /* NULL: zeroes */
	uint64_t offset, len;
	uint64_t block, nr; /* the range rounded to blocks */
	struct cpc_io_state *cached;
	uint64_t log_room;	 /* ring bytes promised to the request */
	int error;		 /* the io tree stopped when the change was in memory already */
	struct cpc_buf **copies; /* of a direct write, for the cache; NULL: none */
};

static void writer_init(struct writer *w, struct cpc_volume *vol, const void *src, uint64_t offset,
			uint64_t len)
{
	*w = (struct writer){.vol = vol, .src = src, .offset = offset, .len = len};
	w->block = offset >> CPC_BLOCK_SHIFT;
	w->nr = ((offset + len - 1) >> CPC_BLOCK_SHIFT) + 1 - w->block;
}

static int lock_range(struct writer *w)
{
	return cpc_io_tree_lock(&w->vol->io_tree, w->block << CPC_BLOCK_SHIFT,
				w->nr << CPC_BLOCK_SHIFT, &w->cached);
}

static void unlock_range(struct writer *w)
{
	cpc_io_tree_unlock(&w->vol->io_tree, w->block << CPC_BLOCK_SHIFT, w->nr << CPC_BLOCK_SHIFT,
			   &w->cached);
}

static bool partial(const struct writer *w, uint64_t block)
{
	uint64_t start = block << CPC_BLOCK_SHIFT;

	return start < w->offset || start + CPC_BLOCK_SIZE > w->offset + w->len;
}

/* Puts the new content of a whole block into `data`; a partial one needs the range lock. */
static int fill_block(const struct writer *w, uint64_t block, uint8_t *data)
{
	uint64_t start = cpc_max_u64(block << CPC_BLOCK_SHIFT, w->offset);
	uint64_t end = cpc_min_u64((block + 1) << CPC_BLOCK_SHIFT, w->offset + w->len);
	uint8_t *to = data + (start & (CPC_BLOCK_SIZE - 1));
	int ret = partial(w, block) ? cpc_read_one(w->vol, block, data) : 0;

	if (ret)
		return ret;
	if (w->src)
		memcpy(to, w->src + (start - w->offset), end - start);
	else
		memset(to, 0, end - start);
	return 0;
}

/* --- buffered --- */

static int alloc_buffers(struct writer *w, struct cpc_buf **bufs)
{
	for (uint64_t i = 0; i < w->nr; i++) {
		bufs[i] = cpc_buf_alloc(w->vol->engine);
		if (bufs[i])
			continue;
		while (i)
			cpc_buf_put(w->vol->engine, bufs[--i]);
		return -EIO;
	}
	return 0;
}

/* Partial blocks (first and last at most) are filled under the range lock, the others before. */
static int fill_buffers(struct writer *w, struct cpc_buf **bufs, bool want_partial)
{
	int ret = 0;

	for (uint64_t i = 0; i < w->nr && !ret; i++) {
		uint8_t *data = cpc_buf_data(&w->vol->engine->memory, bufs[i]);

		if (partial(w, w->block + i) != want_partial)
			continue;
		ret = fill_block(w, w->block + i, data);
		bufs[i]->csum = cpc_csum(data, CPC_BLOCK_SIZE);
	}
	return ret;
}

/* The io tree is the account of what is charged. It fails only when it has stopped, with the pool.
 */
static uint64_t charge(struct writer *w)
{
	struct cpc_changeset cs = {0};
	int ret = cpc_io_tree_convert(&w->vol->io_tree, w->block << CPC_BLOCK_SHIFT,
				      w->nr << CPC_BLOCK_SHIFT, CPC_IO_DELALLOC, CPC_IO_LOCKED,
				      &w->cached, &cs);

	cpc_assert(!ret || ret == -EIO);
	w->error = ret;
	return cs.set_bytes >> CPC_BLOCK_SHIFT;
}

/*
 * Hands the request's ring bytes to the open epoch: what its change needs and, if it is the first,
 * what the batch itself needs. Under a ticket. Return: what is left of them.
 */
static uint64_t use_log_room(struct writer *w, uint64_t bytes)
{
	if (!bytes)
		return w->log_room;
	if (!atomic_load(&w->vol->log_bytes))
		bytes += CPC_LOG_BATCH_BYTES;
	atomic_fetch_add(&w->vol->log_bytes, bytes);
	cpc_assert(bytes <= w->log_room);
	return w->log_room - bytes;
}

static int log_room(struct writer *w, uint64_t bytes)
{
	w->log_room = bytes + CPC_LOG_BATCH_BYTES;
	return cpc_log_room(w->vol->engine, w->log_room);
}

/* Swaps the filled buffers in. Gives back what of the reservation was not needed. */
static int publish_buffers(struct writer *w, struct cpc_buf **bufs)
{
	struct cpc_volume *vol = w->vol;
	uint64_t epoch = cpc_ticket_take(vol), again, charged, unused;
	int ret = cpc_cache_store_dirty(vol, bufs, w->block, w->nr, epoch, &again);

	if (ret) {
		unlock_range(w);
		cpc_ticket_release(vol);
		return ret;
	}
	charged = charge(w);
	atomic_fetch_add(&vol->dirty_blocks, charged);
	unused = use_log_room(w, charged * CPC_LOG_BLOCK_BYTES);
	cpc_ticket_release(vol);
	cpc_log_unreserve(vol->engine->log, unused);
	if (!w->error && charged != w->nr - again)
		cpc_engine_halt(vol->engine, "io tree and data cache disagree about dirty blocks");
	cpc_unreserve(vol->engine, w->nr - charged);
	cpc_dirty_release(vol->engine, w->nr - charged);
	return 0;
}

/* Uses up what is reserved, or gives it back; on error it is still the caller's. */
static int write_reserved(struct writer *w)
{
	struct cpc_buf *bufs[DIRECT_BLOCKS + 1];
	int ret = alloc_buffers(w, bufs);

	if (ret)
		return ret;
	cpc_io_tree_prefetch_records(&w->vol->io_tree, w->offset);
	ret = fill_buffers(w, bufs, false);
	if (!ret)
		ret = lock_range(w);
	if (!ret) {
		ret = fill_buffers(w, bufs, true);
		if (ret)
			unlock_range(w);
	}
	if (!ret)
		ret = publish_buffers(w, bufs);
	for (uint64_t i = 0; ret && i < w->nr; i++)
		cpc_buf_put(w->vol->engine, bufs[i]);
	return ret;
}

static int write_buffered(struct writer *w)
{
	struct cpc_engine *e = w->vol->engine;
	int ret = cpc_map_throttle(e);

	if (!ret)
		ret = log_room(w, w->nr * CPC_LOG_BLOCK_BYTES);
	if (ret)
		return ret;
	ret = cpc_dirty_reserve(e, w->nr);
	if (!ret) {
		ret = cpc_reserve(w->vol, w->block, w->nr, w->nr);
		if (!ret) {
			ret = write_reserved(w);
			if (ret)
				cpc_unreserve(e, w->nr);
		}
		if (ret)
			cpc_dirty_release(e, w->nr);
	}
	if (ret)
		cpc_log_unreserve(e->log, w->log_room);
	return ret;
}

/* --- direct --- */

/* One request's way around the cache. */
struct direct {
	struct cpc_data_writer writer;
	struct writer *w;
	uint8_t *bounce;
	bool zeroes; /* every block is the one zero block in `bounce` */
	uint64_t bytenr[CPC_BOUNCE_BLOCKS];
	uint32_t csums[CPC_BOUNCE_BLOCKS];
	struct cpc_run_builder builder;
	struct cpc_buf *copies[CPC_BOUNCE_BLOCKS];
};

static const void *direct_data(struct cpc_data_writer *writer, size_t i)
{
	struct direct *d = cpc_container_of(writer, struct direct, writer);

	return d->bounce + (d->zeroes ? 0 : i * CPC_BLOCK_SIZE);
}

/* `nr`: blocks of data there will be and that are reserved; a hole beside them may be exabytes. */
static struct direct *direct_new(struct writer *w, uint64_t nr)
{
	struct direct *d = cpc_zalloc(sizeof(*d));

	if (!d)
		return NULL;
	d->w = w;
	d->bounce = cpc_bounce_get(w->vol->engine);
	if (!d->bounce) {
		cpc_free(d);
		return NULL;
	}
	d->writer.engine = w->vol->engine;
	d->writer.data = direct_data;
	d->writer.reserved = nr;
	d->writer.bytenr = d->bytenr;
	d->writer.csums = d->csums;
	cpc_run_builder_init(&d->builder, nr / CPC_EXTENT_MAX_BLOCKS + 3, nr);
	return d;
}

static void direct_free(struct direct *d)
{
	cpc_bounce_put(d->writer.engine, d->bounce);
	cpc_free(d);
}

static int fill_bounce(struct direct *d, uint64_t block, uint64_t nr)
{
	int ret = 0;

	d->zeroes = !d->w->src && !partial(d->w, block) && !partial(d->w, block + nr - 1);
	if (d->zeroes) {
		memset(d->bounce, 0, CPC_BLOCK_SIZE);
		return 0;
	}
	for (uint64_t i = 0; i < nr && !ret; i++)
		ret = fill_block(d->w, block + i, d->bounce + i * CPC_BLOCK_SIZE);
	return ret;
}

static int write_chunk(struct direct *d, uint64_t block, uint64_t nr)
{
	int ret = fill_bounce(d, block, nr);

	if (ret)
		return ret;
	memset(d->bytenr, 0, nr * sizeof(d->bytenr[0]));
	d->writer.nr = nr;
	ret = cpc_data_write_all(&d->writer);
	for (uint64_t i = 0; i < nr; i++) {
		if (!d->bytenr[i])
			continue;
		cpc_run_builder_map(&d->builder, block + i, 1, d->bytenr[i], &d->csums[i]);
		/* what the run does not name is given back here, the rest in link_direct */
		if (d->builder.error)
			cpc_space_release(d->writer.engine->store->space,
					  d->bytenr[i] >> CPC_BLOCK_SHIFT, 1);
	}
	return ret ? ret : d->builder.error;
}

/* Gives back blocks that an aborted request has written: nobody knows of them. */
static void release_run(struct cpc_engine *e, const struct cpc_run *run)
{
	for (size_t i = 0; i < run->nr_entries; i++) {
		if (run->entries[i].bytenr)
			cpc_space_release(e->store->space,
					  run->entries[i].bytenr >> CPC_BLOCK_SHIFT,
					  run->entries[i].nr);
	}
}

/* With what the ends of records may waste. */
static uint64_t run_log_bytes(const struct cpc_run *run)
{
	uint64_t bytes = cpc_log_run_bytes(run);

	return bytes + bytes / 8 + sizeof(struct cpc_disk_log_record);
}

/*
 * Run in, buffers out, range unlocked, as one change of the open epoch. In this order: once a
 * buffer is gone, a reader, or the next writer who fills a partial block, goes by the view, which
 * must not be older than that buffer was.
 */
static void publish_run(struct writer *w, struct cpc_view *next, struct cpc_run *run)
{
	struct cpc_volume *vol = w->vol;
	struct cpc_changeset cs = {0};
	uint64_t log_bytes = run_log_bytes(run), epoch = cpc_ticket_take(vol), cleared, unused;
	int ret;

	/* from here on the run is the view's: a merge may take it away */
	cpc_view_link(vol, next, run, epoch, false);
	cpc_cache_remove(vol, w->block, w->nr, epoch);
	if (w->copies)
		cpc_cache_add_clean(vol, w->copies, w->block, w->nr);
	w->copies = NULL;
	ret =
	    cpc_io_tree_clear(&vol->io_tree, w->block << CPC_BLOCK_SHIFT, w->nr << CPC_BLOCK_SHIFT,
			      CPC_IO_DELALLOC | CPC_IO_LOCKED, &w->cached, &cs);
	cpc_assert(!ret || ret == -EIO);
	w->error = ret;
	cleared = cs.cleared_bytes >> CPC_BLOCK_SHIFT;
	atomic_store(&vol->has_direct, true);
	unused = use_log_room(w, log_bytes);
	/* last: who finds nothing dirty must find the direct run */
	atomic_fetch_sub(&vol->dirty_blocks, cleared);
	cpc_ticket_release(vol);
	cpc_log_unreserve(vol->engine->log, unused);
	cpc_unreserve(vol->engine, cleared);
	cpc_dirty_release(vol->engine, cleared);
	cpc_view_compact(vol);
}

/* Takes the builder's run. The range is locked; it is unlocked in every case. */
static int link_direct(struct writer *w, struct cpc_run_builder *builder, int ret)
{
	struct cpc_view *next = NULL;
	struct cpc_run *run;

	if (!ret)
		ret = builder->error;
	if (!ret)
		ret = log_room(w, run_log_bytes(builder->run));
	if (!ret) {
		next = cpc_view_alloc();
		ret = next ? cpc_view_reserve(w->vol) : -ENOMEM;
		if (ret)
			cpc_log_unreserve(w->vol->engine->log, w->log_room);
	}
	if (ret) {
		unlock_range(w);
		if (builder->run)
			release_run(w->vol->engine, builder->run);
		cpc_run_builder_abort(builder);
		cpc_free(next);
		return ret;
	}
	/* which fails only with the builder's error */
	cpc_assert(cpc_run_builder_finish(builder, &run) == 0);
	publish_run(w, next, run);
	return w->error;
}

static int write_chunks(struct direct *d)
{
	struct writer *w = d->w;
	int ret = 0;

	for (uint64_t done = 0; done < w->nr && !ret; done += CPC_BOUNCE_BLOCKS)
		ret = write_chunk(d, w->block + done, cpc_min_u64(CPC_BOUNCE_BLOCKS, w->nr - done));
	return ret;
}

/* While much of the cache is empty, what one bounce buffer held is kept there: it may be read soon.
 */
static void keep_copies(struct direct *d)
{
	struct writer *w = d->w;
	struct cpc_engine *e = w->vol->engine;

	if (w->nr > CPC_BOUNCE_BLOCKS || d->zeroes || !cpc_buf_take_spare(e, d->copies, w->nr))
		return;
	for (uint64_t i = 0; i < w->nr; i++)
		memcpy(cpc_buf_data(&e->memory, d->copies[i]), d->bounce + i * CPC_BLOCK_SIZE,
		       CPC_BLOCK_SIZE);
	w->copies = d->copies;
}

static void drop_copies(struct writer *w)
{
	for (uint64_t i = 0; w->copies && i < w->nr; i++)
		cpc_buf_put(w->vol->engine, w->copies[i]);
	w->copies = NULL;
}

static int write_direct(struct writer *w)
{
	struct cpc_engine *e = w->vol->engine;
	struct direct *d;
	int ret = cpc_map_throttle(e);

	if (!ret)
		ret = cpc_reserve(w->vol, w->block, w->nr, 0);
	if (ret)
		return ret;
	d = direct_new(w, w->nr);
	if (!d) {
		cpc_unreserve(e, w->nr);
		return -ENOMEM;
	}
	ret = lock_range(w);
	if (ret) {
		cpc_run_builder_abort(&d->builder);
		cpc_unreserve(e, w->nr);
		direct_free(d);
		return ret;
	}
	ret = write_chunks(d);
	if (!ret)
		keep_copies(d);
	ret = link_direct(w, &d->builder, ret);
	drop_copies(w);
	cpc_unreserve(e, d->writer.reserved);
	direct_free(d);
	return ret;
}

static uint64_t direct_threshold(const struct cpc_engine *e)
{
	uint64_t eighth = e->dirty_limit / 8;

	return cpc_max_u64(2, cpc_min_u64(DIRECT_BLOCKS, eighth));
}

static int write_any(struct writer *w)
{
	int ret = w->nr < direct_threshold(w->vol->engine) ? write_buffered(w) : write_direct(w);

	return ret ? ret : w->error;
}

/* --- holes --- */

static int punch_locked(struct writer *w)
{
	struct cpc_run_builder builder;
	int ret = lock_range(w);

	if (ret)
		return ret;
	ret = cpc_range_hole(w->vol, w->block, w->nr);
	if (ret) {
		unlock_range(w);
		return ret < 0 ? ret : 0;
	}
	cpc_run_builder_init(&builder, 1, 0);
	cpc_run_builder_hole(&builder, w->block, w->nr);
	return link_direct(w, &builder, 0);
}

static int punch(struct writer *w)
{
	int ret = cpc_map_throttle(w->vol->engine);

	return ret ? ret : punch_locked(w);
}

/* Bytes between a volume's end and the end of its last block may be anything; before it grows they
 * become zeroes. */
int cpc_zero_tail(struct cpc_volume *vol)
{
	uint64_t size = atomic_load(&vol->size), end = cpc_align_up(size, CPC_BLOCK_SIZE);
	struct writer w;

	if (size == end)
		return 0;
	writer_init(&w, vol, NULL, size, end - size);
	return write_any(&w);
}

/* A block that the volume's end cuts counts as whole: nobody reads behind the end. */
static uint64_t inner_end(struct cpc_volume *vol, uint64_t end)
{
	return end == atomic_load(&vol->size) ? cpc_align_up(end, CPC_BLOCK_SIZE)
					      : cpc_align_down(end, CPC_BLOCK_SIZE);
}

/* Zeroes at the ends of a hole: data of their own in the same run. */
static int zero_with_edges(struct writer *w, uint64_t start, uint64_t end)
{
	struct cpc_engine *e = w->vol->engine;
	uint64_t first = start >> CPC_BLOCK_SHIFT, last = end >> CPC_BLOCK_SHIFT;
	uint64_t edges = (first - w->block) + (w->block + w->nr - last);
	struct direct *d;
	int ret = cpc_map_throttle(e);

	if (!ret)
		ret = cpc_reserve(w->vol, w->block, edges, 0);
	if (ret)
		return ret;
	d = direct_new(w, edges);
	ret = d ? lock_range(w) : -ENOMEM;
	if (ret) {
		cpc_unreserve(e, edges);
		if (d) {
			cpc_run_builder_abort(&d->builder);
			direct_free(d);
		}
		return ret;
	}
	if (first > w->block)
		ret = write_chunk(d, w->block, 1);
	cpc_run_builder_hole(&d->builder, first, last - first);
	if (!ret && w->block + w->nr > last)
		ret = write_chunk(d, last, 1);
	ret = link_direct(w, &d->builder, ret);
	cpc_unreserve(e, d->writer.reserved);
	direct_free(d);
	return ret;
}

/* --- the door --- */

static int check_change(struct cpc_volume *vol, uint64_t len, uint64_t offset, int beyond)
{
	uint64_t size = atomic_load(&vol->size);
	int ret = cpc_engine_may_write(vol->engine);

	if (ret)
		return ret;
	if (cpc_volume_read_only(vol))
		return -EROFS;
	return offset > size || len > size - offset ? beyond : 0;
}

static int flush(struct cpc_volume *vol)
{
	int ret = cpc_flush(vol);

	if (!ret)
		cpc_kick_mark(vol->engine);
	return ret;
}

static int finish(struct cpc_volume *vol, int ret, unsigned flags, uint64_t start)
{
	struct cpc_engine *e = vol->engine;

	cpc_hist_add(&e->write_us, (cpc_now_ns() - start) / 1000);
	if (!ret && cpc_unlikely(atomic_load_explicit(&e->halted, memory_order_acquire)))
		return -EIO;
	if (ret || !(flags & CPC_FUA) || CPC_MUTANT(fua_not_flushed))
		return ret;
	atomic_fetch_add_explicit(&e->fua_writes, 1, memory_order_relaxed);
	return flush(vol);
}

int cpc_volume_write(struct cpc_volume *vol, const void *buf, uint64_t len, uint64_t offset,
		     unsigned flags)
{
	uint64_t start = cpc_now_ns();
	int ret = check_change(vol, len, offset, -ENOSPC);
	struct writer w;

	if (!ret && len) {
		cpc_io_tree_prefetch_fingers(&vol->io_tree, offset);
		writer_init(&w, vol, buf, offset, len);
		ret = write_any(&w);
	}
	atomic_fetch_add_explicit(&vol->engine->writes, 1, memory_order_relaxed);
	if (!ret)
		atomic_fetch_add_explicit(&vol->engine->bytes_written, len, memory_order_relaxed);
	return finish(vol, ret, flags, start);
}

int cpc_volume_trim(struct cpc_volume *vol, uint64_t len, uint64_t offset, unsigned flags)
{
	uint64_t start = cpc_now_ns();
	int ret = check_change(vol, len, offset, -EINVAL);
	uint64_t from = cpc_align_up(offset, CPC_BLOCK_SIZE), to = inner_end(vol, offset + len);
	struct writer w;

	if (!ret && from < to) {
		writer_init(&w, vol, NULL, from, to - from);
		ret = punch(&w);
	}
	atomic_fetch_add_explicit(&vol->engine->trims, 1, memory_order_relaxed);
	return finish(vol, ret, flags, start);
}

static int zero_range(struct cpc_volume *vol, uint64_t len, uint64_t offset, unsigned flags)
{
	uint64_t from = cpc_align_up(offset, CPC_BLOCK_SIZE), to = inner_end(vol, offset + len);
	struct writer w;

	if (flags & CPC_NO_HOLE && flags & CPC_FAST_ZERO)
		return -EOPNOTSUPP;
	writer_init(&w, vol, NULL, offset, len);
	if (flags & CPC_NO_HOLE || from >= to)
		return write_any(&w);
	if (from == offset && to >= offset + len)
		return punch(&w);
	return zero_with_edges(&w, from, to);
}

int cpc_volume_zero(struct cpc_volume *vol, uint64_t len, uint64_t offset, unsigned flags)
{
	uint64_t start = cpc_now_ns();
	int ret = check_change(vol, len, offset, -ENOSPC);

	if (!ret && len)
		ret = zero_range(vol, len, offset, flags);
	atomic_fetch_add_explicit(&vol->engine->zeroes, 1, memory_order_relaxed);
	return finish(vol, ret, flags, start);
}

int cpc_volume_flush(struct cpc_volume *vol)
{
	struct cpc_engine *e = vol->engine;
	uint64_t start = cpc_now_ns();
	int ret = cpc_engine_may_write(e);

	if (ret == -EROFS)
		ret = 0; /* nothing can be unflushed */
	else if (!ret)
		ret = flush(vol);
	atomic_fetch_add_explicit(&e->flushes, 1, memory_order_relaxed);
	cpc_hist_add(&e->flush_us, (cpc_now_ns() - start) / 1000);
	return ret;
}
