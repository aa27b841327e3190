/* SPDX-License-Identifier: BSD-3-Clause */
/* The keys of the command line. A table maps each to the function that reads its value. */
#include "server.h"

#include <stdlib.h>

struct key {
	const char *name;
	int (*set)(struct cpc_config *config, const char *value);
};

#define COMMIT_INTERVAL_MAX 3600u

const char cpc_config_help[] =
    "pool=PATH            (required) device or file with the pool\n"
    "cache=SIZE           memory for data and nodes (default 256M)\n"
    "dirty=SIZE           bound on dirty data within it (default half of it)\n"
    "commit-interval=SEC  seconds between commits, 0 = when needed (default 5)\n"
    "default-export=NAME  volume served as \"\" (default: the only one)\n"
    "control=PATH         control socket (default: derived from the pool's uuid)\n"
    "metrics=PORT         counters for Prometheus at http://127.0.0.1:PORT/metrics\n"
    "read-only=BOOL       write nothing to the pool (default false)\n"
    "direct=auto|on|off   O_DIRECT to the pool (default auto)\n"
    "parallel=auto|on|off requests of one connection in parallel (default auto)\n"
    "stats=detail         also time each change of an io tree";

static int out_of_memory(void)
{
	nbdkit_error("out of memory");
	return -1;
}

/* --- values -------------------------------------------------------------------------------- */

static int set_string(char **where, const char *key, const char *value)
{
	if (*where) {
		nbdkit_error("%s= is given twice", key);
		return -1;
	}
	if (!*value) {
		nbdkit_error("%s= is empty", key);
		return -1;
	}
	*where = strdup(value);
	return *where ? 0 : out_of_memory();
}

static int set_size(uint64_t *where, const char *key, const char *value, uint64_t min)
{
	int64_t size = nbdkit_parse_size(value);

	if (size < 0)
		return -1;
	if ((uint64_t)size < min) {
		nbdkit_error("%s=%s is too small; the least is %ju bytes", key, value,
			     (uintmax_t)min);
		return -1;
	}
	*where = (uint64_t)size;
	return 0;
}

/* Finds `value` in a NULL-terminated list. Return: its index, or -1 and an error. */
static int set_choice(const char *key, const char *value, const char *const *choices,
		      const char *text)
{
	for (int i = 0; choices[i]; i++) {
		if (strcmp(choices[i], value) == 0)
			return i;
	}
	nbdkit_error("%s=%s is not known; use %s", key, value, text);
	return -1;
}

/* --- keys ---------------------------------------------------------------------------------- */

static int set_pool(struct cpc_config *config, const char *value)
{
	return set_string(&config->pool, "pool", value);
}

static int set_cache(struct cpc_config *config, const char *value)
{
	return set_size(&config->options.cache, "cache", value, CPC_CACHE_MIN);
}

static int set_dirty(struct cpc_config *config, const char *value)
{
	return set_size(&config->options.dirty, "dirty", value, CPC_CACHE_MIN / 4);
}

static int set_commit_interval(struct cpc_config *config, const char *value)
{
	unsigned seconds;

	if (nbdkit_parse_unsigned("commit-interval", value, &seconds) != 0)
		return -1;
	if (seconds > COMMIT_INTERVAL_MAX) {
		nbdkit_error("commit-interval=%s is too long; the most is %u seconds", value,
			     COMMIT_INTERVAL_MAX);
		return -1;
	}
	config->options.commit_interval = seconds;
	return 0;
}

static int set_default_export(struct cpc_config *config, const char *value)
{
	if (!cpc_name_valid(value, strlen(value))) {
		nbdkit_error("default-export=%s cannot be the name of a volume", value);
		return -1;
	}
	return set_string(&config->default_export, "default-export", value);
}

static int set_control(struct cpc_config *config, const char *value)
{
	char *path;

	if (set_string(&config->control, "control", value) != 0)
		return -1;
	path = nbdkit_absolute_path(value); /* the daemon will change its directory */
	if (!path)
		return -1;
	free(config->control);
	config->control = path;
	return 0;
}

static int set_metrics(struct cpc_config *config, const char *value)
{
	uint16_t port;

	if (nbdkit_parse_uint16_t("metrics", value, &port) != 0)
		return -1;
	if (port == 0) {
		nbdkit_error("metrics=0 is no port; use a number from 1 to 65535");
		return -1;
	}
	config->metrics = port;
	return 0;
}

static int set_read_only(struct cpc_config *config, const char *value)
{
	int yes = nbdkit_parse_bool(value);

	if (yes < 0)
		return -1;
	config->options.read_only = yes;
	return 0;
}

static int set_direct(struct cpc_config *config, const char *value)
{
	static const char *const choices[] = {"auto", "on", "off", NULL};
	static const enum cpc_direct values[] = {CPC_DIRECT_AUTO, CPC_DIRECT_ON, CPC_DIRECT_OFF};
	int i = set_choice("direct", value, choices, "auto, on or off");

	if (i < 0)
		return -1;
	config->options.direct = values[i];
	return 0;
}

static int set_parallel(struct cpc_config *config, const char *value)
{
	static const char *const choices[] = {"auto", "on", "off", NULL};
	static const enum cpc_parallel values[] = {CPC_PARALLEL_AUTO, CPC_PARALLEL_ON,
						   CPC_PARALLEL_OFF};
	int i = set_choice("parallel", value, choices, "auto, on or off");

	if (i < 0)
		return -1;
	config->parallel = values[i];
	return 0;
}

static int set_stats(struct cpc_config *config, const char *value)
{
	static const char *const choices[] = {"normal", "detail", NULL};
	int i = set_choice("stats", value, choices, "normal or detail");

	if (i < 0)
		return -1;
	config->options.stats_detail = i == 1;
	return 0;
}

static const struct key keys[] = {
    {"pool", set_pool},
    {"cache", set_cache},
    {"dirty", set_dirty},
    {"commit-interval", set_commit_interval},
    {"default-export", set_default_export},
    {"control", set_control},
    {"metrics", set_metrics},
    {"read-only", set_read_only},
    {"direct", set_direct},
    {"parallel", set_parallel},
    {"stats", set_stats},
};

/* --- door ---------------------------------------------------------------------------------- */

void cpc_config_init(struct cpc_config *config)
{
	memset(config, 0, sizeof(*config));
	cpc_pool_options_init(&config->options);
}

int cpc_config_set(struct cpc_config *config, const char *key, const char *value)
{
	for (size_t i = 0; i < CPC_ARRAY_SIZE(keys); i++) {
		if (strcmp(keys[i].name, key) == 0)
			return keys[i].set(config, value);
	}
	nbdkit_error("unknown key '%s'; see nbdkit-coppice-plugin(1), or `nbdkit coppice --help`",
		     key);
	return -1;
}

int cpc_config_complete(struct cpc_config *config)
{
	if (!config->pool) {
		nbdkit_error("pool=PATH is missing: the device or file that holds the pool");
		return -1;
	}
	if (config->options.dirty > config->options.cache) {
		nbdkit_error("dirty= is larger than cache=, of which it is a part");
		return -1;
	}
	return 0;
}

void cpc_config_free(struct cpc_config *config)
{
	free(config->pool);
	free(config->control);
	free(config->default_export);
	memset(config, 0, sizeof(*config));
}
