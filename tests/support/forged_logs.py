"""Owns how tests change a log and keep its checksums right."""

from __future__ import annotations

import struct

from pywan import _core
from support.log_format import MANIFEST


def place_of_state(data):
    return MANIFEST.size + 16 * struct.unpack_from("<I", data, 48)[0] + struct.unpack_from("<I", data, 64)[0]


def with_checksum(data):
    length = place_of_state(data) + struct.unpack_from("<Q", data, 56)[0]
    struct.pack_into("<I", data, 68, _core.crc32c(bytes(data[MANIFEST.size : length]), _core.crc32c(bytes(data[:68]))))
    return data
