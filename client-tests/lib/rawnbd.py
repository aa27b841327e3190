# SPDX-License-Identifier: BSD-3-Clause
"""The NBD protocol spoken by hand, for what libnbd would not send. Simple replies only."""

import struct

import cpctest
from cpctest import check, equal

OPT_EXPORT_NAME, OPT_ABORT, OPT_LIST, OPT_STARTTLS, OPT_INFO, OPT_GO = 1, 2, 3, 5, 6, 7
REP_ACK, REP_ERR_UNSUP, REP_ERR_INVALID, REP_ERR_UNKNOWN = 1, 0x80000001, 0x80000003, 0x80000006
READ, WRITE, DISCONNECT, FLUSH, TRIM, CACHE, ZERO = 0, 1, 2, 3, 4, 5, 6
EPERM, EIO, ENOMEM, EINVAL, ENOSPC = 1, 5, 12, 22, 28  # as on the wire
GREETING = b"NBDMAGICIHAVEOPT"
REPLY_MAGIC, REQUEST_MAGIC, SIMPLE_MAGIC = 0x3e889045565a9, 0x25609513, 0x67446698


class Raw:
    """A connection. With a name it is in transmission, else in the handshake."""

    def __init__(self, server, name=None):
        self.sock = server.connect()
        self.sock.settimeout(60 * cpctest.SLOWER)
        equal(self.receive(18)[:16], GREETING, "greeting")
        self.sock.sendall(struct.pack(">I", 3))
        if name is not None:
            equal(self.go(name.encode()), REP_ACK, f"answer to GO for {name}")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.sock.close()

    def receive(self, length):
        data = bytearray()
        while len(data) < length:
            more = self.sock.recv(min(length - len(data), 1 << 20))
            check(more, f"the server closed the connection after {len(data)} of {length} bytes")
            data += more
        return bytes(data)

    def closed(self):
        """True when the server has closed the connection."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def option(self, option, data=b"", length=None):
        """The type of the last reply. `length` may lie about the data."""
        self.sock.sendall(b"IHAVEOPT" + struct.pack(">II", option, len(data) if length is None else length)
                          + data)
        while True:
            magic, answered, kind, size = struct.unpack(">QIII", self.receive(20))
            equal((magic, answered), (REPLY_MAGIC, option), "reply to an option")
            self.receive(size)
            if kind == REP_ACK or kind & 1 << 31:
                return kind

    def go(self, name):
        return self.option(OPT_GO, struct.pack(">I", len(name)) + name + struct.pack(">H", 0))

    def send(self, kind, cookie, offset, length, payload=b"", flags=0):
        self.sock.sendall(struct.pack(">IHHQQI", REQUEST_MAGIC, flags, kind, cookie, offset, length)
                          + payload)

    def reply(self):
        """(error, cookie) of the next reply; the data of a read is left to the caller."""
        magic, error, cookie = struct.unpack(">IIQ", self.receive(16))
        equal(magic, SIMPLE_MAGIC, "magic of a reply")
        return error, cookie

    def ask(self, kind, offset, length, payload=b"", flags=0, cookie=0x1234567890abcdef):
        """The error of one request, and the data of a read that worked."""
        self.send(kind, cookie, offset, length, payload, flags)
        error, answered = self.reply()
        equal(answered, cookie, "cookie of a reply")
        return error, self.receive(length) if kind == READ and not error else b""
