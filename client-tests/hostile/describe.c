/* SPDX-License-Identifier: BSD-3-Clause */
#include "describe.h"

#include "draw.h"

struct field {
	uint16_t offset;
	uint8_t width;
};

#define FIELD(type, member)                                                                        \
	{                                                                                          \
		offsetof(struct type, member), sizeof(((struct type *)0)->member)                  \
	}
#define PTR_FIELDS(type, member)                                                                   \
	FIELD(type, member.bytenr), FIELD(type, member.bytenr2), FIELD(type, member.generation),   \
	    FIELD(type, member.data_blocks), FIELD(type, member.nodes), FIELD(type, member.csum),  \
	    FIELD(type, member.level), FIELD(type, member.reserved[0])

static const struct field super_fields[] = {
    FIELD(cpc_disk_super, version),	  FIELD(cpc_disk_super, uuid[0]),
    FIELD(cpc_disk_super, compat),	  FIELD(cpc_disk_super, compat_ro),
    FIELD(cpc_disk_super, incompat),	  FIELD(cpc_disk_super, transid),
    FIELD(cpc_disk_super, total_bytes),	  FIELD(cpc_disk_super, nonce),
    FIELD(cpc_disk_super, nodesize),	  FIELD(cpc_disk_super, slot),
    FIELD(cpc_disk_super, log_size),	  FIELD(cpc_disk_super, log_position),
    FIELD(cpc_disk_super, log_seq),	  FIELD(cpc_disk_super, log_durable),
    FIELD(cpc_disk_super, next_volume),	  FIELD(cpc_disk_super, next_drop),
    FIELD(cpc_disk_super, next_free_log), FIELD(cpc_disk_super, used_blocks),
    PTR_FIELDS(cpc_disk_super, root),	  PTR_FIELDS(cpc_disk_super, free_log),
    FIELD(cpc_disk_super, label_len),	  FIELD(cpc_disk_super, flags),
    FIELD(cpc_disk_super, reserved[0]),
};

static const struct field header_fields[] = {
    FIELD(cpc_disk_node, magic),  FIELD(cpc_disk_node, uuid[0]),
    FIELD(cpc_disk_node, bytenr), FIELD(cpc_disk_node, generation),
    FIELD(cpc_disk_node, owner),  FIELD(cpc_disk_node, nritems),
    FIELD(cpc_disk_node, level),  FIELD(cpc_disk_node, reserved[0]),
};

static const struct field item_fields[] = {FIELD(cpc_disk_item, key), FIELD(cpc_disk_item, offset),
					   FIELD(cpc_disk_item, size)};

static const struct field child_fields[] = {FIELD(cpc_disk_child, key),
					    PTR_FIELDS(cpc_disk_child, ptr)};

static const struct field volume_fields[] = {
    FIELD(cpc_disk_volume, size),	 FIELD(cpc_disk_volume, flags),
    FIELD(cpc_disk_volume, generation),	 FIELD(cpc_disk_volume, limit),
    FIELD(cpc_disk_volume, origin),	 FIELD(cpc_disk_volume, snapshot_of),
    FIELD(cpc_disk_volume, dead_blocks), PTR_FIELDS(cpc_disk_volume, root),
    FIELD(cpc_disk_volume, reserved[0]), FIELD(cpc_disk_volume, name_len),
    FIELD(cpc_disk_volume, name[0]),
};

static const struct field group_fields[] = {
    FIELD(cpc_disk_group, generation),	FIELD(cpc_disk_group, csum),
    FIELD(cpc_disk_group, used),	FIELD(cpc_disk_group, home),
    FIELD(cpc_disk_group, reserved[0]),
};

static const struct field drop_fields[] = {PTR_FIELDS(cpc_disk_drop, ptr),
					   FIELD(cpc_disk_drop, owner), FIELD(cpc_disk_drop, limit),
					   FIELD(cpc_disk_drop, dead_to)};

static const struct field free_log_fields[] = {
    FIELD(cpc_disk_free_log, transid), FIELD(cpc_disk_free_log, entry[0].block),
    FIELD(cpc_disk_free_log, entry[0].count), FIELD(cpc_disk_free_log, entry[1].block),
    FIELD(cpc_disk_free_log, entry[1].count)};

static const struct field extent_fields[] = {
    FIELD(cpc_disk_extent, bytenr), FIELD(cpc_disk_extent, birth), FIELD(cpc_disk_extent, csum[0])};

static const struct field record_fields[] = {
    FIELD(cpc_disk_log_record, magic),	    FIELD(cpc_disk_log_record, uuid[0]),
    FIELD(cpc_disk_log_record, nonce),	    FIELD(cpc_disk_log_record, seq),
    FIELD(cpc_disk_log_record, transid),    FIELD(cpc_disk_log_record, durable),
    FIELD(cpc_disk_log_record, position),   FIELD(cpc_disk_log_record, length),
    FIELD(cpc_disk_log_record, nr_entries), FIELD(cpc_disk_log_record, flags),
    FIELD(cpc_disk_log_record, reserved[0])};

static const struct field entry_fields[] = {
    FIELD(cpc_disk_log_entry, type),   FIELD(cpc_disk_log_entry, reserved),
    FIELD(cpc_disk_log_entry, size),   FIELD(cpc_disk_log_entry, volume),
    FIELD(cpc_disk_log_entry, block),  FIELD(cpc_disk_log_entry, nr_blocks),
    FIELD(cpc_disk_log_entry, bytenr),
};

struct fields {
	const struct field *field;
	size_t nr;
};

#define FIELDS(array)                                                                              \
	(struct fields)                                                                            \
	{                                                                                          \
		array, CPC_ARRAY_SIZE(array)                                                       \
	}

/* --- which fields there are --- */

static const struct cpc_disk_node *base_node(const struct image *image, uint8_t instance)
{
	return (const void *)(image->base + image->node[instance % image->nr_nodes].bytenr[0]);
}

static struct fields value_fields(const struct image *image, const struct image_change *c)
{
	const struct cpc_disk_node *node = base_node(image, c->instance);
	const struct cpc_disk_item *item = (const void *)(node + 1);
	uint64_t owner = cpc_get_le64(&node->owner), type;

	if (node->level)
		return FIELDS(child_fields);
	if (owner == CPC_TREE_FREE_LOG)
		return FIELDS(free_log_fields);
	if (owner != CPC_TREE_ROOT)
		return FIELDS(extent_fields);
	item += c->slot % cpc_get_le32(&node->nritems);
	type = cpc_get_le64(&item->key) >> CPC_KEY_TYPE_SHIFT;
	if (type == CPC_ITEM_VOLUME)
		return FIELDS(volume_fields);
	return type == CPC_ITEM_DROP ? FIELDS(drop_fields) : FIELDS(group_fields);
}

static struct fields fields_of(const struct image *image, const struct image_change *c)
{
	switch ((enum image_structure)c->what) {
	case IMAGE_SUPER:
		return FIELDS(super_fields);
	case IMAGE_HEADER:
		return FIELDS(header_fields);
	case IMAGE_SLOT:
		return base_node(image, c->instance)->level ? FIELDS(child_fields)
							    : FIELDS(item_fields);
	case IMAGE_GROUP:
		return FIELDS(group_fields);
	case IMAGE_RECORD:
		return FIELDS(record_fields);
	case IMAGE_ENTRY:
		return FIELDS(entry_fields);
	case IMAGE_BITMAP:
		return (struct fields){NULL, 0};
	default:
		return value_fields(image, c);
	}
}

/* --- one change --- */

/* The root tree and the free log are few nodes among many of volumes. */
static uint8_t draw_node(const struct image *image, uint64_t *state)
{
	uint64_t which = draw(state, 4);

	for (unsigned i = 0; which < 2 && i < image->nr_nodes; i++) {
		if (image->node[i].owner == (which ? CPC_TREE_FREE_LOG : CPC_TREE_ROOT))
			return (uint8_t)i;
	}
	return (uint8_t)draw(state, cpc_min_u64(image->nr_nodes, 256));
}

/* Near the bits of blocks that there are, or anywhere. */
static unsigned draw_in_bitmap(const struct image *image, uint64_t *state)
{
	return (unsigned)draw(state,
			      draw(state, 4) ? image->geo.nr_blocks / 8 + 8 : CPC_BLOCK_SIZE);
}

/* Changes a field of something that there is. */
static void describe_change(const struct image *image, uint64_t *state, struct image_change *c)
{
	struct fields fields;
	const struct field *f;

	c->what = (uint8_t)draw(state, IMAGE_STRUCTURES);
	c->instance = draw_node(image, state);
	c->slot = (uint8_t)draw(state, 256);
	c->how = (uint8_t)draw(state, 8);
	for (unsigned i = 0; i < 3; i++)
		c->value[i] = draw(state, 4) ? (uint8_t)draw(state, 256) : 0;
	fields = fields_of(image, c);
	f = fields.nr ? &fields.field[draw(state, fields.nr)] : NULL;
	if (f)
		image_change_at(c, f->offset, f->width);
	else
		image_change_at(c, draw_in_bitmap(image, state), 1u << draw(state, 4));
}

/* --- a description --- */

static void draw_request(uint64_t *state, uint8_t *step)
{
	for (unsigned i = 0; i < DESCRIPTION_STEP; i++)
		step[i] = (uint8_t)draw(state, 256);
	step[0] |= 0x80;
}

static void draw_change(const struct image *image, uint64_t *state, uint8_t *step)
{
	struct image_change c;

	describe_change(image, state, &c);
	memcpy(step, &c, sizeof(c));
}

static void draw_step(const struct image *image, uint64_t *state, uint8_t *step)
{
	if (draw(state, 3))
		draw_change(image, state, step);
	else
		draw_request(state, step);
}

/* One to three changes, then requests. */
static size_t new_description(const struct image *images, uint64_t *state, uint8_t *input,
			      size_t max)
{
	size_t changes = 1 + draw(state, 3), nr = changes + draw(state, 8),
	       len = DESCRIPTION_HEADER;

	input[0] = (uint8_t)draw(state, IMAGE_BASES);
	input[1] = (uint8_t)draw(state, 256);
	for (size_t i = 0; i < nr && len + DESCRIPTION_STEP <= max; i++, len += DESCRIPTION_STEP) {
		if (i < changes)
			draw_change(&images[input[0]], state, input + len);
		else
			draw_request(state, input + len);
	}
	return len;
}

/* Another value for the field that a step changes. */
static void change_value(uint64_t *state, uint8_t *step)
{
	step[3] = (uint8_t)(step[3] & ~7u) | (uint8_t)draw(state, 8);
	step[4 + draw(state, 3)] = (uint8_t)draw(state, 256);
}

size_t describe(const struct image images[IMAGE_BASES], uint64_t *state, uint8_t *input, size_t len,
		size_t max)
{
	size_t nr, at;

	if (max < DESCRIPTION_HEADER + DESCRIPTION_STEP)
		return len;
	if (len < DESCRIPTION_HEADER + DESCRIPTION_STEP)
		return new_description(images, state, input, max);
	nr = (len - DESCRIPTION_HEADER) / DESCRIPTION_STEP;
	len = DESCRIPTION_HEADER + nr * DESCRIPTION_STEP;
	at = DESCRIPTION_HEADER + draw(state, nr) * DESCRIPTION_STEP;
	switch (draw(state, 8)) {
	case 0:
		input[1] = (uint8_t)draw(state, 256);
		return len;
	case 1: /* without it */
		memmove(input + at, input + at + DESCRIPTION_STEP, len - at - DESCRIPTION_STEP);
		return len - DESCRIPTION_STEP;
	case 2:
	case 3:
		change_value(state, input + at);
		return len;
	case 4:
		draw_step(&images[input[0] % IMAGE_BASES], state, input + at);
		return len;
	default: /* one more before it */
		if (nr >= DESCRIPTION_STEPS || len + DESCRIPTION_STEP > max)
			return len;
		memmove(input + at + DESCRIPTION_STEP, input + at, len - at);
		draw_step(&images[input[0] % IMAGE_BASES], state, input + at);
		return len + DESCRIPTION_STEP;
	}
}
