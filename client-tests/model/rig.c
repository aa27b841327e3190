/* SPDX-License-Identifier: BSD-3-Clause */
#include "rig.h"

#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/hooks.h"
#include "lib/log.h"

/* --- random numbers --- */

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

uint64_t rnd_u64(struct rnd *r)
{
	r->state += 0x9e3779b97f4a7c15u;
	return mix(r->state);
}

uint64_t rnd_below(struct rnd *r, uint64_t n)
{
	return (uint64_t)(((__uint128_t)rnd_u64(r) * n) >> 64);
}

bool rnd_percent(struct rnd *r, unsigned percent)
{
	return rnd_below(r, 100) < percent;
}

/* Each word is the stamp with its number below, for whoever looks at a wrong byte. */
void rnd_fill(uint64_t stamp, void *buf, size_t len)
{
	uint64_t word = stamp << 20;
	uint8_t *to = buf;

	for (; len >= sizeof(word); len -= sizeof(word), to += sizeof(word)) {
		memcpy(to, &word, sizeof(word));
		word = (word & ~0xfffffull) | ((word + 1) & 0xfffff);
	}
	memcpy(to, &word, len);
}

/* --- failing --- */

static char rerun[512];
static const struct rig *current; /* what is printed of it when something fails */
/* The engine's last messages, oldest overwritten: shown only when something fails. */
static char messages[16][256];
static _Atomic unsigned nr_messages;

void rig_set_rerun(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(rerun, sizeof(rerun), fmt, ap);
	va_end(ap);
}

static void print_rerun(void)
{
	unsigned nr = atomic_load(&nr_messages), from = nr > 16 ? nr - 16 : 0;

	fflush(stdout);
	for (unsigned i = from; i < nr; i++)
		fprintf(stderr, "  engine: %.255s\n", messages[i % 16]);
	if (current)
		fprintf(stderr,
			"pool of %llu bytes, nodesize %u, %u cop%s; cache %llu, dirty %llu, %s\n",
			(unsigned long long)current->size, current->nodesize,
			current->single ? 1 : 2, current->single ? "y" : "ies",
			(unsigned long long)current->opts.cache,
			(unsigned long long)current->opts.dirty,
			current->opts.no_threads ? "no threads" : "threads");
	fprintf(stderr, "to run it again: %s\n", rerun);
}

void rig_fail(const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "FAILED: ");
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "\n");
	print_rerun();
	signal(SIGABRT, SIG_DFL);
	if (getenv("CPC_TEST_ABORT"))
		abort();
	_exit(1);
}

static void on_abort(int sig)
{
	signal(sig, SIG_DFL);
	print_rerun();
	raise(sig);
}

static void keep_message(enum cpc_log_level level, const char *line)
{
	unsigned i = atomic_fetch_add(&nr_messages, 1) % 16;

	snprintf(messages[i], sizeof(messages[i]), "%s", line);
	if (getenv("CPC_TEST_VERBOSE"))
		fprintf(stderr, "  engine: %s\n", line);
}

uint64_t rig_number(const char *text, const char *what)
{
	char *end;
	uint64_t n = strtoull(text, &end, 0);

	if (*text >= '0' && *text <= '9' && !*end)
		return n;
	fprintf(stderr, "%s is not a number: %s\n", what, text);
	exit(2);
}

uint64_t rig_env(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text ? rig_number(text, name) : otherwise;
}

/* --- hooks --- */

static _Atomic uint64_t engine_state;

static int engine_random(void *buf, size_t len)
{
	uint64_t word = mix(atomic_fetch_add(&engine_state, 0x1234567));

	for (size_t i = 0; i < len; i++)
		((uint8_t *)buf)[i] = (uint8_t)(mix(word + i / 8) >> i % 8 * 8);
	return 0;
}

static int64_t engine_realtime(void)
{
	return 1700000000;
}

void rig_seed_engine(uint64_t seed)
{
	atomic_store(&engine_state, mix(seed));
}

void rig_init(uint64_t seed)
{
	cpc_hooks.random = engine_random;
	cpc_hooks.realtime_s = engine_realtime;
	rig_seed_engine(seed);
	cpc_log_set_sink(keep_message);
	signal(SIGABRT, on_abort);
}

/* --- lives --- */

static void illegal(void *ctx, const char *what)
{
	rig_fail("legality oracle: %s", what);
}

static struct cpc_backing *start_life(struct rig *r)
{
	struct cpc_backing *b;
	int ret = r->watch ? cpc_oracle_reopen(r->oracle, &b) : cpc_powercut_reopen(r->pc, &b);

	rig_expect(ret == 0, "the device cannot be opened: %d", ret);
	return r->wrap ? r->wrap(r->wrap_ctx, b) : b;
}

void rig_create_device(struct rig *r)
{
	current = r;
	rig_expect(cpc_powercut_create(r->size, &r->pc) == 0, "no device");
	cpc_powercut_set_fill(r->pc, r->fill);
	if (r->watch)
		cpc_oracle_create(r->pc, illegal, r, &r->oracle);
}

void rig_format(struct rig *r)
{
	struct cpc_format_options opts = {
	    .nodesize = r->nodesize, .single = r->single, .log_size = r->log_size};
	struct cpc_error err = {""};
	struct cpc_backing *b;

	rig_expect(cpc_powercut_reopen(r->pc, &b) == 0, "the device cannot be opened");
	rig_expect(cpc_pool_format_backing(b, &opts, &err) == 0, "format: %s", err.text);
	cpc_backing_close(b);
}

void rig_create(struct rig *r)
{
	rig_create_device(r);
	rig_format(r);
}

void rig_destroy(struct rig *r)
{
	struct cpc_oracle_stats stats;

	rig_expect(!r->pool, "the pool is open");
	if (r->oracle) {
		cpc_oracle_get_stats(r->oracle, &stats);
		r->oracle_roots += stats.roots;
		cpc_oracle_destroy(r->oracle);
	}
	r->oracle = NULL;
	cpc_powercut_destroy(r->pc);
	if (current == r)
		current = NULL;
}

int rig_try_open(struct rig *r, struct cpc_error *err)
{
	int ret = cpc_pool_open_backing(start_life(r), &r->opts, &r->pool, err);

	if (ret) {
		r->pool = NULL;
		return ret;
	}
	ret = cpc_pool_start(r->pool, err);
	if (ret)
		rig_abandon(r);
	return ret;
}

void rig_open(struct rig *r)
{
	struct cpc_error err = {""};
	int ret = rig_try_open(r, &err);

	rig_expect(ret == 0, "the pool does not open: %s (%d)", err.text, ret);
}

int rig_close(struct rig *r)
{
	int ret = cpc_pool_shutdown(r->pool);

	rig_abandon(r);
	return ret;
}

void rig_abandon(struct rig *r)
{
	cpc_pool_close(r->pool);
	r->pool = NULL;
}

void rig_kill(struct rig *r)
{
	cpc_powercut_kill(r->pc);
	rig_abandon(r);
}

/* --- looking --- */

static void print_finding(void *ctx, const char *line)
{
	unsigned *lines = ctx;

	if (++*lines <= 20)
		fprintf(stderr, "  check: %s\n", line);
}

static void run_check(struct rig *r, bool print, struct cpc_check_result *result)
{
	unsigned lines = 0;
	struct cpc_check_options opts = {
	    .data = true, .report = print ? print_finding : NULL, .ctx = &lines};
	struct cpc_backing *b;
	int ret;

	rig_expect(cpc_powercut_reopen(r->pc, &b) == 0, "the device cannot be opened");
	ret = cpc_check(b, &opts, result);
	cpc_backing_close(b);
	rig_expect(ret == 0, "check: %s", strerror(-ret));
}

void rig_check(struct rig *r, bool torn_supers, struct cpc_check_result *result)
{
	struct cpc_check_result here;

	if (!result)
		result = &here;
	run_check(r, false, result);
	r->checks++;
	if (result->errors == (torn_supers ? result->supers_bad : 0))
		return;
	run_check(r, true, result);
	rig_fail("check: %llu errors, %llu of them superblocks, %llu blocks leaked",
		 (unsigned long long)result->errors, (unsigned long long)result->supers_bad,
		 (unsigned long long)result->leaked_blocks);
}

#define READ_PIECE (1u << 20)

struct reading {
	struct cpc_volume *vol;
	struct cpc_page_map *actual;
	uint8_t *buf;
	uint64_t size;
};

/* Whole blocks; what the volume's end cuts off is zero. */
static void read_piece(struct reading *r, uint64_t block, uint64_t nr)
{
	uint64_t offset = block << CPC_BLOCK_SHIFT, len = nr << CPC_BLOCK_SHIFT;
	int ret;

	memset(r->buf, 0, len);
	ret = cpc_volume_read(r->vol, r->buf, cpc_min_u64(len, r->size - offset), offset);
	rig_expect(ret == 0, "read of %llu+%llu: %s", (unsigned long long)offset,
		   (unsigned long long)len, strerror(-ret));
	for (uint64_t i = 0; i < nr; i++) {
		struct cpc_page *page = cpc_page_new(r->buf + i * CPC_BLOCK_SIZE);

		cpc_page_map_set(r->actual, block + i, page);
		cpc_page_put(page);
	}
}

static int read_extent(void *ctx, uint64_t offset, uint64_t len, bool hole)
{
	struct reading *r = ctx;
	uint64_t block = offset >> CPC_BLOCK_SHIFT;
	uint64_t end = ((offset + len - 1) >> CPC_BLOCK_SHIFT) + 1;

	while (!hole && block < end) {
		uint64_t nr = cpc_min_u64(end - block, READ_PIECE / CPC_BLOCK_SIZE);

		read_piece(r, block, nr);
		block += nr;
	}
	return 0;
}

static void read_known(struct reading *r, uint64_t block)
{
	if (block << CPC_BLOCK_SHIFT < r->size && !cpc_page_map_find(r->actual, block))
		read_piece(r, block, 1);
}

struct extents_end {
	struct reading *r;
	uint64_t end;
};

static int read_and_note_end(void *ctx, uint64_t offset, uint64_t len, bool hole)
{
	struct extents_end *e = ctx;

	rig_expect(offset == e->end && len, "extents leave a gap at %llu",
		   (unsigned long long)e->end);
	e->end = offset + len;
	return read_extent(e->r, offset, len, hole);
}

void rig_read_volume(struct cpc_volume *vol, const struct ref *ref, struct cpc_page_map *actual)
{
	struct reading r = {.vol = vol, .actual = actual, .size = cpc_volume_size(vol)};
	struct extents_end e = {.r = &r};
	int ret;

	memset(actual, 0, sizeof(*actual));
	r.buf = malloc(READ_PIECE);
	/* One answer need not cover all that was asked for. */
	while (e.end < r.size) {
		uint64_t before = e.end;

		ret = cpc_volume_extents(vol, e.end, r.size - e.end, read_and_note_end, &e);
		rig_expect(ret == 0 && e.end > before, "extents: %d at %llu", ret,
			   (unsigned long long)before);
	}
	for (size_t i = 0; i < ref->pages.nr_slots; i++) {
		if (ref->pages.slots[i].page)
			read_known(&r, ref->pages.slots[i].block);
	}
	for (size_t o = 0; o < ref->nr_ops; o++) {
		for (size_t i = 0; i < ref->op[o].nr; i++)
			read_known(&r, ref->op[o].change[i].block);
	}
	free(r.buf);
}
