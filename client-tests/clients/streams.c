/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * streams: random clients, straight into the plugin's callbacks.
 *
 *   streams [--seed N] [--count N] [--seconds N] [--threads N] [--json]
 *
 * A client opens an export, perhaps one that does not exist, asks what it can do, sends up to 24
 * requests and goes. Threads but the first are such clients: offsets and lengths at all limits,
 * also beyond them, flags of any kind. The first has a volume of its own, and whatever the others
 * do reads what it wrote. Some clients stay until the plugin's cleanup has ended, as those may for
 * which nbdkit does not wait: they are refused, and then go. At the end no memory, handle, thread
 * or file of the plugin is left, but what its signal handlers write to.
 *
 * The choices of each client follow from its number and the seed; threads run as they like.
 */
#include <dirent.h>
#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "lib/hooks.h"
#include "nbdkit-stub.h"
#include "pool/pool.h"
#include "rig.h"

#define MIB	    (1u << 20)
#define BUF_BYTES   (256u << 10)
#define OWN_BYTES   (2u * MIB)
#define MAX_THREADS 64u
#define MAX_LATE    64u

struct options {
	uint64_t seed, count, seconds;
	unsigned threads;
	bool json;
};

static struct nbdkit_plugin *plugin;
static struct options options = {.count = 20000, .threads = 4};
static _Atomic uint64_t next_client, nr_requests, nr_refused, nr_own;
static time_t start;
static void *late[MAX_LATE]; /* handles */
static _Atomic unsigned nr_late;

/* --- memory --- */

static _Atomic int64_t live;

static void *counted_alloc(size_t align, size_t size)
{
	void *p = cpc_hooks_default.alloc(align, size);

	atomic_fetch_add(&live, p != NULL);
	return p;
}

static void counted_free(void *p)
{
	atomic_fetch_sub(&live, 1);
	cpc_hooks_default.free(p);
}

/* --- requests --- */

static const char *const names[] = {"mid", "odd", "huge", "", "nobody", "-x", "mid@snap"};
#define NR_OPENABLE 3u /* of these; there is one more, own */

static void expect(int ret)
{
	int err = stub_take_error();

	atomic_fetch_add(&nr_requests, 1);
	if (ret == 0)
		return;
	atomic_fetch_add(&nr_refused, 1);
	rig_expect(err == EIO || err == ENOSPC || err == EINVAL || err == EROFS ||
		       err == EOPNOTSUPP || err == ENOMEM,
		   "a request is refused with %s", strerror(err));
}

/* A place and a length: anywhere, at the ends, or beyond. */
static void draw_range(struct rnd *r, uint64_t size, uint64_t *offset, uint64_t *len)
{
	static const uint64_t lengths[] = {1, 511, 512, 4096, 4097, 65536, BUF_BYTES, UINT32_MAX};

	*len = lengths[rnd_below(r, CPC_ARRAY_SIZE(lengths))];
	*offset = rnd_below(r, size);
	if (rnd_percent(r, 30))
		*offset = size - cpc_min_u64(size, *len);
	if (rnd_percent(r, 30))
		*offset &= ~4095ull;
	if (rnd_percent(r, 20))
		*len = 1 + rnd_below(r, BUF_BYTES);
	if (rnd_percent(r, 95))
		*len = cpc_min_u64(*len, size - *offset);
	else if (rnd_percent(r, 20))
		*offset = UINT64_MAX - rnd_below(r, 5000);
}

static void ask_extents(void *handle, uint32_t len, uint64_t offset, uint32_t flags)
{
	struct nbdkit_extents e = {.start = offset, .end = offset + len, .at = offset};
	int ret = plugin->extents(handle, len, offset, flags, &e);

	expect(ret);
	rig_expect(ret || (!e.wrong && e.at > offset), "extents of %llu+%u are wrong",
		   (unsigned long long)offset, len);
}

static void request(struct rnd *r, void *handle, uint64_t size, uint8_t *buf)
{
	uint32_t flags = rnd_percent(r, 90) ? (uint32_t)rnd_below(r, 16) : (uint32_t)rnd_u64(r);
	uint64_t offset, len;

	draw_range(r, size, &offset, &len);
	switch (rnd_below(r, 8)) {
	case 0:
	case 1:
		expect(
		    plugin->pread(handle, buf, (uint32_t)cpc_min_u64(len, BUF_BYTES), offset, 0));
		break;
	case 2:
	case 3:
		rnd_fill(r->state, buf, 4096);
		expect(plugin->pwrite(handle, buf, (uint32_t)cpc_min_u64(len, BUF_BYTES), offset,
				      flags));
		break;
	case 4:
		expect(plugin->trim(handle, (uint32_t)len, offset, flags));
		break;
	case 5:
		expect(plugin->zero(handle, (uint32_t)len, offset, flags));
		break;
	case 6:
		ask_extents(handle, (uint32_t)len, offset, flags);
		break;
	default:
		expect(rnd_percent(r, 50)
			   ? plugin->cache(handle, (uint32_t)cpc_min_u64(len, BUF_BYTES), offset, 0)
			   : plugin->flush(handle, 0));
	}
}

static void ask_all(void *handle)
{
	uint32_t least, preferred, most;

	plugin->can_write(handle);
	plugin->can_flush(handle);
	plugin->can_trim(handle);
	plugin->can_zero(handle);
	plugin->can_fast_zero(handle);
	plugin->can_fua(handle);
	plugin->can_multi_conn(handle);
	plugin->can_cache(handle);
	plugin->can_extents(handle);
	plugin->block_size(handle, &least, &preferred, &most);
	rig_expect(plugin->export_description(handle) != NULL, "an export has no description");
}

/* A few of all clients stay to the end and beyond. */
static bool stay(void *handle)
{
	unsigned i = atomic_fetch_add(&nr_late, 1);

	if (i < MAX_LATE)
		late[i] = handle;
	return i < MAX_LATE;
}

static void client(uint64_t number, uint8_t *buf)
{
	struct rnd r = {options.seed + number};
	unsigned name = (unsigned)rnd_below(&r, number ? CPC_ARRAY_SIZE(names) : NR_OPENABLE);
	struct nbdkit_exports exports = {0};
	void *handle;

	stub_set_export(names[name]);
	if (rnd_percent(&r, 10)) {
		plugin->list_exports(0, 0, &exports);
		rig_expect(exports.nr == NR_OPENABLE + 1, "%u exports are listed", exports.nr);
	}
	plugin->default_export(0, 0);
	handle = plugin->open(rnd_percent(&r, 5));
	rig_expect(!handle == (name >= NR_OPENABLE), "'%s' is %sopened", names[name],
		   handle ? "" : "not ");
	stub_take_error();
	if (!handle)
		return;
	ask_all(handle);
	for (uint64_t i = rnd_below(&r, 24); i; i--)
		request(&r, handle, (uint64_t)plugin->get_size(handle), buf);
	if (number % 1000 || !stay(handle))
		plugin->close(handle);
}

static bool take_number(uint64_t *number)
{
	*number = atomic_fetch_add(&next_client, 1);
	return options.seconds ? time(NULL) - start < (time_t)options.seconds
			       : *number < options.count;
}

static void *hostile_thread(void *arg)
{
	uint8_t *buf = calloc(1, BUF_BYTES);
	uint64_t number;

	cpc_assert(buf);
	while (take_number(&number))
		client(number, buf);
	free(buf);
	return NULL;
}

/* --- the one that others must not harm --- */

static _Atomic bool others_done;

static void own_turn(struct rnd *r, void *handle, uint8_t *content, uint8_t *buf)
{
	uint64_t offset = rnd_below(r, OWN_BYTES);
	uint32_t len = (uint32_t)(1 + rnd_below(r, cpc_min_u64(OWN_BYTES - offset, 65536)));

	switch (rnd_below(r, 4)) {
	case 0:
		rnd_fill(rnd_u64(r), content + offset, len);
		rig_expect(plugin->pwrite(handle, content + offset, len, offset, 0) == 0 ||
			       stub_take_error() == ENOSPC,
			   "a good write fails");
		break;
	case 1:
		memset(content + offset, 0, len);
		rig_expect(plugin->zero(handle, len, offset, 0) == 0, "a good zero fails");
		break;
	case 2:
		rig_expect(plugin->flush(handle, 0) == 0, "a good flush fails");
		break;
	default:
		rig_expect(plugin->pread(handle, buf, len, offset, 0) == 0, "a good read fails");
		rig_expect(memcmp(buf, content + offset, len) == 0, "a good client reads wrong");
	}
	atomic_fetch_add(&nr_own, 1);
}

static void *good_thread(void *arg)
{
	uint8_t *content = calloc(1, OWN_BYTES), *buf = malloc(OWN_BYTES);
	struct rnd r = {options.seed};
	void *handle;

	cpc_assert(content && buf);
	stub_set_export("own");
	handle = plugin->open(0);
	rig_expect(handle != NULL, "'own' cannot be opened");
	while (!atomic_load(&others_done))
		own_turn(&r, handle, content, buf);
	rig_expect(plugin->pread(handle, buf, OWN_BYTES, 0, 0) == 0, "a good read fails");
	rig_expect(memcmp(buf, content, OWN_BYTES) == 0, "a good client reads wrong");
	plugin->close(handle);
	free(content);
	free(buf);
	return NULL;
}

/* --- the whole --- */

static unsigned entries_of(const char *path)
{
	DIR *dir = opendir(path);
	unsigned nr = 0;

	cpc_assert(dir);
	while (readdir(dir))
		nr++;
	closedir(dir);
	return nr;
}

/* A thread that has been joined is seen by the kernel for a moment more. */
static bool comes_to(const char *path, unsigned nr)
{
	for (unsigned i = 0; i < 10000 && entries_of(path) != nr; i++)
		usleep(1000);
	return entries_of(path) == nr;
}

static void make_pool(const char *path)
{
	struct cpc_format_options format = {.size = 64 * MIB};
	struct cpc_pool_options opts;
	struct cpc_error err = {""};
	struct cpc_pool *pool;

	cpc_pool_options_init(&opts);
	rig_expect(cpc_pool_format(path, &format, &err) == 0, "format: %s", err.text);
	rig_expect(cpc_pool_open(path, &opts, &pool, &err) == 0, "open: %s", err.text);
	rig_expect(cpc_pool_start(pool, &err) == 0, "start: %s", err.text);
	rig_expect(!cpc_pool_create_volume(pool, "own", OWN_BYTES, &err) &&
		       !cpc_pool_create_volume(pool, "mid", 16 * MIB, &err) &&
		       !cpc_pool_create_volume(pool, "odd", 1234567, &err) &&
		       !cpc_pool_create_volume(pool, "huge", UINT64_MAX / 2, &err),
		   "create: %s", err.text);
	cpc_pool_shutdown(pool);
	cpc_pool_close(pool);
}

/*
 * Stands for _exit (-Wl,--wrap). When its end takes long, the plugin ends the process with status
 * 0; here only its thread ends, so that what is left is still looked at.
 */
_Noreturn void __real__exit(int status);
_Noreturn void __wrap__exit(int status);

_Noreturn void __wrap__exit(int status)
{
	if (status)
		__real__exit(status);
	pthread_exit(NULL);
}

static void start_plugin(const char *pool, const char *control)
{
	plugin = plugin_init();
	plugin->load();
	rig_expect(plugin->config("pool", pool) == 0 && plugin->config("control", control) == 0 &&
		       plugin->config("cache", "16777216") == 0 &&
		       plugin->config("parallel", "on") == 0 && plugin->config_complete() == 0,
		   "the configuration is refused");
	plugin->thread_model();
	rig_expect(plugin->get_ready() == 0 && plugin->after_fork() == 0,
		   "the plugin does not start");
}

static void serve(void)
{
	pthread_t good, thread[MAX_THREADS];

	pthread_create(&good, NULL, good_thread, NULL);
	for (unsigned i = 1; i < options.threads; i++)
		pthread_create(&thread[i], NULL, hostile_thread, NULL);
	for (unsigned i = 1; i < options.threads; i++)
		pthread_join(thread[i], NULL);
	atomic_store(&others_done, true);
	pthread_join(good, NULL);
}

/* After cleanup: refused, and nothing is touched that is not there any more. */
static void late_clients(void)
{
	struct nbdkit_exports exports = {0};
	uint8_t buf[512] = {0};

	rig_expect(atomic_load(&nr_late) > 0, "nobody is late");
	stub_set_export("mid");
	rig_expect(plugin->open(0) == NULL && stub_take_error() == ESHUTDOWN,
		   "an export is opened after the end");
	rig_expect(plugin->list_exports(0, 0, &exports) == -1 && stub_take_error() == ESHUTDOWN,
		   "exports are listed after the end");
	for (unsigned i = 0; i < cpc_min_u64(atomic_load(&nr_late), MAX_LATE); i++) {
		rig_expect(plugin->pwrite(late[i], buf, sizeof(buf), 0, 0) == -1 &&
			       stub_take_error() == ESHUTDOWN,
			   "a write after the end is not refused");
		plugin->close(late[i]);
	}
}

static void parse(int argc, char **argv)
{
	static const struct option longs[] = {
	    {"seed", 1, 0, 's'},    {"count", 1, 0, 'c'}, {"seconds", 1, 0, 't'},
	    {"threads", 1, 0, 'n'}, {"json", 0, 0, 'j'},  {NULL, 0, 0, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 's')
			options.seed = rig_number(optarg, "--seed");
		else if (c == 'c')
			options.count = rig_number(optarg, "--count");
		else if (c == 't')
			options.seconds = rig_number(optarg, "--seconds");
		else if (c == 'n')
			options.threads = (unsigned)rig_number(optarg, "--threads");
		else if (c == 'j')
			options.json = true;
		else
			exit(2);
	}
	if (options.threads < 2 || options.threads > MAX_THREADS) {
		fprintf(stderr, "streams: 2 to %u threads\n", MAX_THREADS);
		exit(2);
	}
}

static void print_counts(void)
{
	printf(
	    options.json ? "{\"program\":\"streams\",\"seed\":%llu,\"streams\":%llu,"
			   "\"requests\":%llu,\"refused\":%llu,\"requests_of_others\":%llu}\n"
			 : "streams: seed %llu, %llu clients, %llu requests, %llu of them refused, "
			   "%llu requests of the one that is not to be harmed\n",
	    (unsigned long long)options.seed,
	    (unsigned long long)(atomic_load(&next_client) - (options.threads - 1)),
	    (unsigned long long)atomic_load(&nr_requests),
	    (unsigned long long)atomic_load(&nr_refused), (unsigned long long)atomic_load(&nr_own));
}

int main(int argc, char **argv)
{
	/* In memory where possible: the device is not what is tested. */
	char dir[] = "/dev/shm/cpc-streams-XXXXXX", pool[64], control[64];
	unsigned files, threads;
	int64_t before;

	options.seed = rig_env("CPC_TEST_SEED", (uint64_t)time(NULL) << 20);
	parse(argc, argv);
	if (!options.json)
		printf("streams: CPC_TEST_SEED=%llu\n", (unsigned long long)options.seed);
	start = time(NULL);
	rig_set_rerun("streams --seed %llu --count %llu", (unsigned long long)options.seed,
		      (unsigned long long)options.count);
	cpc_hooks.alloc = counted_alloc;
	cpc_hooks.free = counted_free;
	if (!mkdtemp(dir))
		memcpy(dir, "/tmp/cpc-streams-XXXXXX", sizeof("/tmp/cpc-streams-XXXXXX"));
	rig_expect(access(dir, W_OK) == 0 || mkdtemp(dir), "no directory");
	snprintf(pool, sizeof(pool), "%s/pool", dir);
	snprintf(control, sizeof(control), "%s/control", dir);
	make_pool(pool);
	before = atomic_load(&live);
	files = entries_of("/proc/self/fd");
	threads = entries_of("/proc/self/task");
	start_plugin(pool, control);
	serve();
	plugin->cleanup();
	late_clients();
	plugin->unload();
	unlink(pool);
	rig_expect(rmdir(dir) == 0, "%s is not empty", dir);
	rig_expect(comes_to("/proc/self/task", threads), "threads are left");
	/* Signal handlers live as long as the process, and so does what they write to. */
	rig_expect(entries_of("/proc/self/fd") == files + 1, "files are left open");
	rig_expect(atomic_load(&live) == before, "%lld allocations are left",
		   (long long)(atomic_load(&live) - before));
	print_counts();
	return 0;
}
