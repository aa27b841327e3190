/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * batch: entries of one cut, packed into records of at most log->max_record bytes.
 *
 * Each record is padded to whole blocks and stands alone in them, so that a torn write never
 * touches a neighbour. The header's sequence number, position and checksum are filled at append.
 */
#include "log/log-internal.h"

#include "lib/hooks.h"
#include "lib/mutation.h"

void cpc_log_batch_init(struct cpc_log_batch *b, struct cpc_log *log)
{
	memset(b, 0, sizeof(*b));
	b->log = log;
}

void cpc_log_batch_destroy(struct cpc_log_batch *b)
{
	cpc_free(b->buf);
	cpc_free(b->piece);
	cpc_free(b->write);
	memset(b, 0, sizeof(*b));
}

static int reserve_buf(struct cpc_log_batch *b, size_t need)
{
	size_t cap = b->cap ? b->cap : 2 * CPC_BLOCK_SIZE;
	uint8_t *bigger;

	if (need <= b->cap)
		return 0;
	while (cap < need)
		cap *= 2;
	bigger = cpc_alloc_aligned(CPC_BLOCK_SIZE, cap);
	if (!bigger)
		return -ENOMEM;
	if (b->len)
		memcpy(bigger, b->buf, b->len);
	cpc_free(b->buf);
	b->buf = bigger;
	b->cap = cap;
	return 0;
}

static int add_piece(struct cpc_log_batch *b, size_t start, size_t len)
{
	if (b->nr_pieces == b->cap_pieces) {
		unsigned cap = b->cap_pieces ? 2 * b->cap_pieces : 4;
		struct cpc_log_piece *bigger = cpc_alloc_array(cap, sizeof(*bigger));

		if (!bigger)
			return -ENOMEM;
		if (b->nr_pieces)
			memcpy(bigger, b->piece, b->nr_pieces * sizeof(*bigger));
		cpc_free(b->piece);
		b->piece = bigger;
		b->cap_pieces = cap;
	}
	b->piece[b->nr_pieces++] = (struct cpc_log_piece){.start = start, .len = len};
	return 0;
}

static int open_record(struct cpc_log_batch *b)
{
	int ret = reserve_buf(b, b->len + sizeof(struct cpc_disk_log_record));

	if (ret)
		return ret;
	b->open = true;
	b->record = b->len;
	b->nr_entries = 0;
	memset(b->buf + b->len, 0, sizeof(struct cpc_disk_log_record));
	b->len += sizeof(struct cpc_disk_log_record);
	return 0;
}

static int close_record(struct cpc_log_batch *b)
{
	size_t end = cpc_align_up(b->len, CPC_BLOCK_SIZE);
	struct cpc_disk_log_record *record;
	int ret = reserve_buf(b, end);

	if (!ret)
		ret = add_piece(b, b->record, end - b->record);
	if (ret)
		return ret;
	memset(b->buf + b->len, 0, end - b->len);
	record = (void *)(b->buf + b->record);
	cpc_put_le32(&record->magic, CPC_LOG_MAGIC);
	memcpy(record->uuid, b->log->store->uuid, CPC_UUID_SIZE);
	cpc_put_le64(&record->nonce, b->log->store->nonce);
	cpc_put_le32(&record->length, (uint32_t)(end - b->record));
	cpc_put_le32(&record->nr_entries, b->nr_entries);
	b->len = end;
	b->open = false;
	return 0;
}

/* Room for an entry with `payload` bytes in the open record, or in a new one. NULL: b->error. */
static struct cpc_disk_log_entry *new_entry(struct cpc_log_batch *b, uint32_t payload)
{
	size_t size = cpc_align_up(sizeof(struct cpc_disk_log_entry) + payload, 4);
	struct cpc_disk_log_entry *entry;

	if (b->error)
		return NULL;
	if (b->open && b->len - b->record + size > b->log->max_record)
		b->error = close_record(b);
	if (!b->error && !b->open)
		b->error = open_record(b);
	if (!b->error)
		b->error = reserve_buf(b, b->len + size);
	if (b->error)
		return NULL;
	entry = (void *)(b->buf + b->len);
	memset(entry, 0, size);
	cpc_put_le16(&entry->size, (uint16_t)size);
	b->len += size;
	b->nr_entries++;
	b->total_entries++;
	return entry;
}

void cpc_log_batch_run(struct cpc_log_batch *b, uint64_t volume, const struct cpc_run *run)
{
	for (size_t i = 0; i < run->nr_entries && !b->error; i++) {
		const struct cpc_run_entry *e = &run->entries[i];
		struct cpc_disk_log_entry *disk;
		cpc_le32 *csum;

		if (CPC_MUTANT(log_forgets_trims) && !e->bytenr)
			continue;
		disk = new_entry(b, e->bytenr ? 4 * e->nr : 0);
		if (!disk)
			return;
		disk->type = e->bytenr ? CPC_LOG_MAP : CPC_LOG_HOLE;
		cpc_put_le32(&disk->volume, (uint32_t)volume);
		cpc_put_le64(&disk->block, e->block);
		cpc_put_le64(&disk->nr_blocks, cpc_run_entry_len(e));
		cpc_put_le64(&disk->bytenr, e->bytenr);
		csum = (void *)(disk + 1);
		for (uint32_t k = 0; e->bytenr && k < e->nr; k++)
			cpc_put_le32(&csum[k], run->csums[e->csum + k]);
	}
}

void cpc_log_batch_name(struct cpc_log_batch *b, enum cpc_log_entry_type type, uint64_t volume,
			uint64_t size, const void *payload, uint32_t len)
{
	struct cpc_disk_log_entry *disk = new_entry(b, len);

	if (!disk)
		return;
	disk->type = (uint8_t)type;
	cpc_put_le32(&disk->volume, (uint32_t)volume);
	cpc_put_le64(&disk->block, size);
	/* the exact length: the entry is padded */
	cpc_put_le64(&disk->nr_blocks, len);
	if (len)
		memcpy(disk + 1, payload, len);
}

int cpc_log_batch_mark(struct cpc_log_batch *b)
{
	b->error = open_record(b);
	return cpc_log_batch_end(b);
}

int cpc_log_batch_end(struct cpc_log_batch *b)
{
	if (!b->error && b->open)
		b->error = close_record(b);
	if (b->error || !b->nr_pieces)
		return b->error;
	b->write = cpc_alloc_array(2 * (size_t)b->nr_pieces, sizeof(*b->write));
	if (!b->write)
		b->error = -ENOMEM;
	return b->error;
}

uint64_t cpc_log_run_bytes(const struct cpc_run *run)
{
	return run->nr_entries * sizeof(struct cpc_disk_log_entry) + 4 * run->nr_csums;
}
