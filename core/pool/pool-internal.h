/* SPDX-License-Identifier: BSD-3-Clause */
/* pool-internal: what the files of core/pool need to see of each other. */
#ifndef CPC_POOL_POOL_INTERNAL_H
#define CPC_POOL_POOL_INTERNAL_H

#include <stdatomic.h>
#include "lib/lock.h"
#include "pool/pool.h"
#include "volume/engine.h"

/* A volume's item without its name, which is the last field. */
struct cpc_pool_rest {
	_Alignas(struct cpc_volume_item) uint8_t bytes[offsetof(struct cpc_volume_item, name)];
};

struct cpc_pool_entry {
	char *name;
	uint64_t id;
	uint32_t open;		   /* handles; table_lock */
	bool closing;		   /* being deleted or shrunk: no new handles; table_lock */
	struct cpc_volume *vol;	   /* NULL: asleep, see wake.c; set once, with table_lock */
	struct cpc_pool_rest rest; /* while asleep; immutable */
};

struct cpc_pool {
	struct cpc_backing *backing;
	struct cpc_store *store;
	struct cpc_engine *engine;
	struct cpc_pool_options opts;
	uint64_t open_us;
	char label[CPC_LABEL_MAX + 1]; /* immutable */

	struct cpc_mutex names_lock;   /* CPC_RANK_POOL: one change of names at a time */
	struct cpc_mutex table_lock;   /* CPC_RANK_LEAF: the table below */
	struct cpc_pool_entry **table; /* sorted by name */
	size_t nr, cap;
	uint64_t next_volume;	 /* names_lock */
	uint64_t replay_durable; /* the log's durable mark; at open only */
	_Atomic bool shut;
	struct cpc_pool_scrubber *scrubber; /* made by open */
};

/* Writes the message, if one is wanted. Return: code. */
int cpc_pool_fail(struct cpc_error *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The table of names. Lookups hold table_lock or names_lock; changes take table_lock themselves and
 * are made with names_lock held. */
struct cpc_pool_entry *cpc_pool_find(struct cpc_pool *pool, const char *name);
int cpc_pool_table_reserve(struct cpc_pool *pool); /* room for one more */
void cpc_pool_table_insert(struct cpc_pool *pool, struct cpc_pool_entry *entry);
void cpc_pool_table_remove(struct cpc_pool *pool, struct cpc_pool_entry *entry);
/* Moves an entry to its new name, which it takes over. Return: the old name, the caller's. */
char *cpc_pool_table_rename(struct cpc_pool *pool, struct cpc_pool_entry *entry, char *name);
struct cpc_pool_entry *cpc_pool_entry_new(const char *name, uint64_t id);
void cpc_pool_entry_free(struct cpc_pool_entry *entry);
char *cpc_pool_copy_name(const char *name);
/* wake.c */
/* A new entry of a volume that the pool contains. NULL: no memory. */
struct cpc_pool_entry *cpc_pool_entry_asleep(const struct cpc_volume_item *item);
/* The volume of an entry that stays (names_lock, or a handle is counted), made if it is asleep.
 * Return: 0 or -ENOMEM. */
int cpc_pool_wake(struct cpc_pool *pool, struct cpc_pool_entry *entry, struct cpc_volume **out);
/* What it is, and bytes mapped or dirty; names_lock is held. */
void cpc_pool_entry_item(struct cpc_pool *pool, const struct cpc_pool_entry *entry,
			 struct cpc_volume_item *item, uint64_t *used);

/* Adds a volume that the pool contains. */
int cpc_pool_add_found(struct cpc_pool *pool, const struct cpc_volume_item *item);

/* scrub.c */
struct cpc_pool_scrubber *cpc_pool_scrubber_new(void);
void cpc_pool_scrubber_free(struct cpc_pool_scrubber *scrubber); /* NULL is allowed */

/* replay.c */
int cpc_pool_replay(struct cpc_pool *pool, struct cpc_error *err);

struct cpc_store *cpc_pool_store(struct cpc_pool *pool);
struct cpc_engine *cpc_pool_engine(struct cpc_pool *pool);
uint64_t cpc_pool_open_us(const struct cpc_pool *pool);

/* format.c: draws a uuid of version 4 (RFC 4122). Return: 0 or negative errno. */
int cpc_uuid_draw(uint8_t uuid[CPC_UUID_SIZE]);

#endif
