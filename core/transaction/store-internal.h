/* SPDX-License-Identifier: BSD-3-Clause */
/* store-internal: what the files of core/transaction share. */
#ifndef CPC_TRANSACTION_STORE_INTERNAL_H
#define CPC_TRANSACTION_STORE_INTERNAL_H

#include "transaction/store.h"

/* What the pool knows of one block group beyond core/space. */
struct cpc_group_meta {
	bool has_item; /* folded at least once */
	uint8_t home;  /* the current one */
	uint32_t csum; /* of the current home */
	uint64_t generation;
	uint32_t used;	     /* as of the last commit */
	uint64_t oldest;     /* transid of the oldest change in the free log, 0: none */
	uint32_t nr_pending; /* entries in the free log */
	/* Changes read at open and not yet applied to a loaded bitmap: [block, count] as on disk.
	 */
	struct cpc_disk_free_entry *unapplied;
	uint32_t nr_unapplied, cap_unapplied;
	const uint8_t *rebuilt; /* the bitmap, until the group is folded; borrowed */
};

/* The free log holds changes of `transid` from key `first` on. */
struct cpc_free_tail {
	uint64_t transid, first;
};

/* One change of the root or free-log tree, collected and then sorted. */
struct cpc_root_op {
	uint64_t start, end;
	void *value; /* NULL: delete; owned */
	uint32_t size;
};

struct cpc_root_ops {
	struct cpc_root_op *op;
	size_t nr, cap, at;
};

/* Takes a copy of value. */
int cpc_root_ops_put(struct cpc_root_ops *ops, uint64_t key, const void *value, uint32_t size);
int cpc_root_ops_delete(struct cpc_root_ops *ops, uint64_t start, uint64_t end);
void cpc_root_ops_sort(struct cpc_root_ops *ops);
int cpc_root_ops_next(void *ctx, struct cpc_tree_op *op);
void cpc_root_ops_destroy(struct cpc_root_ops *ops);

/* Everything that one running commit knows. */
struct cpc_commit {
	struct cpc_store *store;
	struct cpc_commit_request *req;
	uint64_t transid;
	struct cpc_tree_txn txn; /* its ctx is this */
	/* Which sets the callbacks fill: [0] before the folds, [1] after them. */
	unsigned phase;
	struct cpc_blockset alloc[2], freed[2];
	struct cpc_blockset dropped;  /* old nodes of the free-log tree */
	struct cpc_blockset prepared; /* freed blocks whose groups are held loaded */
	struct cpc_blockset nodes;    /* every node allocated: released if the commit fails */
	bool in_free_log;
	struct cpc_root_ops root_ops;
	uint64_t next_drop;
	int64_t drop_delta_blocks; /* change of store->dropped_blocks */
	int64_t drop_delta_items;
	struct cpc_super super; /* the new one */
	bool super_written;	/* or begun to be: a failure burns it */
	struct cpc_fold *folds;
	size_t nr_folds;
	struct cpc_free_tail tail; /* of this commit, transid 0: logged nothing */
	uint64_t free_log_from;	   /* keys below go */
};

/* A fold of this commit; applied to the group's meta when the commit is durable. */
struct cpc_fold {
	uint64_t group, used;
	uint32_t csum;
	uint8_t home;
};

/* free-space.c */
int cpc_free_space_load(struct cpc_store *store);
void cpc_free_space_destroy(struct cpc_store *store);
int cpc_group_load(void *ctx, uint64_t group, uint8_t bitmap[CPC_BLOCK_SIZE]);
/* What is known of a group, made on first use. NULL: out of memory. */
struct cpc_group_meta *cpc_group_meta(struct cpc_store *store, uint64_t group);
/* Blocks in use by a group's bitmap. */
uint64_t cpc_group_count_used(const struct cpc_store *store, uint64_t group, const uint8_t *bitmap);
/* Notes where the free log of a transaction begins. Return: 0 or -ENOMEM. */
int cpc_free_tail_add(struct cpc_store *store, uint64_t transid, uint64_t key);

/* fold.c */
int cpc_commit_fold(struct cpc_commit *c);
/* Whether this commit folds the group. */
bool cpc_commit_folded(const struct cpc_commit *c, uint64_t group);

/* free-log.c */
int cpc_commit_free_log(struct cpc_commit *c);
/* Frees the nodes of a part of the old free log; its leaves, of which all items go, unread. */
int cpc_commit_free_log_drop(struct cpc_commit *c, const struct cpc_node_ptr *ptr);

/* publish.c */
/* Makes sure that publishing what this phase changed cannot fail: memory, loaded groups. */
int cpc_commit_prepare(struct cpc_commit *c);
void cpc_commit_unprepare(struct cpc_commit *c);
void cpc_commit_publish_space(struct cpc_commit *c);

/* store.c: reads a node whose sums are what `ptr` says: so a walk from a pointer reads no more
 * nodes than that says, whatever is on the device. Return: as cpc_eb_read. */
int cpc_store_read_node(struct cpc_store *store, const struct cpc_node_ptr *ptr, uint64_t owner,
			struct cpc_eb **out);

/* commit.c: writes a superblock into its slot of one ring. 4096-aligned. */
int cpc_store_write_ring(struct cpc_store *store, unsigned ring, const struct cpc_disk_super *disk);

/* hold.c: a commit is published (lock is held): its pins stay while a hold stands. */
void cpc_hold_pins_locked(struct cpc_store *store, struct cpc_pins *pins);
/* hold.c: whether the newest durable state is held. */
bool cpc_store_held(struct cpc_store *store);

/* drop.c */
int cpc_commit_drop_add(struct cpc_commit *c, const struct cpc_node_ptr *ptr, uint64_t owner);
int cpc_commit_drop_slice(struct cpc_commit *c);
int cpc_drop_load(struct cpc_store *store);

static inline uint64_t cpc_ptr_blocks(const struct cpc_store *store, const struct cpc_node_ptr *ptr)
{
	uint64_t node = store->geo.nodesize >> CPC_BLOCK_SHIFT;

	return cpc_node_ptr_empty(ptr) ? 0
				       : ptr->data_blocks + ptr->nodes * node * store->geo.copies;
}

#endif
