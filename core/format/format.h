/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * format: on-disk structures of a pool, version 1, their accessors and checksums.
 *
 * Called by every module that reads or writes the pool; calls core/lib only. There are no
 * pointers, locks or I/O here. docs/on-disk-format.md describes the same structures for a reader
 * without this file, and test-format compares the two.
 *
 * Terms: `block` = 4096 bytes; addresses on disk are bytes (`bytenr`), multiples of a block; block
 * numbers are named so. All integers are little-endian and unsigned. Padding and reserved fields
 * are zero and inside the checksum.
 *
 * Invariants
 *  1. A structure is touched only through cpc_get_leNN / cpc_put_leNN (the types allow no other).
 *  2. Every structure's size and the offset of each field is fixed (static asserts below).
 *  3. A checksum is CRC32C over the whole structure with its own field zero. A node's parent
 *     repeats the node's checksum and generation; a data block's checksum stands in its mapping.
 *  4. The decode functions accept no value that would make a caller overflow, divide by zero or
 *     address a byte outside the pool; what they refuse is -EUCLEAN and says why in `why`.
 *
 * Errors: -EINVAL not a Coppice structure, -EUCLEAN damaged, -ENOTSUP a newer or unknown format.
 */
#ifndef CPC_FORMAT_FORMAT_H
#define CPC_FORMAT_FORMAT_H

#include <endian.h>
#include "lib/base.h"

/* --- little-endian fields --------------------------------------------------------------- */

typedef struct {
	uint8_t b[2];
} cpc_le16;
typedef struct {
	uint8_t b[4];
} cpc_le32;
typedef struct {
	uint8_t b[8];
} cpc_le64;

static inline uint16_t cpc_get_le16(const cpc_le16 *p)
{
	uint16_t v;

	memcpy(&v, p, sizeof(v));
	return le16toh(v);
}

static inline uint32_t cpc_get_le32(const cpc_le32 *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return le32toh(v);
}

static inline uint64_t cpc_get_le64(const cpc_le64 *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return le64toh(v);
}

static inline void cpc_put_le16(cpc_le16 *p, uint16_t v)
{
	v = htole16(v);
	memcpy(p, &v, sizeof(v));
}

static inline void cpc_put_le32(cpc_le32 *p, uint32_t v)
{
	v = htole32(v);
	memcpy(p, &v, sizeof(v));
}

static inline void cpc_put_le64(cpc_le64 *p, uint64_t v)
{
	v = htole64(v);
	memcpy(p, &v, sizeof(v));
}

/* --- limits ------------------------------------------------------------------------------- */

#define CPC_FORMAT_VERSION    1u
#define CPC_UUID_SIZE	      16u
#define CPC_NAME_MAX	      255u
#define CPC_LABEL_MAX	      63u
#define CPC_MAX_LEVEL	      12u /* height of a tree is at most this + 1 */
#define CPC_NODESIZE_MIN      4096u
#define CPC_NODESIZE_MAX      65536u
#define CPC_EXTENT_MAX_BLOCKS 256u   /* one mapping covers at most 1 MiB */
#define CPC_GROUP_BLOCKS      32768u /* one bitmap block describes 128 MiB */
#define CPC_SUPER_SLOTS	      8u     /* per ring */
#define CPC_LOG_SIZE_MIN      (128u << 10)
#define CPC_LOG_SIZE_MAX      (1u << 30)
#define CPC_POOL_SIZE_MIN     (4u << 20)
#define CPC_POOL_SIZE_MAX     (1ull << 56)
#define CPC_VOLUME_SIZE_MAX   ((1ull << 63) - CPC_BLOCK_SIZE)
#define CPC_MAX_VOLUME_BLOCKS (1ull << 51)
#define CPC_MAX_VOLUMES	      100000u

/* --- pointer to a node -------------------------------------------------------------------- */

struct cpc_disk_ptr {
	cpc_le64 bytenr;      /* first copy; 0: the tree is empty and all else is 0 */
	cpc_le64 bytenr2;     /* second copy, 0 with metadata=single */
	cpc_le64 generation;  /* transid that wrote the node */
	cpc_le64 data_blocks; /* data blocks mapped by the leaves below */
	cpc_le32 nodes;	      /* nodes in the subtree, this one included */
	cpc_le32 csum;	      /* the node's own checksum field */
	uint8_t level;
	uint8_t reserved[7];
} __attribute__((packed));
_Static_assert(sizeof(struct cpc_disk_ptr) == 48, "disk ptr");

/* A node pointer in memory. */
struct cpc_node_ptr {
	uint64_t bytenr[2];
	uint64_t generation;
	uint64_t data_blocks;
	uint32_t nodes;
	uint32_t csum;
	uint8_t level;
};

static inline bool cpc_node_ptr_empty(const struct cpc_node_ptr *ptr)
{
	return ptr->bytenr[0] == 0;
}

void cpc_ptr_decode(struct cpc_node_ptr *ptr, const struct cpc_disk_ptr *disk);
void cpc_ptr_encode(struct cpc_disk_ptr *disk, const struct cpc_node_ptr *ptr);

/* --- node ----------------------------------------------------------------------------------- */

#define CPC_NODE_MAGIC 0x444f4e43u /* "CNOD" */

struct cpc_disk_node {
	cpc_le32 csum; /* over nodesize bytes */
	cpc_le32 magic;
	uint8_t uuid[CPC_UUID_SIZE];
	cpc_le64 bytenr; /* of the first copy, in both copies */
	cpc_le64 generation;
	cpc_le64 owner; /* tree id */
	cpc_le32 nritems;
	uint8_t level; /* 0: leaf */
	uint8_t reserved[11];
} __attribute__((packed));
_Static_assert(sizeof(struct cpc_disk_node) == 64, "disk node");

/* An inner node is the header and nritems of these, keys ascending, then zeroes. */
struct cpc_disk_child {
	cpc_le64 key; /* exactly the first key below */
	struct cpc_disk_ptr ptr;
} __attribute__((packed));
_Static_assert(sizeof(struct cpc_disk_child) == 56, "disk child");

/*
 * A leaf is the header and nritems of these, keys ascending; values fill the node from its end
 * downwards in the order of the items without a gap; zeroes between.
 */
struct cpc_disk_item {
	cpc_le64 key;
	cpc_le16 offset; /* of the value, from the start of the node */
	cpc_le16 size;
} __attribute__((packed));
_Static_assert(sizeof(struct cpc_disk_item) == 12, "disk item");

/* The largest value that a leaf takes: three fit in the smallest node. */
#define CPC_ITEM_MAX_SIZE 1328u

/* --- tree ids and keys ---------------------------------------------------------------------- */

#define CPC_TREE_ROOT	     1u	  /* the pool's own items, keys below */
#define CPC_TREE_FREE_LOG    2u	  /* key: sequence number; value: cpc_disk_free_log */
#define CPC_TREE_DEAD	     3u	  /* any dead bucket; key: first pool block; cpc_disk_dead_run */
#define CPC_TREE_VOLUME_BASE 256u /* + volume id; key: block number in the volume */

/* Key in the root tree: type in the top byte, the rest as said. */
enum cpc_item_type {
	CPC_ITEM_VOLUME = 1, /* volume id: cpc_disk_volume */
	CPC_ITEM_GROUP = 2,  /* block group index: cpc_disk_group */
	CPC_ITEM_DROP = 3,   /* sequence number: cpc_disk_drop */
	CPC_ITEM_DEAD = 4,   /* volume id << 16 | bucket: cpc_disk_dead */
	CPC_ITEM_DELTA = 5,  /* volume id: cpc_disk_delta */
};

#define CPC_KEY_TYPE_SHIFT 56
#define CPC_KEY_ID_MASK	   ((1ull << CPC_KEY_TYPE_SHIFT) - 1)

static inline uint64_t cpc_root_key(enum cpc_item_type type, uint64_t id)
{
	return (uint64_t)type << CPC_KEY_TYPE_SHIFT | (id & CPC_KEY_ID_MASK);
}

/* Value in a volume's tree: blocks [key, key + n) stand at bytenr; n = (size - 16) / 4. */
struct cpc_disk_extent {
	cpc_le64 bytenr;
	cpc_le64 birth;	 /* transid that published it */
	cpc_le32 csum[]; /* one a block */
} __attribute__((packed));
_Static_assert(sizeof(struct cpc_disk_extent) == 16, "disk extent");

static inline uint32_t cpc_extent_value_size(uint32_t nr_blocks)
{
	return (uint32_t)sizeof(struct cpc_disk_extent) + 4u * nr_blocks;
}

struct cpc_disk_volume {
	cpc_le64 size; /* bytes; any number from 1 to CPC_VOLUME_SIZE_MAX */
	cpc_le64 flags;
	cpc_le64 created;     /* seconds since 1970, for people only */
	cpc_le64 generation;  /* transid of the last change of this item */
	cpc_le64 limit;	      /* blocks born at or before it are shared with a snapshot or origin */
	cpc_le64 origin;      /* volume id of a snapshot's or clone's origin, 0: none */
	cpc_le64 snapshot_of; /* generation at which a snapshot was taken, 0: not a snapshot */
	cpc_le64 dead_blocks; /* sum over its dead buckets */
	struct cpc_disk_ptr root;
	uint8_t uuid[CPC_UUID_SIZE];
	uint8_t reserved[15];
	uint8_t name_len; /* 1..255 */
	uint8_t name[];
} __attribute__((packed));
_Static_assert(sizeof(struct cpc_disk_volume) == 144, "disk volume");

#define CPC_VOLUME_READONLY 1u /* a snapshot */

/* A block group that has been folded at least once; none: all free but the fixed areas. */
struct cpc_disk_group {
	cpc_le64 generation; /* transid that folded it: contains all changes before that transid */
	cpc_le32 csum;	     /* of the bitmap block, see cpc_bitmap_csum */
	cpc_le32 used;	     /* blocks in use, fixed areas included */
	uint8_t home;	     /* 0 or 1: which of its two homes */
	uint8_t reserved[7];
} __attribute__((packed));
_Static_assert(sizeof(struct cpc_disk_group) == 24, "disk group");

/* A subtree that nothing names any more and that later commits free in slices. */
struct cpc_disk_drop {
	struct cpc_disk_ptr ptr;
	cpc_le64 owner;	  /* tree id in its nodes */
	cpc_le64 limit;	  /* what was born at or before it is not freed but goes to `dead_to` */
	cpc_le64 dead_to; /* volume id, 0: none */
} __attribute__((packed));
_Static_assert(sizeof(struct cpc_disk_drop) == 72, "disk drop");

/* Blocks a volume no longer maps but an older snapshot may: a tree of runs, key first block. */
struct cpc_disk_dead {
	cpc_le64 birth_min, birth_max;
	cpc_le64 blocks;
	struct cpc_disk_ptr root;
} __attribute__((packed));
_Static_assert(sizeof(struct cpc_disk_dead) == 72, "disk dead");

/* Value in a dead bucket's tree. One owner id for all of them: a bucket changes hands unread. */
struct cpc_disk_dead_run {
	cpc_le32 blocks; /* 1..CPC_GROUP_BLOCKS */
} __attribute__((packed));
_Static_assert(sizeof(struct cpc_disk_dead_run) == 4, "disk dead run");

/* Reserved: a sorted run of mappings read before a volume's tree (incompat bit DELTA). */
struct cpc_disk_delta {
	cpc_le64 entries;
	struct cpc_disk_ptr root;
} __attribute__((packed));
_Static_assert(sizeof(struct cpc_disk_delta) == 56, "disk delta");

/* One change of free space. */
struct cpc_disk_free_entry {
	cpc_le64 block; /* block number in the pool */
	cpc_le32 count; /* blocks; top bit set: freed, clear: allocated */
} __attribute__((packed));
_Static_assert(sizeof(struct cpc_disk_free_entry) == 12, "disk free entry");
#define CPC_FREE_ENTRY_FREED 0x80000000u

struct cpc_disk_free_log {
	cpc_le64 transid;
	struct cpc_disk_free_entry entry[];
} __attribute__((packed));
_Static_assert(sizeof(struct cpc_disk_free_log) == 8, "disk free log");

/* --- log ring ------------------------------------------------------------------------------- */

#define CPC_LOG_MAGIC 0x474f4c43u /* "CLOG" */

/* A record starts on a block, is a multiple of a block long and stands at the same place of both
 * copies of the ring. A record never wraps: what is too short for it at the end is left out. */
struct cpc_disk_log_record {
	cpc_le32 csum; /* over `length` bytes */
	cpc_le32 magic;
	uint8_t uuid[CPC_UUID_SIZE];
	cpc_le64 nonce;	   /* of the open that wrote it */
	cpc_le64 seq;	   /* 1, 2, 3 ... within one open */
	cpc_le64 transid;  /* newest durable superblock when written */
	cpc_le64 durable;  /* highest seq that ends a cut known durable */
	cpc_le64 position; /* byte position in the ring, counted without wrapping */
	cpc_le32 length;   /* bytes, this header and padding included */
	cpc_le32 nr_entries;
	cpc_le32 flags;
	uint8_t reserved[20];
} __attribute__((packed));
_Static_assert(sizeof(struct cpc_disk_log_record) == 96, "disk log record");

#define CPC_LOG_ENDS_CUT 1u
#define CPC_LOG_MARK	 2u /* carries only `durable` */

enum cpc_log_entry_type {
	CPC_LOG_MAP = 1,    /* nr_blocks mapped to bytenr, csum[nr_blocks] follows */
	CPC_LOG_HOLE = 2,   /* nr_blocks unmapped */
	CPC_LOG_CREATE = 3, /* payload: cpc_disk_volume */
	CPC_LOG_RENAME = 4, /* payload: name */
	CPC_LOG_DELETE = 5,
	CPC_LOG_RESIZE = 6, /* size; what lies above is a hole */
};

struct cpc_disk_log_entry {
	uint8_t type;
	uint8_t reserved;
	cpc_le16 size; /* bytes, header and payload */
	cpc_le32 volume;
	cpc_le64 block; /* block number in the volume; RESIZE: the size in bytes */
	cpc_le64 nr_blocks;
	cpc_le64 bytenr;
} __attribute__((packed));
_Static_assert(sizeof(struct cpc_disk_log_entry) == 32, "disk log entry");

/* --- superblock ----------------------------------------------------------------------------- */

#define CPC_SUPER_MAGIC "CoppiceP"

/* Bits of a pool that an older reader must not open (incompat), may only read (compat_ro), may
 * ignore (compat). */
#define CPC_INCOMPAT_DUP    1ull /* metadata has two copies */
#define CPC_INCOMPAT_DELTA  2ull /* reserved: delta runs in use */
#define CPC_INCOMPAT_KNOWN  (CPC_INCOMPAT_DUP)
#define CPC_COMPAT_RO_KNOWN 0ull
#define CPC_COMPAT_SPARSE   1ull /* the pool file was made sparse: discards may punch holes */

struct cpc_disk_super {
	uint8_t magic[8];
	cpc_le32 csum; /* over the 4096 bytes of the slot */
	cpc_le32 version;
	uint8_t uuid[CPC_UUID_SIZE];
	cpc_le64 compat, compat_ro, incompat;
	cpc_le64 transid;
	cpc_le64 total_bytes;
	cpc_le64 nonce; /* of the open that wrote it */
	cpc_le32 nodesize;
	cpc_le32 slot;	       /* index in its ring */
	cpc_le64 log_size;     /* bytes of one copy of the ring */
	cpc_le64 log_position; /* up to here, counted without wrapping, the trees contain the log */
	cpc_le64 log_seq;      /* the last record that the trees contain, 0: none of this nonce */
	cpc_le64 log_durable;  /* highest seq that ends a cut known durable */
	cpc_le64 next_volume;  /* next volume id; ids are never used twice */
	cpc_le64 next_drop;    /* next sequence number of a drop item */
	cpc_le64 next_free_log; /* next key in the free-log tree */
	cpc_le64 used_blocks;	/* bits set in all bitmaps as of this transid */
	cpc_le64 created;	/* seconds since 1970 */
	struct cpc_disk_ptr root;
	struct cpc_disk_ptr free_log;
	uint8_t label_len;
	uint8_t label[CPC_LABEL_MAX];
	uint8_t flags; /* bit 0: closed in order, the log is empty */
	uint8_t reserved[4096 - 321];
} __attribute__((packed));
_Static_assert(sizeof(struct cpc_disk_super) == 4096, "disk super");

#define CPC_SUPER_CLEAN 1u

/* A superblock in memory. */
struct cpc_super {
	uint8_t uuid[CPC_UUID_SIZE];
	uint64_t compat, compat_ro, incompat;
	uint64_t transid, total_bytes, nonce;
	uint32_t nodesize, slot;
	uint64_t log_size, log_position, log_seq, log_durable;
	uint64_t next_volume, next_drop, next_free_log;
	uint64_t used_blocks, created;
	struct cpc_node_ptr root, free_log;
	char label[CPC_LABEL_MAX + 1];
	uint8_t flags;
};

/* Fills a slot and its checksum. */
void cpc_super_encode(struct cpc_disk_super *disk, const struct cpc_super *super);
/*
 * Checks a slot that stands at `slot` of either ring of a device of `device_size` bytes.
 * Return: 0; -EINVAL no superblock here; -EUCLEAN damaged; -ENOTSUP with *why saying which.
 */
int cpc_super_decode(struct cpc_super *super, const struct cpc_disk_super *disk, uint32_t slot,
		     uint64_t device_size, const char **why);

/* --- geometry ------------------------------------------------------------------------------- */

/*
 * Where the fixed areas of a pool stand; follows from the superblock alone. In order: superblock
 * ring 0, homes of the bitmaps (copy 0), log (copy 0), data, log (copy 1), homes (copy 1, with
 * metadata=dup), superblock ring 1. All values are block numbers or counts.
 */
struct cpc_geometry {
	uint64_t nr_blocks; /* of the pool */
	uint64_t nr_groups;
	uint64_t super[2];
	uint64_t homes[2]; /* first home of group 0; group g, home h: + 2 * g + h */
	uint64_t log[2];
	uint64_t log_blocks;
	uint64_t data_start, data_end; /* what the allocator may hand out */
	uint32_t copies;	       /* of nodes and bitmaps, 1 or 2 */
	uint32_t nodesize;
};

/* Return: 0; -EINVAL when the sizes do not fit together (too small, log too large). */
int cpc_geometry_init(struct cpc_geometry *geo, uint64_t total_bytes, uint64_t log_size,
		      uint32_t nodesize, bool dup);
/* Byte address of a superblock slot; ring 0 or 1, slot < CPC_SUPER_SLOTS. */
uint64_t cpc_geometry_super(const struct cpc_geometry *geo, unsigned ring, unsigned slot);
/* Byte address of a group's bitmap home (0 or 1) in copy 0 or 1. */
uint64_t cpc_geometry_home(const struct cpc_geometry *geo, unsigned copy, uint64_t group,
			   unsigned home);
/* Blocks of a group that really exist (the last group may be short). */
uint32_t cpc_geometry_group_blocks(const struct cpc_geometry *geo, uint64_t group);
/* True when [bytenr, bytenr + len) is block-aligned, not empty and lies in the data area. */
bool cpc_geometry_in_data(const struct cpc_geometry *geo, uint64_t bytenr, uint64_t len);
/* The log size used when none is asked for: pool / 32 within its limits. */
uint64_t cpc_default_log_size(uint64_t total_bytes);

/* --- checksums -------------------------------------------------------------------------------- */

uint32_t cpc_csum(const void *buf, size_t len);
/* Checksum of `len` bytes whose own checksum field (4 bytes) stands at `field`. */
uint32_t cpc_csum_without_field(const void *buf, size_t len, size_t field);
/* Checksum of a bitmap block; knows the pool, the group and the generation. */
uint32_t cpc_bitmap_csum(const uint8_t uuid[CPC_UUID_SIZE], uint64_t group, uint64_t generation,
			 const void *bitmap);

/* True when `name` (len bytes) is a legal volume name. */
bool cpc_name_valid(const char *name, size_t len);
/* Writes 36 characters and a NUL. */
void cpc_uuid_format(const uint8_t uuid[CPC_UUID_SIZE], char out[37]);

#endif
