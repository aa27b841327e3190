/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugin/extent-sink.h"

void cpc_extent_sink_init(struct cpc_extent_sink *sink, uint64_t offset, uint64_t len, unsigned max)
{
	sink->end = offset + len;
	sink->max = max;
	sink->run_offset = offset;
	sink->run_len = 0;
	sink->run_hole = false;
	sink->added = 0;
	sink->error = 0;
}

static void flush_run(struct cpc_extent_sink *sink)
{
	if (sink->run_len == 0 || sink->added == sink->max)
		return;
	sink->error = sink->add(sink->ctx, sink->run_offset, sink->run_len, sink->run_hole);
	sink->added++;
	sink->run_offset += sink->run_len;
	sink->run_len = 0;
}

int cpc_extent_sink_emit(void *ctx, uint64_t offset, uint64_t len, bool hole)
{
	struct cpc_extent_sink *sink = ctx;
	uint64_t next = sink->run_offset + sink->run_len;

	if (offset > next) {
		sink->error = -EIO;
		return 1;
	}
	if (len <= next - offset)
		return 0;
	len -= next - offset;
	len = cpc_min_u64(len, sink->end - next);
	if (sink->run_len && hole != sink->run_hole)
		flush_run(sink);
	if (sink->error || sink->added == sink->max)
		return 1;
	sink->run_hole = hole;
	sink->run_len += len;
	return next + len == sink->end;
}

int cpc_extent_sink_finish(struct cpc_extent_sink *sink)
{
	if (!sink->error)
		flush_run(sink);
	if (!sink->error && sink->added == 0)
		return -EIO;
	return sink->error;
}
