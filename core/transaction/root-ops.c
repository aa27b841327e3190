/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * root-ops: changes of the root tree and of the free-log tree, collected in any order during a
 * commit and applied sorted. Keys are unique by construction: each is put or deleted once.
 */
#include "transaction/store-internal.h"

#include <stdlib.h>

#include "lib/hooks.h"

static int grow(struct cpc_root_ops *ops)
{
	size_t cap = ops->cap ? 2 * ops->cap : 64;
	struct cpc_root_op *bigger = cpc_alloc_array(cap, sizeof(*bigger));

	if (!bigger)
		return -ENOMEM;
	if (ops->nr)
		memcpy(bigger, ops->op, ops->nr * sizeof(*bigger));
	cpc_free(ops->op);
	ops->op = bigger;
	ops->cap = cap;
	return 0;
}

static int add(struct cpc_root_ops *ops, struct cpc_root_op op)
{
	int ret = ops->nr == ops->cap ? grow(ops) : 0;

	if (ret)
		return ret;
	ops->op[ops->nr++] = op;
	return 0;
}

int cpc_root_ops_put(struct cpc_root_ops *ops, uint64_t key, const void *value, uint32_t size)
{
	void *copy = cpc_alloc(size);
	int ret;

	if (!copy)
		return -ENOMEM;
	memcpy(copy, value, size);
	ret = add(ops, (struct cpc_root_op){key, key + 1, copy, size});
	if (ret)
		cpc_free(copy);
	return ret;
}

int cpc_root_ops_delete(struct cpc_root_ops *ops, uint64_t start, uint64_t end)
{
	return add(ops, (struct cpc_root_op){start, end, NULL, 0});
}

static int compare(const void *a, const void *b)
{
	uint64_t x = ((const struct cpc_root_op *)a)->start;
	uint64_t y = ((const struct cpc_root_op *)b)->start;

	return x < y ? -1 : x > y;
}

void cpc_root_ops_sort(struct cpc_root_ops *ops)
{
	if (ops->nr)
		qsort(ops->op, ops->nr, sizeof(*ops->op), compare);
	for (size_t i = 1; i < ops->nr; i++)
		cpc_assert(ops->op[i - 1].end <= ops->op[i].start);
	ops->at = 0;
}

int cpc_root_ops_next(void *ctx, struct cpc_tree_op *op)
{
	struct cpc_root_ops *ops = ctx;
	const struct cpc_root_op *from;

	if (ops->at == ops->nr)
		return 0;
	from = &ops->op[ops->at++];
	op->start = from->start;
	op->end = from->end;
	op->value = from->value;
	op->size = from->size;
	return 1;
}

void cpc_root_ops_destroy(struct cpc_root_ops *ops)
{
	for (size_t i = 0; i < ops->nr; i++)
		cpc_free(ops->op[i].value);
	cpc_free(ops->op);
	memset(ops, 0, sizeof(*ops));
}
