/* SPDX-License-Identifier: BSD-3-Clause */
#include "tap.h"

#include <errno.h>
#include <stdlib.h>

struct handle {
	struct cpc_backing backing;
	struct cpc_backing *inner;
	struct tap *tap;
};

static struct handle *to_handle(struct cpc_backing *b)
{
	return cpc_container_of(b, struct handle, backing);
}

static int before(struct handle *h, char what)
{
	if (h->tap->before && !h->tap->dead)
		h->tap->before(h->tap->ctx, what);
	return h->tap->dead ? -EIO : 0;
}

static int tap_readv(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov, unsigned nr)
{
	struct handle *h = to_handle(b);

	return h->tap->dead ? -EIO : cpc_backing_readv(h->inner, bytenr, iov, nr);
}

static int tap_writev(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov, unsigned nr,
		      enum cpc_cause cause)
{
	int ret = before(to_handle(b), 'w');

	return ret ? ret : cpc_backing_writev(to_handle(b)->inner, bytenr, iov, nr, cause);
}

static int tap_flush(struct cpc_backing *b)
{
	int ret = before(to_handle(b), 'f');

	return ret ? ret : cpc_backing_flush(to_handle(b)->inner);
}

static int tap_discard(struct cpc_backing *b, uint64_t bytenr, uint64_t len)
{
	int ret = before(to_handle(b), 'd');

	return ret ? ret : cpc_backing_discard(to_handle(b)->inner, bytenr, len);
}

static int tap_current_size(struct cpc_backing *b, uint64_t *size)
{
	return cpc_backing_current_size(to_handle(b)->inner, size);
}

static void tap_close(struct cpc_backing *b)
{
	cpc_backing_close(to_handle(b)->inner);
	free(to_handle(b));
}

static const struct cpc_backing_ops tap_ops = {
    .name = "tap",
    .readv = tap_readv,
    .writev = tap_writev,
    .flush = tap_flush,
    .discard = tap_discard,
    .current_size = tap_current_size,
    .close = tap_close,
};

struct cpc_backing *tap_wrap(void *tap, struct cpc_backing *inner)
{
	struct handle *h = calloc(1, sizeof(*h));

	cpc_assert(h);
	h->inner = inner;
	h->tap = tap;
	cpc_backing_init(&h->backing, &tap_ops, inner->size, -1, false);
	return &h->backing;
}
