/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The running device: reads, writes, flushes, faults and holds. What a crash makes of it is in
 * powercut-crash.c.
 *
 * A write becomes *pending* when it is issued and visible to readers when it is acked; a good flush
 * moves what was acked at its beginning into the stable image. `current` holds the blocks that a
 * reader sees differently from the stable image; usually those of the pending writes, but after
 * CPC_FAULT_DROP_CACHED also those of writes that no longer exist, as a page cache does.
 */
#include "backing/powercut.h"

#include <stdlib.h>
#include <unistd.h>

#include "backing/backing-internal.h"
#include "backing/powercut-internal.h"

struct handle {
	struct cpc_backing backing;
	struct cpc_powercut *pc;
	uint64_t life;
};

static struct handle *to_handle(struct cpc_backing *b)
{
	return cpc_container_of(b, struct handle, backing);
}

static bool dead_locked(const struct handle *h)
{
	return h->life != h->pc->life;
}

static uint64_t block_of(uint64_t bytenr)
{
	return bytenr >> CPC_BLOCK_SHIFT;
}

/* ---- content ---- */

static void copy_page(struct cpc_powercut *pc, const struct cpc_page *page, void *data)
{
	if (!page || page == &cpc_page_hole)
		memset(data, pc->fill, CPC_BLOCK_SIZE);
	else
		memcpy(data, page->data, CPC_BLOCK_SIZE);
}

void cpc_powercut_stable_block(struct cpc_powercut *pc, uint64_t block, void *data)
{
	copy_page(pc, cpc_page_map_find(&pc->stable, block), data);
}

static void newest_block(struct cpc_powercut *pc, uint64_t block, void *data)
{
	struct cpc_page *page = cpc_page_map_find(&pc->current, block);

	if (!page)
		page = cpc_page_map_find(&pc->stable, block);
	copy_page(pc, page, data);
}

typedef void (*block_fn)(struct cpc_powercut *pc, uint64_t block, void *data);

static void copy_out(struct cpc_powercut *pc, block_fn fn, uint64_t bytenr, char *data, size_t len)
{
	for (; len; len -= CPC_BLOCK_SIZE) {
		fn(pc, block_of(bytenr), data);
		data += CPC_BLOCK_SIZE;
		bytenr += CPC_BLOCK_SIZE;
	}
}

static void cover_with_hole(void *ctx, uint64_t block)
{
	struct cpc_powercut *pc = ctx;

	cpc_page_map_set(&pc->current, block, &cpc_page_hole);
}

/* Shows a pending write to readers. */
static void show(struct cpc_powercut *pc, const struct cpc_pending *p)
{
	uint64_t block = block_of(p->info.bytenr), nr = block_of(p->info.len);

	if (p->info.discard) {
		cpc_page_map_each(&pc->current, block, nr, cover_with_hole, pc);
		cpc_page_map_each(&pc->stable, block, nr, cover_with_hole, pc);
		return;
	}
	for (uint64_t i = 0; i < nr; i++)
		cpc_page_map_set(&pc->current, block + i, p->pages[i]);
}

void cpc_powercut_land(struct cpc_powercut *pc, const struct cpc_pending *p)
{
	uint64_t block = block_of(p->info.bytenr), nr = block_of(p->info.len);

	if (p->info.discard) {
		cpc_page_map_del_range(&pc->stable, block, nr);
		return;
	}
	for (uint64_t i = 0; i < nr; i++)
		cpc_page_map_set(&pc->stable, block + i, p->pages[i]);
}

/* ---- pending writes ---- */

static struct cpc_pending *pending_new(struct cpc_powercut *pc, uint64_t bytenr, uint64_t len,
				       enum cpc_cause cause, bool discard)
{
	size_t nr = discard ? 0 : (size_t)block_of(len);
	struct cpc_pending *p = cpc_page_xalloc(sizeof(*p) + nr * sizeof(p->pages[0]));

	p->info = (struct cpc_powercut_pending){bytenr, len, cause, discard, false};
	p->acked_tick = 0;
	cpc_list_add_tail(&pc->pending, &p->node);
	pc->nr_pending++;
	return p;
}

static struct cpc_pending *pending_write(struct cpc_powercut *pc, uint64_t bytenr,
					 const struct iovec *iov, unsigned nr, enum cpc_cause cause)
{
	struct cpc_pending *p = pending_new(pc, bytenr, cpc_iov_len(iov, nr), cause, false);
	size_t n = 0;

	for (unsigned i = 0; i < nr; i++)
		for (size_t done = 0; done < iov[i].iov_len; done += CPC_BLOCK_SIZE)
			p->pages[n++] = cpc_page_new((char *)iov[i].iov_base + done);
	return p;
}

/* Puts back what readers see now behind the first half of the sectors. */
static void tear_in_half(struct cpc_powercut *pc, struct cpc_pending *p)
{
	uint64_t keep = cpc_align_down(p->info.len / 2, CPC_SECTOR_SIZE);

	for (uint64_t i = 0; i < block_of(p->info.len); i++) {
		uint64_t start = i * CPC_BLOCK_SIZE;
		uint64_t mine = keep > start ? cpc_min_u64(keep - start, CPC_BLOCK_SIZE) : 0;
		uint8_t data[CPC_BLOCK_SIZE];

		newest_block(pc, block_of(p->info.bytenr) + i, data);
		memcpy(data, p->pages[i]->data, (size_t)mine);
		cpc_page_put(p->pages[i]);
		p->pages[i] = cpc_page_new(data);
	}
}

void cpc_pending_free(struct cpc_pending *p)
{
	uint64_t nr = p->info.discard ? 0 : block_of(p->info.len);

	for (uint64_t i = 0; i < nr; i++)
		cpc_page_put(p->pages[i]);
	free(p);
}

static void remove_pending(struct cpc_powercut *pc, struct cpc_pending *p)
{
	cpc_list_del(&p->node);
	pc->nr_pending--;
	cpc_pending_free(p);
}

void cpc_powercut_drop_pending(struct cpc_powercut *pc)
{
	while (!cpc_list_empty(&pc->pending))
		remove_pending(pc, cpc_list_first(&pc->pending, struct cpc_pending, node));
}

static void ack(struct cpc_powercut *pc, struct cpc_pending *p)
{
	p->info.acked = true;
	p->acked_tick = ++pc->tick;
	show(pc, p);
}

static void uncover_hole(void *ctx, uint64_t block)
{
	struct cpc_page_map *holes = ctx;

	cpc_page_map_set(holes, block, &cpc_page_hole);
}

/* Readers no longer need a hole of `p` over the stable image. */
static void hide_holes(struct cpc_powercut *pc, const struct cpc_pending *p)
{
	struct cpc_page_map found = {NULL, 0, 0};

	cpc_page_map_each(&pc->current, block_of(p->info.bytenr), block_of(p->info.len),
			  uncover_hole, &found);
	for (size_t i = 0; i < found.nr_slots; i++) {
		struct cpc_page_slot *slot = &found.slots[i];

		if (slot->page && cpc_page_map_find(&pc->current, slot->block) == &cpc_page_hole)
			cpc_page_map_del(&pc->current, slot->block);
	}
	cpc_page_map_clear(&found);
}

/* Takes `p` out of what covers the stable image, where nothing newer has replaced it. */
static void hide(struct cpc_powercut *pc, const struct cpc_pending *p)
{
	uint64_t block = block_of(p->info.bytenr);

	if (p->info.discard) {
		hide_holes(pc, p);
		return;
	}
	for (uint64_t i = 0; i < block_of(p->info.len); i++)
		if (cpc_page_map_find(&pc->current, block + i) == p->pages[i])
			cpc_page_map_del(&pc->current, block + i);
}

enum settle { SETTLE_LAND, SETTLE_DROP, SETTLE_DROP_CACHED };

/* Ends the pending state of what had been acked at `tick`. */
static void settle(struct cpc_powercut *pc, uint64_t tick, enum settle how)
{
	struct cpc_list *pos, *tmp;

	cpc_list_for_each_safe (pos, tmp, &pc->pending) {
		struct cpc_pending *p = cpc_list_entry(pos, struct cpc_pending, node);

		if (!p->info.acked || p->acked_tick > tick)
			continue;
		if (how == SETTLE_LAND)
			cpc_powercut_land(pc, p);
		if (how != SETTLE_DROP_CACHED)
			hide(pc, p);
		remove_pending(pc, p);
	}
}

/* ---- faults ---- */

static bool fault_matches(const struct cpc_powercut_fault *f, enum cpc_powercut_op op,
			  uint64_t bytenr, uint64_t len, enum cpc_cause cause)
{
	if (f->op != op)
		return false;
	if (op == CPC_POWERCUT_FLUSH)
		return true;
	if (f->len && (bytenr >= f->bytenr + f->len || f->bytenr >= bytenr + len))
		return false;
	return op != CPC_POWERCUT_WRITE || !f->cause_mask || (f->cause_mask & (1u << cause));
}

static bool fault_fires(struct cpc_armed_fault *a)
{
	a->seen++;
	if (a->seen < a->fault.nth)
		return false;
	if (!a->fault.sticky)
		a->armed = false;
	return true;
}

/* Counts the call. Return: the fault that it runs into, or NULL. */
static const struct cpc_powercut_fault *enter(struct cpc_powercut *pc, enum cpc_powercut_op op,
					      uint64_t bytenr, uint64_t len, enum cpc_cause cause)
{
	const struct cpc_powercut_fault *hit = NULL;

	pc->counts[op]++;
	for (int i = 0; i < CPC_POWERCUT_MAX_FAULTS; i++) {
		struct cpc_armed_fault *a = &pc->faults[i];

		if (!a->armed || !fault_matches(&a->fault, op, bytenr, len, cause))
			continue;
		if (fault_fires(a) && !hit)
			hit = &a->fault;
	}
	return hit;
}

void cpc_powercut_add_fault(struct cpc_powercut *pc, const struct cpc_powercut_fault *fault)
{
	int i = 0;

	cpc_assert(fault->nth);
	cpc_mutex_lock(&pc->lock);
	while (i < CPC_POWERCUT_MAX_FAULTS && pc->faults[i].armed)
		i++;
	cpc_assert(i < CPC_POWERCUT_MAX_FAULTS);
	pc->faults[i] = (struct cpc_armed_fault){*fault, 0, true};
	cpc_mutex_unlock(&pc->lock);
}

void cpc_powercut_clear_faults(struct cpc_powercut *pc)
{
	cpc_mutex_lock(&pc->lock);
	memset(pc->faults, 0, sizeof(pc->faults));
	cpc_mutex_unlock(&pc->lock);
}

void cpc_powercut_fail(struct cpc_powercut *pc, enum cpc_powercut_op op, uint64_t nth, bool sticky,
		       int error)
{
	struct cpc_powercut_fault fault = {
	    .op = op, .action = CPC_FAULT_FAIL, .nth = nth, .sticky = sticky, .error = error};

	cpc_powercut_add_fault(pc, &fault);
}

uint64_t cpc_powercut_count(struct cpc_powercut *pc, enum cpc_powercut_op op)
{
	uint64_t n;

	cpc_mutex_lock(&pc->lock);
	n = pc->counts[op];
	cpc_mutex_unlock(&pc->lock);
	return n;
}

/* ---- timing ---- */

/* Waits while calls of this kind are held. Return: false when the handle has died. */
static bool pass_hold(struct handle *h, unsigned bit)
{
	struct cpc_powercut *pc = h->pc;

	if (pc->hold & bit) {
		pc->nr_held++;
		cpc_cond_broadcast(&pc->held);
		while ((pc->hold & bit) && !dead_locked(h))
			cpc_cond_wait(&pc->released, &pc->lock);
		pc->nr_held--;
	}
	return !dead_locked(h);
}

void cpc_powercut_hold(struct cpc_powercut *pc, unsigned mask)
{
	cpc_mutex_lock(&pc->lock);
	pc->hold |= mask;
	cpc_mutex_unlock(&pc->lock);
}

static void release_locked(struct cpc_powercut *pc)
{
	pc->hold = 0;
	cpc_cond_broadcast(&pc->released);
}

void cpc_powercut_release(struct cpc_powercut *pc)
{
	cpc_mutex_lock(&pc->lock);
	release_locked(pc);
	cpc_mutex_unlock(&pc->lock);
}

void cpc_powercut_wait_held(struct cpc_powercut *pc, unsigned nr)
{
	cpc_mutex_lock(&pc->lock);
	while (pc->nr_held < nr)
		cpc_cond_wait(&pc->held, &pc->lock);
	cpc_mutex_unlock(&pc->lock);
}

void cpc_powercut_set_flush_delay(struct cpc_powercut *pc, unsigned us)
{
	cpc_mutex_lock(&pc->lock);
	pc->flush_delay_us = us;
	cpc_mutex_unlock(&pc->lock);
}

static void delay_flush_locked(struct cpc_powercut *pc)
{
	unsigned us = pc->flush_delay_us;

	if (!us)
		return;
	cpc_mutex_unlock(&pc->lock);
	usleep(us);
	cpc_mutex_lock(&pc->lock);
}

/* ---- the operations, with the lock held ---- */

static int read_locked(struct handle *h, uint64_t bytenr, const struct iovec *iov, unsigned nr)
{
	struct cpc_powercut *pc = h->pc;
	const struct cpc_powercut_fault *f;

	if (dead_locked(h))
		return -EIO;
	f = enter(pc, CPC_POWERCUT_READ, bytenr, cpc_iov_len(iov, nr), 0);
	if (f)
		return f->error;
	if (!pass_hold(h, CPC_HOLD_READ))
		return -EIO;
	for (unsigned i = 0; i < nr; i++) {
		copy_out(pc, newest_block, bytenr, iov[i].iov_base, iov[i].iov_len);
		bytenr += iov[i].iov_len;
	}
	return 0;
}

static int write_locked(struct handle *h, uint64_t bytenr, const struct iovec *iov, unsigned nr,
			enum cpc_cause cause)
{
	struct cpc_powercut_fault f = {.error = 0};
	const struct cpc_powercut_fault *hit;
	struct cpc_powercut *pc = h->pc;
	size_t len = cpc_iov_len(iov, nr);
	struct cpc_pending *p;

	if (dead_locked(h))
		return -EIO;
	if (pc->hooks.before_write)
		pc->hooks.before_write(pc->hooks_ctx, bytenr, len, cause);
	hit = enter(pc, CPC_POWERCUT_WRITE, bytenr, len, cause);
	if (hit)
		f = *hit;
	if (hit && f.action == CPC_FAULT_FAIL)
		return f.error;
	if (hit && f.action == CPC_FAULT_LOSE)
		return pass_hold(h, CPC_HOLD_WRITE(cause)) ? 0 : -EIO;
	if (hit && f.action == CPC_FAULT_MISDIRECT)
		bytenr = f.target;
	p = pending_write(pc, bytenr, iov, nr, cause);
	if (hit && f.action == CPC_FAULT_FAIL_TORN)
		tear_in_half(pc, p);
	if (!pass_hold(h, CPC_HOLD_WRITE(cause)))
		return -EIO;
	ack(pc, p);
	return hit && f.action != CPC_FAULT_MISDIRECT ? f.error : 0;
}

static int discard_locked(struct handle *h, uint64_t bytenr, uint64_t len)
{
	const struct cpc_powercut_fault *f;
	struct cpc_powercut *pc = h->pc;

	if (dead_locked(h))
		return -EIO;
	if (pc->hooks.before_discard)
		pc->hooks.before_discard(pc->hooks_ctx, bytenr, len);
	f = enter(pc, CPC_POWERCUT_DISCARD, bytenr, len, 0);
	if (f && f->action == CPC_FAULT_LOSE)
		return 0;
	if (!f || f->action == CPC_FAULT_FAIL_LANDED)
		ack(pc, pending_new(pc, bytenr, len, CPC_CAUSE_DATA, true));
	return f ? f->error : 0;
}

static int end_flush_locked(struct cpc_powercut *pc, uint64_t tick,
			    const struct cpc_powercut_fault *f)
{
	if (f && f->action == CPC_FAULT_DROP)
		settle(pc, pc->tick, SETTLE_DROP);
	else if (f && f->action == CPC_FAULT_DROP_CACHED)
		settle(pc, pc->tick, SETTLE_DROP_CACHED);
	else if (!f || f->action == CPC_FAULT_FAIL_LANDED)
		settle(pc, tick, SETTLE_LAND);
	if (f)
		return f->error;
	if (pc->hooks.after_flush)
		pc->hooks.after_flush(pc->hooks_ctx);
	return 0;
}

static int flush_locked(struct handle *h)
{
	const struct cpc_powercut_fault *hit;
	struct cpc_powercut *pc = h->pc;
	struct cpc_powercut_fault f;
	uint64_t tick = pc->tick;

	if (dead_locked(h))
		return -EIO;
	if (pc->hooks.before_flush)
		pc->hooks.before_flush(pc->hooks_ctx);
	hit = enter(pc, CPC_POWERCUT_FLUSH, 0, 0, 0);
	if (hit)
		f = *hit; /* its slot may be used again while we wait */
	delay_flush_locked(pc);
	if (!pass_hold(h, CPC_HOLD_FLUSH))
		return -EIO;
	return end_flush_locked(pc, tick, hit ? &f : NULL);
}

/* ---- the table ---- */

static int powercut_readv(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov,
			  unsigned nr)
{
	struct handle *h = to_handle(b);
	int ret;

	cpc_mutex_lock(&h->pc->lock);
	ret = read_locked(h, bytenr, iov, nr);
	cpc_mutex_unlock(&h->pc->lock);
	return ret;
}

static int powercut_writev(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov,
			   unsigned nr, enum cpc_cause cause)
{
	struct handle *h = to_handle(b);
	int ret;

	cpc_mutex_lock(&h->pc->lock);
	ret = write_locked(h, bytenr, iov, nr, cause);
	cpc_mutex_unlock(&h->pc->lock);
	return ret;
}

static int powercut_flush(struct cpc_backing *b)
{
	struct handle *h = to_handle(b);
	int ret;

	cpc_mutex_lock(&h->pc->lock);
	ret = flush_locked(h);
	cpc_mutex_unlock(&h->pc->lock);
	return ret;
}

static int powercut_discard(struct cpc_backing *b, uint64_t bytenr, uint64_t len)
{
	struct handle *h = to_handle(b);
	int ret;

	cpc_mutex_lock(&h->pc->lock);
	ret = discard_locked(h, bytenr, len);
	cpc_mutex_unlock(&h->pc->lock);
	return ret;
}

static int powercut_current_size(struct cpc_backing *b, uint64_t *size)
{
	*size = to_handle(b)->pc->size;
	return 0;
}

static void powercut_close(struct cpc_backing *b)
{
	struct handle *h = to_handle(b);

	cpc_mutex_lock(&h->pc->lock);
	h->pc->nr_handles--;
	cpc_mutex_unlock(&h->pc->lock);
	free(h);
}

static const struct cpc_backing_ops powercut_ops = {
    .name = "powercut",
    .readv = powercut_readv,
    .writev = powercut_writev,
    .flush = powercut_flush,
    .discard = powercut_discard,
    .current_size = powercut_current_size,
    .close = powercut_close,
};

/* ---- life ---- */

int cpc_powercut_create(uint64_t size, struct cpc_powercut **out)
{
	struct cpc_powercut *pc;

	if (!size || size % CPC_BLOCK_SIZE)
		return -EINVAL;
	pc = cpc_page_xalloc(sizeof(*pc));
	memset(pc, 0, sizeof(*pc));
	pc->size = size;
	cpc_mutex_init(&pc->lock, "power-cut device", CPC_RANK_BACKING);
	cpc_cond_init(&pc->released);
	cpc_cond_init(&pc->held);
	cpc_list_init(&pc->pending);
	*out = pc;
	return 0;
}

void cpc_powercut_destroy(struct cpc_powercut *pc)
{
	cpc_assert(!pc->nr_handles);
	cpc_powercut_drop_pending(pc);
	cpc_page_map_clear(&pc->current);
	cpc_page_map_clear(&pc->stable);
	cpc_cond_destroy(&pc->released);
	cpc_cond_destroy(&pc->held);
	cpc_mutex_destroy(&pc->lock);
	free(pc);
}

void cpc_powercut_set_fill(struct cpc_powercut *pc, uint8_t fill)
{
	cpc_mutex_lock(&pc->lock);
	pc->fill = fill;
	cpc_mutex_unlock(&pc->lock);
}

void cpc_powercut_end_life(struct cpc_powercut *pc)
{
	pc->life++;
	release_locked(pc);
}

/* What was held at a kill lands like any other I/O that the kernel already has. */
void cpc_powercut_ack_all(struct cpc_powercut *pc)
{
	struct cpc_list *pos;

	cpc_list_for_each (pos, &pc->pending) {
		struct cpc_pending *p = cpc_list_entry(pos, struct cpc_pending, node);

		if (!p->info.acked)
			ack(pc, p);
	}
}

int cpc_powercut_reopen(struct cpc_powercut *pc, struct cpc_backing **b)
{
	struct handle *h = cpc_page_xalloc(sizeof(*h));

	cpc_backing_init(&h->backing, &powercut_ops, pc->size, -1, false);
	h->pc = pc;
	cpc_mutex_lock(&pc->lock);
	cpc_powercut_end_life(pc);
	cpc_powercut_ack_all(pc);
	h->life = pc->life;
	pc->nr_handles++;
	cpc_mutex_unlock(&pc->lock);
	*b = &h->backing;
	return 0;
}

void cpc_powercut_kill(struct cpc_powercut *pc)
{
	cpc_mutex_lock(&pc->lock);
	cpc_powercut_end_life(pc);
	cpc_powercut_ack_all(pc);
	cpc_mutex_unlock(&pc->lock);
}

void cpc_powercut_set_hooks(struct cpc_powercut *pc, const struct cpc_powercut_hooks *hooks,
			    void *ctx)
{
	static const struct cpc_powercut_hooks none;

	cpc_mutex_lock(&pc->lock);
	pc->hooks = hooks ? *hooks : none;
	pc->hooks_ctx = ctx;
	cpc_mutex_unlock(&pc->lock);
}

/* ---- looking at the medium, and damaging it ---- */

void cpc_powercut_peek(struct cpc_powercut *pc, uint64_t bytenr, void *buf, size_t len)
{
	cpc_mutex_lock(&pc->lock);
	copy_out(pc, newest_block, bytenr, buf, len);
	cpc_mutex_unlock(&pc->lock);
}

void cpc_powercut_peek_stable(struct cpc_powercut *pc, uint64_t bytenr, void *buf, size_t len)
{
	cpc_mutex_lock(&pc->lock);
	copy_out(pc, cpc_powercut_stable_block, bytenr, buf, len);
	cpc_mutex_unlock(&pc->lock);
}

/* The pending write's page for a block, or NULL. */
static struct cpc_page **pending_page(struct cpc_pending *p, uint64_t block)
{
	uint64_t i = block - block_of(p->info.bytenr);

	return p->info.discard || i >= block_of(p->info.len) ? NULL : &p->pages[i];
}

/* Replaces `old` by `page` in all pending writes of the block; a NULL `old` means any. */
static void replace_pending(struct cpc_powercut *pc, uint64_t block, const struct cpc_page *old,
			    struct cpc_page *page)
{
	struct cpc_list *pos;

	cpc_list_for_each (pos, &pc->pending) {
		struct cpc_pending *p = cpc_list_entry(pos, struct cpc_pending, node);
		struct cpc_page **slot = pending_page(p, block);

		if (!slot || (old && *slot != old))
			continue;
		cpc_page_get(page);
		cpc_page_put(*slot);
		*slot = page;
	}
}

static void flip_in_map(struct cpc_powercut *pc, struct cpc_page_map *map, uint64_t byte,
			unsigned bit)
{
	uint64_t block = block_of(byte);
	struct cpc_page *old = cpc_page_map_find(map, block), *page;
	uint8_t data[CPC_BLOCK_SIZE];

	copy_page(pc, old, data);
	data[byte % CPC_BLOCK_SIZE] ^= (uint8_t)(1u << bit);
	page = cpc_page_new(data);
	if (old)
		replace_pending(pc, block, old, page);
	cpc_page_map_set(map, block, page);
	cpc_page_put(page);
}

void cpc_powercut_flip(struct cpc_powercut *pc, uint64_t byte, unsigned bit)
{
	cpc_assert(byte < pc->size && bit < 8);
	cpc_mutex_lock(&pc->lock);
	if (cpc_page_map_find(&pc->current, block_of(byte)))
		flip_in_map(pc, &pc->current, byte, bit);
	flip_in_map(pc, &pc->stable, byte, bit);
	cpc_mutex_unlock(&pc->lock);
}

void cpc_powercut_poke(struct cpc_powercut *pc, uint64_t bytenr, const void *buf, size_t len)
{
	const char *data = buf;

	cpc_mutex_lock(&pc->lock);
	for (size_t done = 0; done < len; done += CPC_BLOCK_SIZE) {
		struct cpc_page *page = cpc_page_new(data + done);
		uint64_t block = block_of(bytenr + done);

		cpc_page_map_set(&pc->stable, block, page);
		cpc_page_map_del(&pc->current, block);
		replace_pending(pc, block, NULL, page);
		cpc_page_put(page);
	}
	cpc_mutex_unlock(&pc->lock);
}
