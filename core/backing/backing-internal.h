/* SPDX-License-Identifier: BSD-3-Clause */
/* backing-internal: what the files of this folder share. */
#ifndef CPC_BACKING_BACKING_INTERNAL_H
#define CPC_BACKING_BACKING_INTERNAL_H

#include "backing/backing.h"

/* Asserts that the range is aligned. Return: 0, or -EIO when it leaves the device. */
int cpc_backing_check_range(const struct cpc_backing *b, uint64_t bytenr, uint64_t len);

/* Asserts that all segments are aligned and not empty. Return: their length. */
size_t cpc_iov_len(const struct iovec *iov, unsigned nr);

/* Copies to `out` what follows the first `skip` bytes of the vector. Return: its segments. */
unsigned cpc_iov_tail(struct iovec *out, const struct iovec *iov, unsigned nr, size_t skip);

/* Count a call that has ended with `result`. */
void cpc_backing_count_read(struct cpc_backing *b, size_t len, int result);
void cpc_backing_count_write(struct cpc_backing *b, size_t len, enum cpc_cause cause, int result);

/* The process that holds a lock on the file behind `fd`, or 0. Best effort. */
pid_t cpc_lock_holder(int fd);

#endif
