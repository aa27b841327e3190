/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * check: looks at a pool without opening it, the way a stranger would: superblocks, every node,
 * every mapping, space, the log; with `data` every data block. And prints structures (dump).
 * Neither writes anything. cpc_repair does, see there.
 *
 * Called by server/cli and tests; calls transaction/store.h (superblock search), core/btree (node
 * checks), space (fresh bitmaps), format, backing.
 *
 * Terms: a *finding* is one thing that is not as it must be. A block is *reachable* when the
 * superblock, or anything it leads to, names it; *leaked* when a bitmap has it in use and nothing
 * names it.
 *
 * Invariants
 *  1. Every copy is judged by itself: a good first copy does not hide a bad second one.
 *  2. Every block is named once. What is named twice is a finding and is not walked again, so a
 *     check reads each node at most once and ends, whatever the image holds.
 *  3. Memory: two bits a block in groups that are in use, one node a level, a batch of data.
 *
 * Locks: none; one thread. Ownership: the caller holds the backing, opened exclusively or
 * read-only. Errors: below; what was counted before an error stands in the result.
 */
#ifndef CPC_CHECK_CHECK_H
#define CPC_CHECK_CHECK_H

#include "format/format.h"
#include "lib/base.h"

struct cpc_backing;

struct cpc_check_options {
	bool data; /* read and verify every data block */
	/* Called now and then with work done and the total (blocks); may be NULL. */
	void (*progress)(void *ctx, uint64_t done, uint64_t total);
	/* One line per finding, CPC_CHECK_MAX_LINES at most; may be NULL. */
	void (*report)(void *ctx, const char *line);
	void *ctx;
};

#define CPC_CHECK_MAX_LINES 10000u

struct cpc_check_result {
	uint64_t errors; /* findings of any kind */
	/* Of them: slots that hold a damaged or foreign superblock, or not the newest one where it
	 * must be. A power cut leaves such a slot behind too, until the next commits write it. */
	uint64_t supers_bad;
	uint64_t nodes, nodes_bad;	/* nodes named; copies that do not verify */
	uint64_t data_blocks, data_bad; /* blocks mapped by volumes; that do not verify */
	uint64_t log_records;		/* that an opening would replay */
	uint64_t log_bad;		/* copies of durable ones that do not verify */
	uint64_t volumes;
	uint64_t leaked_blocks; /* in use but reachable from nothing */
	uint64_t transid;
};

/* --- damage and what is done about it ----------------------------------------------------------
 */

enum cpc_damage_kind {
	CPC_DAMAGE_SUPER,
	CPC_DAMAGE_NODE,
	CPC_DAMAGE_BITMAP,
	CPC_DAMAGE_LOG,
	CPC_DAMAGE_DATA
};

#define CPC_DAMAGE_WHERE 352

/* One block, or one copy of it, that is not as it must be. */
struct cpc_damage {
	enum cpc_damage_kind kind;
	uint64_t bytenr;	      /* in the pool */
	char where[CPC_DAMAGE_WHERE]; /* "tree 257 level 1, copy 2" */
	const char *volume;	      /* of data: its name, and where in it; else NULL */
	uint64_t offset;
	const char *what;   /* is wrong: "checksum does not match" */
	const char *action; /* "repaired", or why not */
	bool repaired;
};

/* "super", "node", "bitmap", "log", "data" */
const char *cpc_damage_kind_name(enum cpc_damage_kind kind);
#define CPC_DAMAGE_LINE 640
/* "node at 1234 (tree 257 level 1, copy 2): checksum does not match: repaired" */
void cpc_damage_line(const struct cpc_damage *damage, char line[CPC_DAMAGE_LINE]);

/* Return: 0 looked at everything (result.errors may be > 0); -EINVAL not a pool; -EUCLEAN all
 * superblocks damaged; -ENOTSUP; -EIO, -ENOMEM. */
int cpc_check(struct cpc_backing *backing, const struct cpc_check_options *opts,
	      struct cpc_check_result *result);

/*
 * check --repair: checks, and only when everything has been looked at writes what there is a good
 * source for: one copy from the other, the newest superblock into the ring that lacks it, bitmaps
 * and free log from the trees. In this order, with flushes between:
 *
 *   copies over bad copies -> wiped slots -> a commit that folds rebuilt groups
 *
 * A crash at any write leaves the good copies untouched, and the old state until the commit is
 * durable. Nothing is rebuilt while a node is missing, for what it names is not known.
 */
struct cpc_repair_options {
	struct cpc_check_options check; /* its report gets what cannot be repaired */
	/* Changes at the end of the log whose data cannot be read, and all behind them, are given
	 * up although they may have been flushed: without them the pool does not open. */
	bool roll_back;
	void (*damage)(void *ctx, const struct cpc_damage *damage); /* ctx is check's; or NULL */
};

struct cpc_repair_result {
	struct cpc_check_result before, after; /* after.errors: what is left */
	uint64_t repaired;		       /* blocks written, and groups rebuilt */
	bool ring0_found;		       /* ring 1 was found by a search */
};

/* The backing is open for writing. Return: as cpc_check; 0 also when damage is left; -ENOTSUP, and
 * nothing is written, also where compat_ro has an unknown bit. */
int cpc_repair(struct cpc_backing *backing, const struct cpc_repair_options *opts,
	       struct cpc_repair_result *result);

/*
 * The blocks that `super` needs: sets their bits in `bitmap`, one bit a block of the pool, bit i of
 * byte i / 8. Nodes of all trees and both copies, data, current bitmap homes; not superblock slots.
 * Return: 0; -EUCLEAN something that it needs is damaged or named twice (the rest is set);
 * -ENOMEM.
 */
int cpc_check_reachable(struct cpc_backing *backing, const struct cpc_super *super, uint8_t *bitmap,
			uint64_t nr_blocks);

/*
 * Prints a structure as text lines through out: "super"; "log" (the log's fields of the superblock
 * and the records that stand in the ring); "tree" with arg "root", "free-log", a volume's name or a
 * tree id in decimal; "block" with a byte address.
 * Return: 0; -ENOENT no such tree; -EINVAL bad arguments or not a pool; else as cpc_check.
 */
int cpc_dump(struct cpc_backing *backing, const char *what, const char *arg,
	     void (*out)(void *ctx, const char *line), void *ctx);

#endif
