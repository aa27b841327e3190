/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * stress: many clients on many volumes of one server, which it kills now and then; whatever any of
 * them reads must be what the volume may hold (history.h).
 *
 *     stress --unix SOCKET|--tcp HOST:PORT [options] [-- SERVER COMMAND...]
 *
 * SERVER COMMAND serves volumes disk0, disk1, ... in the foreground at that address; it is started
 * at the beginning and after each kill -9. Without it a server is there already and stays alive.
 * The volumes are zeroed first. Options: see usage.
 *
 * This process does no requests: it forks the workers, ends and starts the server, shows a progress
 * line when stderr is a terminal, and tells the workers to stop at the bound of time or requests.
 * It ends with 1 when a worker found a fault, when the server ended by itself, or when nothing
 * happened for a minute.
 */
#include "stress.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../programs/client.h"

#define TICK_NS	      10000000l
#define STUCK_SECONDS 60.0

const char *const count_names[COUNTS] = {
    "reads", "writes",	    "trims",	"zeroes",   "flushes", "block_status",
    "fua",   "bytes_moved", "connects", "vanished", "settled", "missing_after_kill",
};

static struct {
	struct options run;
	double kill_every; /* seconds in the mean */
	bool json;
	char **command; /* NULL: the server is not ours */
} options = {
    .run = {.prefix = "disk",
	    .volumes = 8,
	    .connections = 64,
	    .processes = 2,
	    .depth = 4,
	    .max_len = 4 << 20,
	    .seconds = 60,
	    .seed = 1},
    .kill_every = 4,
};

static struct shared *shared;
static pid_t server, workers[PROCESSES_MAX];
static unsigned kills;
static volatile sig_atomic_t interrupted;

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* --- processes ------------------------------------------------------------------------------- */

static void end_children(void)
{
	for (unsigned i = 0; i < options.run.processes; i++)
		if (workers[i] > 0)
			kill(workers[i], SIGKILL);
	if (server > 0)
		kill(server, SIGTERM);
	while (wait(NULL) > 0 || errno == EINTR)
		;
}

_Noreturn static void give_up(const char *why)
{
	printf("FAILED: %s; seed %" PRIu64 "\n", why, options.run.seed);
	fflush(stdout);
	end_children();
	exit(1);
}

static pid_t start(void)
{
	pid_t parent = getpid(), pid;

	fflush(NULL);
	pid = fork();
	if (pid < 0)
		fail("fork: %s", strerror(errno));
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
	}
	return pid;
}

static void start_server(void)
{
	if (!options.command)
		return;
	if (options.run.unix_socket)
		unlink(options.run.unix_socket);
	server = start();
	if (server == 0) {
		execvp(options.command[0], options.command);
		fail("%s: %s", options.command[0], strerror(errno));
	}
}

static void start_workers(void)
{
	for (unsigned i = 0; i < options.run.processes; i++) {
		workers[i] = start();
		if (workers[i] == 0) {
			worker_main(&options.run, shared, i);
			exit(0);
		}
	}
}

static void kill_server(void)
{
	atomic_store(&shared->ending, true);
	kill(server, SIGKILL);
	waitpid(server, NULL, 0);
	kills++;
	start_server();
	atomic_fetch_add(&shared->life, 1);
	atomic_store(&shared->ending, false);
}

/* Takes the status of children that have ended. Return: how many workers still run. */
static unsigned reap(void)
{
	unsigned running = 0;
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		for (unsigned i = 0; i < options.run.processes; i++)
			if (workers[i] == pid)
				workers[i] = 0;
		if (pid == server) {
			server = 0;
			give_up("the server has ended by itself");
		}
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
			give_up("a worker has ended");
	}
	for (unsigned i = 0; i < options.run.processes; i++)
		running += workers[i] != 0;
	return running;
}

/* --- progress -------------------------------------------------------------------------------- */

static uint64_t total(enum count what)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < options.run.processes; i++)
		sum += atomic_load_explicit(&shared->workers[i].count[what], memory_order_relaxed);
	return sum;
}

static uint64_t total_requests(void)
{
	uint64_t sum = 0;

	for (int kind = 0; kind < COUNT_KINDS; kind++)
		sum += total((enum count)kind);
	return sum;
}

/* Do all workers send requests to the server's present life? */
static bool all_at_work(void)
{
	for (unsigned i = 0; i < options.run.processes; i++)
		if (atomic_load(&shared->workers[i].judged) != atomic_load(&shared->life))
			return false;
	return true;
}

static void show_progress(double seconds, const char *end)
{
	if (!isatty(STDERR_FILENO))
		return;
	fprintf(stderr,
		"\r%5.0f s  %" PRIu64 " requests  %" PRIu64 " MiB  %" PRIu64 " flushes  %" PRIu64
		" connects  %" PRIu64 " vanished  %u kills  no mismatch  %s",
		seconds, total_requests(), total(COUNT_BYTES) >> 20, total(COUNT_FLUSH),
		total(COUNT_CONNECTS), total(COUNT_VANISHED), kills, end);
}

static void print_result(double seconds)
{
	if (!options.json) {
		printf("%" PRIu64 " requests in %.1f s, %u kills, no mismatch\n", total_requests(),
		       seconds, kills);
		for (int i = 0; i < COUNTS; i++)
			printf("  %-20s %" PRIu64 "\n", count_names[i], total((enum count)i));
		return;
	}
	printf("{\"seed\": %" PRIu64 ", \"seconds\": %.1f, \"volumes\": %u, \"connections\": %u, "
	       "\"processes\": %u, \"requests\": %" PRIu64 ", \"kills\": %u",
	       options.run.seed, seconds, options.run.volumes, options.run.connections,
	       options.run.processes, total_requests(), kills);
	for (int i = 0; i < COUNTS; i++)
		printf(", \"%s\": %" PRIu64, count_names[i], total((enum count)i));
	printf(", \"mismatches\": 0}\n");
}

/* --- the run --------------------------------------------------------------------------------- */

static void tick(void)
{
	nanosleep(&(struct timespec){.tv_nsec = TICK_NS}, NULL);
}

/* Fails when no request has been answered for a long time. */
static void watch_for_standstill(void)
{
	static uint64_t requests;
	static double since;
	uint64_t sum = total_requests();

	if (sum != requests || since == 0) {
		requests = sum;
		since = now();
	} else if (now() - since > STUCK_SECONDS) {
		give_up("no request was answered for a minute");
	}
}

static double next_kill(struct rng *rng)
{
	return now() + options.kill_every * (0.1 + 1.8 * (double)rng_below(rng, 1000) / 1000);
}

static void run(void)
{
	struct rng rng = {options.run.seed ^ 0x6b696c6c};
	double begin = now(), shown = 0, kill_at = 0;

	while (reap() > 0) {
		double seconds = now() - begin;

		tick();
		watch_for_standstill();
		if (seconds - shown > 0.5) {
			show_progress(seconds, "");
			shown = seconds;
		}
		if (!all_at_work() || atomic_load(&shared->stop))
			continue;
		if (interrupted || seconds > options.run.seconds ||
		    (options.run.requests && total_requests() >= options.run.requests)) {
			atomic_store(&shared->stop, true);
		} else if (options.command && options.kill_every > 0) {
			if (kill_at == 0)
				kill_at = next_kill(&rng);
			else if (now() > kill_at) {
				kill_server();
				kill_at = 0;
			}
		}
	}
	show_progress(now() - begin, "\n");
	print_result(now() - begin);
}

static void stop_server(void)
{
	int status;

	if (!options.command)
		return;
	kill(server, SIGTERM);
	if (waitpid(server, &status, 0) != server || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
		fail("the server did not end in order");
	server = 0;
}

/* --- options --------------------------------------------------------------------------------- */

_Noreturn static void usage(int status)
{
	fputs("stress --unix SOCKET|--tcp HOST:PORT [options] [-- SERVER COMMAND...]\n"
	      "  --volumes N      volumes disk0 to diskN-1, 1 to 64 (8)\n"
	      "  --prefix NAME    their names without the number (disk)\n"
	      "  --connections N  1 to 512 (64)\n"
	      "  --processes N    each with a share of the volumes and connections (2)\n"
	      "  --depth N        requests in flight on each connection (4)\n"
	      "  --max-len BYTES  longest request (4194304)\n"
	      "  --seconds S      bound in time (60)\n"
	      "  --requests N     bound in requests (none)\n"
	      "  --kill-every S   seconds between kills of the server in the mean, 0: never (4)\n"
	      "  --seed N         the same choices again (1)\n"
	      "  --json           the result as one object\n",
	      status ? stderr : stdout);
	exit(status);
}

static unsigned long long number(const char *text, unsigned long long most)
{
	char *end;
	unsigned long long value = strtoull(text, &end, 0);

	if (end == text || *end || value > most) {
		fprintf(stderr, "stress: %s: want a number up to %llu\n", text, most);
		exit(2);
	}
	return value;
}

static void parse_address(char *text)
{
	char *colon = strrchr(text, ':');

	if (!colon)
		usage(2);
	*colon = '\0';
	options.run.host = text;
	options.run.port = colon + 1;
}

static void parse(int argc, char **argv)
{
	static const struct option longs[] = {
	    {"unix", 1, NULL, 'u'},	{"tcp", 1, NULL, 't'},	       {"volumes", 1, NULL, 'v'},
	    {"prefix", 1, NULL, 'x'},	{"connections", 1, NULL, 'c'}, {"processes", 1, NULL, 'p'},
	    {"depth", 1, NULL, 'd'},	{"max-len", 1, NULL, 'm'},     {"seconds", 1, NULL, 's'},
	    {"requests", 1, NULL, 'r'}, {"kill-every", 1, NULL, 'k'},  {"seed", 1, NULL, 'S'},
	    {"json", 0, NULL, 'j'},	{"help", 0, NULL, 'h'},	       {NULL, 0, NULL, 0},
	};
	struct options *run = &options.run;
	int c;

	while ((c = getopt_long(argc, argv, "+h", longs, NULL)) != -1) {
		switch (c) {
		case 'u':
			run->unix_socket = optarg;
			break;
		case 't':
			parse_address(optarg);
			break;
		case 'v':
			run->volumes = (unsigned)number(optarg, VOLUMES_MAX);
			break;
		case 'x':
			run->prefix = optarg;
			break;
		case 'c':
			run->connections = (unsigned)number(optarg, 512);
			break;
		case 'p':
			run->processes = (unsigned)number(optarg, PROCESSES_MAX);
			break;
		case 'd':
			run->depth = (unsigned)number(optarg, 1024);
			break;
		case 'm':
			run->max_len = number(optarg, 32 << 20);
			break;
		case 's':
			run->seconds = (double)number(optarg, UINT32_MAX);
			break;
		case 'r':
			run->requests = number(optarg, UINT64_MAX);
			break;
		case 'k':
			options.kill_every = (double)number(optarg, UINT32_MAX);
			break;
		case 'S':
			run->seed = number(optarg, UINT64_MAX);
			break;
		case 'j':
			options.json = true;
			break;
		default:
			usage(c == 'h' ? 0 : 2);
		}
	}
	if (optind < argc)
		options.command = argv + optind;
	if (!run->unix_socket == !run->host || !run->volumes || !run->connections || !run->depth ||
	    !run->processes || !run->max_len)
		usage(2);
	if (run->processes > run->volumes)
		run->processes = run->volumes;
	if (run->processes > run->connections)
		run->processes = run->connections;
}

static void interrupt(int signal)
{
	(void)signal;
	interrupted = 1;
}

int main(int argc, char **argv)
{
	parse(argc, argv);
	shared =
	    mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		fail("out of memory");
	atomic_store(&shared->life, 1);
	start_server();
	start_workers();
	signal(SIGINT, interrupt);
	signal(SIGTERM, interrupt);
	run();
	stop_server();
	return 0;
}
