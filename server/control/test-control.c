/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The control socket with a handler of this test's own: "quick" and "slow" are answered with the
 * request's number, slow ones wait until the test lets them go, "big" gets a long answer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <fcntl.h>
#include <poll.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "control/control.h"
#include "protocol/reply.h"

#define BIG_REPLY   (1u << 20)
#define MAX_WAIT_MS 20000

static char dir[] = "/tmp/cpc-control-XXXXXX";
static char path[64];
static struct cpc_control *control;
static sem_t slow_started, slow_go;

static struct json_object *handler_run(void *ctx, struct json_object *request)
{
	const char *verb = cpc_json_string(request, "verb");
	struct json_object *reply = cpc_reply_ok();
	char *big;

	if (verb && strcmp(verb, "slow") == 0) {
		sem_post(&slow_started);
		sem_wait(&slow_go);
	}
	if (verb && strcmp(verb, "big") == 0) {
		big = calloc(1, BIG_REPLY + 1);
		memset(big, 'x', BIG_REPLY);
		json_object_object_add(reply, "big", json_object_new_string(big));
		free(big);
	}
	json_object_object_add(reply, "n", json_object_new_uint64(cpc_json_u64(request, "n")));
	return reply;
}

static bool handler_quick(void *ctx, struct json_object *request)
{
	const char *verb = cpc_json_string(request, "verb");

	return !verb || strcmp(verb, "slow") != 0;
}

static const struct cpc_control_handler handler = {NULL, handler_run, handler_quick};

static int setup(void **state)
{
	char err[256];

	sem_init(&slow_started, 0, 0);
	sem_init(&slow_go, 0, 0);
	if (cpc_control_listen(path, &control, err, sizeof(err)) != 0)
		return -1;
	return cpc_control_start(control, &handler);
}

static int teardown(void **state)
{
	cpc_control_stop(control);
	control = NULL;
	return access(path, F_OK) == 0 ? -1 : 0;
}

/* --- a client ------------------------------------------------------------------------------ */

static int client_connect(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memcpy(addr.sun_path, path, strlen(path));
	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	return fd;
}

static void say(int fd, const char *text)
{
	size_t len = strlen(text);

	assert_int_equal(send(fd, text, len, MSG_NOSIGNAL), len);
}

/* Reads one line. Return: false at the end of the connection. */
static bool hear(int fd, char *line, size_t len)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	size_t n = 0;

	for (;;) {
		if (poll(&p, 1, MAX_WAIT_MS) != 1)
			fail_msg("no answer");
		if (read(fd, line + n, 1) != 1)
			return false;
		if (line[n] == '\n')
			break;
		if (n + 1 < len)
			n++;
	}
	line[n] = '\0';
	return true;
}

static void hear_number(int fd, unsigned n)
{
	char line[256], expected[64];

	assert_true(hear(fd, line, sizeof(line)));
	snprintf(expected, sizeof(expected), "{\"ok\":true,\"n\":%u}", n);
	assert_string_equal(line, expected);
}

static void hear_error(int fd)
{
	char line[256];

	assert_true(hear(fd, line, sizeof(line)));
	assert_non_null(strstr(line, "\"ok\":false"));
}

static void expect_end(int fd)
{
	char line[16];

	assert_false(hear(fd, line, sizeof(line)));
	close(fd);
}

/* --- the socket ---------------------------------------------------------------------------- */

static void the_socket_has_mode_0600(void **state)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	assert_true(S_ISSOCK(st.st_mode));
	assert_int_equal(st.st_mode & 07777, 0600);
}

static void a_socket_in_use_is_not_taken(void **state)
{
	struct cpc_control *second;
	char err[256] = "";

	assert_int_equal(cpc_control_listen(path, &second, err, sizeof(err)), -EADDRINUSE);
	assert_non_null(strstr(err, path));
}

static void a_socket_left_by_a_dead_server_is_replaced(void **state)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct cpc_control *second;
	char other[sizeof(path)], err[256];
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	snprintf(other, sizeof(other), "%s/stale", dir);
	memcpy(addr.sun_path, other, strlen(other));
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	close(fd);
	assert_int_equal(cpc_control_listen(other, &second, err, sizeof(err)), 0);
	cpc_control_stop(second);
	assert_int_not_equal(access(other, F_OK), 0);
}

static void a_file_that_is_no_socket_is_left_alone(void **state)
{
	struct cpc_control *second;
	char other[sizeof(path)], err[256], longer[200];
	int fd;

	snprintf(other, sizeof(other), "%s/file", dir);
	fd = open(other, O_CREAT | O_WRONLY, 0600);
	close(fd);
	assert_int_equal(cpc_control_listen(other, &second, err, sizeof(err)), -EEXIST);
	assert_int_equal(unlink(other), 0);
	memset(longer, 'x', sizeof(longer));
	longer[0] = '/';
	longer[sizeof(longer) - 1] = '\0';
	assert_int_equal(cpc_control_listen(longer, &second, err, sizeof(err)), -ENAMETOOLONG);
}

static void a_file_that_replaced_the_socket_is_not_removed(void **state)
{
	struct cpc_control *second;
	char other[sizeof(path)], err[256];
	int fd;

	snprintf(other, sizeof(other), "%s/moved", dir);
	assert_int_equal(cpc_control_listen(other, &second, err, sizeof(err)), 0);
	unlink(other);
	fd = open(other, O_CREAT | O_WRONLY, 0600);
	close(fd);
	cpc_control_stop(second);
	assert_int_equal(unlink(other), 0);
}

/* --- talk ---------------------------------------------------------------------------------- */

static void requests_in_one_packet_are_answered_in_order(void **state)
{
	int fd = client_connect();
	char line[64];

	for (unsigned i = 1; i <= 500; i++) {
		snprintf(line, sizeof(line), "{\"verb\":\"quick\",\"n\":%u}\n", i);
		say(fd, line);
	}
	for (unsigned i = 1; i <= 500; i++)
		hear_number(fd, i);
	close(fd);
}

static void a_line_may_come_in_single_bytes(void **state)
{
	static const char line[] = "{\"verb\":\"quick\", \"n\":7}\r\n";
	int fd = client_connect();

	for (const char *p = line; *p; p++) {
		char byte[2] = {*p};

		say(fd, byte);
		usleep(500);
	}
	hear_number(fd, 7);
	close(fd);
}

static void garbage_gets_an_error_and_the_next_request_its_answer(void **state)
{
	static const char *const bad[] = {
	    "\n",
	    "hello\n",
	    "{\n",
	    "[1,2]\n",
	    "{\"verb\"\n",
	    "\x01\x02\xff\xfe\n",
	    "{}{}\n",
	    "{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":1}}}}}}}}}\n",
	};
	int fd = client_connect();

	for (size_t i = 0; i < CPC_ARRAY_SIZE(bad); i++) {
		say(fd, bad[i]);
		hear_error(fd);
		say(fd, "{\"n\":3}\n");
		hear_number(fd, 3);
	}
	assert_int_equal(send(fd, "{\"n\":1}\0\n", 9, MSG_NOSIGNAL), 9);
	hear_error(fd);
	close(fd);
}

static void random_bytes_do_no_harm(void **state)
{
	unsigned seed = 1;
	char bytes[4096];
	int fd;

	for (unsigned round = 0; round < 100; round++) {
		fd = client_connect();
		for (size_t i = 0; i < sizeof(bytes); i++)
			bytes[i] = (char)rand_r(&seed);
		(void)!send(fd, bytes, (size_t)rand_r(&seed) % sizeof(bytes), MSG_NOSIGNAL);
		close(fd);
	}
	fd = client_connect();
	say(fd, "{\"n\":1}\n");
	hear_number(fd, 1);
	close(fd);
}

static void changed_bytes_in_a_request_do_no_harm(void **state)
{
	static const char good[] = "{\"verb\":\"quick\",\"args\":{\"x\":[1,2.5,null]},\"n\":5}\n";
	unsigned seed = 2;
	char line[sizeof(good)], answer[256];
	int fd = client_connect();

	for (unsigned round = 0; round < 3000; round++) {
		memcpy(line, good, sizeof(good));
		for (int i = rand_r(&seed) % 4; i >= 0; i--) {
			char byte = (char)rand_r(&seed);

			if (byte != '\n')
				line[(size_t)rand_r(&seed) % (sizeof(good) - 2)] = byte;
		}
		assert_int_equal(send(fd, line, sizeof(good) - 1, MSG_NOSIGNAL), sizeof(good) - 1);
		assert_true(hear(fd, answer, sizeof(answer)));
	}
	close(fd);
}

static void a_line_without_end_is_cut_off(void **state)
{
	char *line = malloc(CPC_REQUEST_MAX);
	int fd = client_connect();

	memset(line, ' ', CPC_REQUEST_MAX);
	assert_int_equal(send(fd, line, CPC_REQUEST_MAX, MSG_NOSIGNAL), CPC_REQUEST_MAX);
	free(line);
	hear_error(fd);
	expect_end(fd);
}

static void a_request_of_the_largest_length_is_answered(void **state)
{
	char *line = malloc(CPC_REQUEST_MAX + 1);
	int fd = client_connect();

	memset(line, ' ', CPC_REQUEST_MAX);
	memcpy(line, "{\"n\":4}", 7);
	line[CPC_REQUEST_MAX - 1] = '\n';
	line[CPC_REQUEST_MAX] = '\0';
	say(fd, line);
	free(line);
	hear_number(fd, 4);
	close(fd);
}

static void a_client_that_has_said_all_still_gets_its_answers(void **state)
{
	int fd = client_connect();

	say(fd, "{\"n\":1}\n{\"verb\":\"slow\",\"n\":2}\n{\"n\":3}\n{\"half");
	shutdown(fd, SHUT_WR);
	hear_number(fd, 1);
	sem_post(&slow_go);
	hear_number(fd, 2);
	hear_number(fd, 3);
	expect_end(fd);
}

/* --- several clients ----------------------------------------------------------------------- */

static void a_slow_request_does_not_hold_up_quick_ones(void **state)
{
	int slow = client_connect(), quick = client_connect();

	say(slow, "{\"verb\":\"slow\",\"n\":1}\n{\"n\":2}\n");
	sem_wait(&slow_started);
	say(quick, "{\"n\":3}\n");
	hear_number(quick, 3);
	sem_post(&slow_go);
	hear_number(slow, 1);
	hear_number(slow, 2);
	close(slow);
	close(quick);
}

static void a_client_that_goes_during_its_request_does_no_harm(void **state)
{
	int slow = client_connect(), next;

	say(slow, "{\"verb\":\"slow\",\"n\":1}\n");
	sem_wait(&slow_started);
	close(slow);
	sem_post(&slow_go);
	next = client_connect();
	say(next, "{\"verb\":\"slow\",\"n\":2}\n");
	sem_post(&slow_go);
	hear_number(next, 2);
	close(next);
}

/* Reads `nr` lines and returns the number of bytes in them. */
static size_t hear_much(int fd, unsigned nr)
{
	static char bytes[65536];
	size_t total = 0;
	ssize_t n;

	while (nr) {
		n = read(fd, bytes, sizeof(bytes));
		assert_true(n > 0);
		total += (size_t)n;
		for (ssize_t i = 0; i < n; i++)
			nr -= bytes[i] == '\n';
	}
	return total;
}

static void a_client_that_does_not_take_its_answers_waits_alone(void **state)
{
	int deaf = client_connect(), other = client_connect();

	for (unsigned i = 0; i < 20; i++)
		say(deaf, "{\"verb\":\"big\"}\n");
	for (unsigned i = 0; i < 100; i++) {
		say(other, "{\"n\":9}\n");
		hear_number(other, 9);
	}
	assert_true(hear_much(deaf, 20) > 20 * BIG_REPLY);
	close(deaf);
	close(other);
}

static void one_client_too_many_is_told_so(void **state)
{
	int fd[CPC_CONTROL_MAX_CLIENTS], extra;

	for (unsigned i = 0; i < CPC_CONTROL_MAX_CLIENTS; i++) {
		fd[i] = client_connect();
		say(fd[i], "{\"n\":1}\n");
		hear_number(fd[i], 1);
	}
	extra = client_connect();
	hear_error(extra);
	expect_end(extra);
	for (unsigned i = 0; i < CPC_CONTROL_MAX_CLIENTS; i++)
		close(fd[i]);
}

static void stop_ends_clients_in_every_state(void **state)
{
	int idle = client_connect(), half = client_connect(), deaf = client_connect();
	int slow = client_connect(), queued = client_connect();

	say(half, "{\"verb\":");
	for (unsigned i = 0; i < 20; i++)
		say(deaf, "{\"verb\":\"big\"}\n");
	say(slow, "{\"verb\":\"slow\"}\n");
	sem_wait(&slow_started);
	say(queued, "{\"verb\":\"slow\"}\n");
	sem_post(&slow_go);
	sem_post(&slow_go);
	assert_int_equal(teardown(NULL), 0);
	expect_end(idle);
	close(half);
	close(deaf);
	close(slow);
	close(queued);
}

#define with_control(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    with_control(the_socket_has_mode_0600),
	    with_control(a_socket_in_use_is_not_taken),
	    with_control(a_socket_left_by_a_dead_server_is_replaced),
	    with_control(a_file_that_is_no_socket_is_left_alone),
	    with_control(a_file_that_replaced_the_socket_is_not_removed),
	    with_control(requests_in_one_packet_are_answered_in_order),
	    with_control(a_line_may_come_in_single_bytes),
	    with_control(garbage_gets_an_error_and_the_next_request_its_answer),
	    with_control(random_bytes_do_no_harm),
	    with_control(changed_bytes_in_a_request_do_no_harm),
	    with_control(a_line_without_end_is_cut_off),
	    with_control(a_request_of_the_largest_length_is_answered),
	    with_control(a_client_that_has_said_all_still_gets_its_answers),
	    with_control(a_slow_request_does_not_hold_up_quick_ones),
	    with_control(a_client_that_goes_during_its_request_does_no_harm),
	    with_control(a_client_that_does_not_take_its_answers_waits_alone),
	    with_control(one_client_too_many_is_told_so),
	    cmocka_unit_test_setup(stop_ends_clients_in_every_state, setup),
	};
	int failed;

	if (!mkdtemp(dir))
		return 1;
	snprintf(path, sizeof(path), "%s/control", dir);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	rmdir(dir);
	return failed;
}
