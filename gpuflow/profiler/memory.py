"""Which arrays are alive, as a profile that ``pprof`` shows."""

from __future__ import annotations

import gc
import gzip
import os
from collections import Counter
from pathlib import Path

from gpuflow.runtime.array import Array

# Fields of the messages that we write. Source: google/pprof, proto/profile.proto.
_SAMPLE_TYPE, _SAMPLE, _LOCATION, _FUNCTION, _STRINGS = 1, 2, 4, 5, 6


def device_memory_profile(backend: str | None = None) -> bytes:
    """The arrays that are alive, by type, as a compressed profile for ``pprof``.

    Args:
        backend: only arrays of this platform; by default of all.

    Returns:
        A gzipped protocol buffer: for each platform and type the number of arrays and bytes.
    """
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for value in gc.get_objects():
        if type(value) is not Array or value.is_deleted():
            continue
        platform = value.device.platform
        if backend in (None, platform):
            counts[platform, str(value.aval)] += 1
            sizes[platform, str(value.aval)] += value.nbytes
    samples = [(platform, name, n, sizes[platform, name]) for (platform, name), n in counts.items()]
    return gzip.compress(_profile(samples))


def save_device_memory_profile(
    filename: str | os.PathLike[str], backend: str | None = None
) -> None:
    """Write ``device_memory_profile(backend)`` to a file."""
    Path(filename).write_bytes(device_memory_profile(backend))


def _profile(samples: list[tuple[str, str, int, int]]) -> bytes:
    strings = {"": 0}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    kinds = (("allocations", "count"), ("space", "bytes"))
    parts = [
        _message(_SAMPLE_TYPE, _integer(1, text(kind)) + _integer(2, text(unit)))
        for kind, unit in kinds
    ]
    # A stack of two: the type of the arrays, below the platform.
    numbers: dict[str, int] = {}
    for platform, name, count, size in samples:
        stack = [numbers.setdefault(frame, len(numbers) + 1) for frame in (name, platform)]
        body = b"".join(_integer(1, number) for number in stack)
        parts.append(_message(_SAMPLE, body + _integer(2, count) + _integer(2, size)))
    for frame, number in numbers.items():
        line = _message(4, _integer(1, number))
        parts.append(_message(_LOCATION, _integer(1, number) + line))
        parts.append(_message(_FUNCTION, _integer(1, number) + _integer(2, text(frame))))
    parts += [_message(_STRINGS, value.encode()) for value in strings]
    return b"".join(parts)


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _message(field: int, body: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(body)) + body
