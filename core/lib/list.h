/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * list: an intrusive, circular, doubly linked list. The head is a node of its own. No locks:
 * the caller's.
 */
#ifndef CPC_LIB_LIST_H
#define CPC_LIB_LIST_H

#include "lib/base.h"

struct cpc_list {
	struct cpc_list *next, *prev;
};

static inline void cpc_list_init(struct cpc_list *head)
{
	head->next = head->prev = head;
}

static inline bool cpc_list_empty(const struct cpc_list *head)
{
	return head->next == head;
}

static inline void cpc_list_add_between(struct cpc_list *node, struct cpc_list *prev,
					struct cpc_list *next)
{
	node->prev = prev;
	node->next = next;
	prev->next = node;
	next->prev = node;
}

static inline void cpc_list_add(struct cpc_list *head, struct cpc_list *node)
{
	cpc_list_add_between(node, head, head->next);
}

static inline void cpc_list_add_tail(struct cpc_list *head, struct cpc_list *node)
{
	cpc_list_add_between(node, head->prev, head);
}

/* Unlinks and leaves the node empty, so that deleting it again is harmless. */
static inline void cpc_list_del(struct cpc_list *node)
{
	node->prev->next = node->next;
	node->next->prev = node->prev;
	cpc_list_init(node);
}

/* Moves all nodes of `from` to the tail of `to`. */
static inline void cpc_list_splice_tail(struct cpc_list *to, struct cpc_list *from)
{
	if (cpc_list_empty(from))
		return;
	from->next->prev = to->prev;
	to->prev->next = from->next;
	from->prev->next = to;
	to->prev = from->prev;
	cpc_list_init(from);
}

#define cpc_list_entry(ptr, type, member)  cpc_container_of(ptr, type, member)
#define cpc_list_first(head, type, member) cpc_container_of((head)->next, type, member)

#define cpc_list_for_each(pos, head) for (pos = (head)->next; pos != (head); pos = pos->next)
#define cpc_list_for_each_safe(pos, tmp, head)                                                     \
	for (pos = (head)->next, tmp = pos->next; pos != (head); pos = tmp, tmp = pos->next)

#endif
