/* SPDX-License-Identifier: BSD-3-Clause */
#include "plugin/server-version.h"

#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

int cpc_server_version_parse(const char *text, struct cpc_server_version *version)
{
	int n = sscanf(text, "nbdkit %u.%u.%u", &version->major, &version->minor, &version->micro);

	return n == 3 ? 0 : -EINVAL;
}

/* Starts `path --version`; its standard files are ours in no case, one may be the NBD socket. */
static int spawn_version(const char *path, int out, pid_t *pid)
{
	char arg[] = "--version";
	char *argv[] = {(char *)path, arg, NULL};
	posix_spawn_file_actions_t actions;
	int ret;

	ret = posix_spawn_file_actions_init(&actions);
	if (ret)
		return -ret;
	ret = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	if (!ret)
		ret = posix_spawn_file_actions_adddup2(&actions, out, 1);
	if (!ret)
		ret = posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
	if (!ret)
		ret = posix_spawn(pid, path, &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	return -ret;
}

static ssize_t read_all(int fd, char *buf, size_t len)
{
	size_t done = 0;
	ssize_t n;

	while (done < len) {
		n = read(fd, buf + done, len - done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

static int run_version(const char *path, char *text, size_t len)
{
	int fd[2], status, ret;
	ssize_t n = 0;
	pid_t pid;

	if (pipe2(fd, O_CLOEXEC) != 0)
		return -errno;
	ret = spawn_version(path, fd[1], &pid);
	close(fd[1]);
	if (ret == 0) {
		n = read_all(fd[0], text, len - 1);
		while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
			;
	}
	close(fd[0]);
	if (ret == 0 && n < 0)
		ret = (int)n;
	text[ret == 0 ? n : 0] = '\0';
	return ret;
}

int cpc_server_version_get(struct cpc_server_version *version)
{
	char path[PATH_MAX], text[128];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
	int ret;

	if (n < 0)
		return -errno;
	path[n] = '\0';
	if (!strstr(path, "nbdkit"))
		return -ENOENT;
	ret = run_version(path, text, sizeof(text));
	return ret ? ret : cpc_server_version_parse(text, version);
}

static unsigned number(const struct cpc_server_version *v)
{
	return v->major * 1000000 + v->minor * 1000 + v->micro;
}

bool cpc_server_version_aborts(const struct cpc_server_version *version)
{
	return number(version) >= 1032004 && number(version) < 1033010;
}
