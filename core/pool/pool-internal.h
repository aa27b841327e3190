/* SPDX-License-Identifier: BSD-3-Clause */
/* pool-internal: what the files of core/pool need to see of each other. */
#ifndef CPC_POOL_POOL_INTERNAL_H
#define CPC_POOL_POOL_INTERNAL_H

#include "pool/pool.h"
#include "volume/engine.h"

struct cpc_store *cpc_pool_store(struct cpc_pool *pool);
struct cpc_engine *cpc_pool_engine(struct cpc_pool *pool);
uint64_t cpc_pool_open_us(const struct cpc_pool *pool);

/* format.c: draws a uuid of version 4 (RFC 4122). Return: 0 or negative errno. */
int cpc_uuid_draw(uint8_t uuid[CPC_UUID_SIZE]);

#endif
