# SPDX-License-Identifier: BSD-3-Clause
"""A virtual machine with Debian's kernel, whose nbd-client attaches what a server here serves.

    guest = Guest(scratch)                     # booted and ready
    with TcpServer(pool, scratch) as server:
        guest.attach(server, "disk")           # /dev/nbd0
        guest.run("mkfs.ext4 -q /dev/nbd0")

The guest runs shell scripts that this side sends, one at a time (guest-init has the protocol), so
servers are started, stopped and killed in step with it. What make-image makes is kept in build/guest,
for all presets. KVM is used where a guest gets ready with it, which is tried once; otherwise QEMU
interprets the guest."""

import base64
import contextlib
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../lib"))
import cpctest
from cpctest import SLOWER, Server, check, equal, fail, note, run

HERE = os.path.dirname(os.path.realpath(__file__))
IMAGE = f"{cpctest.ROOT}/build/guest"
HOST = "10.0.2.2"  # this machine, as QEMU's user network shows it to the guest
CONNECTIONS = 4  # and processors: the kernel has no use for more of the one than of the other
MKFS = {"ext4": "mkfs.ext4 -q -F", "xfs": "mkfs.xfs -q -f", "btrfs": "mkfs.btrfs -q -f"}
FSCK = {"ext4": "e2fsck -f -n", "xfs": "xfs_repair -n", "btrfs": "btrfs check"}
ACCELERATORS = {
    "kvm": ("-accel", "kvm", "-cpu", "host"),
    "tcg": ("-accel", "tcg,thread=multi", "-cpu", "max"),
}
KVM_TRIAL = 8  # seconds: no later than without KVM, or there is nothing to gain


class TcpServer(Server):
    """A server on 127.0.0.1 as well. The kernel chooses the port, and a restart keeps it."""

    def __init__(self, pool, directory, *args, **kwargs):
        super().__init__(pool, directory, *args, **kwargs)
        self.port_file = f"{directory}/nbd.port"
        self.port = 0

    def command(self):
        nbdkit = super().command()
        listen = nbdkit.index("-U")
        del nbdkit[listen:listen + 2]
        return [f"{cpctest.ROOT}/deploy/listen", "--unix", self.socket,
                "--tcp", f"127.0.0.1:{self.port}", "--port-file", self.port_file, "--", *nbdkit]

    def start(self, timeout=30):
        super().start(timeout)
        with open(self.port_file, encoding="ascii") as file:
            self.port = int(file.read())
        return self


class Guest:
    """One virtual machine, from `with Guest(scratch) as guest` to the end of the block."""

    def __init__(self, scratch):
        self.console = f"{scratch}/guest.console"
        self.qemu_log = f"{scratch}/qemu.log"
        self.control = f"{scratch}/guest.sock"
        self.process = self.connection = self.lines = None

    def __enter__(self):
        accelerator = prepare(os.path.dirname(self.console))
        try:
            self.launch(accelerator, "-incoming", f"exec:cat {IMAGE}/state")
            self.run("true")
        except BaseException:
            note(self.tail())
            self.end()
            raise
        return self

    def __exit__(self, kind, *exc):
        if kind:
            note(f"the guest's console: {self.tail()}")
        self.end()

    def command(self, accelerator):
        return ["qemu-system-x86_64", *ACCELERATORS[accelerator], "-smp", str(CONNECTIONS),
                "-m", "1024", "-nodefaults", "-display", "none", "-no-reboot",
                "-serial", f"file:{self.console}",
                "-kernel", f"{IMAGE}/vmlinuz", "-initrd", f"{IMAGE}/initramfs",
                "-append", "console=ttyS0 panic=-1 mitigations=off quiet",
                "-nic", "user,model=virtio-net-pci",
                "-device", "virtio-serial-pci",
                "-chardev", f"socket,id=control,path={self.control}",
                "-device", "virtserialport,chardev=control,name=control"]

    def launch(self, accelerator, *arguments):
        """Start QEMU, which connects the control port before it starts the machine."""
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.control)
            listener.listen()
            listener.settimeout(20 * SLOWER)
            with open(self.qemu_log, "ab") as log:
                self.process = subprocess.Popen([*self.command(accelerator), *arguments],
                                                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            try:
                self.connection, _ = listener.accept()
            except TimeoutError:
                fail(f"QEMU does not start: {self.tail()}")
            finally:
                os.unlink(self.control)
        self.lines = self.connection.makefile("rb")

    def hear(self, timeout):
        """The guest's next line; None if it does not come in time, or QEMU has ended."""
        self.connection.settimeout(timeout * SLOWER)
        try:
            return self.lines.readline() or None
        except OSError:
            return None

    def run(self, script, expect=0, timeout=60):
        """Run a shell script in the guest. Fails unless it exits with `expect` (None: any status);
        returns what it wrote."""
        self.connection.sendall(base64.b64encode(script.encode()) + b"\n")
        line = self.hear(timeout)
        check(line, f"in the guest: {script}: no answer within {timeout * SLOWER} s")
        status, _, output = line.decode().partition(" ")
        output = base64.b64decode(output).decode(errors="replace").strip()
        if expect is not None and int(status) != expect:
            fail(f"in the guest: {script}: exit {status}, expected {expect}\n{output[-2000:]}")
        return output

    def run_at_once(self, *scripts, timeout=120):
        """Run several scripts side by side; fails unless all of them exit with 0."""
        started = "".join(f"( {script} ) & pids=\"$pids $!\"\n" for script in scripts)
        self.run(f"{started} for pid in $pids; do wait $pid || exit 1; done", timeout=timeout)

    def wait_until(self, condition, what, timeout=30):
        """Run a condition of the shell until it is true."""
        cpctest.wait_until(
            lambda: self.run(f"{condition} && echo yes", expect=None).endswith("yes"), what, timeout)

    def attribute(self, name, device="nbd0"):
        """What the kernel says about a device, in /sys."""
        return self.run(f"cat /sys/block/{device}/{name}")

    def size(self, device="nbd0"):
        return int(self.attribute("size", device)) * 512

    def attach(self, server, export, device="nbd0", block_size=4096, options=""):
        self.attach_by(f"nbd-client {HOST} {server.port} /dev/{device} -N {export} "
                       f"-C {CONNECTIONS} -b {block_size} {options}", device)

    def attach_by(self, command, device="nbd0"):
        """Run this nbd-client, and again if the kernel does not read from all connections. Each
        takes a thread for good; while a slow guest makes one, a workqueue's rescuer may take
        several, and the first keeps it. At the next attempt the threads are there."""
        for _ in range(5):
            self.run(command)
            with contextlib.suppress(cpctest.Failure):
                self.wait_until(f"[ $(cat /proc/[0-9]*/comm | grep -c +{device}-recv) -eq "
                                f"{CONNECTIONS} ]", "not all connections are read", timeout=3)
                return
            note(f"attaching {device} again: the kernel reads from some connections only")
            self.detach(device)
        fail(f"the kernel does not read from all connections of {device}")

    def detach(self, device="nbd0"):
        self.run(f"nbd-client -d /dev/{device}")
        self.wait_until(f"[ ! -e /sys/block/{device}/pid ]", f"{device} stays attached")

    def mount(self, kind, device="nbd0", options="rw"):
        self.run(f"mkdir -p /mnt/{device} && mount -t {kind} -o {options} /dev/{device} /mnt/{device}")

    def fsck(self, kind, device="nbd0"):
        """The file system is unmounted and has no fault."""
        self.run(f"{FSCK[kind]} /dev/{device}")

    def check_files(self, synced):
        """Every file in this list of guest-files is whole. Returns how many."""
        self.run(f"sha256sum -c {synced} >/tmp/sums || {{ grep -v ': OK' /tmp/sums; exit 1; }}")
        return int(self.run(f"wc -l <{synced}"))

    def check_no_io_errors(self):
        """The kernel has not seen a request fail."""
        errors = self.run("dmesg | grep -iE 'I/O error|EXT4-fs error|XFS.*error|BTRFS.*error'",
                          expect=None)
        equal(errors, "", "errors that the guest's kernel has seen")

    def tail(self):
        text = ""
        for path in (self.qemu_log, self.console):
            with contextlib.suppress(FileNotFoundError):
                with open(path, encoding="utf-8", errors="replace") as log:
                    text += log.read()
        return text[-2000:]

    def end(self):
        if self.process:
            self.process.kill()
            self.process.wait()
        if self.connection:
            self.connection.close()
            self.lines.close()
        self.process = self.connection = self.lines = None


# --- the image ---------------------------------------------------------------------------------


def save_state(scratch, accelerator, timeout):
    """Boot, load what tests need, and save the machine as it is then, for all guests to start from.
    Returns whether it got ready in time."""
    machine = Guest(scratch)
    monitor = f"{scratch}/monitor.sock"
    try:
        machine.launch(accelerator, "-qmp", f"unix:{monitor},server=on,wait=off")
        if machine.hear(timeout) is None:
            return False
        machine.run("modprobe -a ext4 xfs btrfs; sync")
        with Monitor(monitor) as qmp:
            qmp.execute("migrate", uri=f"exec:cat >{IMAGE}/state.new")
            cpctest.wait_until(lambda: qmp.execute("query-migrate")["status"] == "completed",
                               "the guest's state is not saved", 60)
        os.rename(f"{IMAGE}/state.new", f"{IMAGE}/state")
        return True
    finally:
        machine.end()


class Monitor:
    """QEMU's machine protocol, as much of it as saving takes."""

    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(path)
        self.lines = self.sock.makefile("rb")
        self.execute("qmp_capabilities")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.lines.close()
        self.sock.close()

    def execute(self, command, **arguments):
        self.sock.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
        for line in self.lines:  # a greeting and events may come before
            reply = json.loads(line)
            check("error" not in reply, f"QEMU: {command}: {reply}")
            if "return" in reply:
                return reply["return"]
        return fail(f"QEMU: {command}: no reply")


def make_state(scratch):
    """With KVM if a guest gets ready with it: /dev/kvm may be there and yet hang one. Returns the
    accelerator that it must be started with."""
    if os.access("/dev/kvm", os.R_OK | os.W_OK) and save_state(scratch, "kvm", KVM_TRIAL):
        return "kvm"
    check(save_state(scratch, "tcg", 120), "the guest does not get ready")
    return "tcg"


def newer(paths, than):
    """Whether one of these has changed since; an installed program keeps the time it was built at."""
    return not os.path.exists(than) or \
        max(os.stat(path).st_ctime for path in paths) > os.stat(than).st_mtime


def prepare(scratch):
    """Have kernel, initramfs and state, made by whoever comes first. Returns the accelerator."""
    cpctest.need_programs("nbdkit", "qemu-system-x86_64")
    os.makedirs(IMAGE, exist_ok=True)
    with open(f"{IMAGE}/lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = run(f"{HERE}/make-image", IMAGE, expect=None, timeout=400)
        if made.returncode == cpctest.SKIP:
            cpctest.skip(made.stdout.strip().splitlines()[-1].removeprefix("skipped: "))
        equal(made.returncode, 0, f"exit status of make-image ({made.stdout}{made.stderr})")
        parts = (f"{IMAGE}/initramfs", shutil.which("qemu-system-x86_64"), f"{HERE}/guest.py")
        if newer(parts, f"{IMAGE}/accelerator"):
            accelerator = make_state(scratch)
            with open(f"{IMAGE}/accelerator", "w", encoding="ascii") as out:
                out.write(accelerator)
        with open(f"{IMAGE}/accelerator", encoding="ascii") as chosen:
            return chosen.read()


# --- the disk ----------------------------------------------------------------------------------

def info(pool, volume):
    return json.loads(cpctest.coppice("info", pool, volume, "--json").stdout)
