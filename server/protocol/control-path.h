/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * control-path: where the control socket of a pool is found when nobody says otherwise. The server
 * (plugin) makes the socket there, the tool looks for it there, so both ask this file.
 *
 * The path follows from the pool's uuid and from who asks:
 *	root				/run/coppice/UUID.sock
 *	$XDG_RUNTIME_DIR is set		$XDG_RUNTIME_DIR/coppice/UUID.sock
 *	else				/tmp/coppice-UID/UUID.sock
 *
 * The directory in /tmp is trusted only if it belongs to the asking user and nobody else may write
 * to it; otherwise anybody could lead the tool to a socket of his own.
 *
 * Locks: none. Errors: negative errno.
 */
#ifndef CPC_PROTOCOL_CONTROL_PATH_H
#define CPC_PROTOCOL_CONTROL_PATH_H

#include <sys/un.h>

#include "format/format.h"

#define CPC_CONTROL_PATH_MAX sizeof(((struct sockaddr_un *)0)->sun_path)

/* Writes the path. Return: 0 or -ENAMETOOLONG. */
int cpc_control_path(const uint8_t uuid[CPC_UUID_SIZE], char out[CPC_CONTROL_PATH_MAX]);

/* Makes the directory of a default path. Return: 0; -EPERM when somebody else owns it; errno. */
int cpc_control_make_dir(const char *path);

/* Says whether a socket at this default path can be trusted. Return: 0, -ENOENT, -EPERM. */
int cpc_control_check_dir(const char *path);

#endif
