/* SPDX-License-Identifier: BSD-3-Clause */
#include "history.h"

#include <stdlib.h>

static uint8_t *copy_of(const uint8_t *from, size_t len)
{
	uint8_t *copy = malloc(len);

	cpc_assert(copy);
	memcpy(copy, from, len);
	return copy;
}

static struct history_state *newest(struct history *h)
{
	return &h->state[h->nr - 1];
}

static struct history_state *push(struct history *h)
{
	if (h->nr == h->cap) {
		h->cap = h->cap ? 2 * h->cap : 16;
		h->state = realloc(h->state, h->cap * sizeof(*h->state));
		cpc_assert(h->state);
	}
	memset(&h->state[h->nr], 0, sizeof(*h->state));
	return &h->state[h->nr++];
}

void history_init(struct history *h)
{
	memset(h, 0, sizeof(*h));
	push(h)->bytes = calloc(1, HISTORY_BYTES);
}

void history_destroy(struct history *h)
{
	for (size_t i = 0; i < h->nr; i++) {
		free(h->state[i].bytes);
		free(h->state[i].unsure);
		free(h->state[i].data);
	}
	free(h->state);
	memset(h, 0, sizeof(*h));
}

static void put(uint8_t *to, const uint8_t *data, uint64_t len, uint64_t offset)
{
	if (data)
		memcpy(to + offset, data, len);
	else
		memset(to + offset, 0, len);
}

void history_change(struct history *h, const uint8_t *data, uint64_t len, uint64_t offset)
{
	struct history_state *to = push(h), *from = to - 1;

	to->bytes = copy_of(from->bytes, HISTORY_BYTES);
	put(to->bytes, data, len, offset);
	if (from->unsure) {
		to->unsure = copy_of(from->unsure, HISTORY_BYTES);
		memset(to->unsure + offset, 0, len);
	}
	to->offset = offset;
	to->len = len;
	to->data = data ? copy_of(data, len) : NULL;
}

void history_failed(struct history *h)
{
	struct history_state *to = newest(h), *from = to - 1;

	memcpy(to->bytes + to->offset, from->bytes + to->offset, to->len);
	if (!to->unsure)
		to->unsure = calloc(1, HISTORY_BYTES);
	cpc_assert(to->unsure);
	memset(to->unsure + to->offset, 1, to->len);
	to->failed = true;
}

void history_durable(struct history *h)
{
	h->floor = h->nr - 1;
}

/* Whether some failed change would have put this byte there. */
static bool failed_to_put(const struct history *h, size_t upto, uint64_t offset, uint8_t byte)
{
	for (size_t i = 0; i <= upto; i++) {
		const struct history_state *s = &h->state[i];

		if (s->failed && offset >= s->offset && offset - s->offset < s->len &&
		    byte == (s->data ? s->data[offset - s->offset] : 0))
			return true;
	}
	return false;
}

static bool fits(const struct history *h, size_t state, const uint8_t *buf, uint64_t len,
		 uint64_t offset, uint64_t *bad)
{
	const struct history_state *s = &h->state[state];

	if (memcmp(buf, s->bytes + offset, len) == 0)
		return true;
	for (uint64_t i = 0; i < len; i++) {
		*bad = offset + i;
		if (buf[i] == s->bytes[offset + i])
			continue;
		if (!s->unsure || !s->unsure[offset + i] ||
		    !failed_to_put(h, state, offset + i, buf[i]))
			return false;
	}
	return true;
}

bool history_reads(const struct history *h, const uint8_t *buf, uint64_t len, uint64_t offset,
		   uint64_t *bad)
{
	return fits(h, h->nr - 1, buf, len, offset, bad);
}

bool history_came_back(struct history *h, const uint8_t *buf, uint64_t size)
{
	uint64_t bad;

	for (size_t i = h->nr; i-- > h->floor;) {
		if (!fits(h, i, buf, size, 0, &bad))
			continue;
		history_destroy(h);
		history_init(h);
		memcpy(h->state[0].bytes, buf, size);
		return true;
	}
	return false;
}
