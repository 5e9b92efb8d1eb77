"""Pictures of arrays as PNG files, with nothing but the standard library; used by the examples."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

# From dark to bright: positions along the way, and red, green and blue there.
_AT = (0.0, 0.25, 0.5, 0.75, 1.0)
_COLORS = np.array([(0, 0, 12), (64, 24, 110), (170, 50, 90), (245, 130, 40), (252, 250, 200)])


def save_png(path: Path, brightness: Any) -> None:
    """Write an array [height, width] of numbers from 0 to 1, the first row on top."""
    values = np.asarray(brightness, float)
    channels = [np.interp(values, _AT, _COLORS[:, k]) for k in range(3)]
    pixels = np.stack(channels, -1).astype(np.uint8)
    height, width = values.shape
    # Each row begins with a byte for its filter: 0, none. Source: the PNG specification, 9.2.
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for name, data in chunks:
            body = name + data
            file.write(struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body)))
