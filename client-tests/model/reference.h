/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * reference: what a volume must hold, in memory, and every state it may be found in after a crash.
 *
 * Content is a map of shared immutable pages, so an operation remembers the pages it replaced for
 * a few words each. Undoing operations one by one walks back through all instants since the last
 * one that is certainly durable: a volume that came back must equal one of them, as a whole.
 *
 * Used by the model and power-cut tests. Not for several threads.
 */
#ifndef CPC_MODEL_REFERENCE_H
#define CPC_MODEL_REFERENCE_H

#include "backing/page-map.h"

struct ref_change {
	uint64_t block;
	struct cpc_page *old; /* NULL: zeroes */
};

struct ref_op {
	uint64_t issued, answered; /* the caller's clock; answered 0: not yet */
	char kind;		   /* 'w', 'z' or 't' */
	uint64_t offset, len;
	size_t nr, cap;
	struct ref_change *change;
};

struct ref {
	uint64_t size; /* bytes; nothing lies beyond */
	struct cpc_page_map pages;
	struct ref_op *op; /* since the last durable instant, oldest first */
	size_t nr_ops, cap_ops;
	uint64_t durable_ops; /* forgotten, because durable */
};

void ref_init(struct ref *r, uint64_t size);
void ref_destroy(struct ref *r);

/* Each is one operation. `issued` is the caller's clock. */
void ref_write(struct ref *r, const void *buf, uint64_t len, uint64_t offset, uint64_t issued);
void ref_zero(struct ref *r, uint64_t len, uint64_t offset, uint64_t issued);
/* What a trim does: whole blocks become zeroes, a block that the end cuts counts as whole. */
void ref_trim(struct ref *r, uint64_t len, uint64_t offset, uint64_t issued);
/* The newest operation has been answered. */
void ref_answered(struct ref *r, uint64_t now);
/* Everything so far is durable. */
void ref_durable(struct ref *r);
/* Takes the newest operation back. */
void ref_undo(struct ref *r);
/* Shrinks or grows; durable at once. */
void ref_resize(struct ref *r, uint64_t size);

void ref_read(const struct ref *r, void *buf, uint64_t len, uint64_t offset);
/* Return: true, or false with *bad = the first offset whose byte differs. */
bool ref_equals(const struct ref *r, const void *buf, uint64_t len, uint64_t offset, uint64_t *bad);
/* True when no byte of the range is other than zero. */
bool ref_is_zero(const struct ref *r, uint64_t len, uint64_t offset);

/*
 * Compares with what a crash has left, `actual` (absent pages are zeroes). Several instants may
 * look alike, so what is lost is told from the newest that fits and what is there from the oldest.
 * Return: true, and the content is `actual` with no history; or false with *bad = a block that
 * differs at the instant that fits best and *nr_bad = how many do.
 */
struct ref_match {
	uint64_t undone;
	bool lost;		/* an operation with an effect is not there: */
	uint64_t lost_answered; /* the oldest such one; UINT64_MAX: it had not been answered */
	uint64_t kept_issued;	/* the newest one that is there for sure; 0: none known */
	uint64_t bad, nr_bad;
};
/* A copy to explain from, since a comparison uses up the history. */
void ref_copy(struct ref *to, const struct ref *from);
/* Prints what has touched a block, and what it holds in `actual`. */
void ref_explain(const struct ref *r, const struct cpc_page_map *actual, uint64_t block);
bool ref_match(struct ref *r, const struct cpc_page_map *actual, struct ref_match *m);
/*
 * The same without using anything up: looks for an instant after at least `floor` operations.
 * m: undone, bad and nr_bad only.
 */
bool ref_find(const struct ref *r, const struct cpc_page_map *actual, size_t floor,
	      struct ref_match *m);

#endif
