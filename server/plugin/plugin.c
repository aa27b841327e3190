/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The plugin's life, in nbdkit's order:
 *	load, config, config_complete, thread_model
 *	get_ready	before the fork, errors are seen: open the pool, bind socket and port
 *	after_fork	threads: engine, control, metrics, stop
 *	...		requests
 *	cleanup		nbdkit knows of no connection any more: everything in reverse
 *	unload
 *
 * When get_ready or after_fork fails, nbdkit exits without cleanup: the kernel gives the pool's
 * lock back. When clients stay connected at the end, there is no cleanup either: stop.h.
 */
#include "server.h"

#include <stdio.h>

#include "lib/log.h"
#include "plugin/server-version.h"
#include "plugin/stop.h"
#include "protocol/control-path.h"

#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

struct cpc_server cpc_server;

/* --- configuration ------------------------------------------------------------------------- */

static void plugin_load(void)
{
	cpc_plugin_log_init();
	cpc_config_init(&cpc_server.config);
	cpc_mutex_init(&cpc_server.users_lock, "users", CPC_RANK_LEAF);
}

static void plugin_unload(void)
{
	cpc_stop_end();
	cpc_config_free(&cpc_server.config);
}

static int plugin_config(const char *key, const char *value)
{
	return cpc_config_set(&cpc_server.config, key, value);
}

static int plugin_config_complete(void)
{
	return cpc_config_complete(&cpc_server.config);
}

static void plugin_dump(void)
{
	printf("coppice_version=%s\n", CPC_VERSION);
	printf("coppice_format_version=%u\n", CPC_FORMAT_VERSION);
}

/* --- thread model -------------------------------------------------------------------------- */

static bool want_parallel(const char **why)
{
	struct cpc_server_version version;
	int ret;

	*why = "as asked for";
	if (cpc_server.config.parallel != CPC_PARALLEL_AUTO)
		return cpc_server.config.parallel == CPC_PARALLEL_ON;
	ret = cpc_server_version_get(&version);
	if (ret) {
		*why = "the version of this nbdkit cannot be found out";
		return false;
	}
	nbdkit_debug("coppice: served by nbdkit %u.%u.%u", version.major, version.minor,
		     version.micro);
	if (cpc_server_version_aborts(&version)) {
		*why = "this nbdkit aborts when a client vanishes";
		return false;
	}
	*why = "this nbdkit can do it";
	return true;
}

static int plugin_thread_model(void)
{
	const char *why;
	bool parallel = want_parallel(&why);

	nbdkit_debug("coppice: requests of one connection run %s: %s",
		     parallel ? "in parallel" : "one after the other", why);
	return parallel ? NBDKIT_THREAD_MODEL_PARALLEL : NBDKIT_THREAD_MODEL_SERIALIZE_REQUESTS;
}

/* --- start --------------------------------------------------------------------------------- */

/* Writes the control socket's path into `path`; `why` says what fails. */
static int default_control(char path[CPC_CONTROL_PATH_MAX])
{
	struct cpc_pool_info info;
	int ret;

	cpc_pool_info(cpc_server.pool, &info);
	ret = cpc_control_path(info.uuid, path);
	return ret ? ret : cpc_control_make_dir(path);
}

/*
 * Binds the socket. One that was asked for by name must work; the default one may be in use by
 * another read-only server of the pool, or impossible here, and the volumes are served all
 * the same.
 */
static int bind_control(void)
{
	const char *asked = cpc_server.config.control;
	char path[CPC_CONTROL_PATH_MAX] = "", why[512];
	struct cpc_control *control = NULL;
	int ret = asked ? 0 : default_control(path);

	if (ret)
		snprintf(why, sizeof(why), "control socket %s: %s", path, strerror(-ret));
	else
		ret = cpc_control_listen(asked ? asked : path, &control, why, sizeof(why));
	if (ret && asked) {
		nbdkit_error("%s", why);
		return -1;
	}
	if (ret)
		nbdkit_error("%s; going on without one: the coppice tool cannot reach this server "
			     "(control=PATH chooses another path)",
			     why);
	cpc_server.control = control;
	return 0;
}

static int bind_metrics(void)
{
	uint16_t port = cpc_server.config.metrics;
	char why[256];

	if (port == 0 || cpc_metrics_listen(port, &cpc_server.metrics, why, sizeof(why)) == 0)
		return 0;
	nbdkit_error("%s", why);
	return -1;
}

static void warn_default_export(void)
{
	const char *name = cpc_server.config.default_export;
	struct cpc_volume_info info;

	if (name && cpc_pool_volume_info(cpc_server.pool, name, &info) == -ENOENT)
		nbdkit_error("default-export=%s: there is no such volume yet", name);
}

static int plugin_get_ready(void)
{
	const struct cpc_config *config = &cpc_server.config;
	struct cpc_error err = {0};
	int ret;

	ret = cpc_pool_open(config->pool, &config->options, &cpc_server.pool, &err);
	if (ret) {
		nbdkit_error("%s", err.text[0] ? err.text : strerror(-ret));
		return -1;
	}
	cpc_server.users = 1;
	ret = cpc_verbs_init(&cpc_server.verbs, cpc_server.pool, config->pool, true);
	if (ret) {
		nbdkit_error("%s: %s", config->pool, strerror(-ret));
		return -1;
	}
	warn_default_export();
	return bind_control() == 0 && bind_metrics() == 0 ? 0 : -1;
}

static struct json_object *control_run(void *ctx, struct json_object *request)
{
	return cpc_verbs_run(ctx, request);
}

static bool control_quick(void *ctx, struct json_object *request)
{
	return cpc_verbs_quick(request);
}

static int start_control(void)
{
	struct cpc_control_handler handler = {&cpc_server.verbs, control_run, control_quick};
	struct cpc_control *control = cpc_server.control;
	int ret = control ? cpc_control_start(control, &handler) : 0;

	if (ret)
		nbdkit_error("cannot start the control socket's threads: %s", strerror(-ret));
	return ret;
}

static char *metrics_text(void *ctx)
{
	return cpc_verbs_metrics(ctx);
}

static int start_metrics(void)
{
	struct cpc_metrics_source source = {&cpc_server.verbs, metrics_text};
	int ret = cpc_server.metrics ? cpc_metrics_start(cpc_server.metrics, &source) : 0;

	if (ret)
		nbdkit_error("metrics=%u: cannot start its thread", cpc_server.config.metrics);
	return ret;
}

/* --- users --------------------------------------------------------------------------------- */

bool cpc_server_use(void)
{
	bool ended;

	cpc_mutex_lock(&cpc_server.users_lock);
	ended = cpc_server.ended;
	if (!ended)
		cpc_server.users++;
	cpc_mutex_unlock(&cpc_server.users_lock);
	if (ended)
		nbdkit_set_error(ESHUTDOWN);
	return !ended;
}

void cpc_server_done(void)
{
	bool last;

	cpc_mutex_lock(&cpc_server.users_lock);
	last = --cpc_server.users == 0;
	cpc_mutex_unlock(&cpc_server.users_lock);
	if (last)
		cpc_pool_close(cpc_server.pool);
}

/* --- end ----------------------------------------------------------------------------------- */

static void stop_shutdown(void)
{
	int ret = cpc_pool_shutdown(cpc_server.pool);

	if (ret)
		cpc_error("%s: closing the pool: %s", cpc_server.config.pool, strerror(-ret));
}

static void stop_leave(void)
{
	struct cpc_control *control = atomic_exchange(&cpc_server.control, NULL);

	if (control)
		cpc_control_unlink(control);
}

static const struct cpc_stop_actions stop_actions = {stop_shutdown, stop_leave};

static int plugin_after_fork(void)
{
	struct cpc_error err = {0};
	int ret = cpc_pool_start(cpc_server.pool, &err);

	if (ret) {
		nbdkit_error("%s", err.text[0] ? err.text : strerror(-ret));
		return -1;
	}
	if (start_control() != 0 || start_metrics() != 0)
		return -1;
	ret = cpc_stop_watch(&stop_actions);
	if (ret) {
		nbdkit_error("cannot watch for signals: %s", strerror(-ret));
		return -1;
	}
	return 0;
}

/* Nobody else comes to use the pool. */
static void end_users(void)
{
	cpc_mutex_lock(&cpc_server.users_lock);
	cpc_server.ended = true;
	cpc_mutex_unlock(&cpc_server.users_lock);
}

/* Shutdown comes before the control's end: a verb that waits for a commit is answered by it. */
static void plugin_cleanup(void)
{
	if (!cpc_server.pool)
		return;
	end_users();
	if (!cpc_stop_join())
		stop_shutdown();
	cpc_control_stop(atomic_exchange(&cpc_server.control, NULL));
	cpc_metrics_stop(cpc_server.metrics);
	cpc_server_done();
}

/* --- registration -------------------------------------------------------------------------- */

static int yes(void *handle)
{
	return 1;
}

static int no(void *handle)
{
	return 0;
}

static int can_fua(void *handle)
{
	return NBDKIT_FUA_NATIVE;
}

static int can_cache(void *handle)
{
	return NBDKIT_CACHE_NATIVE;
}

static struct nbdkit_plugin plugin = {
    .name = "coppice",
    .longname = "Coppice virtual disks",
    .version = CPC_VERSION,
    .description = "Serves the volumes of a Coppice pool.",
    .load = plugin_load,
    .unload = plugin_unload,
    .dump_plugin = plugin_dump,
    .config = plugin_config,
    .config_complete = plugin_config_complete,
    .config_help = cpc_config_help,
    .magic_config_key = "pool",
    .thread_model = plugin_thread_model,
    .get_ready = plugin_get_ready,
    .after_fork = plugin_after_fork,
    .cleanup = plugin_cleanup,
    .preconnect = cpc_exports_preconnect,
    .list_exports = cpc_exports_list,
    .default_export = cpc_exports_default,
    .open = cpc_exports_open,
    .close = cpc_exports_close,
    .export_description = cpc_exports_description,
    .get_size = cpc_exports_get_size,
    .block_size = cpc_exports_block_size,
    .can_write = cpc_exports_can_write,
    .can_flush = yes,
    .is_rotational = no,
    .can_trim = yes,
    .can_zero = yes,
    .can_fast_zero = yes,
    .can_fua = can_fua,
    .can_multi_conn = yes,
    .can_cache = can_cache,
    .can_extents = yes,
    .pread = cpc_request_pread,
    .pwrite = cpc_request_pwrite,
    .flush = cpc_request_flush,
    .trim = cpc_request_trim,
    .zero = cpc_request_zero,
    .cache = cpc_request_cache,
    .extents = cpc_request_extents,
    .errno_is_preserved = 0,
};

struct nbdkit_plugin *plugin_init(void);
NBDKIT_REGISTER_PLUGIN(plugin)
