# SPDX-License-Identifier: BSD-3-Clause
"""Changes superblocks of a pool file by hand, checksums made right again: pools that no version of
the tool would make. Offsets are those of docs/on-disk-format.md."""

import struct

SLOT = 4096
SLOTS = 8
MAGIC = b"CoppiceP"
CSUM = 8
VERSION = 12
COMPAT_RO = 40
INCOMPAT = 48


def _table():
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _table()


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xff]
    return crc ^ 0xffffffff


def slots(size):
    """Where the slots of both rings stand in a pool of this size."""
    end = size // SLOT * SLOT - SLOTS * SLOT
    return [ring + i * SLOT for ring in (0, end) for i in range(SLOTS)]


def patch(path, change):
    """Calls change(bytearray) on each superblock of the file and makes its checksum right. Returns how
    many there are."""
    count = 0
    with open(path, "r+b") as pool:
        for offset in slots(pool.seek(0, 2)):
            pool.seek(offset)
            block = bytearray(pool.read(SLOT))
            if block[:8] != MAGIC:
                continue
            change(block)
            block[CSUM:CSUM + 4] = bytes(4)
            block[CSUM:CSUM + 4] = struct.pack("<I", crc32c(block))
            pool.seek(offset)
            pool.write(block)
            count += 1
    return count


def set_u32(offset, value):
    return lambda block: struct.pack_into("<I", block, offset, value)


def set_u64(offset, value):
    return lambda block: struct.pack_into("<Q", block, offset, value)
