# SPDX-License-Identifier: BSD-3-Clause
"""Devices and processes that the comparison runs on: loop devices over memory, servers, memory
limits. Everything here is a context manager and leaves nothing behind."""

import contextlib
import os
import shutil
import signal
import subprocess
import time

SECTOR = 512
START_SECONDS = 30
STOP_SECONDS = 60
CLOCK_TICK = os.sysconf("SC_CLK_TCK")


class BenchError(Exception):
    """One line for the user: what failed, where."""


def run(*argv, timeout=120, **kwargs):
    """Run a program to its end and return what it printed; its failure is a BenchError."""
    try:
        done = subprocess.run(argv, check=True, timeout=timeout, text=True, errors="replace",
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, **kwargs)
    except subprocess.CalledProcessError as err:
        detail = (err.stderr or err.stdout).strip().splitlines()
        raise BenchError(f"{argv[0]}: exit {err.returncode}: {detail[-1] if detail else ''}") from err
    except subprocess.TimeoutExpired as err:
        raise BenchError(f"{argv[0]}: no end after {timeout} s") from err
    except OSError as err:
        raise BenchError(f"{argv[0]}: {err.strerror}") from err
    return done.stdout


class MemoryFile:
    """A file in /dev/shm whose pages are all allocated; the backing of every loop device."""

    def __init__(self, size):
        self.size = size
        self.path = f"/dev/shm/coppice-bench-{os.getpid()}.img"
        stat = os.statvfs("/dev/shm")
        if stat.f_bavail * stat.f_frsize < size:
            raise BenchError(f"/dev/shm has no room for {size >> 20} MiB; use a smaller --size")

    def __enter__(self):
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        return self

    def __exit__(self, *exc):
        os.close(self.fd)
        os.unlink(self.path)

    def allocate(self):
        """Fill the holes that discards have left; the first call allocates everything."""
        os.posix_fallocate(self.fd, 0, self.size)

    def wipe_ends(self):
        """Forget what the last user wrote where file systems and pools leave their marks."""
        zeroes = bytes(4 << 20)
        os.pwrite(self.fd, zeroes, 0)
        os.pwrite(self.fd, zeroes, self.size - len(zeroes))


class LoopDevice:
    """A loop device with direct I/O over a MemoryFile."""

    def __init__(self, file):
        self.file = file

    def __enter__(self):
        self.file.wipe_ends()
        self.path = run("losetup", "--find", "--show", "--direct-io=on", self.file.path).strip()
        self.name = os.path.basename(self.path)
        return self

    def __exit__(self, *exc):
        run("losetup", "--detach", self.path)

    def counters(self):
        """Bytes written and flushes since the device was made, as the block layer counts them."""
        with open(f"/sys/block/{self.name}/stat", encoding="ascii") as stat:
            field = [int(word) for word in stat.read().split()]
        return {"device_bytes_written": field[6] * SECTOR, "device_flushes": field[15]}


@contextlib.contextmanager
def mounted(device, directory):
    """device, which holds a file system, mounted on directory."""
    run("mount", device, directory)
    try:
        yield
    finally:
        run("umount", directory)


class MemoryLimit:
    """A memory cgroup, version 2 where it has the memory controller, else version 1."""

    def __init__(self, limit):
        self.limit = limit
        name = f"coppice-bench-{os.getpid()}"
        unified = "/sys/fs/cgroup/cgroup.controllers"
        if os.path.exists(unified) and "memory" in open(unified, encoding="ascii").read().split():
            self._write("/sys/fs/cgroup/cgroup.subtree_control", "+memory")
            self.path, self.knob = f"/sys/fs/cgroup/{name}", "memory.max"
        elif os.path.isdir("/sys/fs/cgroup/memory"):
            self.path, self.knob = f"/sys/fs/cgroup/memory/{name}", "memory.limit_in_bytes"
        else:
            raise BenchError("--limit: no memory cgroup controller here")

    @staticmethod
    def _write(path, text):
        try:
            with open(path, "w", encoding="ascii") as knob:
                knob.write(text)
        except OSError as err:
            raise BenchError(f"--limit: {path}: {err.strerror}") from err

    def __enter__(self):
        try:
            os.mkdir(self.path)
        except OSError as err:
            raise BenchError(f"--limit: {self.path}: {err.strerror}") from err
        self._write(f"{self.path}/{self.knob}", str(self.limit))
        return self

    def __exit__(self, *exc):
        for _ in range(50):  # the kernel needs a moment after the last process has gone
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
                return
            time.sleep(0.1)

    def enter_self(self):
        """Move the calling process in; for subprocess's preexec_fn."""
        with open(f"{self.path}/cgroup.procs", "w", encoding="ascii") as procs:
            procs.write("0")


class Server:
    """An NBD server process that writes a pid file when it is ready."""

    def __init__(self, argv, pidfile, log, limit=None):
        self.argv, self.pidfile, self.log, self.limit = argv, pidfile, log, limit

    def __enter__(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.pidfile)
        if not shutil.which(self.argv[0]):
            raise BenchError(f"{self.argv[0]}: not installed")
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=self.limit.enter_self if self.limit else None)
        end = time.monotonic() + START_SECONDS
        while not (os.path.exists(self.pidfile) and os.path.getsize(self.pidfile)):
            if self.process.poll() is not None:
                raise BenchError(f"{self.argv[0]} did not start: {self.last_words()}")
            if time.monotonic() > end:
                self.stop()
                raise BenchError(f"{self.argv[0]} not ready after {START_SECONDS} s")
            time.sleep(0.01)
        return self

    def __exit__(self, *exc):
        self.stop()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def last_words(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            lines = log.read().strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def check_alive(self):
        if self.process.poll() is not None:
            raise BenchError(f"{self.argv[0]} ended, status {self.process.returncode}: "
                             f"{self.last_words()}")

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii", errors="replace") as stat:
            field = stat.read().rpartition(")")[2].split()
        return (int(field[11]) + int(field[12])) / CLOCK_TICK

    def max_rss(self):
        """Bytes; the peak over the life of the process."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) << 10
        return 0
