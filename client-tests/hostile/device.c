/* SPDX-License-Identifier: BSD-3-Clause */
#include "device.h"

#include <stdlib.h>

struct handle {
	struct cpc_backing backing;
	struct device *device;
};

static struct device *device_of(struct cpc_backing *b)
{
	return cpc_container_of(b, struct handle, backing)->device;
}

void device_init(struct device *d, const uint8_t *base, uint64_t size)
{
	uint64_t nr = size / CPC_BLOCK_SIZE;

	*d = (struct device){.size = size, .base = base};
	d->bytes = aligned_alloc(CPC_BLOCK_SIZE, size);
	d->touched = malloc(nr * sizeof(*d->touched));
	d->is_touched = calloc(nr, 1);
	cpc_assert(d->bytes && d->touched && d->is_touched);
	memcpy(d->bytes, base, size);
}

void device_destroy(struct device *d)
{
	free(d->bytes);
	free(d->touched);
	free(d->is_touched);
}

void device_reset(struct device *d)
{
	while (d->nr_touched) {
		uint64_t block = d->touched[--d->nr_touched];

		d->is_touched[block] = 0;
		memcpy(d->bytes + block * CPC_BLOCK_SIZE, d->base + block * CPC_BLOCK_SIZE,
		       CPC_BLOCK_SIZE);
	}
}

void device_touch(struct device *d, uint64_t bytenr, uint64_t len)
{
	for (uint64_t block = bytenr / CPC_BLOCK_SIZE; block * CPC_BLOCK_SIZE < bytenr + len;
	     block++) {
		if (!d->is_touched[block])
			d->touched[d->nr_touched++] = block;
		d->is_touched[block] = 1;
	}
}

static int device_readv(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov,
			unsigned nr)
{
	for (unsigned i = 0; i < nr; bytenr += iov[i++].iov_len)
		memcpy(iov[i].iov_base, device_of(b)->bytes + bytenr, iov[i].iov_len);
	return 0;
}

static int device_writev(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov,
			 unsigned nr, enum cpc_cause cause)
{
	struct device *d = device_of(b);

	d->writes++;
	for (unsigned i = 0; i < nr; bytenr += iov[i++].iov_len) {
		d->changed |= memcmp(d->bytes + bytenr, iov[i].iov_base, iov[i].iov_len) != 0;
		device_touch(d, bytenr, iov[i].iov_len);
		memcpy(d->bytes + bytenr, iov[i].iov_base, iov[i].iov_len);
	}
	return 0;
}

static int device_flush(struct cpc_backing *b)
{
	return 0;
}

static int device_discard(struct cpc_backing *b, uint64_t bytenr, uint64_t len)
{
	device_of(b)->writes++;
	return 0;
}

static int device_current_size(struct cpc_backing *b, uint64_t *size)
{
	*size = device_of(b)->size;
	return 0;
}

static void device_close(struct cpc_backing *b)
{
	free(cpc_container_of(b, struct handle, backing));
}

static const struct cpc_backing_ops device_ops = {
    .name = "memory",
    .readv = device_readv,
    .writev = device_writev,
    .flush = device_flush,
    .discard = device_discard,
    .current_size = device_current_size,
    .close = device_close,
};

struct cpc_backing *device_open(struct device *d)
{
	struct handle *h = calloc(1, sizeof(*h));

	cpc_assert(h);
	h->device = d;
	d->writes = 0;
	d->changed = false;
	cpc_backing_init(&h->backing, &device_ops, d->size, -1, false);
	return &h->backing;
}
