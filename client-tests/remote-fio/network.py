# SPDX-License-Identifier: BSD-3-Clause
"""Two hosts in one machine: network namespaces joined by a pair of veth devices.

Needs root. Nothing of it is seen outside; leaving the context removes it.
"""

import contextlib
import os
import subprocess

SERVER, CLIENT = "192.0.2.1", "192.0.2.2"  # TEST-NET-1, RFC 5737


class Impossible(Exception):
    """Namespaces, or a kind of link, cannot be made here."""


def ip(*args):
    done = subprocess.run(args, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Impossible(f"{' '.join(args)}: {done.stderr.strip()}")


class Network:
    def __init__(self):
        self.server, self.client = (f"cpc-{os.getpid()}-{end}" for end in ("s", "c"))
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        try:
            for space, address in ((self.server, SERVER), (self.client, CLIENT)):
                ip("ip", "netns", "add", space)
                self.stack.callback(subprocess.run, ["ip", "netns", "delete", space], check=False)
            ip("ip", "-n", self.server, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0",
               "netns", self.client)
            for space, address in ((self.server, SERVER), (self.client, CLIENT)):
                ip("ip", "-n", space, "address", "add", f"{address}/24", "dev", "eth0")
                ip("ip", "-n", space, "link", "set", "eth0", "up")
                ip("ip", "-n", space, "link", "set", "lo", "up")
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *exc):
        self.stack.close()

    @staticmethod
    def inside(space, *argv):
        """The command line that runs argv in a namespace. Not `ip netns exec`, which copies all mounts:
        a file system that somebody unmounts meanwhile would live on in the copy, with its log dirty."""
        return ["nsenter", f"--net=/run/netns/{space}", "--", *argv]

    @contextlib.contextmanager
    def limited(self, rate):
        """Both ends send no faster than rate, such as 200mbit."""
        for space in (self.server, self.client):
            ip("tc", "-n", space, "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate,
               "burst", "256k", "latency", "50ms")
        try:
            yield
        finally:
            for space in (self.server, self.client):
                ip("tc", "-n", space, "qdisc", "delete", "dev", "eth0", "root")

    def link(self, state):
        """up or down."""
        ip("ip", "-n", self.server, "link", "set", "eth0", state)
