/* SPDX-License-Identifier: BSD-3-Clause */
#include "format/format.h"
#include "lib/crc32c.h"

#include <stdio.h>

_Static_assert(offsetof(struct cpc_disk_super, uuid) == 16, "super uuid");
_Static_assert(offsetof(struct cpc_disk_super, root) == 160, "super root");
_Static_assert(offsetof(struct cpc_disk_super, label) == 257, "super label");

void cpc_ptr_decode(struct cpc_node_ptr *ptr, const struct cpc_disk_ptr *disk)
{
	ptr->bytenr[0] = cpc_get_le64(&disk->bytenr);
	ptr->bytenr[1] = cpc_get_le64(&disk->bytenr2);
	ptr->generation = cpc_get_le64(&disk->generation);
	ptr->data_blocks = cpc_get_le64(&disk->data_blocks);
	ptr->nodes = cpc_get_le32(&disk->nodes);
	ptr->csum = cpc_get_le32(&disk->csum);
	ptr->level = disk->level;
}

void cpc_ptr_encode(struct cpc_disk_ptr *disk, const struct cpc_node_ptr *ptr)
{
	memset(disk, 0, sizeof(*disk));
	cpc_put_le64(&disk->bytenr, ptr->bytenr[0]);
	cpc_put_le64(&disk->bytenr2, ptr->bytenr[1]);
	cpc_put_le64(&disk->generation, ptr->generation);
	cpc_put_le64(&disk->data_blocks, ptr->data_blocks);
	cpc_put_le32(&disk->nodes, ptr->nodes);
	cpc_put_le32(&disk->csum, ptr->csum);
	disk->level = ptr->level;
}

uint32_t cpc_csum(const void *buf, size_t len)
{
	return cpc_crc32c(0, buf, len);
}

uint32_t cpc_csum_without_field(const void *buf, size_t len, size_t field)
{
	static const uint8_t zero[4];
	const uint8_t *p = buf;
	uint32_t csum = cpc_crc32c(0, p, field);

	csum = cpc_crc32c(csum, zero, sizeof(zero));
	return cpc_crc32c(csum, p + field + 4, len - field - 4);
}

uint32_t cpc_bitmap_csum(const uint8_t uuid[CPC_UUID_SIZE], uint64_t group, uint64_t generation,
			 const void *bitmap)
{
	cpc_le64 place[2];
	uint32_t csum = cpc_crc32c(0, uuid, CPC_UUID_SIZE);

	cpc_put_le64(&place[0], group);
	cpc_put_le64(&place[1], generation);
	csum = cpc_crc32c(csum, place, sizeof(place));
	return cpc_crc32c(csum, bitmap, CPC_BLOCK_SIZE);
}

bool cpc_name_valid(const char *name, size_t len)
{
	if (len == 0 || len > CPC_NAME_MAX || name[0] == '-' || name[0] == '.')
		return false;
	for (size_t i = 0; i < len; i++) {
		char c = name[i];
		bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
			  (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';

		if (!ok)
			return false;
	}
	return true;
}

void cpc_uuid_format(const uint8_t uuid[CPC_UUID_SIZE], char out[37])
{
	char *p = out;

	for (unsigned i = 0; i < CPC_UUID_SIZE; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*p++ = '-';
		p += sprintf(p, "%02x", uuid[i]);
	}
	*p = '\0';
}

/* --- superblock --- */

void cpc_super_encode(struct cpc_disk_super *disk, const struct cpc_super *super)
{
	size_t label_len = strnlen(super->label, CPC_LABEL_MAX);

	memset(disk, 0, sizeof(*disk));
	memcpy(disk->magic, CPC_SUPER_MAGIC, sizeof(disk->magic));
	cpc_put_le32(&disk->version, CPC_FORMAT_VERSION);
	memcpy(disk->uuid, super->uuid, CPC_UUID_SIZE);
	cpc_put_le64(&disk->compat, super->compat);
	cpc_put_le64(&disk->compat_ro, super->compat_ro);
	cpc_put_le64(&disk->incompat, super->incompat);
	cpc_put_le64(&disk->transid, super->transid);
	cpc_put_le64(&disk->total_bytes, super->total_bytes);
	cpc_put_le64(&disk->nonce, super->nonce);
	cpc_put_le32(&disk->nodesize, super->nodesize);
	cpc_put_le32(&disk->slot, super->slot);
	cpc_put_le64(&disk->log_size, super->log_size);
	cpc_put_le64(&disk->log_position, super->log_position);
	cpc_put_le64(&disk->log_seq, super->log_seq);
	cpc_put_le64(&disk->log_durable, super->log_durable);
	cpc_put_le64(&disk->next_volume, super->next_volume);
	cpc_put_le64(&disk->next_drop, super->next_drop);
	cpc_put_le64(&disk->next_free_log, super->next_free_log);
	cpc_put_le64(&disk->used_blocks, super->used_blocks);
	cpc_put_le64(&disk->created, super->created);
	cpc_ptr_encode(&disk->root, &super->root);
	cpc_ptr_encode(&disk->free_log, &super->free_log);
	disk->label_len = (uint8_t)label_len;
	memcpy(disk->label, super->label, label_len);
	disk->flags = super->flags;
	cpc_put_le32(&disk->csum, cpc_csum_without_field(disk, sizeof(*disk),
							 offsetof(struct cpc_disk_super, csum)));
}

static void super_decode_fields(struct cpc_super *super, const struct cpc_disk_super *disk)
{
	memset(super, 0, sizeof(*super));
	memcpy(super->uuid, disk->uuid, CPC_UUID_SIZE);
	super->compat = cpc_get_le64(&disk->compat);
	super->compat_ro = cpc_get_le64(&disk->compat_ro);
	super->incompat = cpc_get_le64(&disk->incompat);
	super->transid = cpc_get_le64(&disk->transid);
	super->total_bytes = cpc_get_le64(&disk->total_bytes);
	super->nonce = cpc_get_le64(&disk->nonce);
	super->nodesize = cpc_get_le32(&disk->nodesize);
	super->slot = cpc_get_le32(&disk->slot);
	super->log_size = cpc_get_le64(&disk->log_size);
	super->log_position = cpc_get_le64(&disk->log_position);
	super->log_seq = cpc_get_le64(&disk->log_seq);
	super->log_durable = cpc_get_le64(&disk->log_durable);
	super->next_volume = cpc_get_le64(&disk->next_volume);
	super->next_drop = cpc_get_le64(&disk->next_drop);
	super->next_free_log = cpc_get_le64(&disk->next_free_log);
	super->used_blocks = cpc_get_le64(&disk->used_blocks);
	super->created = cpc_get_le64(&disk->created);
	cpc_ptr_decode(&super->root, &disk->root);
	cpc_ptr_decode(&super->free_log, &disk->free_log);
	super->flags = disk->flags;
}

static int refuse(const char **why, const char *text, int err)
{
	*why = text;
	return err;
}

/* A root that the superblock names: in the data area, or empty. */
static bool root_sane(const struct cpc_geometry *geo, const struct cpc_node_ptr *ptr,
		      uint64_t transid)
{
	if (cpc_node_ptr_empty(ptr))
		return true;
	if (ptr->level > CPC_MAX_LEVEL || ptr->generation > transid)
		return false;
	for (uint32_t i = 0; i < geo->copies; i++) {
		if (!cpc_geometry_in_data(geo, ptr->bytenr[i], geo->nodesize))
			return false;
	}
	return true;
}

int cpc_super_decode(struct cpc_super *super, const struct cpc_disk_super *disk, uint32_t slot,
		     uint64_t device_size, const char **why)
{
	struct cpc_geometry geo;

	if (memcmp(disk->magic, CPC_SUPER_MAGIC, sizeof(disk->magic)) != 0)
		return refuse(why, "no superblock", -EINVAL);
	if (cpc_get_le32(&disk->csum) !=
	    cpc_csum_without_field(disk, sizeof(*disk), offsetof(struct cpc_disk_super, csum)))
		return refuse(why, "superblock checksum", -EUCLEAN);
	if (cpc_get_le32(&disk->version) != CPC_FORMAT_VERSION)
		return refuse(why, "format version is newer than this program", -ENOTSUP);
	super_decode_fields(super, disk);
	if (super->incompat & ~CPC_INCOMPAT_KNOWN)
		return refuse(why, "unknown incompatible feature", -ENOTSUP);
	if (super->slot != slot)
		return refuse(why, "superblock stands in a wrong slot", -EUCLEAN);
	if (super->total_bytes > device_size)
		return refuse(why, "device is smaller than the pool", -EUCLEAN);
	if (super->transid == 0 || super->transid >= 1ull << 62)
		return refuse(why, "superblock transid", -EUCLEAN);
	if (cpc_geometry_init(&geo, super->total_bytes, super->log_size, super->nodesize,
			      super->incompat & CPC_INCOMPAT_DUP))
		return refuse(why, "superblock sizes", -EUCLEAN);
	if (!root_sane(&geo, &super->root, super->transid) ||
	    !root_sane(&geo, &super->free_log, super->transid))
		return refuse(why, "superblock root pointer", -EUCLEAN);
	if (super->used_blocks > geo.nr_blocks || super->next_volume > UINT32_MAX ||
	    disk->label_len > CPC_LABEL_MAX || super->next_drop >= 1ull << 55 ||
	    super->next_free_log >= 1ull << 62 || super->log_position % CPC_BLOCK_SIZE ||
	    super->log_position >= 1ull << 62)
		return refuse(why, "superblock counters", -EUCLEAN);
	memcpy(super->label, disk->label, disk->label_len);
	return 0;
}

/* --- geometry --- */

int cpc_geometry_init(struct cpc_geometry *geo, uint64_t total_bytes, uint64_t log_size,
		      uint32_t nodesize, bool dup)
{
	uint64_t homes, end;

	if (total_bytes < CPC_POOL_SIZE_MIN || total_bytes > CPC_POOL_SIZE_MAX ||
	    total_bytes % CPC_BLOCK_SIZE)
		return -EINVAL;
	if (log_size < CPC_LOG_SIZE_MIN || log_size > CPC_LOG_SIZE_MAX ||
	    log_size % CPC_BLOCK_SIZE || log_size > total_bytes / 8)
		return -EINVAL;
	if (nodesize < CPC_NODESIZE_MIN || nodesize > CPC_NODESIZE_MAX || nodesize & (nodesize - 1))
		return -EINVAL;
	geo->nr_blocks = total_bytes >> CPC_BLOCK_SHIFT;
	geo->nr_groups = cpc_div_round_up(geo->nr_blocks, CPC_GROUP_BLOCKS);
	geo->copies = dup ? 2 : 1;
	geo->nodesize = nodesize;
	geo->log_blocks = log_size >> CPC_BLOCK_SHIFT;
	homes = 2 * geo->nr_groups;
	geo->super[0] = 0;
	geo->homes[0] = CPC_SUPER_SLOTS;
	geo->log[0] = geo->homes[0] + homes;
	geo->data_start = geo->log[0] + geo->log_blocks;
	end = geo->nr_blocks - CPC_SUPER_SLOTS;
	geo->super[1] = end;
	if (dup)
		end -= homes;
	geo->homes[1] = dup ? end : 0;
	geo->log[1] = end - geo->log_blocks;
	geo->data_end = geo->log[1];
	return 0;
}

uint64_t cpc_geometry_super(const struct cpc_geometry *geo, unsigned ring, unsigned slot)
{
	return (geo->super[ring] + slot) << CPC_BLOCK_SHIFT;
}

uint64_t cpc_geometry_home(const struct cpc_geometry *geo, unsigned copy, uint64_t group,
			   unsigned home)
{
	return (geo->homes[copy] + 2 * group + home) << CPC_BLOCK_SHIFT;
}

uint32_t cpc_geometry_group_blocks(const struct cpc_geometry *geo, uint64_t group)
{
	uint64_t left = geo->nr_blocks - group * CPC_GROUP_BLOCKS;

	return (uint32_t)cpc_min_u64(left, CPC_GROUP_BLOCKS);
}

bool cpc_geometry_in_data(const struct cpc_geometry *geo, uint64_t bytenr, uint64_t len)
{
	uint64_t start = bytenr >> CPC_BLOCK_SHIFT, nr = len >> CPC_BLOCK_SHIFT;

	if (bytenr % CPC_BLOCK_SIZE || len % CPC_BLOCK_SIZE || nr == 0)
		return false;
	return start >= geo->data_start && start < geo->data_end && nr <= geo->data_end - start;
}

uint64_t cpc_default_log_size(uint64_t total_bytes)
{
	uint64_t size = cpc_align_down(total_bytes / 32, CPC_BLOCK_SIZE);

	return cpc_min_u64(cpc_max_u64(size, CPC_LOG_SIZE_MIN), CPC_LOG_SIZE_MAX);
}
