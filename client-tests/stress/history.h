/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * history: what each sector of one volume may hold, by what was sent to a server and what it
 * answered.
 *
 * Called by worker.c and request.c; calls client.h for the end with a message. It knows nothing of
 * connections: its caller says when a request is issued and answered, and hands in what was read.
 *
 * A sector (512 bytes) has a base, its bytes at some time, and a chain of changes since in their
 * order. A change may cover a part of a sector. Its bytes are stamped: each sector of a write holds
 * the volume, the sequence number of the write, the sector's own number, a checksum, and noise that
 * follows from these, so every byte tells where it belongs. Trims and zeroes are changes to zeroes.
 *
 * Stamps: a clock of the volume gives each request one when it is issued and one when it is
 * answered. Invariants:
 *
 *  1. Changes in flight never share a sector (history_writable), so a chain has one order, and only
 *     its last change may be unanswered. Neighbouring sectors of a block do have changes at
 *     once, and reads may meet anything.
 *  2. A read shows each sector at one state of its chain: not older than the last change answered
 *     before the read was issued, nor than a state that another read had shown before.
 *  3. After a crash all sectors are at one instant: no change is there in part, none that is
 *     missing was answered before one that is there was issued, nor before an answered flush or
 *     FUA request was issued; no answered FUA change is missing.
 *  4. A change moves from the chain to the base once a flush has made it durable and no request in
 *     flight is older than its answer. What is missing of the base is thus a lost flush.
 *
 * Where two states of a sector are equal (two zeroes), a change between them is neither there nor
 * missing. Violations end the process with the seed's story: sector, what was found, what was
 * allowed.
 *
 * One thread. The history owns its changes: a pointer from history_issue is good until the change
 * is answered or resolved, or the life is judged. Ranges are start + len in bytes.
 */
#ifndef STRESS_HISTORY_H
#define STRESS_HISTORY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#define SECTOR 512u

struct history;
struct change;

/* A request in flight: what it may be answered with is kept until it ends. */
struct flight {
	uint64_t issued;
	TAILQ_ENTRY(flight) link;
};

/* A volume of zeroes; number tells its stamps from those of other volumes. */
struct history *history_new(unsigned number, uint64_t size);
uint64_t history_size(const struct history *history);

void history_begin(struct history *history, struct flight *flight);
void history_end(struct history *history, struct flight *flight);

/* May a change of this range be issued now (invariant 1)? */
bool history_writable(const struct history *history, uint64_t start, uint64_t len);
/* A write, or with zero a trim or zero, that is about to be sent. */
struct change *history_issue(struct history *history, uint64_t start, uint64_t len, bool zero,
			     bool fua);
/* The bytes that a write carries. */
void history_fill(const struct history *history, const struct change *change, void *buf);
uint64_t change_start(const struct change *change);
uint64_t change_len(const struct change *change);
void history_answered(struct history *history, struct change *change);
/* A flush was answered that had been issued at this stamp. */
void history_flushed(struct history *history, uint64_t issued);

/* Nobody answered this change and the server is done with it: buf, read since, says if it is there.
 */
void history_resolve(struct history *history, struct change *change, const void *buf);

/* Invariant 2 for a read, or for a range that block status called zeroes. */
void history_check_read(struct history *history, uint64_t issued, uint64_t start, uint64_t len,
			const void *buf);
void history_check_zeroes(struct history *history, uint64_t issued, uint64_t start, uint64_t len);

/* After a crash: all sectors in order, then history_judge_life for invariant 3. No flights are
 * left. */
void history_judge(struct history *history, uint64_t start, uint64_t len, const void *buf);
/* Return: how many changes were missing. The history begins anew with what was read. */
uint64_t history_judge_life(struct history *history);

#endif
