/* SPDX-License-Identifier: BSD-3-Clause */
/* check-internal: what the files of core/check share. */
#ifndef CPC_CHECK_CHECK_INTERNAL_H
#define CPC_CHECK_CHECK_INTERNAL_H

#include "check/check.h"
#include "log/log.h"
#include "transaction/store.h"

/* --- findings (walk.c) -------------------------------------------------------------------------
 */

struct cpc_findings {
	uint64_t errors;
	uint64_t lines;				     /* reported */
	void (*report)(void *ctx, const char *line); /* may be NULL */
	void *ctx;
};

void cpc_finding(struct cpc_findings *f, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* --- fixes (fixes.c): what has a good source ---------------------------------------------------
 */

#define CPC_FIX_WIPE UINT64_MAX

struct cpc_fix {
	enum cpc_damage_kind kind;
	uint64_t to, from;  /* device addresses; from CPC_FIX_WIPE: zeroes */
	uint32_t len, csum; /* of the good content */
	const char *what;
	char *where; /* NULL: no memory for it */
};

/* Collected by a check, so that writing begins when all has been looked at. NULL: only look. */
struct cpc_fixes {
	struct cpc_fix *fix;
	size_t nr, cap;
};

#define CPC_FIXES_MAX 65536u /* more wait for the next round */

/*
 * A finding that `from` is good for: noted, and reported when it has been tried; or, if `fixes` is
 * NULL or has no room, a finding like any other. `content` is what must stand there (not for a
 * wipe).
 */
void cpc_finding_fix(struct cpc_findings *f, struct cpc_fixes *fixes, const struct cpc_fix *fix,
		     const void *content, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
void cpc_fixes_destroy(struct cpc_fixes *fixes);

/* --- walk (walk.c): everything that a superblock leads to --------------------------------------
 */

struct cpc_extent_ref {
	uint64_t owner; /* tree id */
	uint64_t key;	/* first block in the volume */
	uint64_t bytenr, birth;
	uint32_t nr;	      /* blocks */
	const cpc_le32 *csum; /* nr of them, borrowed */
	bool dropped;	      /* below the drop list */
};

/*
 * All may be NULL but `node`. What they are given has passed the tree-checker. Non-zero ends the
 * walk and is its result.
 */
struct cpc_pool_visitor {
	/* A node is about to be read. False: it has been named before, leave it out. */
	bool (*node)(void *ctx, uint64_t owner, const struct cpc_node_ptr *ptr);
	/* A volume; its extents follow. */
	int (*volume)(void *ctx, const struct cpc_volume_item *item);
	int (*extent)(void *ctx, const struct cpc_extent_ref *ref);
	int (*group)(void *ctx, uint64_t group, const struct cpc_disk_group *item);
	/* After all of the above, in ascending order of key. */
	int (*free_log)(void *ctx, uint64_t key, const struct cpc_disk_free_log *item,
			uint32_t nr_entries);
};

struct cpc_pool_walk {
	struct cpc_backing *backing;
	const struct cpc_super *super;
	const struct cpc_geometry *geo;
	const struct cpc_pool_visitor *visitor;
	void *ctx;
	struct cpc_findings *findings;
	struct cpc_fixes *fixes;  /* NULL: only look */
	bool both_copies;	  /* look at the second copy although the first is good */
	uint64_t nodes_bad;	  /* out: copies that do not verify */
	bool incomplete;	  /* out: some part could not be walked: of the trees, */
	bool free_log_incomplete; /* out: of the free log */
	uint8_t *second_copy;	  /* private */
};

/* Return: 0, with what was wrong in findings; -ENOMEM; what a visitor returned. */
int cpc_walk_pool(struct cpc_pool_walk *w);

/* Compares a node with the pointer that names it. Return: NULL, or what is wrong. */
const char *cpc_node_verify(const void *node, const struct cpc_node_ptr *ptr, uint64_t owner,
			    const struct cpc_super *super);

/* --- data (data.c): verifies blocks in order of address -----------------------------------------
 */

struct cpc_data_entry {
	uint64_t bytenr, block; /* in the pool; number in the volume */
	uint32_t volume, csum;
};

struct cpc_data_batch {
	struct cpc_backing *backing;
	struct cpc_findings *findings;
	/* Told of each block instead of findings; NULL: findings. */
	void (*bad_block)(void *ctx, const struct cpc_data_entry *e, const char *what);
	void *ctx;
	uint64_t bad; /* out: blocks that do not verify */
	size_t nr;
	struct cpc_data_entry *entry;
	uint8_t *buf;
};

int cpc_data_batch_init(struct cpc_data_batch *d, struct cpc_backing *backing,
			struct cpc_findings *findings);
void cpc_data_batch_destroy(struct cpc_data_batch *d);
/* Adds the blocks of an extent; verifies the batch when it is full. */
void cpc_data_batch_add(struct cpc_data_batch *d, const struct cpc_extent_ref *ref);
/* Verifies what has been added. */
void cpc_data_batch_run(struct cpc_data_batch *d);

/* --- reach (reachable.c): what one superblock needs ---------------------------------------------
 */

struct cpc_reach {
	struct cpc_backing *backing;
	const struct cpc_super *super;
	uint8_t *bitmap; /* out: one bit a block */
	uint64_t nr_blocks;
	struct cpc_findings *findings;
	bool verify;	/* second copies, bitmap homes, and data born after `since` as well */
	uint64_t since; /* transid */
	/* private */
	struct cpc_geometry geo;
	struct cpc_data_batch data;
};

/* Return: 0; -EUCLEAN with what is wrong in findings; -EINVAL; -ENOMEM. */
int cpc_reach_walk(struct cpc_reach *r);

/* --- log (log.c): what an opening would accept of the ring ---------------------------------------
 */

/* As cpc_log_scan, without a store. _end goes with a peek that succeeded. */
int cpc_log_peek(struct cpc_backing *backing, const struct cpc_super *super,
		 const struct cpc_geometry *geo, struct cpc_log_replay *r, const char **why);
void cpc_log_peek_end(struct cpc_log_replay *r);

struct cpc_log_check {
	struct cpc_findings *findings;
	struct cpc_blockset *named;  /* in: blocks that trees name; out: and the log */
	struct cpc_data_batch *data; /* NULL: data is not read */
	struct cpc_fixes *fixes;
	bool roll_back;	       /* in: what cannot be read is given up, by a fix */
	uint64_t records, bad; /* out: accepted; copies or durable records that are not good */
	bool lost;	       /* out: the log is none that an opening would accept */
	/* private */
	uint64_t next_volume, durable;
	bool below_mark;
};

/* Return: 0, with what is wrong in findings; -ENOMEM. */
int cpc_check_log(struct cpc_log_check *lc, struct cpc_backing *backing,
		  const struct cpc_super *super, const struct cpc_geometry *geo);

/* --- bitmaps (bitmaps.c): what the pool says is in use ------------------------------------------
 */

struct cpc_check_group {
	uint8_t *bitmap;     /* as of the superblock's transid; NULL: fresh */
	uint64_t generation; /* of the fold, 0: never folded */
	bool bad;	     /* no copy of its home verifies */
	bool wrong;	     /* it, its item or its share of the free log does not fit the trees */
};

struct cpc_bitmaps {
	struct cpc_backing *backing;
	const struct cpc_super *super;
	const struct cpc_geometry *geo;
	struct cpc_findings *findings;
	struct cpc_check_group *groups;
	struct cpc_fixes *fixes;
	uint64_t last_transid; /* of the free log so far */
	uint64_t leaked;       /* out */
	bool used_wrong;       /* out: the superblock's count of used blocks */
	uint8_t *buf;	       /* one block */
};

int cpc_bitmaps_init(struct cpc_bitmaps *b, struct cpc_backing *backing,
		     const struct cpc_super *super, const struct cpc_geometry *geo,
		     struct cpc_findings *findings);
void cpc_bitmaps_destroy(struct cpc_bitmaps *b);
/* Reads a group's home, both copies. Return: 0 or -ENOMEM. */
int cpc_bitmaps_load(struct cpc_bitmaps *b, uint64_t group, const struct cpc_disk_group *item);
/* Replays one item of the free log. Return: 0 or -ENOMEM. */
int cpc_bitmaps_replay(struct cpc_bitmaps *b, uint64_t key, const struct cpc_disk_free_log *item,
		       uint32_t nr_entries);
/* What the bitmap of a group must be, from the trees. */
void cpc_bitmaps_want(const struct cpc_geometry *geo, uint64_t group,
		      const struct cpc_blockset *reachable, const struct cpc_blockset *log_nodes,
		      uint8_t bitmap[CPC_BLOCK_SIZE]);
/*
 * Compares: in use must be the fixed areas and `reachable`, but not `log_nodes` (nodes of the
 * free-log tree, a part of reachable, which no bitmap has).
 */
void cpc_bitmaps_compare(struct cpc_bitmaps *b, const struct cpc_blockset *reachable,
			 const struct cpc_blockset *log_nodes);

/* --- check (check.c), for repair ---------------------------------------------------------------
 */

struct cpc_check_collect {
	struct cpc_fixes fixes;
	/* A superblock that a search has found, to be used where the rings say nothing; or NULL. */
	const struct cpc_super *found;
	bool roll_back; /* as cpc_repair_options */
	/* out: bitmaps to be put in place of what the pool says; owned */
	struct cpc_rebuilt rebuilt;
	bool rebuild;	     /* something is to be rebuilt, or counts to be set right */
	bool cannot_rebuild; /* ... but a part of the trees or the log is missing */
};

/* As cpc_check; collect NULL is cpc_check. Freed by _destroy, also after an error. */
int cpc_check_and_collect(struct cpc_backing *backing, const struct cpc_check_options *opts,
			  struct cpc_check_result *result, struct cpc_check_collect *collect);
void cpc_check_collect_destroy(struct cpc_check_collect *collect);

#endif
