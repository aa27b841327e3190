# SPDX-License-Identifier: BSD-3-Clause
"""The control socket of a server, spoken by hand."""

import json
import os
import socket

import cpctest


def default_path(pool):
    """Where a server of this user makes the socket of this pool."""
    uuid = json.loads(cpctest.coppice("info", pool, "--json").stdout)["uuid"]
    if os.geteuid() == 0:
        directory = "/run/coppice"
    elif "XDG_RUNTIME_DIR" in os.environ:
        directory = os.environ["XDG_RUNTIME_DIR"] + "/coppice"
    else:
        directory = f"/tmp/coppice-{os.geteuid()}"
    return f"{directory}/{uuid}.sock"


class Control:
    """One connection. `ask` sends a verb and gives the reply; `say` and `hear` are below that."""

    def __init__(self, path, timeout=60):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(path)  # blocking: one with a time limit fails when the queue is full
        self.sock.settimeout(timeout * cpctest.SLOWER)
        self.file = self.sock.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        self.file.close()
        self.sock.close()

    def say(self, line):
        self.sock.sendall(line)

    def hear(self):
        """The next reply; None at the end of the connection."""
        line = self.file.readline()
        return json.loads(line) if line else None

    def ask(self, verb, **args):
        self.say(json.dumps({"verb": verb, "args": args}).encode() + b"\n")
        return self.hear()
