/* SPDX-License-Identifier: BSD-3-Clause */
#include "damage.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const names[VOLUMES] = {"a", "b", "last"};

struct cpc_volume *subject_volume(struct subject *s, unsigned v)
{
	struct cpc_volume *vol;

	rig_expect(cpc_pool_open_volume(s->rig.pool, names[v], &vol) == 0, "no volume %s",
		   names[v]);
	cpc_pool_close_volume(s->rig.pool, vol);
	return vol;
}

int subject_try_write(struct subject *s, unsigned v, uint64_t block)
{
	uint64_t stamp = rnd_u64(&s->rnd) | 1;
	uint8_t buf[CPC_BLOCK_SIZE];
	int ret;

	rnd_fill(stamp, buf, sizeof(buf));
	ret = cpc_volume_write(subject_volume(s, v), buf, sizeof(buf), block << CPC_BLOCK_SHIFT, 0);
	if (!ret)
		s->content.stamp[v][block] = stamp;
	return ret;
}

void subject_write(struct subject *s, unsigned v, uint64_t block)
{
	int ret = subject_try_write(s, v, block);

	rig_expect(ret == 0, "write: %s", strerror(-ret));
}

void subject_flush(struct subject *s, unsigned v)
{
	int ret = cpc_volume_flush(subject_volume(s, v));

	rig_expect(ret == 0, "flush: %s", strerror(-ret));
}

static void fill(struct subject *s)
{
	struct cpc_error err = {""};

	for (unsigned v = 0; v < VOLUMES; v++) {
		int ret = cpc_pool_create_volume(s->rig.pool, names[v],
						 VOLUME_BLOCKS * CPC_BLOCK_SIZE, &err);

		rig_expect(ret == 0, "create: %s", err.text);
	}
	for (unsigned i = 0; i < 200; i++) {
		subject_write(s, i % 2, rnd_below(&s->rnd, VOLUME_BLOCKS));
		if (i % 40 == 39)
			rig_expect(cpc_pool_commit(s->rig.pool) == 0, "commit");
	}
}

/* Records behind the last commit, of which all but the last volume's last are known durable. */
static void leave_log(struct subject *s)
{
	for (unsigned i = 0; i < 12; i++) {
		subject_write(s, i % 2, rnd_below(&s->rnd, VOLUME_BLOCKS));
		subject_flush(s, i % 2);
	}
	for (unsigned i = 0; i < 2; i++) {
		memcpy(s->content.before, s->content.stamp[VOLUMES - 1], sizeof(s->content.before));
		subject_write(s, VOLUMES - 1, i);
		subject_flush(s, VOLUMES - 1);
	}
}

static int peek_readv(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov, unsigned nr)
{
	struct subject *s = cpc_container_of(b, struct subject, peek);

	for (unsigned i = 0; i < nr; i++) {
		cpc_powercut_peek(s->rig.pc, bytenr, iov[i].iov_base, iov[i].iov_len);
		bytenr += iov[i].iov_len;
	}
	return 0;
}

struct cpc_backing *subject_peek(struct subject *s)
{
	static const struct cpc_backing_ops ops = {.name = "peek", .readv = peek_readv};

	if (!s->peek.ops)
		cpc_backing_init(&s->peek, &ops, s->rig.size, -1, true);
	return &s->peek;
}

void subject_create(struct subject *s, uint64_t seed, bool single)
{
	memset(s, 0, sizeof(*s));
	s->rnd.state = seed;
	s->rig.size = 4u << 20;
	s->rig.nodesize = 4096;
	s->rig.single = single;
	cpc_pool_options_init(&s->rig.opts);
	s->rig.opts.no_threads = true;
	s->rig.opts.cache = CPC_CACHE_MIN;
	rig_seed_engine(seed);
	rig_create(&s->rig);
	rig_open(&s->rig);
	fill(s);
	leave_log(s);
	rig_kill(&s->rig);
}

static bool is_stamp(const uint8_t *buf, uint64_t stamp)
{
	uint8_t want[CPC_BLOCK_SIZE];

	if (!stamp)
		return cpc_all_zero(buf, CPC_BLOCK_SIZE);
	rnd_fill(stamp, want, sizeof(want));
	return memcmp(buf, want, sizeof(want)) == 0;
}

uint64_t subject_read(struct subject *s, bool relaxed)
{
	uint8_t buf[CPC_BLOCK_SIZE];
	uint64_t errors = 0;

	for (unsigned v = 0; v < VOLUMES; v++) {
		struct cpc_volume *vol = subject_volume(s, v);

		for (uint64_t b = 0; b < VOLUME_BLOCKS; b++) {
			if (cpc_volume_read(vol, buf, sizeof(buf), b << CPC_BLOCK_SHIFT)) {
				errors++;
				continue;
			}
			if (is_stamp(buf, s->content.stamp[v][b]))
				continue;
			if (!relaxed || v < VOLUMES - 1 || !is_stamp(buf, s->content.before[b]))
				rig_fail("volume %s block %llu: wrong bytes", names[v],
					 (unsigned long long)b);
		}
	}
	return errors;
}

/* --- places --- */

/* "  blocks 3+2 at 40960 ...", and lines with node addresses: as dump prints them. */
static void note_line(void *ctx, const char *line)
{
	struct places *at = ctx;
	unsigned long long a, b, c;
	const char *ptr = strstr(line, ": bytenr ");
	unsigned home;

	if (ptr && sscanf(ptr, ": bytenr %llu and %llu", &a, &b) == 2) {
		at->meta[at->nr_meta++] = a >> CPC_BLOCK_SHIFT;
		at->meta[at->nr_meta++] = b >> CPC_BLOCK_SHIFT;
	}
	if (sscanf(line, "  blocks %llu+%llu at %llu", &a, &b, &c) == 3) {
		for (uint64_t i = 0; i < b; i++)
			at->data[at->nr_data++] = (c >> CPC_BLOCK_SHIFT) + i;
	}
	if (sscanf(line, "  group %llu generation %llu home %u", &a, &b, &home) == 3) {
		for (unsigned copy = 0; copy < at->geo.copies; copy++)
			at->meta[at->nr_meta++] =
			    cpc_geometry_home(&at->geo, copy, a, home) >> CPC_BLOCK_SHIFT;
	}
}

static void find_records(struct subject *s, struct places *at)
{
	uint8_t buf[CPC_BLOCK_SIZE];
	const struct cpc_disk_log_record *record = (const void *)buf;
	uint64_t pos = at->super.log_position % at->super.log_size;

	for (uint64_t seq = at->super.log_seq + 1;; seq++) {
		uint64_t len;

		cpc_powercut_peek(s->rig.pc, (at->geo.log[0] << CPC_BLOCK_SHIFT) + pos, buf,
				  sizeof(buf));
		len = cpc_get_le32(&record->length);
		if (cpc_get_le32(&record->magic) != CPC_LOG_MAGIC ||
		    cpc_get_le64(&record->nonce) != at->super.nonce ||
		    cpc_get_le64(&record->seq) != seq)
			break;
		for (uint64_t i = 0; i < 2 * (len >> CPC_BLOCK_SHIFT); i++)
			at->log[at->nr_log++] =
			    at->geo.log[i % 2] + (pos >> CPC_BLOCK_SHIFT) + i / 2;
		pos = (pos + len) % at->super.log_size;
	}
	/* the last record's mark has not been written: rot in it counts as a torn write */
	at->nr_log -= at->nr_log ? 2 : 0;
}

void places_find(struct subject *s, struct places *at)
{
	static const char *const trees[] = {"root", "free-log", "a", "b", "last"};
	struct cpc_backing *b = subject_peek(s);
	const char *why;

	memset(at, 0, sizeof(*at));
	rig_expect(cpc_super_find(b, &at->super, &why) == 0, "%s", why);
	rig_expect(cpc_geometry_init(&at->geo, at->super.total_bytes, at->super.log_size,
				     at->super.nodesize,
				     at->super.incompat & CPC_INCOMPAT_DUP) == 0,
		   "geometry");
	at->meta = calloc(at->geo.nr_blocks + 64, sizeof(*at->meta));
	at->data = calloc(at->geo.nr_blocks + 64, sizeof(*at->data));
	at->log = calloc(2 * at->geo.log_blocks + 64, sizeof(*at->log));
	for (unsigned i = 0; i < 2; i++) {
		const struct cpc_node_ptr *ptr = i ? &at->super.free_log : &at->super.root;

		for (unsigned c = 0; c < at->geo.copies && ptr->bytenr[0]; c++)
			at->meta[at->nr_meta++] = ptr->bytenr[c] >> CPC_BLOCK_SHIFT;
		at->super_slot[i] =
		    cpc_geometry_super(&at->geo, i, at->super.slot) >> CPC_BLOCK_SHIFT;
	}
	for (unsigned i = 0; i < CPC_ARRAY_SIZE(trees); i++)
		cpc_dump(b, "tree", trees[i], note_line, at);
	find_records(s, at);
}

void places_free(struct places *at)
{
	free(at->meta);
	free(at->data);
	free(at->log);
}
