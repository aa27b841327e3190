#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Ways to serve a pool: take the command line that fits, after
#
#     coppice format /dev/nvme0n1
#     coppice create /dev/nvme0n1 vm1 200G
#
# The keys are explained in nbdkit-coppice-plugin(1). From a build tree, write the path of
# build/release/server/nbdkit-coppice-plugin.so where these say `coppice`.
#
# usage: configs/serve.sh local|network|tls|memory|read-only POOL
set -euo pipefail

pool=${2?usage: configs/serve.sh local|network|tls|memory|read-only POOL}

case $1 in
local)
	# Virtual machines on this host. The directory's rights say who may connect.
	# -f stays in the foreground, as a service manager wants it.
	exec nbdkit -f -U /run/coppice/nbd.sock -P /run/coppice/nbd.pid coppice "$pool"
	;;
network)
	# Clients on a trusted network, one address, no encryption.
	exec nbdkit -f -i 192.0.2.10 -p 10809 coppice "$pool"
	;;
tls)
	# The same on a network that is not trusted: who has no certificate is refused.
	# ca-cert.pem, server-cert.pem and server-key.pem come from certtool(1).
	exec nbdkit -f -p 10809 --tls=require --tls-certificates=/etc/coppice/pki \
		--tls-verify-peer coppice "$pool"
	;;
memory)
	# A drive with many busy disks: more memory for data and metadata. Give the service
	# cache + 64 MiB, and for nbdkit's own buffers connections x 16 x the largest request.
	exec nbdkit -f -U /run/coppice/nbd.sock coppice "$pool" cache=4G default-export=vm1
	;;
read-only)
	# Look at a pool that nobody serves, without writing a byte to it.
	exec nbdkit -f -U /run/coppice/nbd.sock coppice "$pool" read-only=true
	;;
*)
	echo "configs/serve.sh: no example $1" >&2
	exit 2
	;;
esac
