/* SPDX-License-Identifier: BSD-3-Clause */
/* The HTTP side with a text of this test's own, spoken to over plain sockets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "metrics/metrics.h"

#define TEXT	     "# TYPE a counter\na 1\n"
#define MAX_WAIT_SEC 30

static struct cpc_metrics *metrics;
static uint16_t port;
static bool out_of_memory;

static char *source_text(void *ctx)
{
	return out_of_memory ? NULL : strdup(TEXT);
}

static const struct cpc_metrics_source source = {NULL, source_text};

static struct sockaddr_in address(uint16_t number)
{
	struct sockaddr_in addr = {.sin_family = AF_INET,
				   .sin_port = htons(number),
				   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	return addr;
}

/* A port that was free a moment ago. */
static uint16_t free_port(void)
{
	struct sockaddr_in addr = address(0);
	socklen_t len = sizeof(addr);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(bind(fd, (const struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
	close(fd);
	return ntohs(addr.sin_port);
}

static int setup(void **state)
{
	char err[256];
	int ret;

	out_of_memory = false;
	do {
		port = free_port();
		ret = cpc_metrics_listen(port, &metrics, err, sizeof(err));
	} while (ret == -EADDRINUSE);
	return ret ? ret : cpc_metrics_start(metrics, &source);
}

static int teardown(void **state)
{
	cpc_metrics_stop(metrics);
	return 0;
}

static int connected(void)
{
	struct timeval limit = {.tv_sec = MAX_WAIT_SEC};
	struct sockaddr_in addr = address(port);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
	assert_int_equal(connect(fd, (const struct sockaddr *)&addr, sizeof(addr)), 0);
	return fd;
}

/* Sends `text` on a connection of its own and returns all that comes until it is closed. */
static const char *ask(const char *text)
{
	static char answer[4096];
	int fd = connected();
	size_t len = 0;
	ssize_t got;

	assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
	while ((got = recv(fd, answer + len, sizeof(answer) - 1 - len, 0)) > 0)
		len += (size_t)got;
	assert_int_equal(got, 0);
	answer[len] = '\0';
	close(fd);
	return answer;
}

#define CLOSE " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

static void assert_status(const char *request, const char *status)
{
	const char *answer = ask(request);

	if (strncmp(answer, status, strlen(status)) != 0)
		fail_msg("%s instead of %s", answer, status);
}

static void metrics_are_the_text_with_its_type(void **state)
{
	const char *answer = ask("GET /metrics" CLOSE);

	assert_true(strncmp(answer, "HTTP/1.1 200", 12) == 0);
	assert_non_null(strstr(answer, "Content-Type: text/plain; version=0.0.4"));
	assert_string_equal(strstr(answer, "\r\n\r\n") + 4, TEXT);
	answer = ask("HEAD /metrics" CLOSE);
	assert_true(strncmp(answer, "HTTP/1.1 200", 12) == 0);
	assert_string_equal(strstr(answer, "\r\n\r\n") + 4, "");
}

static void all_else_is_refused(void **state)
{
	assert_status("GET /" CLOSE, "HTTP/1.1 404");
	assert_status("GET /metrics/" CLOSE, "HTTP/1.1 404");
	assert_status("GET /../etc/passwd" CLOSE, "HTTP/1.1 404");
	assert_status("DELETE /metrics" CLOSE, "HTTP/1.1 405");
	ask("garbage\r\n\r\n"); /* closed, with or without an answer */
	out_of_memory = true;
	assert_status("GET /metrics" CLOSE, "HTTP/1.1 503");
	out_of_memory = false;
	assert_status("GET /metrics" CLOSE, "HTTP/1.1 200");
}

/* Who holds all connections without a word is closed after a while, and the next one is served. */
static void silent_clients_do_not_hold_it_for_ever(void **state)
{
	int silent[CPC_METRICS_MAX_CLIENTS];

	for (size_t i = 0; i < CPC_ARRAY_SIZE(silent); i++)
		silent[i] = connected();
	assert_status("GET /metrics" CLOSE, "HTTP/1.1 200");
	for (size_t i = 0; i < CPC_ARRAY_SIZE(silent); i++)
		close(silent[i]);
}

static unsigned int open_files(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned int nr = 0;

	assert_non_null(dir);
	while (readdir(dir))
		nr++;
	closedir(dir);
	return nr;
}

/* Also when they have taken all connections, and before their time is over. */
static void it_stops_under_silent_clients(void **state)
{
	unsigned int before = open_files();
	int silent[CPC_METRICS_MAX_CLIENTS];
	time_t start;

	for (size_t i = 0; i < CPC_ARRAY_SIZE(silent); i++)
		silent[i] = connected();
	while (open_files() < before + 2 * CPC_METRICS_MAX_CLIENTS) /* both ends are ours */
		usleep(1000);
	start = time(NULL);
	cpc_metrics_stop(metrics);
	metrics = NULL;
	assert_true(time(NULL) - start < 5);
	for (size_t i = 0; i < CPC_ARRAY_SIZE(silent); i++)
		close(silent[i]);
}

static void a_port_in_use_is_one_line(void **state)
{
	struct cpc_metrics *second;
	char err[256];

	assert_int_equal(cpc_metrics_listen(port, &second, err, sizeof(err)), -EADDRINUSE);
	assert_non_null(strstr(err, "metrics="));
	assert_non_null(strstr(err, "choose another port"));
	assert_null(strchr(err, '\n'));
}

static void one_that_was_not_started_gives_its_port_back(void **state)
{
	char err[256];

	cpc_metrics_stop(metrics);
	assert_int_equal(cpc_metrics_listen(port, &metrics, err, sizeof(err)), 0);
	cpc_metrics_stop(metrics);
	assert_int_equal(cpc_metrics_listen(port, &metrics, err, sizeof(err)), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(metrics_are_the_text_with_its_type, setup, teardown),
	    cmocka_unit_test_setup_teardown(all_else_is_refused, setup, teardown),
	    cmocka_unit_test_setup_teardown(silent_clients_do_not_hold_it_for_ever, setup,
					    teardown),
	    cmocka_unit_test_setup_teardown(it_stops_under_silent_clients, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_port_in_use_is_one_line, setup, teardown),
	    cmocka_unit_test_setup_teardown(one_that_was_not_started_gives_its_port_back, setup,
					    teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
