/* SPDX-License-Identifier: BSD-3-Clause */
#include "cli/cli.h"

#include "pool/pool.h"
#include "protocol/size.h"

struct request {
	const char *size, *log_size, *nodesize, *metadata, *label;
	struct cpc_format_options options;
};

static int read_nodesize(const char *text, uint32_t *nodesize)
{
	uint64_t size;
	int ret = cpc_cli_size("--nodesize", text, &size);

	if (ret)
		return ret;
	if (size < CPC_NODESIZE_MIN || size > CPC_NODESIZE_MAX || (size & (size - 1))) {
		return cpc_cli_usage("--nodesize '%s': must be a power of two from 4K to 64K",
				     text);
	}
	*nodesize = (uint32_t)size;
	return 0;
}

static int read_metadata(const char *text, bool *single)
{
	*single = strcmp(text, "single") == 0;
	if (*single || strcmp(text, "dup") == 0)
		return 0;
	return cpc_cli_usage("--metadata '%s': must be dup or single", text);
}

static int read_label(const char *text)
{
	if (strlen(text) <= CPC_LABEL_MAX)
		return 0;
	return cpc_cli_usage("--label: longer than %u bytes", CPC_LABEL_MAX);
}

static int read_options(struct request *r)
{
	struct cpc_format_options *o = &r->options;
	int ret = 0;

	if (r->size)
		ret = cpc_cli_size("--size", r->size, &o->size);
	if (!ret && r->log_size)
		ret = cpc_cli_size("--log-size", r->log_size, &o->log_size);
	if (!ret && r->nodesize)
		ret = read_nodesize(r->nodesize, &o->nodesize);
	if (!ret && r->metadata)
		ret = read_metadata(r->metadata, &o->single);
	if (!ret && r->label)
		ret = read_label(r->label);
	if (!ret && o->sparse && !r->size) {
		ret = cpc_cli_usage("--sparse needs --size: it says how to make the file");
	}
	o->label = r->label;
	return ret;
}

static int format_pool(const char *path, const struct cpc_format_options *options)
{
	struct cpc_error err = {0};
	int ret = cpc_pool_format(path, options, &err);

	if (ret == 0)
		return CPC_EXIT_OK;
	if (err.text[0])
		return cpc_cli_fail("%s", err.text);
	return cpc_cli_fail("%s: %s", path, strerror(-ret));
}

static int run(int argc, char **argv)
{
	struct request r = {0};
	const struct cpc_cli_option options[] = {
	    {"--size", NULL, &r.size},		 {"--sparse", &r.options.sparse, NULL},
	    {"--log-size", NULL, &r.log_size},	 {"--nodesize", NULL, &r.nodesize},
	    {"--metadata", NULL, &r.metadata},	 {"--label", NULL, &r.label},
	    {"--force", &r.options.force, NULL}, {.name = NULL},
	};
	struct cpc_cli_args args;
	int ret = cpc_cli_parse(&cpc_cli_format, argc, argv, options, 1, 1, &args);

	if (ret >= 0)
		return ret;
	ret = read_options(&r);
	return ret ? ret : format_pool(args.positional[0], &r.options);
}

const struct cpc_cli_verb cpc_cli_format = {
    .name = "format",
    .synopsis = "POOL [--size SIZE] [--sparse] [--log-size SIZE] [--nodesize N] "
		"[--metadata dup|single] [--label L] [--force]",
    .summary = "make a pool on a device or in a file",
    .help = "  --size SIZE      create a file of this size and allocate it\n"
	    "  --sparse         do not allocate it: writes may fail later when the file system\n"
	    "                   below is full\n"
	    "  --log-size SIZE  bytes for the log (default: pool/32, 128K to 1G)\n"
	    "  --nodesize N     size of a metadata node, 4K to 64K (default 4K)\n"
	    "  --metadata M     dup: two copies of metadata (default); single: one\n"
	    "  --label L        a text of up to 63 bytes\n"
	    "  --force          overwrite what is recognized at POOL\n",
    .run = run,
};
