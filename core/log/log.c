/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * log: the ring, its flush and its marks.
 *
 * Batches get their sequence numbers and places under one short lock and are written without it, so
 * several volumes write at once. `completed` is the end of the gapless prefix of what has been
 * written; a flush waits for it and then shares one device flush with whoever else waits (the
 * flush epoch joins them).
 *
 * Rejected: a log a volume (a flush of one volume would still have to cover what another wrote into
 * space that the first freed, and many clients' flushes could not share one record area); rewriting
 * a record to carry the durable mark (a torn rewrite would lose an answered flush).
 */
#include "log/log-internal.h"

#include "backing/ioq.h"
#include "lib/hooks.h"
#include "lib/log.h"
#include "lib/mutation.h"

#define MARK_QUIET_NS 10000000ull

/* Kept free beside reservations: what wrapping wastes, and a few marks. */
static uint64_t slack(const struct cpc_log *log)
{
	return 2 * (uint64_t)log->max_record + 4 * CPC_BLOCK_SIZE;
}

int cpc_log_create(struct cpc_store *store, struct cpc_log **out)
{
	struct cpc_log *log = cpc_zalloc(sizeof(*log));

	if (!log)
		return -ENOMEM;
	log->store = store;
	log->size = store->super.log_size;
	log->max_record = cpc_log_max_record(log->size);
	log->head = store->super.log_position;
	log->next_seq = 1;
	cpc_mutex_init(&log->lock, "log", CPC_RANK_LOG);
	cpc_cond_init(&log->cond);
	atomic_init(&log->tail, log->head);
	atomic_init(&log->held, UINT64_MAX);
	atomic_init(&log->head_copy, log->head);
	*out = log;
	return 0;
}

void cpc_log_destroy(struct cpc_log *log)
{
	cpc_mutex_destroy(&log->lock);
	cpc_cond_destroy(&log->cond);
	cpc_free(log);
}

/* --- room --- */

/* From here on the ring must not be overwritten. */
static uint64_t kept_from(struct cpc_log *log)
{
	/* tail first: one that has moved on since a hold began is seen together with the hold */
	uint64_t tail = atomic_load(&log->tail);

	return CPC_MUTANT(scrub_keeps_no_ring) ? tail : cpc_min_u64(tail, atomic_load(&log->held));
}

static uint64_t used(struct cpc_log *log)
{
	/* tail first: it never passes head */
	uint64_t tail = kept_from(log);

	return atomic_load(&log->head_copy) - tail;
}

int cpc_log_reserve(struct cpc_log *log, uint64_t bytes)
{
	uint64_t reserved = atomic_load(&log->reserved);

	do {
		if (!CPC_MUTANT(ring_room_not_reserved) &&
		    used(log) + reserved + bytes + slack(log) > log->size)
			return -ENOSPC;
	} while (!atomic_compare_exchange_weak(&log->reserved, &reserved, reserved + bytes));
	return 0;
}

void cpc_log_unreserve(struct cpc_log *log, uint64_t bytes)
{
	cpc_assert(atomic_fetch_sub(&log->reserved, bytes) >= bytes);
}

bool cpc_log_wants_commit(struct cpc_log *log)
{
	return used(log) + atomic_load(&log->reserved) > log->size / 2;
}

/* --- append --- */

/* Where a record of `len` bytes goes from `head` on: it never wraps. */
static uint64_t place(const struct cpc_log *log, uint64_t head, uint64_t len)
{
	uint64_t left = log->size - head % log->size;

	return len <= left ? head : head + left;
}

static void fill_headers(struct cpc_log *log, struct cpc_log_batch *b)
{
	uint64_t durable =
	    CPC_MUTANT(mark_ahead_of_its_flush) ? b->last_seq : atomic_load(&log->durable);
	uint64_t transid = cpc_store_transid(log->store);

	for (unsigned i = 0; i < b->nr_pieces; i++) {
		struct cpc_disk_log_record *record = (void *)(b->buf + b->piece[i].start);
		uint32_t flags = b->total_entries ? 0 : CPC_LOG_MARK;

		if (i + 1 == b->nr_pieces)
			flags |= CPC_LOG_ENDS_CUT;
		cpc_put_le64(&record->seq, b->first_seq + i);
		cpc_put_le64(&record->transid, transid);
		cpc_put_le64(&record->durable, durable);
		cpc_put_le64(&record->position, b->piece[i].position);
		cpc_put_le32(&record->flags, flags);
		cpc_put_le32(&record->csum,
			     cpc_csum_without_field(record, b->piece[i].len,
						    offsetof(struct cpc_disk_log_record, csum)));
	}
	b->durable = durable;
}

int cpc_log_batch_renumber(struct cpc_log_batch *b, const struct cpc_log_batch *from)
{
	if (b->nr_pieces != from->nr_pieces)
		return -EUCLEAN;
	for (unsigned i = 0; i < b->nr_pieces; i++) {
		if (b->piece[i].len != from->piece[i].len)
			return -EUCLEAN;
		b->piece[i].position = from->piece[i].position;
	}
	b->first_seq = from->first_seq;
	b->last_seq = from->last_seq;
	b->end_position = from->end_position;
	fill_headers(b->log, b);
	return 0;
}

int cpc_log_append(struct cpc_log *log, struct cpc_log_batch *b)
{
	uint64_t head;

	cpc_assert(!b->error && b->nr_pieces);
	cpc_mutex_lock(&log->lock);
	while (log->freezing || log->nr_open == CPC_LOG_MAX_OPEN)
		cpc_cond_wait(&log->cond, &log->lock);
	if (atomic_load(&log->broken)) {
		cpc_mutex_unlock(&log->lock);
		return -EIO;
	}
	head = log->head;
	for (unsigned i = 0; i < b->nr_pieces; i++) {
		head = place(log, head, b->piece[i].len);
		b->piece[i].position = head;
		head += b->piece[i].len;
	}
	cpc_assert(head - kept_from(log) <= log->size);
	log->head = head;
	atomic_store(&log->head_copy, head);
	b->first_seq = log->next_seq;
	b->last_seq = log->next_seq + b->nr_pieces - 1;
	b->end_position = head;
	log->next_seq += b->nr_pieces;
	if (b->total_entries)
		log->last_change = b->last_seq;
	log->append_ns = cpc_now_ns();
	log->open[log->nr_open++].first_seq = b->first_seq;
	cpc_mutex_unlock(&log->lock);
	fill_headers(log, b);
	return 0;
}

/* --- writing --- */

static void record_done(struct cpc_io *io)
{
	struct cpc_log_write *w = io->priv;

	if (io->result && !*w->result)
		*w->result = io->result;
}

void cpc_log_submit(struct cpc_log *log, struct cpc_log_batch *b, struct cpc_ioq *ioq, int *result)
{
	for (unsigned i = 0; i < 2 * b->nr_pieces; i += CPC_MUTANT(records_in_one_copy) ? 2 : 1) {
		const struct cpc_log_piece *piece = &b->piece[i / 2];
		struct cpc_log_write *w = &b->write[i];

		memset(w, 0, sizeof(*w));
		w->iov = (struct iovec){b->buf + piece->start, piece->len};
		w->result = result;
		w->io.op = CPC_IO_WRITE;
		w->io.cause = CPC_CAUSE_LOG;
		w->io.bytenr = cpc_log_bytenr(log->store, i % 2, piece->position);
		w->io.iov = &w->iov;
		w->io.nr_iov = 1;
		w->io.fe = &log->store->fe;
		w->io.done = record_done;
		w->io.priv = w;
		cpc_ioq_submit(ioq, &w->io);
	}
}

static int write_async(struct cpc_log *log, struct cpc_log_batch *b)
{
	struct cpc_ioq *ioq = cpc_ioq_get(log->store->backing);
	int result = 0;

	if (!ioq)
		return -ENOMEM;
	cpc_log_submit(log, b, ioq, &result);
	cpc_ioq_put(log->store->backing, ioq);
	return result;
}

static int write_sync(struct cpc_log *log, struct cpc_log_batch *b)
{
	int ret = 0;

	for (unsigned i = 0; i < 2 * b->nr_pieces && !ret; i++) {
		const struct cpc_log_piece *piece = &b->piece[i / 2];

		ret = cpc_fe_write(&log->store->fe,
				   cpc_log_bytenr(log->store, i % 2, piece->position),
				   b->buf + piece->start, piece->len, CPC_CAUSE_LOG, NULL);
	}
	return ret;
}

/* A record that has a number must be written: a second try, which needs no memory. */
int cpc_log_write(struct cpc_log *log, struct cpc_log_batch *b)
{
	return write_async(log, b) && !CPC_MUTANT(record_error_swallowed) ? write_sync(log, b) : 0;
}

static uint64_t new_completed(const struct cpc_log *log)
{
	uint64_t first = log->next_seq;

	for (unsigned i = 0; i < log->nr_open && !CPC_MUTANT(gap_counts_as_completed); i++)
		first = cpc_min_u64(first, log->open[i].first_seq);
	return first - 1;
}

void cpc_log_complete(struct cpc_log *log, struct cpc_log_batch *b, int result)
{
	unsigned i = 0;

	cpc_mutex_lock(&log->lock);
	if (result && !atomic_load(&log->broken)) {
		cpc_error("log record %llu cannot be written: %s", (unsigned long long)b->first_seq,
			  strerror(-result));
		atomic_store(&log->broken, true);
	}
	while (i < log->nr_open && log->open[i].first_seq != b->first_seq)
		i++;
	cpc_assert(i < log->nr_open);
	log->open[i] = log->open[--log->nr_open];
	if (!atomic_load(&log->broken)) {
		atomic_store(&log->completed, new_completed(log));
		log->marked = cpc_max_u64(log->marked, b->durable);
	}
	cpc_cond_broadcast(&log->cond);
	cpc_mutex_unlock(&log->lock);
	atomic_fetch_add(&log->records, b->nr_pieces);
	atomic_fetch_add(&log->entries, b->total_entries);
	atomic_fetch_add(&log->bytes, 2 * b->len);
}

int cpc_log_add(struct cpc_log *log, struct cpc_log_batch *b)
{
	int ret = cpc_log_append(log, b);

	if (ret)
		return ret;
	ret = cpc_log_write(log, b);
	cpc_log_complete(log, b, ret);
	return ret;
}

/* --- flush --- */

static void raise_durable(struct cpc_log *log, uint64_t seq)
{
	uint64_t durable = atomic_load(&log->durable);

	while (durable < seq && !atomic_compare_exchange_weak(&log->durable, &durable, seq))
		;
}

int cpc_log_flush(struct cpc_log *log, uint64_t seq)
{
	uint64_t covered;
	int ret;

	if (atomic_load(CPC_MUTANT(logged_counts_as_durable) ? &log->completed : &log->durable) >=
	    seq)
		return 0;
	cpc_mutex_lock(&log->lock);
	while (atomic_load(&log->completed) < seq && !atomic_load(&log->broken))
		cpc_cond_wait(&log->cond, &log->lock);
	covered = atomic_load(&log->completed);
	cpc_mutex_unlock(&log->lock);
	if (covered < seq)
		return -EIO;
	if (atomic_load(&log->durable) >= seq) {
		atomic_fetch_add_explicit(&log->flushes_joined, 1, memory_order_relaxed);
		return 0;
	}
	ret = CPC_MUTANT(flush_without_device_flush)
		  ? 0
		  : cpc_flush_epoch_flush(&log->store->fe, CPC_FLUSH_LOG);
	if (!ret)
		raise_durable(log, CPC_MUTANT(flush_covers_what_came_later)
				       ? atomic_load(&log->completed)
				       : covered);
	return ret;
}

/* --- commit --- */

void cpc_log_freeze(struct cpc_log *log, uint64_t *seq, uint64_t *position)
{
	cpc_mutex_lock(&log->lock);
	log->freezing = true;
	while (log->nr_open && !CPC_MUTANT(commit_waits_for_no_record))
		cpc_cond_wait(&log->cond, &log->lock);
	if (CPC_MUTANT(ring_freed_before_commit))
		atomic_store(&log->tail, log->head);
	*seq = log->next_seq - 1;
	*position = log->head;
	cpc_mutex_unlock(&log->lock);
}

void cpc_log_thaw(struct cpc_log *log)
{
	cpc_mutex_lock(&log->lock);
	log->freezing = false;
	cpc_cond_broadcast(&log->cond);
	cpc_mutex_unlock(&log->lock);
}

void cpc_log_committed(struct cpc_log *log, uint64_t seq, uint64_t position)
{
	raise_durable(log, seq);
	cpc_mutex_lock(&log->lock);
	log->marked = cpc_max_u64(log->marked, seq);
	atomic_store(&log->tail, position);
	cpc_mutex_unlock(&log->lock);
}

/* --- marks --- */

/* Whether a mark is owed, and how long it can wait. */
static bool mark_due(struct cpc_log *log, uint64_t *wait_ns)
{
	bool due = false;
	uint64_t now;

	cpc_mutex_lock(&log->lock);
	now = cpc_now_ns(); /* here: no append is later */
	*wait_ns = UINT64_MAX;
	/* A mark asks for no mark: only changes do. */
	if (!CPC_MUTANT(mark_never_written) &&
	    log->marked < cpc_min_u64(atomic_load(&log->durable), log->last_change)) {
		uint64_t quiet = now - log->append_ns;

		due = quiet >= MARK_QUIET_NS;
		*wait_ns = due ? MARK_QUIET_NS : MARK_QUIET_NS - quiet;
	}
	cpc_mutex_unlock(&log->lock);
	return due;
}

void cpc_log_mark(struct cpc_log *log, uint64_t *wait_ns)
{
	struct cpc_log_batch b;
	int ret;

	if (!mark_due(log, wait_ns) || atomic_load(&log->broken))
		return;
	/* Never for the price of a flush's room. */
	if (cpc_log_reserve(log, CPC_BLOCK_SIZE))
		return;
	cpc_log_batch_init(&b, log);
	ret = cpc_log_batch_mark(&b);
	if (!ret)
		ret = cpc_log_add(log, &b);
	if (!ret)
		atomic_fetch_add(&log->marks, 1);
	cpc_log_batch_destroy(&b);
	cpc_log_unreserve(log, CPC_BLOCK_SIZE);
}

void cpc_log_get_stats(struct cpc_log *log, struct cpc_log_stats *s)
{
	cpc_mutex_lock(&log->lock);
	s->last_seq = log->next_seq - 1;
	cpc_mutex_unlock(&log->lock);
	s->size = log->size;
	s->used = used(log);
	s->records = atomic_load(&log->records);
	s->entries = atomic_load(&log->entries);
	s->bytes = atomic_load(&log->bytes);
	s->marks = atomic_load(&log->marks);
	s->flushes_joined = atomic_load(&log->flushes_joined);
	s->durable_seq = cpc_log_durable(log);
}
