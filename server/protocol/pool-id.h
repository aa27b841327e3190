/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pool-id: which pool is meant. A copy of a pool file has the same uuid, and thus the same default
 * control path, as the original; what tells them apart is the file or device itself. The tool
 * sends this identity with each request and the server refuses one that is meant for another pool.
 *
 * Locks, ownership: none. Errors: negative errno.
 */
#ifndef CPC_PROTOCOL_POOL_ID_H
#define CPC_PROTOCOL_POOL_ID_H

#include <json-c/json.h>

#include "format/format.h"

struct cpc_pool_id {
	uint64_t dev; /* of the file system, or the device's own number */
	uint64_t ino; /* 0 for a device */
};

int cpc_pool_id_get(const char *path, struct cpc_pool_id *id);

struct json_object *cpc_pool_id_to_json(const struct cpc_pool_id *id);

/* A request without an identity (NULL) matches every pool. */
bool cpc_pool_id_matches(const struct cpc_pool_id *id, struct json_object *json);

/*
 * Reads the uuid from the first good superblock slot, at the start or the end of the pool, without
 * taking the pool: somebody may be writing to it.
 * Return: 0; -EINVAL not a pool; errno of open and read.
 */
int cpc_pool_read_uuid(const char *path, uint8_t uuid[CPC_UUID_SIZE]);

#endif
