/* SPDX-License-Identifier: BSD-3-Clause */
#include "protocol/control-path.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int default_dir(char *out, size_t len)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	int n;

	if (geteuid() == 0)
		n = snprintf(out, len, "/run/coppice");
	else if (runtime && runtime[0] == '/')
		n = snprintf(out, len, "%s/coppice", runtime);
	else
		n = snprintf(out, len, "/tmp/coppice-%u", (unsigned)geteuid());
	return n < 0 || (size_t)n >= len ? -ENAMETOOLONG : 0;
}

int cpc_control_path(const uint8_t uuid[CPC_UUID_SIZE], char out[CPC_CONTROL_PATH_MAX])
{
	char dir[PATH_MAX], text[37];
	int n, ret;

	ret = default_dir(dir, sizeof(dir));
	if (ret)
		return ret;
	cpc_uuid_format(uuid, text);
	n = snprintf(out, CPC_CONTROL_PATH_MAX, "%s/%s.sock", dir, text);
	return n < 0 || (size_t)n >= CPC_CONTROL_PATH_MAX ? -ENAMETOOLONG : 0;
}

static int dir_of(const char *path, char dir[PATH_MAX])
{
	const char *slash = strrchr(path, '/');
	size_t len = slash ? (size_t)(slash - path) : 0;

	if (len == 0 || len >= PATH_MAX)
		return -EINVAL;
	memcpy(dir, path, len);
	dir[len] = '\0';
	return 0;
}

int cpc_control_check_dir(const char *path)
{
	char dir[PATH_MAX];
	struct stat st;
	int ret;

	ret = dir_of(path, dir);
	if (ret)
		return ret;
	if (lstat(dir, &st) != 0)
		return -errno;
	if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & (S_IWGRP | S_IWOTH)))
		return -EPERM;
	return 0;
}

int cpc_control_make_dir(const char *path)
{
	char dir[PATH_MAX];
	int ret;

	ret = dir_of(path, dir);
	if (ret)
		return ret;
	if (mkdir(dir, geteuid() == 0 ? 0755 : 0700) != 0 && errno != EEXIST)
		return -errno;
	return cpc_control_check_dir(path);
}
