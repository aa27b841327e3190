# SPDX-License-Identifier: BSD-3-Clause
"""A file whose device can be stopped, or made to fail its flushes or the reads of a block: another nbdkit, whose plugin is a
few lines of shell around dd, and nbdfuse. (Not QEMU's storage daemon: with several writes at a time its
FUSE export of version 7.2 writes one request's data into another's place.)"""

import contextlib
import os
import signal
import subprocess

import cpctest

SCRIPT = {
    "get_size": "stat -c %s {real}",
    "pread": "if test -e {bad}; then read bad <{bad};"
             " if test $4 -lt $((bad + 4096)) -a $(($4 + $3)) -gt $bad; then"
             " echo EIO this block cannot be read >&2; exit 1; fi; fi;"
             " dd if={real} bs=64K iflag=count_bytes,skip_bytes skip=$4 count=$3 status=none",
    "pwrite": "dd of={real} bs=64K conv=notrunc oflag=seek_bytes seek=$4 status=none || exit 1;"
              " if test -e {bad}; then read bad <{bad};"
              " if test $4 -le $bad -a $(($4 + $3)) -ge $((bad + 4096)); then rm {bad}; fi; fi",
    "can_write": "exit 0",
    "can_flush": "exit 0",
    "can_multi_conn": "exit 0",
    "flush": "test ! -e {flag} || {{ echo EIO this flush fails >&2; exit 1; }}",
    "thread_model": "echo parallel",
}


class FaultyDevice(contextlib.ExitStack):
    """A context manager; `path` is the file that the server opens, over the file `real`."""

    def __init__(self, real, directory):
        super().__init__()
        self.directory = f"{directory}/device"
        self.flag = f"{directory}/device.flag"
        self.bad = f"{directory}/device.bad"
        self.real = real
        self.path = None
        self.process = None

    def __enter__(self):
        cpctest.need_fuse()
        cpctest.need_programs("nbdkit", "dd")
        super().__enter__()
        sock, pidfile = f"{self.directory}.sock", f"{self.directory}.pid"
        script = [f"{name}={text.format(real=self.real, flag=self.flag, bad=self.bad)}"
                  for name, text in SCRIPT.items()]
        self.process = subprocess.Popen(
            ["nbdkit", "-f", "-U", sock, "--pidfile", pidfile, "eval", *script],
            stdin=subprocess.DEVNULL)
        self.callback(self._end)
        cpctest.wait_until(lambda: os.path.exists(pidfile) and os.path.getsize(pidfile),
                           "the device does not start")
        self.path = self.enter_context(cpctest.nbdfuse(f"nbd+unix:///?socket={sock}", self.directory))
        return self

    def _end(self):
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def fail_flushes(self, fail):
        if fail:
            with open(self.flag, "wb"):
                pass
        else:
            os.unlink(self.flag)

    def fail_reads(self, bytenr):
        """The block there cannot be read until it has been written."""
        with open(self.bad, "w", encoding="ascii") as bad:
            print(bytenr, file=bad)

    def stop(self):
        """Nothing is answered any more."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self):
        os.kill(self.process.pid, signal.SIGCONT)
