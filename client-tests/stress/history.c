/* SPDX-License-Identifier: BSD-3-Clause */
#include "history.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../programs/client.h"

#define NEVER UINT64_MAX

struct change {
	uint64_t sequence; /* 0: zeroes */
	uint64_t start, len;
	uint64_t issued, answered; /* stamps; NEVER: not answered */
	bool fua;
	bool in, out;  /* after a crash: some sector has it, some sector has not */
	uint32_t refs; /* chains that hold it, and 1 until it is answered, resolved or judged */
};

struct sector {
	struct change **chain;
	uint32_t nr, room;
	uint32_t seen;			/* changes of the chain that a read has shown */
	uint64_t seen_at;		/* stamp of that read's answer */
	uint32_t judged_in, judged_out; /* after a crash: below in are there, from out on missing */
};

struct history {
	unsigned number;
	uint64_t size;
	uint64_t clock, sequence;
	uint64_t durable; /* issue stamp of the newest answered flush or FUA request */
	unsigned char *base;
	struct sector *sectors;
	TAILQ_HEAD(, flight) flights; /* oldest first */
};

/* The head of a stamped sector; noise that follows from sequence fills the rest. */
struct stamp {
	uint64_t volume, sequence, sector, checksum;
};

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static uint64_t checksum_of(const struct stamp *stamp)
{
	return mix(stamp->volume + mix(stamp->sequence + mix(stamp->sector + 1)));
}

static void stamp_sector(const struct history *history, uint64_t sequence, uint64_t sector,
			 unsigned char *buf)
{
	struct stamp stamp = {history->number, sequence, sector, 0};
	uint64_t words[SECTOR / sizeof(uint64_t)];

	stamp.checksum = checksum_of(&stamp);
	memcpy(words, &stamp, sizeof(stamp));
	for (unsigned i = sizeof(stamp) / sizeof(*words); i < SECTOR / sizeof(*words); i++)
		words[i] = mix(stamp.checksum + i * 0x9e3779b97f4a7c15u);
	memcpy(buf, words, SECTOR);
}

/* The part of a range that lies in a sector, as from and to within the sector. */
static void clip(uint64_t start, uint64_t len, uint64_t sector, uint32_t *from, uint32_t *to)
{
	uint64_t begin = sector * SECTOR, end = begin + SECTOR;

	*from = (uint32_t)(start > begin ? start - begin : 0);
	*to = (uint32_t)(start + len < end ? start + len - begin : SECTOR);
}

static bool covers(const struct change *change, uint64_t sector)
{
	uint32_t from, to;

	clip(change->start, change->len, sector, &from, &to);
	return from == 0 && to == SECTOR;
}

static void apply(const struct history *history, const struct change *change, uint64_t sector,
		  unsigned char *buf)
{
	unsigned char stamped[SECTOR] = {0};
	uint32_t from, to;

	clip(change->start, change->len, sector, &from, &to);
	if (change->sequence)
		stamp_sector(history, change->sequence, sector, stamped);
	memcpy(buf + from, stamped + from, to - from);
}

/* The sector's bytes after the first `state` changes of its chain. */
static void bytes_at(const struct history *history, uint64_t sector, uint32_t state,
		     unsigned char *buf)
{
	const struct sector *s = &history->sectors[sector];
	uint32_t first = state;

	while (first > 0 && !covers(s->chain[first - 1], sector))
		first--;
	if (first == 0)
		memcpy(buf, history->base + sector * SECTOR, SECTOR);
	else
		first--;
	for (uint32_t i = first; i < state; i++)
		apply(history, s->chain[i], sector, buf);
}

/* --- life of changes ------------------------------------------------------------------------- */

struct history *history_new(unsigned number, uint64_t size)
{
	struct history *history = calloc(1, sizeof(*history));

	if (!history || !(history->base = calloc(1, size)) ||
	    !(history->sectors = calloc(size / SECTOR, sizeof(*history->sectors))))
		fail("out of memory");
	history->number = number;
	history->size = size;
	TAILQ_INIT(&history->flights);
	return history;
}

uint64_t history_size(const struct history *history)
{
	return history->size;
}

void history_begin(struct history *history, struct flight *flight)
{
	flight->issued = ++history->clock;
	TAILQ_INSERT_TAIL(&history->flights, flight, link);
}

void history_end(struct history *history, struct flight *flight)
{
	TAILQ_REMOVE(&history->flights, flight, link);
}

static void put(struct change *change)
{
	if (--change->refs == 0)
		free(change);
}

/* Moves what is durable, and in no doubt for any request in flight, into the base (invariant 4). */
static void fold(struct history *history, uint64_t sector)
{
	struct sector *s = &history->sectors[sector];
	const struct flight *oldest = TAILQ_FIRST(&history->flights);
	uint64_t before = history->durable;
	uint32_t n = 0;

	if (oldest && oldest->issued < before)
		before = oldest->issued;
	while (n < s->nr && s->chain[n]->answered < before)
		n++;
	if (n == 0)
		return;
	unsigned char bytes[SECTOR];

	bytes_at(history, sector, n, bytes);
	memcpy(history->base + sector * SECTOR, bytes, SECTOR);
	for (uint32_t i = 0; i < n; i++)
		put(s->chain[i]);
	s->nr -= n;
	memmove(s->chain, s->chain + n, s->nr * sizeof(*s->chain));
	s->seen = s->seen > n ? s->seen - n : 0;
}

static void append(struct history *history, uint64_t sector, struct change *change)
{
	struct sector *s = &history->sectors[sector];

	fold(history, sector);
	if (s->nr == s->room) {
		s->room = s->room ? s->room * 2 : 2;
		s->chain = reallocarray(s->chain, s->room, sizeof(struct change *));
		if (!s->chain)
			fail("out of memory");
	}
	s->chain[s->nr++] = change;
	change->refs++;
}

static uint64_t first_sector(uint64_t start)
{
	return start / SECTOR;
}

static uint64_t end_sector(uint64_t start, uint64_t len)
{
	return (start + len + SECTOR - 1) / SECTOR;
}

bool history_writable(const struct history *history, uint64_t start, uint64_t len)
{
	for (uint64_t i = first_sector(start); i < end_sector(start, len); i++) {
		const struct sector *s = &history->sectors[i];

		if (s->nr > 0 && s->chain[s->nr - 1]->answered == NEVER)
			return false;
	}
	return true;
}

struct change *history_issue(struct history *history, uint64_t start, uint64_t len, bool zero,
			     bool fua)
{
	struct change *change = calloc(1, sizeof(*change));

	if (!change)
		fail("out of memory");
	*change = (struct change){.sequence = zero ? 0 : ++history->sequence,
				  .start = start,
				  .len = len,
				  .issued = ++history->clock,
				  .answered = NEVER,
				  .fua = fua,
				  .refs = 1};
	for (uint64_t i = first_sector(start); i < end_sector(start, len); i++)
		append(history, i, change);
	return change;
}

void history_fill(const struct history *history, const struct change *change, void *buf)
{
	for (uint64_t i = first_sector(change->start); i < end_sector(change->start, change->len);
	     i++) {
		unsigned char stamped[SECTOR];
		uint32_t from, to;

		clip(change->start, change->len, i, &from, &to);
		stamp_sector(history, change->sequence, i, stamped);
		memcpy((unsigned char *)buf + (i * SECTOR + from - change->start), stamped + from,
		       to - from);
	}
}

uint64_t change_start(const struct change *change)
{
	return change->start;
}

uint64_t change_len(const struct change *change)
{
	return change->len;
}

void history_flushed(struct history *history, uint64_t issued)
{
	if (history->durable < issued)
		history->durable = issued;
}

void history_answered(struct history *history, struct change *change)
{
	change->answered = ++history->clock;
	if (change->fua)
		history_flushed(history, change->issued);
	put(change);
}

/* --- verdicts -------------------------------------------------------------------------------- */

static void describe(const char *word, uint32_t state, const unsigned char *bytes)
{
	struct stamp stamp;

	memcpy(&stamp, bytes, sizeof(stamp));
	printf("  %s", word);
	if (state != UINT32_MAX)
		printf(" after %" PRIu32 " changes", state);
	if (stamp.checksum == checksum_of(&stamp))
		printf(": volume %" PRIu64 ", sequence %" PRIu64 ", sector %" PRIu64 "\n",
		       stamp.volume, stamp.sequence, stamp.sector);
	else
		printf(": no whole stamp; begins %016" PRIx64 " %016" PRIx64 " %016" PRIx64 "\n",
		       stamp.volume, stamp.sequence, stamp.sector);
}

_Noreturn static void mismatch(const struct history *history, uint64_t sector, uint32_t lo,
			       uint32_t from, uint32_t to, const unsigned char *found,
			       const char *what)
{
	const struct sector *s = &history->sectors[sector];
	unsigned char bytes[SECTOR] = {0};

	memcpy(bytes + from, found, to - from);
	describe("found", UINT32_MAX, bytes);
	for (uint32_t state = 0; state <= s->nr; state++) {
		bytes_at(history, sector, state, bytes);
		describe(state < lo ? "too old" : "allowed", state, bytes);
	}
	for (uint32_t i = 0; i < s->nr; i++)
		printf("  change %" PRIu32 ": sequence %" PRIu64 ", %" PRIu64 " + %" PRIu64
		       ", issued %" PRIu64 ", answered %" PRId64 "%s\n",
		       i + 1, s->chain[i]->sequence, s->chain[i]->start, s->chain[i]->len,
		       s->chain[i]->issued, (int64_t)s->chain[i]->answered,
		       s->chain[i]->fua ? ", FUA" : "");
	fail("volume %u, sector %" PRIu64 ", bytes %" PRIu32 " to %" PRIu32
	     ": %s none of the states that it may have; last flush issued at %" PRIu64,
	     history->number, sector, from, to, what, history->durable);
}

/* The first and last state from lo on whose bytes from to to are `found`; false: none. */
static bool match(const struct history *history, uint64_t sector, uint32_t lo, uint32_t from,
		  uint32_t to, const unsigned char *found, uint32_t *first, uint32_t *last)
{
	const struct sector *s = &history->sectors[sector];
	unsigned char bytes[SECTOR];
	bool any = false;

	bytes_at(history, sector, lo, bytes);
	for (uint32_t state = lo; state <= s->nr; state++) {
		if (state > lo)
			apply(history, s->chain[state - 1], sector, bytes);
		if (memcmp(bytes + from, found, to - from) != 0)
			continue;
		if (!any)
			*first = state;
		*last = state;
		any = true;
	}
	return any;
}

static void check_sector(struct history *history, uint64_t issued, uint64_t sector, uint32_t from,
			 uint32_t to, const unsigned char *found, const char *what)
{
	struct sector *s = &history->sectors[sector];
	uint32_t lo = s->nr, first, last;

	while (lo > 0 && s->chain[lo - 1]->answered >= issued)
		lo--;
	if (s->seen > lo && s->seen_at < issued)
		lo = s->seen;
	if (!match(history, sector, lo, from, to, found, &first, &last))
		mismatch(history, sector, lo, from, to, found, what);
	if (first > s->seen) {
		s->seen = first;
		s->seen_at = ++history->clock;
	}
}

void history_check_read(struct history *history, uint64_t issued, uint64_t start, uint64_t len,
			const void *buf)
{
	for (uint64_t i = first_sector(start); i < end_sector(start, len); i++) {
		uint32_t from, to;

		clip(start, len, i, &from, &to);
		check_sector(history, issued, i, from, to,
			     (const unsigned char *)buf + (i * SECTOR + from - start), "read");
	}
}

void history_check_zeroes(struct history *history, uint64_t issued, uint64_t start, uint64_t len)
{
	static const unsigned char zeroes[SECTOR];

	for (uint64_t i = first_sector(start); i < end_sector(start, len); i++) {
		uint32_t from, to;

		clip(start, len, i, &from, &to);
		check_sector(history, issued, i, from, to, zeroes,
			     "block status says zeroes, which are");
	}
}

void history_resolve(struct history *history, struct change *change, const void *buf)
{
	uint64_t begin = first_sector(change->start), end = end_sector(change->start, change->len);
	bool in = false, out = false;

	for (uint64_t i = begin; i < end; i++) {
		const struct sector *s = &history->sectors[i];
		uint32_t from, to, first, last;
		const unsigned char *found;

		clip(change->start, change->len, i, &from, &to);
		found = (const unsigned char *)buf + (i * SECTOR + from - change->start);
		if (!match(history, i, s->nr - 1, from, to, found, &first, &last))
			mismatch(history, i, s->nr - 1, from, to, found, "read");
		in |= first == s->nr;
		out |= last == s->nr - 1;
	}
	if (in && out)
		fail("volume %u: a request of a client that vanished, %" PRIu64 " + %" PRIu64
		     ", was done in part",
		     history->number, change->start, change->len);
	if (in) {
		change->fua = false; /* nobody promised anything */
		history_answered(history, change);
		return;
	}
	for (uint64_t i = begin; i < end; i++) {
		struct sector *s = &history->sectors[i];

		s->nr--;
		if (s->seen > s->nr)
			s->seen = s->nr;
		put(change);
	}
	put(change);
}

void history_judge(struct history *history, uint64_t start, uint64_t len, const void *buf)
{
	for (uint64_t i = first_sector(start); i < end_sector(start, len); i++) {
		struct sector *s = &history->sectors[i];
		const unsigned char *found = (const unsigned char *)buf + (i * SECTOR - start);

		if (!match(history, i, 0, 0, SECTOR, found, &s->judged_in, &s->judged_out))
			mismatch(history, i, 0, 0, SECTOR, found, "holds after the crash");
		for (uint32_t k = 0; k < s->judged_in; k++)
			s->chain[k]->in = true;
		for (uint32_t k = s->judged_out; k < s->nr; k++)
			s->chain[k]->out = true;
		memcpy(history->base + i * SECTOR, found, SECTOR);
	}
}

static void blame(const struct history *history, const struct change *out, const char *why,
		  uint64_t stamp)
{
	fail("volume %u: after the crash the request with sequence %" PRIu64 ", %" PRIu64
	     " + %" PRIu64 ", issued %" PRIu64 ", answered %" PRId64 "%s %s %" PRIu64,
	     history->number, out->sequence, out->start, out->len, out->issued,
	     (int64_t)out->answered, out->fua ? ", FUA," : ",", why, stamp);
}

uint64_t history_judge_life(struct history *history)
{
	const struct change *oldest_out = NULL;
	uint64_t newest_in = 0, missing = 0;

	for (uint64_t i = 0; i < history->size / SECTOR; i++) {
		const struct sector *s = &history->sectors[i];

		for (uint32_t k = 0; k < s->nr; k++) {
			const struct change *change = s->chain[k];

			if (change->in && change->out)
				blame(history, change, "is there in part; volume's clock",
				      history->clock);
			if (change->in && change->issued > newest_in)
				newest_in = change->issued;
			if (!change->out)
				continue;
			if (first_sector(change->start) == i)
				missing++;
			if (change->fua && change->answered != NEVER)
				blame(history, change, "is missing; volume's clock",
				      history->clock);
			if (!oldest_out || change->answered < oldest_out->answered)
				oldest_out = change;
		}
	}
	if (oldest_out && oldest_out->answered < newest_in)
		blame(history, oldest_out, "is missing, and there is one issued at", newest_in);
	if (oldest_out && oldest_out->answered < history->durable)
		blame(history, oldest_out, "is missing, and a flush was answered, issued at",
		      history->durable);
	for (uint64_t i = 0; i < history->size / SECTOR; i++) {
		struct sector *s = &history->sectors[i];

		for (uint32_t k = 0; k < s->nr; k++) {
			if (s->chain[k]->answered == NEVER) {
				s->chain[k]->answered = 0; /* its flight's reference, once */
				put(s->chain[k]);
			}
			put(s->chain[k]);
		}
		s->nr = s->seen = 0;
	}
	return missing;
}
