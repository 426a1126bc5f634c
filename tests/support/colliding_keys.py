"""Owns keys whose hashes are all the same."""

import re
import struct

from support.tree import ROOT

TEXT = (ROOT / "csrc/base/wan_hash.h").read_text()
SECOND = int(re.search(r"#define WAN_HASH_B (0x[0-9a-f]+)", TEXT)[1], 16)


def colliding(count):
    """Keys of 16 bytes. Half of each is the constant that makes the product of the hash zero, for any other half."""
    return [struct.pack("<IIII", SECOND >> 32, n, SECOND & 0xFFFFFFFF, n * 7 & 0xFFFFFFFF) for n in range(count)]
