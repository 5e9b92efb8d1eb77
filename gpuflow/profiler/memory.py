"""Live arrays and their origins, also as a profile for ``pprof``.

Tests: tests/cli/test_smi.py, tests/test_profiler.py.
"""

from __future__ import annotations

import gc
import gzip
import os
from contextlib import suppress
from pathlib import Path

from gpuflow.base.errors import DeletedArrayError
from gpuflow.base.records import record
from gpuflow.base.util import SourceLocation
from gpuflow.runtime.array import Array

# Fields of the messages that we write. Source: google/pprof, proto/profile.proto.
_SAMPLE_TYPE, _SAMPLE, _LOCATION, _FUNCTION, _STRINGS = 1, 2, 4, 5, 6


@record
class ArrayGroup:
    """Live arrays of one type, device and origin.

    Attributes:
        device: such as ``cpu:0``.
        platform: of the device.
        type: shape and dtype, such as ``f32[3,4]``.
        line: the source line that made them, or None, see docs/profiling.md.
        count: number of arrays.
        bytes: of all of them.
    """

    device: str
    platform: str
    type: str
    line: SourceLocation | None
    count: int
    bytes: int


def live_groups(backend: str | None = None) -> list[ArrayGroup]:
    """The arrays of this process that have not been deleted, the largest groups first.

    Args:
        backend: a platform, to include only its arrays; all platforms by default.

    Cost: a search through all objects of the process.
    """
    counts: dict[tuple[str, str, str, SourceLocation | None], list[int]] = {}
    for value in gc.get_objects():
        if type(value) is not Array:
            continue
        with suppress(DeletedArrayError):  # another thread may donate it meanwhile
            device = value.device
            if backend in (None, device.platform):
                source = device.driver.made_at(value.data)
                key = str(device), device.platform, str(value.aval), source
                total = counts.setdefault(key, [0, 0])
                total[0] += 1
                total[1] += value.nbytes
    groups = [ArrayGroup(*key, *total) for key, total in counts.items()]
    return sorted(groups, key=lambda group: -group.bytes)


def device_memory_profile(backend: str | None = None) -> bytes:
    """Return live arrays by type and origin, as a compressed profile for ``pprof``.

    Source lines are recorded for large arrays: with ``GPUFLOW_SMI=1`` from 64 KiB, on GPUs always
    from 16 MiB.

    Args:
        backend: a platform, to include only its arrays; all platforms by default.

    Returns:
        A gzipped protocol buffer: the number of arrays and bytes for each platform, line and type.

    Example:
        >>> x = jnp.ones((100, 100))
        >>> profile = gf.profiler.device_memory_profile()
        >>> profile[:2] == bytes([31, 139])  # gzip's
        True
    """
    return gzip.compress(_profile(live_groups(backend)))


def save_device_memory_profile(
    filename: str | os.PathLike[str], backend: str | None = None
) -> None:
    """Write ``device_memory_profile(backend)`` to a file.

    Args:
        filename: path of the file; ``pprof -top FILE`` reads it.
        backend: as in ``device_memory_profile``.

    Raises:
        OSError: if it cannot be written.

    Example:
        >>> import tempfile
        >>> gf.profiler.save_device_memory_profile(f"{tempfile.mkdtemp()}/memory.prof")
    """
    Path(filename).write_bytes(device_memory_profile(backend))


@record
class _Frame:
    """One level of a stack: its name, and the position of a line."""

    name: str
    file: str = ""
    line: int = 0


def _stack(group: ArrayGroup) -> list[_Frame]:
    """The type of the arrays, below the line that made them, below the platform."""
    source = group.line
    frames = [] if source is None else [_Frame(source.function, source.file, source.line)]
    return [_Frame(group.type), *frames, _Frame(group.platform)]


def _profile(groups: list[ArrayGroup]) -> bytes:
    strings = {"": 0}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    kinds = (("allocations", "count"), ("space", "bytes"))
    messages = [
        _message(_SAMPLE_TYPE, _integer(1, text(kind)) + _integer(2, text(unit)))
        for kind, unit in kinds
    ]
    totals: dict[tuple[_Frame, ...], list[int]] = {}
    for group in groups:  # devices of one platform are merged
        total = totals.setdefault(tuple(_stack(group)), [0, 0])
        total[0] += group.count
        total[1] += group.bytes
    numbers: dict[_Frame, int] = {}
    for stack, (count, size) in totals.items():
        ids = [numbers.setdefault(frame, len(numbers) + 1) for frame in stack]
        body = b"".join(_integer(1, number) for number in ids)
        messages.append(_message(_SAMPLE, body + _integer(2, count) + _integer(2, size)))
    for frame, number in numbers.items():
        entry = _integer(1, number) + (_integer(2, frame.line) if frame.line else b"")
        messages.append(_message(_LOCATION, _integer(1, number) + _message(4, entry)))
        file = _integer(4, text(frame.file)) if frame.file else b""
        function = _integer(1, number) + _integer(2, text(frame.name)) + file
        messages.append(_message(_FUNCTION, function))
    messages += [_message(_STRINGS, value.encode()) for value in strings]
    return b"".join(messages)


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
