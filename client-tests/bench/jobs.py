# SPDX-License-Identifier: BSD-3-Clause
"""What is measured: fio's nbd engine over one Unix socket, 4 KiB requests unless said otherwise.

A *durable* job writes a fixed amount and ends with a flush of each connection; its rate is what was
written divided by the time until the last flush was answered. A *burst* is what the server takes
in a few seconds, durable or not. Jobs that say `filled` run on a disk whose data was written, in
order and flushed, through the same server before; all others find a fresh disk.
"""

import dataclasses
import json

from device import BenchError, run

MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Amounts derived from the size of the disk, so that a small disk makes a small run."""

    disk: int
    runtime: float

    @property
    def writes(self):
        return self.disk // 2

    @property
    def sequential(self):
        return self.disk * 3 // 4

    @property
    def region(self):  # what the reading jobs read
        return self.disk // 2

    @property
    def device(self):
        return max(self.disk * 2, 512 * MIB)


@dataclasses.dataclass(frozen=True)
class Job:
    name: str
    title: str
    clients: int
    depth: int
    rw: str
    unit: str = "k/s"  # or "MiB/s"
    block: int = 4096
    amount: str = ""  # a property of Sizes: bytes over all clients; empty: as long as runtime says
    over: str = "disk"  # a property of Sizes: the range that requests fall in
    filled: str = ""  # a property of Sizes: bytes written before
    flush_every: int = 0  # writes
    final_flush: bool = False
    all_caches: bool = False  # run ours with every --cache, not only the first
    targets: dict = dataclasses.field(default_factory=dict)  # peer or "best": our least ratio to it
    more: tuple = ()

    def fio_arguments(self, uri, sizes):
        over = getattr(sizes, self.over)
        args = [f"--name={self.name}", f"--uri={uri}", f"--rw={self.rw}", f"--bs={self.block}",
                f"--numjobs={self.clients}", f"--iodepth={self.depth}", f"--size={over}",
                "--norandommap", *self.more]
        if self.amount:
            args.append(f"--io_size={getattr(sizes, self.amount) // self.clients}")
        else:
            args += ["--time_based", f"--runtime={round(sizes.runtime * 1000)}ms"]
        if self.flush_every:
            args.append(f"--fsync={self.flush_every}")
        if self.final_flush:
            args.append("--end_fsync=1")
        return args


JOBS = [
    Job("durable-random-write", "durable random write, fresh", 4, 16, "randwrite",
        amount="writes", final_flush=True, targets={"raw": 0.8, "btrfs": 4, "qcow2": 1.5}),
    Job("durable-random-overwrite", "durable random write, filled disk", 4, 16, "randwrite",
        amount="writes", filled="disk", final_flush=True,
        targets={"raw": 0.8, "btrfs": 4, "qcow2": 1.5}),
    Job("durable-sequential-write", "durable sequential write, 1 MiB", 1, 8, "write", unit="MiB/s",
        block=MIB, amount="sequential", final_flush=True, targets={"best": 0.9}),
    Job("burst-1x64", "burst random write, 1 x 64", 1, 64, "randwrite",
        targets={"raw": 0.85, "btrfs": 3, "qcow2": 3}),
    Job("burst-4x16", "burst random write, 4 x 16", 4, 16, "randwrite",
        targets={"raw": 0.6, "btrfs": 3, "qcow2": 3}),
    Job("burst-12x64", "burst random write, 12 x 64", 12, 64, "randwrite",
        targets={"raw": 0.55, "btrfs": 3, "qcow2": 3}),
    Job("random-read", "random read, 4 x 16, filled", 4, 16, "randread", amount="region",
        over="region", filled="region", all_caches=True,
        targets={"raw": 0.75, "best with the largest cache": 0.8}),
    Job("sequential-read", "sequential read, 1 MiB, depth 8, filled", 1, 8, "read", unit="MiB/s",
        block=MIB, amount="region", over="region", filled="region", targets={"best": 0.85}),
    Job("write-flush-1", "write + flush each, 1 client", 1, 1, "randwrite", flush_every=1),
    Job("flush-8-clients-8", "flush each 8 writes, 8 clients", 8, 1, "randwrite", flush_every=8),
    Job("flush-16-clients-4", "flush each 4 writes, 16 clients", 16, 1, "randwrite", flush_every=4),
    Job("mixed", "mixed 70/30, 8 x 8, flush each 32, filled", 8, 8, "randrw", over="region",
        filled="region", flush_every=32, more=("--rwmixread=70",)),
]


def fio(*args, timeout):
    """Run fio's nbd engine and return its parsed report."""
    report = run("fio", "--output-format=json", "--ioengine=nbd", "--thread", *args,
                 timeout=timeout)
    # fio prints warnings before the report.
    return json.loads(report[report.index("{"):])["jobs"]


def fill(uri, amount):
    """Write the first `amount` bytes of the disk, in order, and flush."""
    fio("--name=fill", f"--uri={uri}", "--rw=write", "--bs=1M", "--iodepth=8", "--end_fsync=1",
        f"--size={amount}", timeout=900)


def measure(job, uri, sizes):
    """Run one job; returns its figures."""
    clients = fio(*job.fio_arguments(uri, sizes), timeout=900)
    if any(client["error"] for client in clients):
        raise BenchError(f"fio: error {[client['error'] for client in clients]}")
    ways = [client[way] for client in clients for way in ("read", "write")]
    seconds = max(way["runtime"] for way in ways) / 1000
    requests = sum(way["total_ios"] for way in ways)
    written = sum(client["write"]["io_bytes"] for client in clients)
    amount = sum(way["io_bytes"] for way in ways)
    flushes = [client["sync"] for client in clients if client["sync"]["total_ios"]]
    nr_flushes = sum(flush["total_ios"] for flush in flushes)
    flush_ns = sum(flush["lat_ns"]["mean"] * flush["total_ios"] for flush in flushes)
    p99 = [way["clat_ns"]["percentile"]["99.000000"] for way in ways
           if way["total_ios"] and "percentile" in way["clat_ns"]]
    return {
        "value": (amount / MIB if job.unit == "MiB/s" else requests / 1000) / max(seconds, 1e-3),
        "seconds": seconds,
        "requests": requests,
        "bytes_written": written,
        "p99_us": max(p99, default=0) / 1000,
        "flushes": nr_flushes,
        "flush_mean_us": flush_ns / nr_flushes / 1000 if nr_flushes else None,
    }


def select(names):
    if not names:
        return JOBS
    by_name = {job.name: job for job in JOBS}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise BenchError(f"no job {unknown[0]}; there are: {', '.join(by_name)}")
    return [by_name[name] for name in names]
