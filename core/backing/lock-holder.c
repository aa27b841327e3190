/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Who holds the flock of a file? For an error message only: walks /proc, where /proc/PID/fdinfo/FD
 * has a "lock:" line for a descriptor through which the file is locked. Processes that we may not
 * look into are passed over.
 */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "backing/backing-internal.h"

static bool same_file(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool has_lock_line(const char *pid, const char *fd)
{
	char path[600], line[256];
	bool found = false;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%s/fdinfo/%s", pid, fd);
	f = fopen(path, "re");
	if (!f)
		return false;
	while (!found && fgets(line, sizeof(line), f))
		found = !strncmp(line, "lock:", 5) && strstr(line, "FLOCK");
	fclose(f);
	return found;
}

static bool fd_holds(const char *pid, const char *fd, const struct stat *file)
{
	char path[600];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%s/fd/%s", pid, fd);
	return !stat(path, &st) && same_file(&st, file) && has_lock_line(pid, fd);
}

static bool process_holds(const char *pid, const struct stat *file)
{
	char path[300];
	struct dirent *e;
	bool found = false;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%s/fd", pid);
	dir = opendir(path);
	if (!dir)
		return false;
	while (!found && (e = readdir(dir)))
		found = isdigit((unsigned char)e->d_name[0]) && fd_holds(pid, e->d_name, file);
	closedir(dir);
	return found;
}

pid_t cpc_lock_holder(int fd)
{
	struct dirent *e;
	struct stat file;
	pid_t pid = 0;
	DIR *proc;

	if (fstat(fd, &file))
		return 0;
	proc = opendir("/proc");
	if (!proc)
		return 0;
	while (!pid && (e = readdir(proc)))
		if (isdigit((unsigned char)e->d_name[0]) && process_holds(e->d_name, &file))
			pid = (pid_t)atol(e->d_name);
	closedir(proc);
	return pid;
}
