/* SPDX-License-Identifier: BSD-3-Clause */
#include "reference.h"

#include <stdio.h>
#include <stdlib.h>

static void *grow(void *old, size_t *cap, size_t size)
{
	void *p;

	*cap = *cap ? 2 * *cap : 8;
	p = realloc(old, *cap * size);
	cpc_assert(p);
	return p;
}

void ref_init(struct ref *r, uint64_t size)
{
	memset(r, 0, sizeof(*r));
	r->size = size;
}

static void free_op(struct ref_op *op)
{
	for (size_t i = 0; i < op->nr; i++)
		cpc_page_put(op->change[i].old);
	free(op->change);
}

void ref_durable(struct ref *r)
{
	for (size_t i = 0; i < r->nr_ops; i++)
		free_op(&r->op[i]);
	r->durable_ops += r->nr_ops;
	r->nr_ops = 0;
}

void ref_destroy(struct ref *r)
{
	ref_durable(r);
	free(r->op);
	cpc_page_map_clear(&r->pages);
}

/* --- changes --- */

static struct ref_op *new_op(struct ref *r, uint64_t issued, char kind, uint64_t offset,
			     uint64_t len)
{
	struct ref_op *op;

	if (r->nr_ops == r->cap_ops)
		r->op = grow(r->op, &r->cap_ops, sizeof(*r->op));
	op = &r->op[r->nr_ops++];
	*op = (struct ref_op){.issued = issued, .kind = kind, .offset = offset, .len = len};
	return op;
}

/* Takes the caller's reference to `page`; NULL: zeroes. */
static void put_page(struct ref *r, uint64_t block, struct cpc_page *page)
{
	if (page)
		cpc_page_map_set(&r->pages, block, page);
	else
		cpc_page_map_del(&r->pages, block);
	cpc_page_put(page);
}

static void change(struct ref *r, struct ref_op *op, uint64_t block, struct cpc_page *page)
{
	struct cpc_page *old = cpc_page_map_find(&r->pages, block);

	if (op->nr == op->cap)
		op->change = grow(op->change, &op->cap, sizeof(*op->change));
	op->change[op->nr++] = (struct ref_change){block, old ? cpc_page_get(old) : NULL};
	put_page(r, block, page);
}

static void block_content(const struct ref *r, uint64_t block, uint8_t data[CPC_BLOCK_SIZE])
{
	const struct cpc_page *page = cpc_page_map_find(&r->pages, block);

	if (page)
		memcpy(data, page->data, CPC_BLOCK_SIZE);
	else
		memset(data, 0, CPC_BLOCK_SIZE);
}

/* Changes the part [start, end) of a block; src NULL: zeroes. */
static void change_part(struct ref *r, struct ref_op *op, uint64_t block, uint32_t start,
			uint32_t end, const uint8_t *src)
{
	uint8_t data[CPC_BLOCK_SIZE];

	block_content(r, block, data);
	if (src)
		memcpy(data + start, src, end - start);
	else
		memset(data + start, 0, end - start);
	change(r, op, block, cpc_page_new(data));
}

void ref_write(struct ref *r, const void *buf, uint64_t len, uint64_t offset, uint64_t issued)
{
	struct ref_op *op = new_op(r, issued, 'w', offset, len);
	const uint8_t *src = buf;

	while (len) {
		uint32_t start = (uint32_t)(offset % CPC_BLOCK_SIZE);
		uint32_t part = (uint32_t)cpc_min_u64(len, CPC_BLOCK_SIZE - start);

		change_part(r, op, offset >> CPC_BLOCK_SHIFT, start, start + part, src);
		src += part;
		offset += part;
		len -= part;
	}
}

struct zeroing {
	struct ref *r;
	uint64_t block[1024];
	unsigned nr;
};

static void note_block(void *ctx, uint64_t block)
{
	struct zeroing *z = ctx;

	if (z->nr < CPC_ARRAY_SIZE(z->block))
		z->block[z->nr++] = block;
}

/* Pages that exist only: the range may be exabytes. */
static void zero_blocks(struct ref *r, struct ref_op *op, uint64_t block, uint64_t nr)
{
	struct zeroing z = {.r = r};

	do {
		z.nr = 0;
		cpc_page_map_each(&r->pages, block, nr, note_block, &z);
		for (unsigned i = 0; i < z.nr; i++)
			change(r, op, z.block[i], NULL);
	} while (z.nr);
}

static void zero_range(struct ref *r, struct ref_op *op, uint64_t offset, uint64_t end)
{
	uint64_t from = cpc_align_up(offset, CPC_BLOCK_SIZE);
	uint64_t to = cpc_align_down(end, CPC_BLOCK_SIZE);

	if (from > to) { /* inside one block */
		change_part(r, op, offset >> CPC_BLOCK_SHIFT, (uint32_t)(offset % CPC_BLOCK_SIZE),
			    (uint32_t)(end % CPC_BLOCK_SIZE), NULL);
		return;
	}
	if (offset < from)
		change_part(r, op, offset >> CPC_BLOCK_SHIFT, (uint32_t)(offset % CPC_BLOCK_SIZE),
			    CPC_BLOCK_SIZE, NULL);
	if (from < to)
		zero_blocks(r, op, from >> CPC_BLOCK_SHIFT, (to - from) >> CPC_BLOCK_SHIFT);
	if (to < end)
		change_part(r, op, to >> CPC_BLOCK_SHIFT, 0, (uint32_t)(end - to), NULL);
}

void ref_zero(struct ref *r, uint64_t len, uint64_t offset, uint64_t issued)
{
	zero_range(r, new_op(r, issued, 'z', offset, len), offset, offset + len);
}

void ref_trim(struct ref *r, uint64_t len, uint64_t offset, uint64_t issued)
{
	struct ref_op *op = new_op(r, issued, 't', offset, len);
	uint64_t from = cpc_align_up(offset, CPC_BLOCK_SIZE), end = offset + len;
	uint64_t to = end == r->size ? cpc_align_up(end, CPC_BLOCK_SIZE)
				     : cpc_align_down(end, CPC_BLOCK_SIZE);

	if (from < to)
		zero_blocks(r, op, from >> CPC_BLOCK_SHIFT, (to - from) >> CPC_BLOCK_SHIFT);
}

void ref_answered(struct ref *r, uint64_t now)
{
	if (r->nr_ops)
		r->op[r->nr_ops - 1].answered = now;
}

void ref_undo(struct ref *r)
{
	struct ref_op *op = &r->op[--r->nr_ops];

	for (size_t i = op->nr; i--;) {
		put_page(r, op->change[i].block, op->change[i].old);
		op->change[i].old = NULL;
	}
	free_op(op);
}

void ref_resize(struct ref *r, uint64_t size)
{
	if (size < r->size)
		ref_zero(r, cpc_align_up(r->size, CPC_BLOCK_SIZE) - size, size, 0);
	r->size = size;
	ref_durable(r);
}

/* --- looking --- */

void ref_read(const struct ref *r, void *buf, uint64_t len, uint64_t offset)
{
	uint8_t data[CPC_BLOCK_SIZE], *to = buf;

	while (len) {
		uint32_t start = (uint32_t)(offset % CPC_BLOCK_SIZE);
		uint32_t part = (uint32_t)cpc_min_u64(len, CPC_BLOCK_SIZE - start);

		block_content(r, offset >> CPC_BLOCK_SHIFT, data);
		memcpy(to, data + start, part);
		to += part;
		offset += part;
		len -= part;
	}
}

static uint32_t first_difference(const uint8_t *a, const uint8_t *b, uint32_t len)
{
	uint32_t i = 0;

	while (i < len && a[i] == b[i])
		i++;
	return i;
}

bool ref_equals(const struct ref *r, const void *buf, uint64_t len, uint64_t offset, uint64_t *bad)
{
	static const uint8_t zero[CPC_BLOCK_SIZE];
	const uint8_t *at = buf;

	while (len) {
		uint32_t start = (uint32_t)(offset % CPC_BLOCK_SIZE);
		uint32_t part = (uint32_t)cpc_min_u64(len, CPC_BLOCK_SIZE - start);
		const struct cpc_page *page =
		    cpc_page_map_find(&r->pages, offset >> CPC_BLOCK_SHIFT);
		const uint8_t *data = (page ? page->data : zero) + start;

		if (memcmp(data, at, part)) {
			*bad = offset + first_difference(data, at, part);
			return false;
		}
		at += part;
		offset += part;
		len -= part;
	}
	return true;
}

struct zero_test {
	const struct ref *r;
	uint64_t offset, end;
	bool zero;
};

static void test_zero(void *ctx, uint64_t block)
{
	struct zero_test *t = ctx;
	const struct cpc_page *page = cpc_page_map_find(&t->r->pages, block);
	uint64_t start = cpc_max_u64(block << CPC_BLOCK_SHIFT, t->offset);
	uint64_t end = cpc_min_u64((block + 1) << CPC_BLOCK_SHIFT, t->end);

	for (; t->zero && start < end; start++)
		t->zero = page->data[start % CPC_BLOCK_SIZE] == 0;
}

bool ref_is_zero(const struct ref *r, uint64_t len, uint64_t offset)
{
	struct zero_test t = {r, offset, offset + len, true};
	uint64_t block = offset >> CPC_BLOCK_SHIFT;

	if (len)
		cpc_page_map_each(&r->pages, block,
				  ((offset + len - 1) >> CPC_BLOCK_SHIFT) + 1 - block, test_zero,
				  &t);
	return t.zero;
}

/* --- after a crash --- */

void ref_copy(struct ref *to, const struct ref *from)
{
	memset(to, 0, sizeof(*to));
	to->size = from->size;
	cpc_page_map_copy(&to->pages, &from->pages);
	for (size_t i = 0; i < from->nr_ops; i++) {
		const struct ref_op *op = &from->op[i];
		struct ref_op *copy = new_op(to, op->issued, op->kind, op->offset, op->len);

		copy->answered = op->answered;
		for (size_t c = 0; c < op->nr; c++) {
			struct cpc_page *old = op->change[c].old;

			if (copy->nr == copy->cap)
				copy->change =
				    grow(copy->change, &copy->cap, sizeof(*copy->change));
			copy->change[copy->nr++] = (struct ref_change){
			    op->change[c].block, old ? cpc_page_get(old) : NULL};
		}
	}
}

static void print_page(const char *what, const struct cpc_page *page)
{
	fprintf(stderr, "    %s:", what);
	for (unsigned at = 0; page && at < CPC_BLOCK_SIZE; at += 512) {
		uint64_t word;

		memcpy(&word, page->data + at, sizeof(word));
		fprintf(stderr, " %llu", (unsigned long long)(word >> 20));
	}
	fprintf(stderr, page ? "\n" : " zeroes\n");
}

void ref_explain(const struct ref *r, const struct cpc_page_map *actual, uint64_t block)
{
	fprintf(stderr, "  block %llu, stamps of its sectors:\n", (unsigned long long)block);
	for (size_t i = 0; i < r->nr_ops; i++) {
		const struct ref_op *op = &r->op[i];

		for (size_t c = 0; c < op->nr; c++) {
			if (op->change[c].block != block)
				continue;
			print_page("was", op->change[c].old);
			fprintf(stderr, "    %c %llu+%llu issued %llu answered %llu\n", op->kind,
				(unsigned long long)op->offset, (unsigned long long)op->len,
				(unsigned long long)op->issued, (unsigned long long)op->answered);
		}
	}
	print_page("last", cpc_page_map_find(&r->pages, block));
	print_page("now", cpc_page_map_find(actual, block));
}

static bool same(const struct cpc_page *a, const struct cpc_page *b)
{
	static const uint8_t zero[CPC_BLOCK_SIZE];

	if (a == b)
		return true;
	return memcmp(a ? a->data : zero, b ? b->data : zero, CPC_BLOCK_SIZE) == 0;
}

static bool fits(const struct cpc_page_map *pages, const struct cpc_page_map *actual,
		 uint64_t block)
{
	return same(cpc_page_map_find(pages, block), cpc_page_map_find(actual, block));
}

static bool block_fits(const struct ref *r, const struct cpc_page_map *actual, uint64_t block)
{
	return fits(&r->pages, actual, block);
}

static uint64_t count_bad(const struct cpc_page_map *pages, const struct cpc_page_map *actual,
			  uint64_t *bad)
{
	uint64_t nr = 0;

	for (size_t i = 0; i < pages->nr_slots; i++) {
		const struct cpc_page_slot *slot = &pages->slots[i];

		if (slot->page && !fits(pages, actual, slot->block)) {
			nr++;
			*bad = slot->block;
		}
	}
	for (size_t i = 0; i < actual->nr_slots; i++) {
		const struct cpc_page_slot *slot = &actual->slots[i];

		if (slot->page && !cpc_page_map_find(pages, slot->block) &&
		    !fits(pages, actual, slot->block)) {
			nr++;
			*bad = slot->block;
		}
	}
	return nr;
}

/* Undoes the newest operation and keeps count. */
static uint64_t undo_counting(struct ref *r, const struct cpc_page_map *actual, uint64_t nr_bad)
{
	const struct ref_op *op = &r->op[r->nr_ops - 1];
	uint64_t *block = malloc((op->nr + 1) * sizeof(*block));
	size_t nr = op->nr;

	cpc_assert(block);
	/* A block changed twice by one operation is counted at its first change only. */
	for (size_t i = 0; i < nr; i++) {
		block[i] = op->change[i].block;
		for (size_t j = 0; j < i && nr < 64; j++)
			cpc_assert(block[j] != block[i]);
		nr_bad -= !block_fits(r, actual, block[i]);
	}
	ref_undo(r);
	for (size_t i = 0; i < nr; i++)
		nr_bad += !block_fits(r, actual, block[i]);
	free(block);
	return nr_bad;
}

/* Whether undoing the newest operation would show. */
static bool shows(const struct ref *r)
{
	const struct ref_op *op = &r->op[r->nr_ops - 1];

	for (size_t i = 0; i < op->nr; i++) {
		if (!same(op->change[i].old, cpc_page_map_find(&r->pages, op->change[i].block)))
			return true;
	}
	return false;
}

static void note_lost(const struct ref *r, struct ref_match *m)
{
	const struct ref_op *op = &r->op[r->nr_ops - 1];

	m->undone++;
	if (!shows(r))
		return;
	m->lost = true;
	m->lost_answered = op->answered ? op->answered : UINT64_MAX;
}

/* Undoes operations until the content fits. Return: blocks that do not, 0: it does. */
static uint64_t undo_to_fit(struct ref *r, const struct cpc_page_map *actual, struct ref_match *m)
{
	uint64_t nr_bad, bad = 0;

	nr_bad = count_bad(&r->pages, actual, &bad);
	m->nr_bad = nr_bad;
	m->bad = bad;
	while (nr_bad && r->nr_ops) {
		note_lost(r, m);
		nr_bad = undo_counting(r, actual, nr_bad);
		if (nr_bad < m->nr_bad) {
			m->nr_bad = nr_bad;
			count_bad(&r->pages, actual, &m->bad);
		}
	}
	return nr_bad;
}

/* Goes back to the oldest instant that fits: what is there at that one is there for sure. */
static uint64_t kept_for_sure(struct ref *r, const struct cpc_page_map *actual)
{
	uint64_t nr_bad = 0, kept = 0;

	while (r->nr_ops) {
		if (!nr_bad && shows(r))
			kept = r->op[r->nr_ops - 1].issued;
		nr_bad = undo_counting(r, actual, nr_bad);
		if (!nr_bad)
			kept = 0;
	}
	return kept;
}

bool ref_match(struct ref *r, const struct cpc_page_map *actual, struct ref_match *m)
{
	*m = (struct ref_match){0};
	if (undo_to_fit(r, actual, m))
		return false;
	m->kept_issued = kept_for_sure(r, actual);
	cpc_page_map_clear(&r->pages);
	cpc_page_map_copy(&r->pages, actual);
	return true;
}

/* Takes one operation back in a copy of the pages. */
static uint64_t undo_in_copy(const struct ref_op *op, struct cpc_page_map *pages,
			     const struct cpc_page_map *actual, uint64_t nr_bad)
{
	for (size_t i = 0; i < op->nr; i++) {
		const struct ref_change *c = &op->change[i];

		nr_bad -= !fits(pages, actual, c->block);
		if (c->old)
			cpc_page_map_set(pages, c->block, c->old);
		else
			cpc_page_map_del(pages, c->block);
		nr_bad += !fits(pages, actual, c->block);
	}
	return nr_bad;
}

bool ref_find(const struct ref *r, const struct cpc_page_map *actual, size_t floor,
	      struct ref_match *m)
{
	struct cpc_page_map pages;
	size_t at = r->nr_ops;
	uint64_t nr_bad, bad = 0;

	cpc_page_map_copy(&pages, &r->pages);
	nr_bad = count_bad(&pages, actual, &bad);
	*m = (struct ref_match){.bad = bad, .nr_bad = nr_bad};
	while (nr_bad && at > floor) {
		nr_bad = undo_in_copy(&r->op[--at], &pages, actual, nr_bad);
		m->undone++;
		if (nr_bad < m->nr_bad) {
			m->nr_bad = nr_bad;
			count_bad(&pages, actual, &m->bad);
		}
	}
	cpc_page_map_clear(&pages);
	return nr_bad == 0;
}
