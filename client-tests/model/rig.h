/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * rig: a pool on a power-cut device with the legality oracle in front, its lives, and what the
 * model and power-cut tests share: random numbers, failing with a line that reruns it, and reading
 * a whole volume back.
 *
 * The engine's time and randomness come from here, so that with no_threads a run is the same each
 * time.
 */
#ifndef CPC_MODEL_RIG_H
#define CPC_MODEL_RIG_H

#include "check/check.h"
#include "check/oracle.h"
#include "pool/pool.h"
#include "reference.h"
#include "volume/volume.h"

/* --- random numbers --- */

struct rnd {
	uint64_t state;
};

uint64_t rnd_u64(struct rnd *r);
uint64_t rnd_below(struct rnd *r, uint64_t n); /* n > 0 */
bool rnd_percent(struct rnd *r, unsigned percent);
/* Bytes that only this stamp gives. */
void rnd_fill(uint64_t stamp, void *buf, size_t len);

/* --- failing --- */

/* What is printed behind any failure, an abort of the engine included: how to run it again. */
void rig_set_rerun(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void rig_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#define rig_expect(cond, ...)                                                                      \
	do {                                                                                       \
		if (!(cond))                                                                       \
			rig_fail(__VA_ARGS__);                                                     \
	} while (0)

/* The number that an option or variable of the environment says; what is none ends the program. */
uint64_t rig_number(const char *text, const char *what);
uint64_t rig_env(const char *name, uint64_t otherwise);

/* --- the pool and its lives --- */

struct rig {
	uint64_t size, log_size;
	uint32_t nodesize;
	bool single;
	struct cpc_pool_options opts;
	bool watch;   /* with the oracle */
	uint8_t fill; /* what blocks hold that were never written */
	/* Puts something in front of the device at each opening; NULL: nothing. */
	struct cpc_backing *(*wrap)(void *ctx, struct cpc_backing *inner);
	void *wrap_ctx;
	/* private */
	struct cpc_powercut *pc;
	struct cpc_oracle *oracle;
	struct cpc_pool *pool; /* NULL: not open */
	uint64_t checks, oracle_roots;
};

/* Installs hooks, quiet messages and the handler of aborts. */
void rig_init(uint64_t seed);
/* What cpc_hooks.random gives from here on. */
void rig_seed_engine(uint64_t seed);
/* Makes an empty device, without a pool. */
void rig_create_device(struct rig *r);
/* Makes a pool on the device, over whatever is there: nothing of it is watched. */
void rig_format(struct rig *r);

/* Makes the device and formats it with what the fields above say. */
void rig_create(struct rig *r);
void rig_destroy(struct rig *r);
/* Opens and starts. */
void rig_open(struct rig *r);
/* The same; for states where it may fail. Return: as cpc_pool_open_backing and _start. */
int rig_try_open(struct rig *r, struct cpc_error *err);
/* Shuts down in order, and closes. Return: the result of the shutdown. */
int rig_close(struct rig *r);
/* Ends the process that serves the pool, as it were: what is in memory only is lost. */
void rig_kill(struct rig *r);
/* Closes after the device has gone: the life has ended already. */
void rig_abandon(struct rig *r);

/* Checks the device as it is, with data. Nothing may be wrong but, with `torn_supers`, slots. */
void rig_check(struct rig *r, bool torn_supers, struct cpc_check_result *result);

/* Reads all that is not a hole, and all that `ref` knows of, into a map. */
void rig_read_volume(struct cpc_volume *vol, const struct ref *ref, struct cpc_page_map *actual);

#endif
