/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * data-write: blocks of data to new places of the pool, as few and long device writes as free space
 * allows. Neighbours in the sequence become neighbours on the device, whatever their place in the
 * volume: random writes leave as sequential ones.
 *
 * A write that fails is tried once more elsewhere; the blocks of the failed one stay out of use
 * until the pool is opened again, for the device may be bad there.
 */
#include "volume/volume-internal.h"

/* Buffers of large requests at once, for all volumes. */
#define MAX_BOUNCE 24u
#define ROUNDS	   2

static void write_done(struct cpc_io *io)
{
	struct cpc_data_write *dw = io->priv;
	struct cpc_data_writer *w = dw->writer;

	dw->busy = false;
	if (io->result) {
		if (!w->error)
			w->error = io->result;
		cpc_warn("write of %u blocks at %llu failed (%s)", dw->nr,
			 (unsigned long long)io->bytenr, strerror(-io->result));
		return;
	}
	for (uint32_t i = 0; i < dw->nr; i++)
		w->bytenr[dw->first + i] = (dw->block + i) << CPC_BLOCK_SHIFT;
	if (w->written)
		w->written(w, dw->nr);
}

static struct cpc_data_write *free_slot(struct cpc_data_writer *w)
{
	for (;;) {
		for (unsigned i = 0; i < CPC_DATA_WRITES; i++) {
			if (!w->slot[i].busy)
				return &w->slot[i];
		}
		cpc_ioq_reap(w->ioq, 1);
	}
}

/* Fills segments, joining pieces that are side by side in memory, and checksums. */
static void fill(struct cpc_data_writer *w, struct cpc_data_write *dw)
{
	unsigned nr_iov = 0;

	for (uint32_t i = 0; i < dw->nr; i++) {
		uint8_t *data = (uint8_t *)(uintptr_t)w->data(w, dw->first + i);
		struct iovec *last = nr_iov ? &dw->iov[nr_iov - 1] : NULL;

		w->csums[dw->first + i] =
		    w->csum ? w->csum(w, dw->first + i) : cpc_csum(data, CPC_BLOCK_SIZE);
		if (last && (uint8_t *)last->iov_base + last->iov_len == data)
			last->iov_len += CPC_BLOCK_SIZE;
		else
			dw->iov[nr_iov++] = (struct iovec){data, CPC_BLOCK_SIZE};
	}
	dw->io.nr_iov = nr_iov;
}

static void submit(struct cpc_data_writer *w, size_t first, uint32_t nr, uint64_t block)
{
	struct cpc_data_write *dw = free_slot(w);

	dw->writer = w;
	dw->busy = true;
	dw->block = block;
	dw->first = first;
	dw->nr = nr;
	memset(&dw->io, 0, sizeof(dw->io));
	fill(w, dw);
	dw->io.op = CPC_IO_WRITE;
	dw->io.cause = CPC_CAUSE_DATA;
	dw->io.bytenr = block << CPC_BLOCK_SHIFT;
	dw->io.iov = dw->iov;
	dw->io.fe = &w->engine->store->fe;
	dw->io.csums = &w->csums[first];
	dw->io.done = write_done;
	dw->io.priv = dw;
	cpc_ioq_submit(w->ioq, &dw->io);
	cpc_ioq_flush_submissions(w->ioq);
}

/* What a failed write has used up is taken from the pool's free blocks, reserved or not. */
static int alloc_run(struct cpc_data_writer *w, uint32_t want, uint64_t *block, uint32_t *got)
{
	struct cpc_space *space = w->engine->store->space;
	int ret;

	if (!w->reserved)
		return cpc_space_alloc(space, CPC_SPACE_DATA, want, 1, block, got);
	want = (uint32_t)cpc_min_u64(want, w->reserved);
	ret = cpc_space_alloc_reserved(space, CPC_SPACE_DATA, want, 1, block, got);
	if (!ret)
		w->reserved -= *got;
	return ret;
}

int cpc_data_write_begin(struct cpc_data_writer *w, struct cpc_ioq *ioq)
{
	struct cpc_space *space = w->engine->store->space;
	uint32_t nr = (uint32_t)w->nr, got;
	uint64_t block;
	int ret = cpc_space_alloc_reserved(space, CPC_SPACE_DATA, nr, nr, &block, &got);

	if (ret)
		return ret;
	w->reserved -= nr;
	w->error = 0;
	w->ioq = ioq;
	for (uint32_t i = 0; i < nr; i++)
		w->bytenr[i] = (block + i) << CPC_BLOCK_SHIFT;
	submit(w, 0, nr, block);
	return 0;
}

static int write_round(struct cpc_data_writer *w)
{
	size_t i = 0;

	w->error = 0;
	while (i < w->nr && !w->error) {
		uint32_t want = 0, got;
		uint64_t block;
		int ret;

		if (w->bytenr[i]) {
			i++;
			continue;
		}
		while (i + want < w->nr && want < CPC_DATA_RUN && !w->bytenr[i + want])
			want++;
		ret = alloc_run(w, want, &block, &got);
		if (ret) {
			w->error = ret;
			break;
		}
		submit(w, i, got, block);
		i += got;
	}
	cpc_ioq_wait(w->ioq);
	return w->error;
}

int cpc_data_write_all(struct cpc_data_writer *w)
{
	struct cpc_flush_epoch *fe = &w->engine->store->fe;
	int ret = -EIO;

	w->ioq = cpc_ioq_get(w->engine->store->backing);
	if (!w->ioq)
		return -ENOMEM;
	for (int i = 0; i < ROUNDS && ret && ret != -ENOSPC; i++) {
		if (cpc_engine_broken(w->engine, NULL, 0))
			break;
		ret = write_round(w);
	}
	cpc_ioq_put(w->engine->store->backing, w->ioq);
	if (!ret && cpc_flush_epoch_pressure(fe))
		ret = cpc_flush_epoch_flush(fe, CPC_FLUSH_PRESSURE);
	return ret;
}

void *cpc_bounce_get(struct cpc_engine *e)
{
	void *bounce = NULL;

	cpc_mutex_lock(&e->bounce_lock);
	while (!e->nr_bounce_idle && e->nr_bounce >= MAX_BOUNCE)
		cpc_cond_wait(&e->bounce_cond, &e->bounce_lock);
	if (e->nr_bounce_idle)
		bounce = e->bounce_idle[--e->nr_bounce_idle];
	else
		e->nr_bounce++;
	cpc_mutex_unlock(&e->bounce_lock);
	if (bounce)
		return bounce;
	bounce = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_BOUNCE_SIZE);
	if (!bounce)
		cpc_bounce_put(e, NULL);
	return bounce;
}

void cpc_bounce_put(struct cpc_engine *e, void *bounce)
{
	cpc_mutex_lock(&e->bounce_lock);
	if (bounce && e->nr_bounce_idle < CPC_ARRAY_SIZE(e->bounce_idle)) {
		e->bounce_idle[e->nr_bounce_idle++] = bounce;
		bounce = NULL;
	} else {
		e->nr_bounce--;
	}
	cpc_cond_signal(&e->bounce_cond);
	cpc_mutex_unlock(&e->bounce_lock);
	cpc_free(bounce);
}
