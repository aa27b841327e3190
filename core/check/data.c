/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * data: verifies data blocks against the checksums of their mappings.
 *
 * A tree gives blocks in order of the volume, which after random writes is no order at all for the
 * device. So mappings are collected, sorted by address, and read in runs of up to 1 MiB; small
 * gaps are read along. When a run fails, its blocks are read one by one, so that one bad sector
 * costs one block.
 */
#include "check/check-internal.h"

#include <inttypes.h>
#include <stdlib.h>

#include "lib/hooks.h"
#include "lib/mutation.h"

#define BATCH_BLOCKS 32768u
#define READ_BYTES   (1u << 20)
#define GAP_BYTES    (64u << 10)

int cpc_data_batch_init(struct cpc_data_batch *d, struct cpc_backing *backing,
			struct cpc_findings *findings)
{
	memset(d, 0, sizeof(*d));
	d->backing = backing;
	d->findings = findings;
	d->entry = cpc_alloc_array(BATCH_BLOCKS, sizeof(*d->entry));
	/* and one block more, to read one again */
	d->buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, READ_BYTES + CPC_BLOCK_SIZE);
	if (d->entry && d->buf)
		return 0;
	cpc_data_batch_destroy(d);
	return -ENOMEM;
}

void cpc_data_batch_destroy(struct cpc_data_batch *d)
{
	cpc_free(d->entry);
	cpc_free(d->buf);
	d->entry = NULL;
	d->buf = NULL;
}

static int by_address(const void *a, const void *b)
{
	uint64_t x = ((const struct cpc_data_entry *)a)->bytenr;
	uint64_t y = ((const struct cpc_data_entry *)b)->bytenr;

	return x < y ? -1 : x > y;
}

static void data_finding(struct cpc_data_batch *d, const struct cpc_data_entry *e, const char *what)
{
	d->bad++;
	if (d->bad_block) {
		d->bad_block(d->ctx, e, what);
		return;
	}
	cpc_finding(d->findings, "volume %u: block %" PRIu64 " at %" PRIu64 ": %s", e->volume,
		    e->block, e->bytenr, what);
}

/* A transfer may go wrong once. */
static void verify_block(struct cpc_data_batch *d, const struct cpc_data_entry *e,
			 const uint8_t *data)
{
	uint8_t *again = d->buf + READ_BYTES;

	if (cpc_csum(data, CPC_BLOCK_SIZE) == e->csum || CPC_MUTANT(check_verifies_no_data))
		return;
	if (cpc_backing_read(d->backing, e->bytenr, again, CPC_BLOCK_SIZE))
		data_finding(d, e, "cannot be read");
	else if (cpc_csum(again, CPC_BLOCK_SIZE) != e->csum)
		data_finding(d, e, "checksum does not match");
}

/* Entries from `at` on that one read takes in. */
static size_t run_length(const struct cpc_data_batch *d, size_t at)
{
	uint64_t start = d->entry[at].bytenr, end = start + CPC_BLOCK_SIZE;
	size_t i = at + 1;

	for (; i < d->nr; i++) {
		uint64_t next = d->entry[i].bytenr + CPC_BLOCK_SIZE;

		if (next - start > READ_BYTES || next - end > GAP_BYTES + CPC_BLOCK_SIZE)
			break;
		end = next;
	}
	return i - at;
}

static void verify_run(struct cpc_data_batch *d, const struct cpc_data_entry *e, size_t nr)
{
	uint64_t start = e[0].bytenr;
	size_t len = (size_t)(e[nr - 1].bytenr + CPC_BLOCK_SIZE - start);
	bool read = cpc_backing_read(d->backing, start, d->buf, len) == 0;

	for (size_t i = 0; i < nr; i++) {
		if (read)
			verify_block(d, &e[i], d->buf + (e[i].bytenr - start));
		else if (cpc_backing_read(d->backing, e[i].bytenr, d->buf, CPC_BLOCK_SIZE))
			data_finding(d, &e[i], "cannot be read");
		else
			verify_block(d, &e[i], d->buf);
	}
}

void cpc_data_batch_run(struct cpc_data_batch *d)
{
	size_t nr;

	if (d->nr)
		qsort(d->entry, d->nr, sizeof(*d->entry), by_address);
	for (size_t at = 0; at < d->nr; at += nr) {
		nr = run_length(d, at);
		verify_run(d, &d->entry[at], nr);
	}
	d->nr = 0;
}

void cpc_data_batch_add(struct cpc_data_batch *d, const struct cpc_extent_ref *ref)
{
	if (d->nr + ref->nr > BATCH_BLOCKS)
		cpc_data_batch_run(d);
	for (uint32_t i = 0; i < ref->nr; i++) {
		d->entry[d->nr++] = (struct cpc_data_entry){
		    .bytenr = ref->bytenr + (uint64_t)i * CPC_BLOCK_SIZE,
		    .block = ref->key + i,
		    .volume = (uint32_t)(ref->owner - CPC_TREE_VOLUME_BASE),
		    .csum = cpc_get_le32(&ref->csum[i]),
		};
	}
}
