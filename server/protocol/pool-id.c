/* SPDX-License-Identifier: BSD-3-Clause */
#include "protocol/pool-id.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "protocol/reply.h"

int cpc_pool_id_get(const char *path, struct cpc_pool_id *id)
{
	struct stat st;

	if (stat(path, &st) != 0)
		return -errno;
	id->dev = S_ISBLK(st.st_mode) ? st.st_rdev : st.st_dev;
	id->ino = S_ISBLK(st.st_mode) ? 0 : st.st_ino;
	return 0;
}

struct json_object *cpc_pool_id_to_json(const struct cpc_pool_id *id)
{
	struct json_object *json = json_object_new_object();

	if (!json)
		return NULL;
	json_object_object_add(json, "dev", json_object_new_uint64(id->dev));
	json_object_object_add(json, "ino", json_object_new_uint64(id->ino));
	return json;
}

bool cpc_pool_id_matches(const struct cpc_pool_id *id, struct json_object *json)
{
	if (!json)
		return true;
	return cpc_json_u64(json, "dev") == id->dev && cpc_json_u64(json, "ino") == id->ino;
}

/* Tries the slots of one ring, which starts at `start`. */
static int ring_uuid(int fd, uint64_t start, uint64_t size, uint8_t uuid[CPC_UUID_SIZE])
{
	struct cpc_disk_super disk;
	struct cpc_super super;
	const char *why;
	ssize_t n;

	for (uint32_t slot = 0; slot < CPC_SUPER_SLOTS; slot++) {
		n = pread(fd, &disk, sizeof(disk), (off_t)(start + slot * sizeof(disk)));
		if (n < 0)
			return -errno;
		if (n == sizeof(disk) && cpc_super_decode(&super, &disk, slot, size, &why) == 0) {
			memcpy(uuid, super.uuid, CPC_UUID_SIZE);
			return 0;
		}
	}
	return -EINVAL;
}

int cpc_pool_read_uuid(const char *path, uint8_t uuid[CPC_UUID_SIZE])
{
	const uint64_t ring = CPC_SUPER_SLOTS * sizeof(struct cpc_disk_super);
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	int ret = -EINVAL;
	off_t size;

	if (fd < 0)
		return -errno;
	size = lseek(fd, 0, SEEK_END);
	if (size < 0)
		ret = -errno;
	else if ((uint64_t)size >= 2 * ring)
		ret = ring_uuid(fd, 0, (uint64_t)size, uuid);
	if (ret && ret != -EINVAL)
		goto out;
	if (ret && (uint64_t)size >= 2 * ring)
		ret = ring_uuid(fd, cpc_align_down((uint64_t)size, CPC_BLOCK_SIZE) - ring,
				(uint64_t)size, uuid);
out:
	close(fd);
	return ret;
}
