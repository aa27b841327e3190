# SPDX-License-Identifier: BSD-3-Clause
"""What the black-box tests share: pools, the server, loop devices, mounts, skipping, seeds.

A test is an executable script that does

    import cpctest
    from cpctest import coppice, Server

    def test(scratch):            # scratch: an empty directory of its own
        ...

    cpctest.main(test)

It passes by returning. `check` and `fail` end it with 1, `skip` and the `need_` functions with 77;
each prints one line that says why. Servers, devices and mounts are context managers or are
ended by main, whatever happens, so that a test leaves nothing behind.

Environment: CPC_BUILD, the build directory (default build/release); CPC_SANITIZE, what it was
built with (-fsanitize=); CPC_TEST_SEED, to run again what failed; CPC_TEST_OPS, how many random
operations.
"""

import contextlib
import ctypes.util
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
BUILD = os.path.abspath(os.environ.get("CPC_BUILD") or f"{ROOT}/build/release")
TOOL = f"{BUILD}/server/coppice"
PLUGIN = f"{BUILD}/server/nbdkit-coppice-plugin.so"
PROGRAMS = f"{BUILD}/client-tests/programs"  # our own libnbd programs
SANITIZE = os.environ.get("CPC_SANITIZE", "")
SKIP = 77
SLOWER = 5 if SANITIZE else 1  # factor on every time limit

_seed = int(os.environ.get("CPC_TEST_SEED") or random.SystemRandom().getrandbits(32))
_seed_noted = False
_cleanup = contextlib.ExitStack()


class Failure(Exception):
    """One line: the claim that does not hold."""


# --- outcome ---------------------------------------------------------------------------------


def fail(message):
    raise Failure(message)


def check(condition, message):
    if not condition:
        raise Failure(message)


def equal(got, expected, what):
    check(got == expected, f"{what}: got {got!r}, expected {expected!r}")


def skip(reason):
    print(f"skipped: {reason}", flush=True)
    sys.exit(SKIP)


def note(text):
    print(text, flush=True)


def seed():
    """The seed of this run, printed once so that CPC_TEST_SEED can repeat it."""
    global _seed_noted
    if not _seed_noted:
        note(f"CPC_TEST_SEED={_seed}")
        _seed_noted = True
    return _seed


def operations(default):
    return int(os.environ.get("CPC_TEST_OPS") or default)


def main(test):
    """Run test(scratch) and exit with its outcome."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that a time limit cleans up too
    code = 0
    try:
        with _cleanup:
            scratch = tempfile.mkdtemp(prefix="cpc-")
            _cleanup.callback(shutil.rmtree, scratch, ignore_errors=True)
            os.chdir(scratch)  # some programs leave files where they are started
            test(scratch)
    except Failure as err:
        print(f"FAILED: {err}", flush=True)
        code = 1
    sys.exit(code)


# --- what the machine must have ----------------------------------------------------------------


def need_programs(*names):
    for name in names:
        if not shutil.which(name):
            skip(f"{name} is not installed")


def need_nbd():
    """The nbd module of libnbd."""
    try:
        import nbd
    except ImportError:
        skip("python3-libnbd is not installed")
    return nbd


def need_root():
    if os.geteuid() != 0:
        skip("needs root")


def need_loop():
    need_root()
    if not os.path.exists("/dev/loop-control"):
        skip("needs loop devices")
    need_programs("losetup")


def need_fuse():
    need_programs("nbdfuse", "fusermount3")
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as err:
        skip(f"needs /dev/fuse: {err.strerror}")


def need_filesystem(name):
    with open("/proc/filesystems", encoding="ascii") as known:
        if name not in known.read().split():
            skip(f"this kernel has no {name}")


# --- programs ----------------------------------------------------------------------------------


def run(*argv, expect=0, timeout=120, **kwargs):
    """Run a program to its end. Fails unless it exits with `expect` (None: any status). Returns
    the CompletedProcess, its output as text."""
    argv = [str(arg) for arg in argv]
    if "input" not in kwargs:
        kwargs.setdefault("stdin", subprocess.DEVNULL)
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              errors="replace", timeout=timeout * SLOWER, check=False, **kwargs)
    except subprocess.TimeoutExpired:
        fail(f"{' '.join(argv)}: no end after {timeout * SLOWER} s")
    if expect is not None and done.returncode != expect:
        fail(f"{' '.join(argv)}: exit {done.returncode}, expected {expect}\n"
             f"{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done


def coppice(*args, expect=0, **kwargs):
    """Run the coppice tool; see run."""
    return run(TOOL, *args, expect=expect, **kwargs)


def stats(pool, timeout=120):
    """The counters of a server, by name."""
    return json.loads(coppice("stats", pool, "--json", timeout=timeout).stdout)


def make_pool(path, size="1G", volumes=None, options=()):
    """Format a pool file and create volumes {name: size} in it. Returns path."""
    coppice("format", path, "--size", size, *options)
    for name, volume_size in (volumes or {}).items():
        coppice("create", path, name, volume_size)
    return path


def nbdsh(uri, *scripts):
    """Run Python scripts in one nbdsh connected to uri, where h is the handle. The interpreter is
    the distribution's, which has the nbd module; another python3 may come first in PATH."""
    words = [word for script in scripts for word in ("-c", script)]
    return run("/usr/bin/python3", "-m", "nbd", "-u", uri, *words)


def wait_until(true, what, timeout=10):
    """Ask again until it is true; `what`, a text or what gives one, says what is wrong when it does not
    become so."""
    end = time.monotonic() + timeout * SLOWER
    while not true():
        if time.monotonic() >= end:
            fail(what() if callable(what) else what)
        time.sleep(0.02)


def random_bytes(amount, salt=0):
    """The same bytes for the same seed and salt."""
    return random.Random(_seed * 1000003 + salt).randbytes(amount)


def resident(pid):
    """Bytes of a process' memory that are resident."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS:"))


# --- the server ----------------------------------------------------------------------------------


def _preloads():
    """A plugin built with a sanitizer needs its runtime first in the process. But p11-kit, which
    nbdkit has with its TLS, comes before it: its constructor under the runtime leaves glibc's
    lock on locales held (seen with gcc 12 and glibc 2.36), and the JSON parser waits for that."""
    libraries = [library for library in [ctypes.util.find_library("p11-kit")] if library]
    for word, library in (("address", "libasan.so"), ("undefined", "libubsan.so"),
                          ("thread", "libtsan.so")):
        if word in SANITIZE.split(","):
            libraries.append(run("gcc", f"-print-file-name={library}").stdout.strip())
    return libraries


def plugin_environment(more=()):
    """What an nbdkit that loads the plugin needs in its environment."""
    env = dict(os.environ, **dict(more))
    if SANITIZE:
        env["LD_PRELOAD"] = " ".join(_preloads())
        # nbdkit itself is not instrumented and frees little at its end.
        env.setdefault("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1:verify_asan_link_order=0")
        env.setdefault("UBSAN_OPTIONS", "halt_on_error=1:print_stacktrace=1")
    return env


def _control_sockets(pid):
    """Files of the control sockets that a server listens on: a killed one leaves them."""
    inodes = set()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(entry.path))
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as sockets:
        lines = [line.split() for line in sockets]
    return [line[7] for line in lines
            if len(line) > 7 and f"socket:[{line[6]}]" in inodes and "/coppice" in line[7]]


def _unlink(paths):
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


class Server:
    """nbdkit with the plugin on a Unix socket in the foreground.

    options: plugin keys, as {"cache": "16M"}; arguments: more of nbdkit's own. Started by
    `with Server(...) as server`, or start; ended by stop (SIGTERM) or kill (SIGKILL), at the
    latest when the test ends. restart may follow either.
    """

    def __init__(self, pool, directory, options=None, arguments=(), environment=None):
        self.pool = pool
        self.options = dict(options or {})
        self.arguments = list(arguments)
        self.environment = dict(environment or {})
        self.socket = f"{directory}/nbd.sock"
        self.pidfile = f"{directory}/nbd.pid"
        self.log = f"{directory}/nbdkit.log"
        self.process = None
        _cleanup.callback(self._end)

    def __enter__(self):
        return self.start()

    def __exit__(self, *exc):
        self._end()

    def command(self):
        """The command line of start, for tests that run it in another way."""
        return ["nbdkit", "-f", "-U", self.socket, "--pidfile", self.pidfile, *self.arguments,
                PLUGIN, f"pool={self.pool}",
                *(f"{key}={value}" for key, value in self.options.items())]

    def process_environment(self):
        return plugin_environment(self.environment)

    def start(self, timeout=30):
        for path in (self.socket, self.pidfile):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, env=self.process_environment())
        end = time.monotonic() + timeout * SLOWER
        while not self._serves():
            if self.process.poll() is not None:
                fail(f"the server did not start, status {self.process.returncode}: {self.tail()}")
            if time.monotonic() > end:
                fail(f"the server was not ready after {timeout * SLOWER} s: {self.tail()}")
            time.sleep(0.01)
        return self

    def _serves(self):
        """Its threads are there: nbdkit writes the pid file before the plugin starts them, and the watch
        for signals is the last."""
        return (os.path.exists(self.pidfile) and os.path.getsize(self.pidfile)
                and self.process.poll() is None and "coppice-watch" in self.threads())

    def stop(self, timeout=10):
        """SIGTERM; fails if the server takes longer than timeout or ends with an error."""
        self.process.terminate()
        try:
            status = self.process.wait(timeout * SLOWER)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            self.process = None
            fail(f"the server did not end within {timeout * SLOWER} s of SIGTERM: {self.tail()}")
        self.process = None
        equal(status, 0, f"exit status of the server ({self.tail()})")

    def kill(self):
        """SIGKILL."""
        self.check_alive()
        _cleanup.callback(_unlink, _control_sockets(self.process.pid))
        self.process.kill()
        self.process.wait()
        self.process = None

    def restart(self):
        return self.start()

    def check_alive(self):
        check(self.process and self.process.poll() is None,
              f"the server has ended by itself: {self.tail()}")

    def tail(self):
        """The last lines of its messages."""
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.read().strip()[-1500:]

    def uri(self, export=""):
        return f"nbd+unix:///{export}?socket={self.socket}"

    def connect(self):
        """A raw connected socket, for tests that speak NBD by hand."""
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self.socket)
        return sock

    @property
    def pid(self):
        return self.process.pid

    def files(self):
        """What its open files are, without the queues of io_uring: it keeps as many for later as were
        in use at once."""
        found = []
        for entry in os.scandir(f"/proc/{self.pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # it has just been closed
                found.append(os.readlink(entry.path))
        return [file for file in found if "io_uring" not in file]

    def threads(self):
        """Names of its threads, without the kernel's workers for io_uring, which come and go by
        themselves. That of a connection ends a moment after its socket is closed."""
        names = []
        for entry in os.scandir(f"/proc/{self.pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                with open(f"{entry.path}/comm", encoding="ascii") as comm:
                    names.append(comm.read().strip())
        return sorted(name for name in names if not name.startswith("iou-"))

    def resident(self):
        """Bytes of its memory that are resident."""
        return resident(self.pid)

    def _end(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None


# --- devices and mounts --------------------------------------------------------------------------


@contextlib.contextmanager
def loop_device(path, direct=True):
    """A loop device over a file; gives its path. A request is never more than FUSE passes on as one
    write: when the first part of a write has gone through and the next has not, Linux 6.18's loop
    driver calls all of it written, and the error never reaches the file system."""
    device = run("losetup", "--find", "--show", f"--direct-io={'on' if direct else 'off'}",
                 path).stdout.strip()
    with open(f"/sys/block/{os.path.basename(device)}/queue/max_sectors_kb", "w", encoding="ascii") as limit:
        limit.write("128")
    try:
        yield device
    finally:
        run("losetup", "--detach", device, expect=None)


@contextlib.contextmanager
def nbdfuse(uri, directory):
    """An export as the file directory/disk; gives its path."""
    os.makedirs(directory, exist_ok=True)
    path = f"{directory}/disk"
    with open(f"{directory}.log", "ab") as log:  # it aborts, loudly, when its server dies
        process = subprocess.Popen(["nbdfuse", path, uri], stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=log)
    try:
        end = time.monotonic() + 20 * SLOWER
        while not os.path.exists(path):
            check(process.poll() is None and time.monotonic() < end, "nbdfuse did not start")
            time.sleep(0.01)
        yield path
    finally:
        run("fusermount3", "-u", "-z", directory, expect=None)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_mounted(directory):
    """Asks the kernel's list: the directory itself cannot be asked once its device is gone."""
    with open("/proc/mounts", encoding="utf-8") as mounts:
        return any(line.split()[1] == directory for line in mounts)


@contextlib.contextmanager
def mounted(device, directory, kind, options="defaults"):
    """A file system mounted; gives the directory. The body may unmount it."""
    os.makedirs(directory, exist_ok=True)
    run("mount", "-t", kind, "-o", options, device, directory)
    try:
        yield directory
    except BaseException:
        run("umount", "--lazy", directory, expect=None)
        raise
    # what follows reads the device: it must be unmounted, not only on its way
    wait_until(lambda: not is_mounted(directory) or run("umount", directory, expect=None).returncode == 0,
               f"{directory} cannot be unmounted", 30)
