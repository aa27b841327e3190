/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * read-large: reads that go around the cache, in pieces of which several are in flight. A piece is
 * verified and copied to the client, block by block, while the device works on the next ones: the
 * copy finds the block where the checksum has just had it, in the processor's cache.
 *
 * A piece that the device cannot read, or that does not match, is read once more by itself.
 */
#include "volume/volume-internal.h"

/* Blocks of a piece. All pieces have their place in one bounce buffer. */
#define PIECE_BLOCKS 32u
#define NR_PIECES    (CPC_BOUNCE_BLOCKS / PIECE_BLOCKS)

struct piece {
	struct cpc_io io;
	struct iovec iov;
	struct large_read *read;
	struct cpc_mapping map; /* at most PIECE_BLOCKS; its checksums are: */
	uint32_t csums[PIECE_BLOCKS];
	bool busy;
};

struct large_read {
	const struct cpc_reader *reader;
	struct cpc_ioq *ioq;
	int error; /* the first */
	struct piece pieces[NR_PIECES];
};

/* Return: false when a block does not match; those before it have been copied. */
static bool verify_and_copy(const struct piece *p)
{
	const uint8_t *data = p->iov.iov_base;

	for (uint64_t i = 0; i < p->map.nr; i++, data += CPC_BLOCK_SIZE) {
		if (!cpc_block_matches(data, p->csums[i]))
			return false;
		cpc_copy_out(p->read->reader, p->map.block + i, data);
	}
	return true;
}

static int read_again(const struct piece *p)
{
	const uint8_t *data = p->iov.iov_base;
	int ret = cpc_read_mapping(p->read->reader->vol, &p->map, p->iov.iov_base);

	for (uint64_t i = 0; !ret && i < p->map.nr; i++, data += CPC_BLOCK_SIZE)
		cpc_copy_out(p->read->reader, p->map.block + i, data);
	return ret;
}

static void piece_done(struct cpc_io *io)
{
	struct piece *p = io->priv;
	int ret = 0;

	if (io->result || !verify_and_copy(p))
		ret = read_again(p);
	if (ret && !p->read->error)
		p->read->error = ret;
	p->busy = false;
}

static struct piece *free_piece(struct large_read *read)
{
	for (;;) {
		for (unsigned i = 0; i < NR_PIECES; i++) {
			if (!read->pieces[i].busy)
				return &read->pieces[i];
		}
		cpc_ioq_reap(read->ioq, 1);
	}
}

static void start_piece(struct large_read *read, const struct cpc_mapping *m)
{
	struct piece *p = free_piece(read);

	p->busy = true;
	p->map = *m;
	p->map.csums = p->csums;
	memcpy(p->csums, m->csums, m->nr * sizeof(p->csums[0]));
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

static void read_hole(const struct cpc_reader *r, const struct cpc_mapping *m)
{
	uint64_t start, end;

	cpc_clip(m->block, m->nr, r->offset, r->len, &start, &end);
	if (r->buf)
		memset(r->buf + (start - r->offset), 0, end - start);
}

static int start_mapping(void *ctx, const struct cpc_mapping *m)
{
	struct large_read *read = ctx;
	struct cpc_mapping part = *m;

	if (!m->bytenr) {
		read_hole(read->reader, m);
		return 0;
	}
	for (uint64_t i = 0; i < m->nr && !read->error; i += part.nr) {
		part.block = m->block + i;
		part.bytenr = m->bytenr + (i << CPC_BLOCK_SHIFT);
		part.csums = m->csums + i;
		part.nr = cpc_min_u64(m->nr - i, PIECE_BLOCKS);
		start_piece(read, &part);
	}
	return read->error;
}

static int read_pieces(struct large_read *read, uint8_t *bounce, uint64_t block, uint64_t nr)
{
	struct cpc_volume *vol = read->reader->vol;
	struct cpc_view *view = cpc_view_get(vol);
	int ret;

	for (unsigned i = 0; i < NR_PIECES; i++) {
		read->pieces[i].read = read;
		read->pieces[i].busy = false;
		read->pieces[i].iov.iov_base = bounce + i * (PIECE_BLOCKS << CPC_BLOCK_SHIFT);
	}
	ret = cpc_view_map(vol, view, block, nr, start_mapping, read);
	cpc_ioq_wait(read->ioq);
	cpc_view_put(vol, view);
	return ret ? ret : read->error;
}

int cpc_read_large(const struct cpc_reader *r, uint64_t block, uint64_t nr)
{
	struct cpc_engine *e = r->vol->engine;
	struct large_read read = {.reader = r};
	uint8_t *bounce = cpc_bounce_get(e);
	int ret = -ENOMEM;

	if (!bounce)
		return ret;
	read.ioq = cpc_ioq_get(e->store->backing);
	if (read.ioq) {
		ret = read_pieces(&read, bounce, block, nr);
		cpc_ioq_put(e->store->backing, read.ioq);
	}
	cpc_bounce_put(e, bounce);
	return ret;
}
