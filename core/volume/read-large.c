/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * read-large: reads that go around the cache, in pieces of which several are in flight. A piece is
 * verified and copied to the client, block by block, while the device works on the next ones: the
 * copy finds the block where the checksum has just had it, in the processor's cache.
 *
 * A piece that the device cannot read, or that does not match, is read once more by itself.
 *
 * Ahead. When a large read goes on where the one before it ends (the first of all: at the
 * beginning), the volume has not changed between, and nobody has begun the next yet, the next as
 * many bytes (1 MiB at most) are asked for before this one is answered: the device works while the
 * answer goes to the client. What was read so is used by a large read of which it is a part, and
 * only if the view is still the one by which it was read: then each of its blocks has been mapped
 * all the time, so none was given to anybody else, and no newer content is in the view; what is
 * newer in the cache has been looked up before. Else it is thrown away. Where I/O is synchronous
 * there are none.
 */
#include "volume/volume-internal.h"

#include "lib/mutation.h"

/* Blocks of a piece. All pieces have their place in one bounce buffer. */
#define PIECE_BLOCKS 32u
#define NR_PIECES    (CPC_BOUNCE_BLOCKS / PIECE_BLOCKS)

/* So many bounce buffers at most lie with reads ahead, one a volume; the others are for requests.
 * With that many a new one comes only in place of one that nobody has asked for in so long a time.
 */
#define AHEAD_MAX      8u
#define AHEAD_STALE_NS 1000000000ull

struct piece {
	struct cpc_io io;
	struct iovec iov;
	struct cpc_mapping map; /* at most PIECE_BLOCKS; its checksums are: */
	uint32_t csums[PIECE_BLOCKS];
	bool done;
};

struct cpc_large_read {
	struct cpc_list node; /* in engine->aheads; engine->ahead_lock */
	struct cpc_engine *engine;
	struct cpc_volume *vol; /* may be gone when another volume's read takes its place */
	struct cpc_ioq *ioq;
	uint8_t *bounce;
	uint64_t kept_ns;   /* when it began to be kept */
	unsigned first, nr; /* pieces in use, oldest first; they follow each other in a ring */
	uint64_t block, end, view_seq; /* what it has ahead, and by which view */
	struct piece pieces[NR_PIECES];
};

/* --- pieces --- */

/* Return: false when a block does not match; those before it have been copied. */
static bool verify_and_copy(const struct cpc_reader *r, const struct piece *p)
{
	const uint8_t *data = p->iov.iov_base;

	for (uint64_t i = 0; i < p->map.nr; i++, data += CPC_BLOCK_SIZE) {
		if (!cpc_block_matches(data, p->csums[i]))
			return false;
		cpc_copy_out(r, p->map.block + i, data);
	}
	return true;
}

static int read_again(const struct cpc_reader *r, const struct piece *p)
{
	const uint8_t *data = p->iov.iov_base;
	int ret = cpc_read_mapping(r->vol, &p->map, p->iov.iov_base);

	for (uint64_t i = 0; !ret && i < p->map.nr; i++, data += CPC_BLOCK_SIZE)
		cpc_copy_out(r, p->map.block + i, data);
	return ret;
}

static void piece_done(struct cpc_io *io)
{
	struct piece *p = io->priv;

	p->done = true;
}

/* The oldest piece, to the client. */
static int finish_piece(struct cpc_large_read *read, const struct cpc_reader *r)
{
	struct piece *p = &read->pieces[read->first];

	while (!p->done)
		cpc_ioq_reap(read->ioq, 1);
	read->first = (read->first + 1) % NR_PIECES;
	read->nr--;
	return p->io.result || !verify_and_copy(r, p) ? read_again(r, p) : 0;
}

static void start_piece(struct cpc_large_read *read, const struct cpc_mapping *m)
{
	unsigned i = (read->first + read->nr++) % NR_PIECES;
	struct piece *p = &read->pieces[i];

	p->done = false;
	p->map = *m;
	p->map.csums = p->csums;
	memcpy(p->csums, m->csums, m->nr * sizeof(p->csums[0]));
	p->iov.iov_base = read->bounce + (size_t)i * (PIECE_BLOCKS << CPC_BLOCK_SHIFT);
	p->iov.iov_len = m->nr << CPC_BLOCK_SHIFT;
	p->io = (struct cpc_io){
	    .op = CPC_IO_READ,
	    .bytenr = m->bytenr,
	    .iov = &p->iov,
	    .nr_iov = 1,
	    .done = piece_done,
	    .priv = p,
	};
	cpc_ioq_submit(read->ioq, &p->io);
}

/* The piece of a mapping that begins with its i-th block. */
static struct cpc_mapping piece_of(const struct cpc_mapping *m, uint64_t i)
{
	struct cpc_mapping part = *m;

	part.block = m->block + i;
	part.bytenr = m->bytenr + (i << CPC_BLOCK_SHIFT);
	part.csums = m->csums + i;
	part.nr = cpc_min_u64(m->nr - i, PIECE_BLOCKS);
	return part;
}

/* --- life --- */

static struct cpc_large_read *read_new(struct cpc_volume *vol)
{
	struct cpc_engine *e = vol->engine;
	struct cpc_large_read *read = cpc_alloc(sizeof(*read));

	if (!read)
		return NULL;
	read->engine = e;
	read->vol = vol;
	read->first = read->nr = 0;
	read->block = read->end = 0;
	cpc_list_init(&read->node);
	read->bounce = cpc_bounce_get(e);
	read->ioq = read->bounce ? cpc_ioq_get(e->store->backing) : NULL;
	if (read->ioq)
		return read;
	if (read->bounce)
		cpc_bounce_put(e, read->bounce);
	cpc_free(read);
	return NULL;
}

/* Waits for what is in flight. NULL is allowed. */
static void read_free(struct cpc_large_read *read)
{
	struct cpc_engine *e;

	if (!read)
		return;
	e = read->engine;
	cpc_ioq_put(e->store->backing, read->ioq);
	cpc_bounce_put(e, read->bounce);
	cpc_free(read);
}

/* --- ahead --- */

static struct cpc_large_read *find_ahead(struct cpc_engine *e, const struct cpc_volume *vol)
{
	struct cpc_list *pos;

	cpc_mutex_assert_held(&e->ahead_lock);
	cpc_list_for_each (pos, &e->aheads) {
		struct cpc_large_read *read = cpc_list_entry(pos, struct cpc_large_read, node);

		if (read->vol == vol)
			return read;
	}
	return NULL;
}

/* Takes out what is kept for the volume; NULL: nothing. */
static struct cpc_large_read *pick_ahead(struct cpc_volume *vol)
{
	struct cpc_engine *e = vol->engine;
	struct cpc_large_read *read;

	cpc_mutex_lock(&e->ahead_lock);
	read = find_ahead(e, vol);
	if (read) {
		cpc_list_del(&read->node);
		e->nr_aheads--;
	}
	cpc_mutex_unlock(&e->ahead_lock);
	return read;
}

/* Leaves of what was read ahead only what is a part of this read and still what the view says. */
static void use_ahead(struct cpc_large_read *read, const struct cpc_view *view, uint64_t block,
		      uint64_t nr)
{
	if (read->block >= block && read->end <= block + nr && read->block < read->end &&
	    (read->view_seq == view->seq || CPC_MUTANT(ahead_of_an_older_view))) {
		atomic_fetch_add_explicit(&read->engine->read_ahead, read->end - read->block,
					  memory_order_relaxed);
		return;
	}
	cpc_ioq_wait(read->ioq);
	read->first = read->nr = 0;
	read->block = read->end = block;
}

/* The one whose place a new one takes, NULL: none has to go. False: there is no place. */
static bool find_place(struct cpc_engine *e, const struct cpc_volume *vol,
		       struct cpc_large_read **old)
{
	*old = find_ahead(e, vol);
	if (*old || e->nr_aheads < AHEAD_MAX)
		return true;
	*old = cpc_list_first(&e->aheads, struct cpc_large_read, node);
	return cpc_now_ns() - (*old)->kept_ns > AHEAD_STALE_NS;
}

static bool has_place(struct cpc_volume *vol)
{
	struct cpc_large_read *old;
	bool place;

	cpc_mutex_lock(&vol->engine->ahead_lock);
	place = find_place(vol->engine, vol, &old);
	cpc_mutex_unlock(&vol->engine->ahead_lock);
	return place;
}

static void keep_ahead(struct cpc_large_read *read)
{
	struct cpc_engine *e = read->engine;
	struct cpc_large_read *old;

	read->kept_ns = cpc_now_ns();
	cpc_mutex_lock(&e->ahead_lock);
	if (!find_place(e, read->vol, &old)) {
		old = read; /* others were faster */
	} else {
		if (old)
			cpc_list_del(&old->node);
		else
			e->nr_aheads++;
		cpc_list_add_tail(&e->aheads, &read->node);
	}
	cpc_mutex_unlock(&e->ahead_lock);
	read_free(old);
}

void cpc_read_ahead_drop(struct cpc_volume *vol)
{
	read_free(pick_ahead(vol));
}

/* Up to the first hole, or as much as there is room for. */
static int start_ahead_mapping(void *ctx, const struct cpc_mapping *m)
{
	struct cpc_large_read *read = ctx;

	if (!m->bytenr)
		return 1;
	for (uint64_t i = 0; i < m->nr;) {
		struct cpc_mapping part = piece_of(m, i);

		if (read->nr == NR_PIECES)
			return 1;
		start_piece(read, &part);
		read->end = part.block + part.nr;
		i += part.nr;
	}
	return 0;
}

/* Return: false when there is nothing to be kept; what is in flight is waited for by read_free. */
static bool start_ahead(struct cpc_large_read *read, struct cpc_view *view, uint64_t block,
			uint64_t nr)
{
	uint64_t blocks = atomic_load(&read->vol->size) >> CPC_BLOCK_SHIFT;

	if (cpc_ioq_is_sync(read->ioq) || block >= blocks)
		return false;
	nr = cpc_min_u64(cpc_min_u64(nr, CPC_BOUNCE_BLOCKS), blocks - block);
	read->block = read->end = block;
	read->view_seq = view->seq;
	if (cpc_view_map(read->vol, view, block, nr, start_ahead_mapping, read) < 0)
		return false;
	cpc_ioq_flush_submissions(read->ioq);
	return read->nr > 0;
}

/* Does this read go on where the one that began last ends, be it in the middle of a block, with
 * nothing changed between? Only a hint. */
static bool goes_on(struct cpc_volume *vol, const struct cpc_view *view, uint64_t block,
		    uint64_t nr)
{
	uint64_t end = atomic_exchange_explicit(&vol->large_end, block + nr, memory_order_relaxed);
	uint64_t seq = atomic_exchange_explicit(&vol->large_seq, view->seq, memory_order_relaxed);

	return (end == block || end == block + 1) && seq == view->seq;
}

/* A client with several requests at once has begun the next one itself. */
static bool next_has_begun(struct cpc_volume *vol, uint64_t end)
{
	return atomic_load_explicit(&vol->large_end, memory_order_relaxed) != end;
}

/* --- the read --- */

struct walk {
	const struct cpc_reader *reader;
	struct cpc_large_read *read;
};

static void read_hole(const struct cpc_reader *r, const struct cpc_mapping *m)
{
	uint64_t start, end;

	cpc_clip(m->block, m->nr, r->offset, r->len, &start, &end);
	if (r->buf)
		memset(r->buf + (start - r->offset), 0, end - start);
}

static int read_mapping(void *ctx, const struct cpc_mapping *m)
{
	const struct walk *w = ctx;
	int ret = 0;

	if (!m->bytenr) {
		read_hole(w->reader, m);
		return 0;
	}
	for (uint64_t i = 0; i < m->nr && !ret;) {
		struct cpc_mapping part = piece_of(m, i);
		bool full = w->read->nr == NR_PIECES;

		if (full)
			ret = finish_piece(w->read, w->reader);
		start_piece(w->read, &part);
		if (full) /* nobody may wait, which would pass it on */
			cpc_ioq_flush_submissions(w->read->ioq);
		i += part.nr;
	}
	return ret;
}

/* What the read has ahead is in [from, to) already. */
static int read_by(struct walk *w, struct cpc_view *view, uint64_t block, uint64_t nr)
{
	struct cpc_volume *vol = w->reader->vol;
	uint64_t from = w->read->block, to = w->read->end;
	int ret = 0;

	if (from > block)
		ret = cpc_view_map(vol, view, block, from - block, read_mapping, w);
	if (!ret && to < block + nr)
		ret = cpc_view_map(vol, view, to, block + nr - to, read_mapping, w);
	while (w->read->nr) {
		int error = finish_piece(w->read, w->reader);

		if (!ret)
			ret = error;
	}
	return ret;
}

int cpc_read_large(const struct cpc_reader *r, uint64_t block, uint64_t nr)
{
	struct cpc_volume *vol = r->vol;
	struct walk w = {r, pick_ahead(vol)};
	struct cpc_view *view;
	bool next;
	int ret;

	if (!w.read)
		w.read = read_new(vol);
	if (!w.read)
		return -ENOMEM;
	view = cpc_view_get(vol);
	use_ahead(w.read, view, block, nr);
	next = goes_on(vol, view, block, nr);
	ret = read_by(&w, view, block, nr);
	if (!ret && next && !next_has_begun(vol, block + nr) && has_place(vol) &&
	    start_ahead(w.read, view, block + nr, nr))
		keep_ahead(w.read);
	else
		read_free(w.read);
	cpc_view_put(vol, view);
	return ret;
}
