/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The measurement. A pool on a device of memory that keeps everything but data (nobody reads that
 * back) and takes no time: what is measured is the software, and each way to find dirty things gets
 * the same device. The volume's blocks are all cached; nodes are cached in a node cache of their
 * own beside the pool's, so that their number is exact and no tree-checker looks at them.
 *
 * A round: so many blocks and nodes, spread over all, are made dirty. Then, timed, the writeback of
 * a commit runs (a cut of the volume, the sync of the nodes, a device flush) while the writers
 * write as many blocks again. Then a commit of the pool, not timed, empties the log.
 */
#include "volume/bench-writeback-run.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "pool/pool.h"
#include "volume/volume-internal.h"

#define POOL_SIZE   (16ull << 30)
#define MAX_WRITERS 16u
#define SCATTER	    2654435761ull /* a prime */

static void must(int ret, const char *what)
{
	if (!ret)
		return;
	fprintf(stderr, "bench-writeback: %s: %s\n", what, strerror(-ret));
	exit(1);
}

/* --- the device --- */

struct memory_device {
	struct cpc_backing backing;
	uint8_t *data;
};

static int memory_writev(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov,
			 unsigned nr, enum cpc_cause cause)
{
	uint8_t *to = cpc_container_of(b, struct memory_device, backing)->data + bytenr;

	for (unsigned i = 0; i < nr && cause != CPC_CAUSE_DATA; i++) {
		memcpy(to, iov[i].iov_base, iov[i].iov_len);
		to += iov[i].iov_len;
	}
	return 0;
}

static int memory_readv(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov,
			unsigned nr)
{
	const uint8_t *from = cpc_container_of(b, struct memory_device, backing)->data + bytenr;

	for (unsigned i = 0; i < nr; i++) {
		memcpy(iov[i].iov_base, from, iov[i].iov_len);
		from += iov[i].iov_len;
	}
	return 0;
}

static int memory_flush(struct cpc_backing *b)
{
	return 0;
}

static int memory_discard(struct cpc_backing *b, uint64_t bytenr, uint64_t len)
{
	return 0;
}

static int memory_size(struct cpc_backing *b, uint64_t *size)
{
	*size = POOL_SIZE;
	return 0;
}

static void memory_close(struct cpc_backing *b)
{
}

static void memory_open(struct memory_device *d)
{
	static const struct cpc_backing_ops ops = {"memory",	 memory_readv,	 memory_writev,
						   memory_flush, memory_discard, memory_size,
						   memory_close};

	if (!d->data)
		d->data = mmap(NULL, POOL_SIZE, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (d->data == MAP_FAILED)
		must(-ENOMEM, "device");
	cpc_backing_init(&d->backing, &ops, POOL_SIZE, -1, false);
}

/* --- the pool --- */

struct bench;

struct writer {
	struct bench *b;
	pthread_t thread;
	uint64_t from, nr; /* numbers of this phase */
};

struct bench {
	const struct bench_writeback_params *p;
	struct memory_device device;
	struct cpc_pool *pool;
	struct cpc_volume *vol;
	struct cpc_engine *e;
	struct cpc_eb_cache *nodes;
	uint64_t (*bytenr)[2]; /* of each node */
	uint64_t next_block, next_node, generation;
	struct cpc_hist *write_ns; /* NULL: not timed */
	struct writer writer[MAX_WRITERS];
};

static void open_pool(struct bench *b)
{
	uint64_t size = (uint64_t)b->p->blocks * CPC_BLOCK_SIZE;
	struct cpc_format_options fo = {.nodesize = 4096};
	struct cpc_pool_options opts;
	struct cpc_error err;

	memory_open(&b->device);
	must(cpc_pool_format_backing(&b->device.backing, &fo, &err), "format");
	cpc_pool_options_init(&opts);
	/* room for all blocks and as many that are written again */
	opts.cache = cpc_align_up(size * 21 / 10, CPC_BLOCK_SIZE) + CPC_CACHE_MIN;
	opts.commit_interval = 0;
	opts.no_threads = true;
	must(cpc_pool_open_backing(&b->device.backing, &opts, &b->pool, &err), "open");
	must(cpc_pool_start(b->pool, &err), "start");
	must(cpc_pool_create_volume(b->pool, "v", size, &err), "create");
	must(cpc_pool_open_volume(b->pool, "v", &b->vol), "open volume");
	b->e = b->vol->engine;
}

static void make_node(struct bench *b, uint64_t i)
{
	struct cpc_node_ptr ptr;
	struct cpc_eb *eb;

	must(cpc_eb_alloc(b->nodes, b->bytenr[i], 300, 0, ++b->generation, &eb), "node");
	must(cpc_eb_finish(eb, &ptr), "node");
	cpc_eb_put(eb);
}

static void take_place(struct bench *b, enum cpc_space_kind kind, uint64_t *bytenr)
{
	uint64_t block;
	uint32_t got;

	must(cpc_space_alloc(b->e->store->space, kind, 1, 1, &block, &got), "space");
	*bytenr = block << CPC_BLOCK_SHIFT;
}

static void make_nodes(struct bench *b)
{
	struct cpc_eb_params params = {.backing = &b->device.backing,
				       .fe = &b->e->store->fe,
				       .geo = &b->e->store->geo,
				       .limit = SIZE_MAX};

	must(cpc_eb_cache_create(&params, &b->nodes), "node cache");
	b->bytenr = calloc(b->p->nodes, sizeof(*b->bytenr));
	for (unsigned i = 0; i < b->p->nodes; i++) {
		take_place(b, CPC_SPACE_NODE, &b->bytenr[i][0]);
		take_place(b, CPC_SPACE_NODE2, &b->bytenr[i][1]);
		make_node(b, i);
	}
	must(cpc_eb_sync(b->nodes), "sync");
}

/* --- writers --- */

static void *write_blocks(void *arg)
{
	static const uint8_t data[CPC_BLOCK_SIZE] = {1};
	struct writer *w = arg;
	struct bench *b = w->b;

	for (uint64_t i = w->from; i < w->from + w->nr; i++) {
		uint64_t start = cpc_now_ns(), block = i * SCATTER % b->p->blocks;

		must(cpc_volume_write(b->vol, data, sizeof(data), block << CPC_BLOCK_SHIFT, 0),
		     "write");
		if (b->write_ns)
			cpc_hist_add(b->write_ns, cpc_now_ns() - start);
	}
	return NULL;
}

static void start_writers(struct bench *b, uint64_t nr, struct cpc_hist *hist)
{
	b->write_ns = hist;
	for (unsigned i = 0; i < b->p->writers; i++) {
		struct writer *w = &b->writer[i];

		w->b = b;
		w->from = b->next_block;
		w->nr = nr / b->p->writers + (i < nr % b->p->writers);
		b->next_block += w->nr;
		must(cpc_thread_start(&w->thread, "writer", write_blocks, w), "thread");
	}
}

static void join_writers(struct bench *b)
{
	for (unsigned i = 0; i < b->p->writers; i++)
		pthread_join(b->writer[i].thread, NULL);
}

/* --- rounds --- */

static void make_dirty(struct bench *b, uint64_t blocks, uint64_t nodes)
{
	start_writers(b, blocks, NULL);
	join_writers(b);
	for (uint64_t i = 0; i < nodes; i++)
		make_node(b, b->next_node++ * SCATTER % b->p->nodes);
}

static void write_back(struct bench *b)
{
	must(cpc_cut(b->vol), "cut");
	must(cpc_eb_sync(b->nodes), "sync");
	must(cpc_flush_epoch_flush(&b->e->store->fe, CPC_FLUSH_COMMIT), "flush");
}

static uint64_t mib_per_s(uint64_t bytes, uint64_t ns)
{
	return (uint64_t)((double)bytes * 1e9 / (double)ns / (1 << 20));
}

static void measure_share(struct bench *b, unsigned share, struct bench_writeback_result *r)
{
	uint64_t blocks = (uint64_t)b->p->blocks * b->p->per_mille[share] / 1000;
	uint64_t nodes = (uint64_t)b->p->nodes * b->p->per_mille[share] / 1000;
	uint64_t commit_ns = 0, max_ns = 0, all_ns = 0, rounds = b->p->rounds[share];
	struct cpc_backing_stats before, after;
	static struct cpc_hist hist;

	memset(&hist, 0, sizeof(hist));
	for (uint64_t i = 0; i < rounds; i++) {
		uint64_t start, ns;

		make_dirty(b, blocks, nodes);
		cpc_backing_get_stats(&b->device.backing, &before);
		start = cpc_now_ns();
		start_writers(b, blocks, &hist);
		write_back(b);
		ns = cpc_now_ns() - start;
		cpc_backing_get_stats(&b->device.backing, &after);
		join_writers(b);
		all_ns += cpc_now_ns() - start;
		commit_ns += ns;
		max_ns = cpc_max_u64(max_ns, ns);
		r->device_writes += (after.writes - before.writes) / rounds;
		r->writeback_mib_s += after.bytes_written - before.bytes_written;
		must(cpc_engine_commit(b->e, false), "commit");
	}
	r->commit_mean_us = commit_ns / rounds / 1000;
	r->commit_max_us = max_ns / 1000;
	r->writeback_mib_s = mib_per_s(r->writeback_mib_s, commit_ns);
	r->write_mib_s = mib_per_s(rounds * blocks * CPC_BLOCK_SIZE, all_ns);
	cpc_hist_summary(&hist, &r->write_ns);
}

/* The index alone, below the accounts of requests and cuts: buffers are put in as dirty ones,
 * found, and are clean again. */
static void measure_find(struct bench *b, unsigned share, struct bench_writeback_result *r)
{
	uint64_t nr = (uint64_t)b->p->blocks * b->p->per_mille[share] / 1000, found = 0, at = 0;
	uint64_t epoch = atomic_load(&b->vol->epoch), again, start;
	struct cpc_buf **bufs = calloc(nr, sizeof(*bufs));
	unsigned got;

	for (uint64_t i = 0; i < nr; i++) {
		struct cpc_buf *buf = cpc_buf_alloc(b->e);

		must(cpc_cache_store_dirty(b->vol, &buf, i * SCATTER % b->p->blocks, 1, epoch,
					   &again),
		     "store");
	}
	start = cpc_now_ns();
	while ((got = cpc_cache_gather(b->vol, epoch, &at, bufs + found, CPC_CACHE_BATCH)))
		found += got;
	r->find_us = (cpc_now_ns() - start) / 1000;
	r->dirty_blocks = found;
	if (found != nr)
		must(-EINVAL, "not all dirty blocks were found");
	for (uint64_t i = 0; i < nr; i += CPC_CACHE_BATCH)
		cpc_cache_written(b->vol, bufs + i, cpc_min_u64(CPC_CACHE_BATCH, nr - i));
	free(bufs);
}

void bench_writeback_run(const struct bench_writeback_params *p, struct bench_writeback_result *r)
{
	struct bench *b = calloc(1, sizeof(*b));

	b->p = p;
	open_pool(b);
	make_nodes(b);
	start_writers(b, p->blocks, NULL);
	join_writers(b);
	must(cpc_engine_commit(b->e, false), "commit");
	memset(r, 0, BENCH_SHARES * sizeof(*r));
	for (unsigned share = 0; share < BENCH_SHARES; share++)
		measure_share(b, share, &r[share]);
	for (unsigned share = 0; share < BENCH_SHARES; share++)
		measure_find(b, share, &r[share]);
	cpc_eb_cache_destroy(b->nodes);
	cpc_pool_close_volume(b->pool, b->vol);
	cpc_pool_close(b->pool);
	munmap(b->device.data, POOL_SIZE);
	free(b->bytenr);
	free(b);
}
