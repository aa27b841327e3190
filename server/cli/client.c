/* SPDX-License-Identifier: BSD-3-Clause */
/* One request, one reply, over a control socket. */
#include "cli/cli.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "protocol/reply.h"

/* A reply of this length would be a list of a million volumes. */
#define REPLY_MAX (512u << 20)

static int connect_to(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd;

	if (strlen(path) >= sizeof(addr.sun_path))
		return -ENAMETOOLONG;
	memcpy(addr.sun_path, path, strlen(path));
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0) {
		int err = errno;

		close(fd);
		return -err;
	}
	return fd;
}

static int send_all(int fd, const char *text, size_t len)
{
	while (len) {
		ssize_t n = send(fd, text, len, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		text += n;
		len -= (size_t)n;
	}
	return 0;
}

static int send_request(int fd, struct json_object *request)
{
	size_t len;
	const char *text = json_object_to_json_string_length(request, JSON_C_TO_STRING_PLAIN, &len);
	int ret;

	if (!text)
		return -ENOMEM;
	if (len >= CPC_REQUEST_MAX)
		return -E2BIG;
	ret = send_all(fd, text, len);
	return ret ? ret : send_all(fd, "\n", 1);
}

/* Reads up to a newline. `*text` is to be freed. */
static int read_line(int fd, char **text, size_t *len)
{
	size_t size = 0;
	ssize_t n;

	*text = NULL;
	*len = 0;
	for (;;) {
		if (*len == size) {
			char *bigger = size < REPLY_MAX ? realloc(*text, size * 2 + 4096) : NULL;

			if (!bigger)
				return -ENOMEM;
			*text = bigger;
			size = size * 2 + 4096;
		}
		n = read(fd, *text + *len, size - *len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -ECONNRESET;
		*len += (size_t)n;
		if ((*text)[*len - 1] == '\n')
			return 0;
	}
}

static int read_reply(int fd, struct json_object **reply)
{
	const char *why;
	char *text;
	size_t len;
	int ret = read_line(fd, &text, &len);

	if (ret == 0) {
		*reply = cpc_json_parse(text, len, &why);
		ret = *reply ? 0 : -EBADMSG;
	}
	free(text);
	return ret;
}

int cpc_cli_ask(const char *path, struct json_object *request, struct json_object **reply)
{
	int fd = connect_to(path), ret;

	if (fd < 0)
		return fd;
	ret = send_request(fd, request);
	if (ret == 0)
		ret = read_reply(fd, reply);
	close(fd);
	/* Only what connect says means that nobody is there. */
	if (ret == -ENOENT || ret == -ECONNREFUSED || ret == -EACCES)
		ret = -EPROTO;
	return ret;
}
