/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Requests on an open export. Each is one call of the engine, in the worker thread that nbdkit gave
 * it. Nothing is logged per failing request without a limit.
 */
#include "server.h"

#include "plugin/extent-sink.h"
#include "plugin/nbd-errno.h"

/* One request, for the log. */
struct request {
	const char *what;
	uint32_t count;
	uint64_t offset;
	bool fast;
};

static void log_failure(const struct request *request, int ret)
{
	const char *name = nbdkit_export_name();

	cpc_plugin_error("%s: %s of %u bytes at %ju: %s", name ? name : "", request->what,
			 request->count, (uintmax_t)request->offset, strerror(-ret));
}

/* Turns the engine's answer into nbdkit's. */
static int answer(const struct request *request, int ret)
{
	int err;

	if (cpc_likely(ret == 0))
		return 0;
	err = cpc_nbd_errno(ret, request->fast);
	if (err != ESHUTDOWN && err != EOPNOTSUPP)
		log_failure(request, ret);
	nbdkit_set_error(err);
	return -1;
}

static struct cpc_volume *volume_of(void *handle)
{
	return ((struct cpc_handle *)handle)->volume;
}

static unsigned fua(uint32_t flags)
{
	return flags & NBDKIT_FLAG_FUA ? CPC_FUA : 0;
}

int cpc_request_pread(void *handle, void *buf, uint32_t count, uint64_t offset, uint32_t flags)
{
	const struct request request = {"read", count, offset, false};

	return answer(&request, cpc_volume_read(volume_of(handle), buf, count, offset));
}

int cpc_request_pwrite(void *handle, const void *buf, uint32_t count, uint64_t offset,
		       uint32_t flags)
{
	const struct request request = {"write", count, offset, false};

	return answer(&request,
		      cpc_volume_write(volume_of(handle), buf, count, offset, fua(flags)));
}

int cpc_request_flush(void *handle, uint32_t flags)
{
	const struct request request = {"flush", 0, 0, false};
	int ret = cpc_volume_flush(volume_of(handle));

	/* What a flush needs was reserved before: it is the device that has no room. */
	return answer(&request, ret == -ENOSPC ? -EIO : ret);
}

int cpc_request_trim(void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
	const struct request request = {"trim", count, offset, false};

	return answer(&request, cpc_volume_trim(volume_of(handle), count, offset, fua(flags)));
}

int cpc_request_zero(void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
	const struct request request = {"zero", count, offset, flags & NBDKIT_FLAG_FAST_ZERO};
	unsigned engine_flags = fua(flags);

	if (!(flags & NBDKIT_FLAG_MAY_TRIM))
		engine_flags |= CPC_NO_HOLE;
	if (request.fast)
		engine_flags |= CPC_FAST_ZERO;
	return answer(&request, cpc_volume_zero(volume_of(handle), count, offset, engine_flags));
}

int cpc_request_cache(void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
	const struct request request = {"cache", count, offset, false};

	return answer(&request, cpc_volume_cache(volume_of(handle), count, offset));
}

static int add_extent(void *ctx, uint64_t offset, uint64_t len, bool hole)
{
	uint32_t type = hole ? NBDKIT_EXTENT_HOLE | NBDKIT_EXTENT_ZERO : 0;

	return nbdkit_add_extent(ctx, offset, len, type) ? -EIO : 0;
}

int cpc_request_extents(void *handle, uint32_t count, uint64_t offset, uint32_t flags,
			struct nbdkit_extents *extents)
{
	const struct request request = {"block status", count, offset, false};
	struct cpc_extent_sink sink = {.add = add_extent, .ctx = extents};
	int ret;

	cpc_extent_sink_init(&sink, offset, count,
			     flags & NBDKIT_FLAG_REQ_ONE ? 1 : CPC_EXTENTS_MAX);
	ret = cpc_volume_extents(volume_of(handle), offset, count, cpc_extent_sink_emit, &sink);
	if (ret == 0)
		ret = cpc_extent_sink_finish(&sink);
	return answer(&request, ret);
}
