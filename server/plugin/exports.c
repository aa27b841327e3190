/* SPDX-License-Identifier: BSD-3-Clause */
/* Names, and what an export can do. All of this may run for several connections at once. */
#include "server.h"

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lib/hooks.h"
#include "plugin/nbd-errno.h"
#include "protocol/size.h"

/* nbdkit refuses the whole list when one more is added. */
#define EXPORTS_MAX 10000u

#define BLOCK_MINIMUM 1u
#define BLOCK_MAXIMUM (32u << 20)

/* File descriptors that connections must leave: an eighth of the limit, and never fewer. */
#define FILES_SPARE_MIN 16u

/* --- connections --------------------------------------------------------------------------- */

/*
 * Without a descriptor for the next connection nbdkit tries again at once and for ever, and logs
 * each time: a full processor and a full disk. So connections are turned away before that. A new
 * descriptor gets the lowest free number, which tells how many are in use.
 */
int cpc_exports_preconnect(int readonly)
{
	struct rlimit limit;
	rlim_t spare;
	int fd = dup(STDERR_FILENO);

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
		limit.rlim_cur = RLIM_INFINITY;
	spare = limit.rlim_cur / 8 > FILES_SPARE_MIN ? limit.rlim_cur / 8 : FILES_SPARE_MIN;
	if (fd >= 0)
		close(fd);
	if (fd >= 0 && (rlim_t)fd + spare < limit.rlim_cur)
		return 0;
	cpc_plugin_error("too many connections for a limit of %ju open files; one is turned away "
			 "(LimitNOFILE= of systemd, or ulimit -n)",
			 (uintmax_t)limit.rlim_cur);
	return -1;
}

/* --- names --------------------------------------------------------------------------------- */

struct list {
	struct nbdkit_exports *exports;
	unsigned added;
};

static void describe(char *out, size_t len, uint64_t size, bool read_only)
{
	char text[CPC_SIZE_TEXT];

	snprintf(out, len, "%s thin volume%s", cpc_size_format(size, text),
		 read_only ? ", read-only" : "");
}

static int list_add(void *ctx, const struct cpc_volume_info *info)
{
	struct list *list = ctx;
	char text[64];

	if (list->added++ == EXPORTS_MAX) {
		cpc_plugin_error("only the first %u of all exports are listed", EXPORTS_MAX);
		return 1;
	}
	describe(text, sizeof(text), info->size, info->read_only);
	return nbdkit_add_export(list->exports, info->name, text) ? -ENOMEM : 0;
}

int cpc_exports_list(int readonly, int is_tls, struct nbdkit_exports *exports)
{
	struct list list = {.exports = exports};
	int ret;

	if (!cpc_server_use())
		return -1;
	ret = cpc_pool_list(cpc_server.pool, list_add, &list);
	cpc_server_done();
	if (ret >= 0)
		return 0;
	nbdkit_set_error(cpc_nbd_errno(ret, false));
	return -1;
}

struct only {
	char name[CPC_NAME_MAX + 1];
	unsigned count;
};

static int only_add(void *ctx, const struct cpc_volume_info *info)
{
	struct only *only = ctx;

	memcpy(only->name, info->name, sizeof(only->name));
	return ++only->count == 2;
}

const char *cpc_exports_default(int readonly, int is_tls)
{
	struct only only = {.count = 0};
	int ret;

	if (cpc_server.config.default_export)
		return cpc_server.config.default_export;
	if (!cpc_server_use())
		return NULL;
	ret = cpc_pool_list(cpc_server.pool, only_add, &only);
	cpc_server_done();
	if (ret < 0 || only.count != 1) {
		nbdkit_debug("coppice: no default export: the pool does not have exactly one "
			     "volume, and default-export= is not given");
		return NULL;
	}
	return nbdkit_strdup_intern(only.name);
}

/* --- handles ------------------------------------------------------------------------------- */

static struct cpc_handle *handle_new(struct cpc_volume *volume, bool read_only)
{
	struct cpc_handle *handle = cpc_alloc(sizeof(*handle));

	if (!handle)
		return NULL;
	handle->volume = volume;
	handle->read_only =
	    read_only || cpc_server.config.options.read_only || cpc_volume_read_only(volume);
	return handle;
}

static void *open_failed(const char *name, int ret)
{
	bool legal = cpc_name_valid(name, strlen(name));

	if (ret == -ENOENT)
		cpc_plugin_error("there is no volume '%s'", legal ? name : "(not a legal name)");
	else
		cpc_plugin_error("volume '%s': %s", legal ? name : "", strerror(-ret));
	nbdkit_set_error(ret == -ENOENT ? ENOENT : cpc_nbd_errno(ret, false));
	return NULL;
}

static void *open_volume(const char *name, bool read_only)
{
	struct cpc_volume *volume;
	struct cpc_handle *handle;
	int ret;

	ret = cpc_name_valid(name, strlen(name))
		  ? cpc_pool_open_volume(cpc_server.pool, name, &volume)
		  : -ENOENT;
	if (ret)
		return open_failed(name, ret);
	handle = handle_new(volume, read_only);
	if (handle)
		return handle;
	cpc_pool_close_volume(cpc_server.pool, volume);
	return open_failed(name, -ENOMEM);
}

void *cpc_exports_open(int readonly)
{
	const char *name = nbdkit_export_name();
	void *handle;

	if (!name || !cpc_server_use())
		return NULL;
	handle = open_volume(name, readonly);
	if (!handle)
		cpc_server_done();
	return handle;
}

void cpc_exports_close(void *ptr)
{
	struct cpc_handle *handle = ptr;

	cpc_pool_close_volume(cpc_server.pool, handle->volume);
	cpc_free(handle);
	cpc_server_done();
}

/* --- what an export can do ----------------------------------------------------------------- */

const char *cpc_exports_description(void *ptr)
{
	struct cpc_handle *handle = ptr;
	char text[64];

	describe(text, sizeof(text), cpc_volume_size(handle->volume),
		 cpc_volume_read_only(handle->volume));
	return nbdkit_strdup_intern(text);
}

int64_t cpc_exports_get_size(void *ptr)
{
	struct cpc_handle *handle = ptr;

	return (int64_t)cpc_volume_size(handle->volume);
}

int cpc_exports_block_size(void *handle, uint32_t *minimum, uint32_t *preferred, uint32_t *maximum)
{
	*minimum = BLOCK_MINIMUM;
	*preferred = CPC_BLOCK_SIZE;
	*maximum = BLOCK_MAXIMUM;
	return 0;
}

int cpc_exports_can_write(void *ptr)
{
	struct cpc_handle *handle = ptr;

	return !handle->read_only;
}
