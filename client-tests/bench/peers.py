# SPDX-License-Identifier: BSD-3-Clause
"""The servers that are compared. Each serves one disk as export EXPORT on one Unix socket.

    null     nbdkit null: the limit of transport and client, stores nothing
    raw      nbdkit file on the loop device: in place, through the page cache
    btrfs    nbdkit file on files in the kernel's btrfs on the loop device
    qcow2    qemu-nbd on the loop device, cache=none, io_uring
    coppice  this project's plugin on the loop device
"""

import contextlib
import os

from device import BenchError, LoopDevice, Server, mounted, run

EXPORT = "disk"
ALL = ["null", "raw", "btrfs", "qcow2", "coppice"]


class Peer:
    """One server, started afresh for each measurement; see serve."""

    def __init__(self, name, config, cache=None, extra=False):
        self.kind = name
        self.extra = extra  # runs only in the jobs that ask for all cache sizes
        self.cache = cache
        self.name = name if cache is None else f"{name}:{cache}"
        self.config = config

    @contextlib.contextmanager
    def serve(self, file):
        """A fresh device, a fresh disk on it and a fresh server; gives (server, device, uri)."""
        work = self.config.work
        socket, pidfile = f"{work}/nbd.sock", f"{work}/pid"
        uri = f"nbd+unix:///{EXPORT}?socket={socket}"
        with contextlib.ExitStack() as stack:
            device = stack.enter_context(LoopDevice(file))
            command = getattr(self, f"_{self.kind}")(stack, device)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(socket)
            if command[0] == "qemu-nbd":
                argv = [*command, f"--socket={socket}", f"--pid-file={pidfile}"]
            else:
                argv = ["nbdkit", "-f", "-U", socket, "--pidfile", pidfile, *command]
            file.allocate()
            log = f"{self.config.out}/{self.kind}.log"
            server = stack.enter_context(Server(argv, pidfile, log, self.config.limit))
            yield server, device, uri

    # Each prepares the device and returns the server's arguments.

    def _null(self, stack, device):
        return ["null", f"size={self.config.disk}"]

    def _raw(self, stack, device):
        return ["file", f"file={device.path}"]

    def _btrfs(self, stack, device):
        # No discard at mkfs: every peer finds the device's memory allocated.
        run("mkfs.btrfs", "--quiet", "--force", "--nodiscard", device.path)
        directory = f"{self.config.work}/btrfs"
        os.makedirs(directory, exist_ok=True)
        stack.enter_context(mounted(device.path, directory))
        with open(f"{directory}/{EXPORT}", "wb") as disk:
            disk.truncate(self.config.disk)
        return ["file", f"dir={directory}"]

    def _qcow2(self, stack, device):
        run("qemu-img", "create", "-q", "-f", "qcow2", device.path, str(self.config.disk))
        return ["qemu-nbd", "--persistent", "--shared=0", "--format=qcow2", "--cache=none",
                "--aio=io_uring", f"--export-name={EXPORT}", device.path]

    def _coppice(self, stack, device):
        run(self.config.tool, "format", device.path)
        run(self.config.tool, "create", device.path, EXPORT, str(self.config.disk))
        cache = [] if self.cache is None else [f"cache={self.cache}"]
        return [self.config.plugin, f"pool={device.path}", *cache, *self.config.key]


def select(names, caches, config):
    """The peers with these names; ours once for each cache size ("default" is the server's own)."""
    peers = []
    for name in names:
        if name not in ALL:
            raise BenchError(f"no peer {name}; there are: {', '.join(ALL)}")
        if name != "coppice":
            peers.append(Peer(name, config))
            continue
        for path in (config.tool, config.plugin):
            if not os.path.exists(path):
                raise BenchError(f"{path}: not built; build it, say --build DIR, "
                                 f"or leave coppice out of --peers")
        peers += [Peer(name, config, None if cache == "default" else cache, extra=i > 0)
                  for i, cache in enumerate(caches)]
    return peers
