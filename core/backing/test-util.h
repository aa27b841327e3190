/* SPDX-License-Identifier: BSD-3-Clause */
/* test-util: what the tests of this folder share. */
#ifndef CPC_BACKING_TEST_UTIL_H
#define CPC_BACKING_TEST_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "backing/backing.h"
#include "backing/powercut.h"
#include "lib/hooks.h"

#define MIB	 (1024u * 1024u)
#define BLOCK(n) ((uint64_t)(n)*CPC_BLOCK_SIZE)

static inline char *test_buf(size_t len)
{
	char *buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, len);

	assert_non_null(buf);
	memset(buf, 0, len);
	return buf;
}

/* Writes one block full of `tag`, which is not tracked by anybody. */
static inline int test_put(struct cpc_backing *b, uint64_t block, int tag)
{
	char *buf = test_buf(CPC_BLOCK_SIZE);
	int ret;

	memset(buf, tag, CPC_BLOCK_SIZE);
	ret = cpc_backing_write(b, BLOCK(block), buf, CPC_BLOCK_SIZE, CPC_CAUSE_DATA);
	cpc_free(buf);
	return ret;
}

/* The tag of a block, -1 if its bytes differ; a negative errno below -1 if it cannot be read. */
static inline int test_get(struct cpc_backing *b, uint64_t block)
{
	char *buf = test_buf(CPC_BLOCK_SIZE);
	int ret = cpc_backing_read(b, BLOCK(block), buf, CPC_BLOCK_SIZE);

	if (!ret)
		ret = memcmp(buf, buf + 1, CPC_BLOCK_SIZE - 1) ? -1 : (unsigned char)buf[0];
	cpc_free(buf);
	return ret;
}

#endif
