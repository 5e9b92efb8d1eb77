"""Leaves of a checkpoint: snapshots, records and chunks in files, and restored values.

A Python scalar is only a record. An array is a record and chunks (``pieces`` in the JSON): one, or
one for each shard. Dtypes without a name in safetensors are stored as plain numbers:

    complex128           float64[..., 2]
    random keys          uint32[..., 2 or 4]
    float8_e3m4, int4..  uint8

Tests: tests/checkpointing/test_round_trips.py, tests/checkpointing/test_forgeries.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.core.aval import KEY_DTYPES, storage_dtype
from gpuflow.core.dtype_names import dtype_of, name_of
from gpuflow.core.sharding import Index, replica_ids
from gpuflow.core.trace import Tracer
from gpuflow.runtime.array import Array
from gpuflow.runtime.distributed import DistributedArray
from gpuflow.runtime.memories import holdings

# Those of NumPy's and ml_dtypes' names that safetensors has as well, with its own names.
FILE_DTYPES = {
    "bool": "BOOL",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}
WIDTHS = {name: dtype_of(dtype).itemsize for dtype, name in FILE_DTYPES.items()}  # in bytes
_NAMED = frozenset(FILE_DTYPES)
_REENCODED = frozenset(
    {"complex128", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float4_e2m1fn"}
    | {"int1", "uint1", "int2", "uint2", "int4", "uint4", "float6_e2m3fn", "float6_e3m2fn"}
)

STORED = _NAMED | _REENCODED
KEYS = frozenset(dtype.name for dtype in KEY_DTYPES.values())
Bounds = tuple[tuple[int, int], ...]  # start and stop of a chunk, for each dimension


@record
class Leaf:
    """A leaf as it was when the save began.

    Attributes:
        record: the JSON record of the leaf.
        chunks: their bounds in the array, and their values as in files; they are read-only.
    """

    record: dict[str, Any]
    chunks: tuple[tuple[Bounds, np.ndarray], ...] = ()


def snapshot_leaf(path: str, leaf: Any, is_first: bool) -> Leaf:
    """Take a snapshot of a leaf, which later changes do not reach.

    An Array is held, not copied: a donating call sees that its memory is held, and writes
    elsewhere (``runtime/holders.py``). A GPU's array is copied
    to the host.

    Args:
        path: of the leaf, for errors.
        leaf: an Array, NumPy array, or scalar.
        is_first: whether this process writes replicated data.

    Raises:
        TypeError: something else.
    """
    if type(leaf) in _SCALARS:
        return Leaf({"kind": type(leaf).__name__, "value": _SCALARS[type(leaf)][0](leaf)})
    if isinstance(leaf, np.ndarray | np.generic):
        return _snapshot_numpy(path, leaf, is_first)
    check(
        isinstance(leaf, Array) and not isinstance(leaf, Tracer),
        lambda: (
            f"[save] leaves must be arrays of gpuflow or NumPy, Python's numbers, or texts; got "
            f"{_type_phrase(leaf)} at {path or 'the top'}. Fix: {_fix(leaf)}."
        ),
    )
    aval = leaf.aval
    fields: dict[str, Any] = {"kind": "array", "dtype": name_of(aval.dtype)}
    if aval.weak_type:
        fields["weak"] = True
    fields["shape"] = list(aval.shape)
    shards = _written_shards(leaf, is_first)
    chunks = [(bounds, _to_file(host, aval.dtype)) for bounds, host in shards]
    return Leaf(fields, () if aval.dtype == dtypes.float0 else tuple(chunks))


def _snapshot_numpy(path: str, leaf: Any, is_first: bool) -> Leaf:
    dtype = leaf.dtype
    check(
        dtype.name in STORED or dtype == dtypes.float0,
        lambda: (
            f"[save] arrays must hold numbers or bools; got {dtype} at {path or 'the top'}. Fix: "
            "save its fields, x.view(np.int64) of times, or a list of texts."
        ),
    )
    kind = "numpy" if isinstance(leaf, np.ndarray) else "numpy scalar"
    fields = {"kind": kind, "dtype": name_of(dtype), "shape": list(leaf.shape)}
    if dtype == dtypes.float0:
        return Leaf(fields)
    copy = np.array(leaf, dtype.newbyteorder("="), order="C", copy=True, subok=False)
    chunks = ((whole_of(leaf.shape), _to_file(copy, copy.dtype)),)
    return Leaf(fields, chunks if is_first else ())


def _type_phrase(leaf: Any) -> str:
    if isinstance(leaf, Tracer):
        return f"the traced {leaf.aval}"
    return f"a {type(leaf).__module__}.{type(leaf).__qualname__}"


def _fix(leaf: Any) -> str:
    if isinstance(leaf, Tracer):
        return "save outside of jit and of other transformations"
    if hasattr(leaf, "__array__") or hasattr(leaf, "__dlpack__"):
        return "np.asarray(x), or ref[...] of a ref"
    return "leave it out, or register its class with tree_util.register_dataclass"


def is_elsewhere(leaf: Any) -> bool:
    """Whether other processes have shards of an array."""
    return type(leaf) is DistributedArray and not leaf.sharding.is_fully_addressable


def _written_shards(leaf: Array, is_first: bool) -> Iterator[tuple[Bounds, np.ndarray]]:
    """The shards of an array that this process writes, each once, by its first device."""
    shape = leaf.aval.shape
    indices = leaf.sharding.devices_indices_map(shape)
    copies = replica_ids(indices)
    written = {device: index for device, index in indices.items() if copies[device] == 0}
    if type(leaf) is not DistributedArray:
        if is_first:
            host = leaf.host()
            for index in written.values():
                yield bounds_of(index, shape), host[index] if len(written) > 1 else host
        return
    shard_arrays = holdings(leaf.sharding, leaf.aval.ndim)
    hosts = {shard.device.memory: shard.host() for shard in leaf.arrays}
    for device, index in written.items():
        if device.is_local:
            local_index = shard_arrays[device.memory].local_index(index, shape)
            yield bounds_of(index, shape), hosts[device.memory][local_index]


def bounds_of(index: Index, shape: tuple[int, ...]) -> Bounds:
    """The bounds of slices."""
    ranges = [interval.indices(size) for interval, size in zip(index, shape, strict=True)]
    return tuple((begin, end) for begin, end, _ in ranges)


def whole_of(shape: tuple[int, ...]) -> Bounds:
    """The bounds of all of an array."""
    return tuple((0, size) for size in shape)


# --- dtypes --------------------------------------------------------------------------------


def _to_file(stored: np.ndarray, dtype: Any) -> np.ndarray:
    """Elements in the layout of files; a view if possible."""
    if dtypes.is_extended(dtype):
        return dtype.key_data(np.ascontiguousarray(stored).reshape(stored.shape))
    if dtype.name in _NAMED:
        return stored
    if dtype.itemsize == 1:
        return stored.view(np.uint8)
    if dtype == dtypes.complex128:
        whole = np.ascontiguousarray(stored).reshape(stored.shape)
        return whole.reshape((*stored.shape, 1)).view(np.float64)
    return stored


def in_file(name: str, shape: tuple[int, ...]) -> tuple[np.dtype, tuple[int, ...]]:
    """The dtype and shape in a file of elements of shape ``shape``."""
    dtype = dtype_of(name)
    if dtypes.is_extended(dtype):
        return dtypes.uint32, (*shape, *dtype.key_shape)
    if name in _NAMED:
        return dtype, shape
    if name == "complex128":
        return dtypes.float64, (*shape, 2)
    return np.dtype(np.uint8), shape


def from_file(raw: np.ndarray, name: str) -> np.ndarray:
    """Return the elements of stored data, in the storage dtype."""
    dtype = dtype_of(name)
    if dtypes.is_extended(dtype):
        return dtype.stored(raw)
    if name == "complex128":
        return raw.view(np.complex128).reshape(raw.shape[:-1])
    return raw if name in _NAMED else raw.view(dtype)


# --- Python's scalars ----------------------------------------------------------------------


def _int_text(x: int) -> str:
    """In decimal, or in hex where Python refuses to write so many digits."""
    return str(x) if x.bit_length() < _MAX_BITS else hex(x)


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError("not a bool")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("not a text")
    return value


def _complex(pair: Any) -> complex:
    real, imag = map(float.fromhex, pair)
    return complex(real, imag)


_MAX_BITS = 10_000
# How each is written as JSON, and read: exactly, and nan and inf too.
_SCALARS: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    bool: (bool, _flag),
    int: (_int_text, lambda text: int(_text(text), 0)),
    float: (float.hex, float.fromhex),
    complex: (lambda x: [x.real.hex(), x.imag.hex()], _complex),
    str: (str, _text),
    bytes: (bytes.hex, bytes.fromhex),
}
_READERS = {cls.__name__: reader for cls, (_, reader) in _SCALARS.items()}


def is_scalar(record: dict[str, Any]) -> bool:
    """Whether a record is one of Python's scalars."""
    return record["kind"] in _READERS


def scalar(record: dict[str, Any]) -> Any:
    """The scalar of a record."""
    return _READERS[record["kind"]](record["value"])


def type_text(record: dict[str, Any]) -> str:
    """Describe the type of a record for errors: ``float32[3,4]``, ``the Python int``."""
    if is_scalar(record):
        return f"a Python {record['kind']}"
    return f"{record['dtype']}[{','.join(map(str, record['shape']))}]"


def storage_of(record: dict[str, Any]) -> np.dtype:
    """The dtype in which elements are in memory."""
    return storage_dtype(dtype_of(record["dtype"]))
