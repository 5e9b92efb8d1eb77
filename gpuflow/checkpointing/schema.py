"""Validation of a checkpoint's JSON when it is read.

A checksum finds accidents. These checks find everything else: after them there are no missing
fields, wrong types, numbers out of range, or missing leaves.
``docs/checkpoints.md`` describes the fields.

Tests: tests/checkpointing/test_forgeries.py, tests/checkpointing/test_damage.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gpuflow.base.private_files import parse_json
from gpuflow.checkpointing import leaves, structure
from gpuflow.checkpointing.ownership import ARRAYS, TOKEN

T = TypeVar("T")
_MAX_DIMENSIONS = 64  # NumPy's
_MAX_BYTES = 1 << 62


class Malformed(ValueError):
    """A field that a checkpoint cannot have."""


def _expect(condition: bool, what: Callable[[], str]) -> None:
    if not condition:
        raise Malformed(what())


def shown(value: Any) -> str:
    """A value from a file, as errors show it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _typed(value: Any, kind: type[T], name: str) -> T:
    # Of exactly this type: True is an int to isinstance.
    _expect(type(value) is kind, lambda: f"{shown(value)} for {name}, not of type {kind.__name__},")
    return value


def _fields(value: Any, names: set[str], name: str, optional: frozenset[str] = frozenset()) -> Any:
    """A JSON object with these fields and no others, but for optional ones."""
    found = set(_typed(value, dict, name))
    _expect(
        names <= found <= names | optional,
        lambda: f"the fields {shown(sorted(found))} for {name}, not {shown(sorted(names))},",
    )
    return value


def _integer(value: Any, low: int, high: int, name: str) -> int:
    _typed(value, int, name)
    _expect(low <= value <= high, lambda: f"{shown(value)} for {name}, of {low} to {high},")
    return value


def check_content(content: Any) -> None:
    """Check all of a tree.json's content.

    Raises:
        Malformed: if a checkpoint cannot have it.
    """
    names = {"files", "tree", "leaves", "paths", "metadata", "token"}
    _fields(content, names, "the content")
    token = _typed(content["token"], str, "the token")
    _expect(TOKEN.fullmatch(token) is not None, lambda: f"{shown(token)} for the token")
    files = _typed(content["files"], list, "the files")
    for name in files:
        match = ARRAYS.fullmatch(_typed(name, str, "a file's name"))
        _expect(
            match is not None and match[1] == token,
            lambda name=name: f"the file {shown(name)}, which is not one of this checkpoint,",
        )
    _expect(len(set(files)) == len(files), lambda: "a file twice")
    records = _typed(content["leaves"], list, "the leaves")
    paths = _typed(content["paths"], list, "the paths")
    _expect(len(paths) == len(records), lambda: f"{len(paths)} paths for {len(records)} leaves")
    for path, saved in zip(paths, records, strict=True):
        _check_leaf(saved, len(files), f"the leaf at {shown(_typed(path, str, 'a path'))}")
    _check_tree(content["tree"], len(records))
    metrics_of(content)


def metrics_of(content: dict[str, Any]) -> dict[str, float]:
    """The metrics of a step; none of a checkpoint that no manager saved.

    Raises:
        Malformed: if its metadata are not a manager's.
    """
    metadata = _typed(content["metadata"], dict, "the metadata")
    if not metadata:
        return {}
    _fields(metadata, {"step", "metrics"}, "the metadata")
    _integer(metadata["step"], 0, 1 << 62, "the step")
    try:
        metrics = parse_json(_typed(metadata["metrics"], str, "the metrics").encode())
    except ValueError as error:
        raise Malformed(f"metrics that cannot be read ({error})") from None
    for name, value in _typed(metrics, dict, "the metrics").items():
        _typed(value, float, f"the metric {shown(name)}")
    return metrics


# --- containers ----------------------------------------------------------------------------


def _check_tree(tree: Any, count: int) -> None:
    """Check the containers, and that each of ``count`` leaves is in them once, in order."""
    found: list[Any] = []
    open_nodes = [tree]
    while open_nodes:
        node = open_nodes.pop()
        if "leaf" in _typed(node, dict, "a node"):
            _fields(node, {"leaf"}, "a leaf's node")
            found.append(_typed(node["leaf"], int, "a leaf's number"))
        else:
            open_nodes += reversed(_children(node))
    _expect(found == list(range(count)), lambda: f"the leaves {shown(found)} of {count}")


def _children(node: dict[str, Any]) -> list[Any]:
    kind = _typed(node["node"], str, "a kind of container") if "node" in node else None
    names = {"keys", "children", "class" if kind is None else "node"}
    _fields(node, names | ({"maxlen"} if kind == "deque" else set()), "a node")
    if kind is None:
        _typed(node["class"], str, "a class")
    else:
        _expect(kind in structure.KINDS, lambda: f"{shown(kind)} for a kind of container")
    keys, children = _typed(node["keys"], list, "keys"), _typed(node["children"], list, "children")
    _expect(len(keys) == len(children), lambda: f"{len(keys)} keys for {len(children)} children")
    _check_keys(kind, keys)
    if kind == "None":
        _expect(not keys, lambda: "children of None")
    if kind == "deque" and node["maxlen"] is not None:
        _integer(node["maxlen"], len(keys), 1 << 62, "the length of a deque")
    return children


def _check_keys(kind: str | None, keys: Sequence[Any]) -> None:
    if kind in ("list", "tuple", "deque"):
        expected = [[f"[{k}]"] for k in range(len(keys))]
        _expect(keys == expected, lambda: f"the keys {shown(keys)} of a {kind}")
    plain = []
    for key in keys:
        is_text = type(key) is list and len(key) == 1 and type(key[0]) is str
        is_plain = type(key) in structure.PLAIN_KEYS and key == key
        _expect(is_text or is_plain, lambda key=key: f"the key {shown(key)}")
        if is_plain:
            plain.append(key)
    _expect(len(set(plain)) == len(plain), lambda: f"a key twice in {shown(keys)}")
    if kind == "dict" and len(plain) == len(keys):
        _expect(_is_sorted(plain), lambda: f"keys of a dict out of order, {shown(keys)},")


def _is_sorted(keys: list[Any]) -> bool:
    try:
        return keys == sorted(keys)
    except TypeError:  # of several types: in the order of the dict
        return True


# --- leaves --------------------------------------------------------------------------------

_ARRAYS = ("array", "numpy", "numpy scalar")


def _check_leaf(saved: Any, count: int, name: str) -> None:
    """Check a record of a leaf, whose chunks are in ``count`` files."""
    kind = _typed(_typed(saved, dict, name).get("kind"), str, f"the kind of {name}")
    if leaves.is_scalar(saved):
        _fields(saved, {"kind", "value"}, name)
        try:
            leaves.scalar(saved)
        except (TypeError, ValueError, OverflowError):
            raise Malformed(f"{shown(saved['value'])} for {name}, a Python {kind},") from None
        return
    _expect(kind in _ARRAYS, lambda: f"{shown(kind)} for the kind of {name}")
    optional = frozenset({"pieces", "weak"} if kind == "array" else {"pieces"})
    _fields(saved, {"kind", "dtype", "shape"}, name, optional)
    _expect(saved.get("weak", True) is True, lambda: f"{shown(saved['weak'])} for weak of {name}")
    dtype = _typed(saved["dtype"], str, f"the dtype of {name}")
    is_known = dtype in leaves.STORED or dtype == "float0"
    _expect(
        is_known or (kind == "array" and dtype in leaves.KEYS),
        lambda: f"the dtype {shown(dtype)} of {name}",
    )
    shape = _typed(saved["shape"], list, f"the shape of {name}")
    _expect(len(shape) <= _MAX_DIMENSIONS, lambda: f"{len(shape)} dimensions of {name}")
    for size in shape:
        _integer(size, 0, _MAX_BYTES, f"a size of {name}")
    _expect(not shape or kind != "numpy scalar", lambda: f"the shape {shown(shape)} of {name}")
    _, stored = leaves.in_file(dtype, tuple(shape)) if dtype != "float0" else (None, tuple(shape))
    # NumPy refuses shapes that are too large without their zeros.
    _expect(
        math.prod(size for size in stored if size) <= _MAX_BYTES // 16,
        lambda: f"the shape {shown(shape)} of {name}, which is too large,",
    )
    _check_chunks(
        _typed(saved.get("pieces", []), list, f"the pieces of {name}"), shape, dtype, count, name
    )


def _check_chunks(
    chunks: list[Any], shape: Sequence[int], dtype: str, count: int, name: str
) -> None:
    """Check that chunks are in files, and cover the array."""
    for chunk in chunks:
        _fields(chunk, {"file", "name", "crc32", "bounds"}, f"a piece of {name}")
        _integer(chunk["file"], 0, count - 1, f"a file of {name}")
        _typed(chunk["name"], str, f"a piece's name of {name}")
        _integer(chunk["crc32"], 0, (1 << 32) - 1, f"a checksum of {name}")
        _check_bounds(_typed(chunk["bounds"], list, f"the bounds of {name}"), shape, name)
    if dtype == "float0":
        _expect(not chunks, lambda: f"pieces of {name}, whose dtype has no values,")
    elif math.prod(shape):
        _expect(is_whole(chunks, shape), lambda: f"pieces that are not all of {name}")


def _check_bounds(bounds: list[Any], shape: Sequence[int], name: str) -> None:
    _expect(len(bounds) == len(shape), lambda: f"{len(bounds)} bounds of {name}")
    for pair, size in zip(bounds, shape, strict=True):
        is_pair = type(pair) is list and len(pair) == 2 and all(type(n) is int for n in pair)
        _expect(
            is_pair and 0 <= pair[0] <= pair[1] <= size,
            lambda pair=pair: f"the bounds {shown(pair)} of {name}",
        )


def is_whole(chunks: Sequence[Any], shape: Sequence[int]) -> bool:
    """Whether chunks cover each element of an array once; they are the cells of a grid."""
    cells = {tuple(map(tuple, chunk["bounds"])) for chunk in chunks}
    cuts = [sorted({cell[axis] for cell in cells}) for axis in range(len(shape))]
    for ranges, size in zip(cuts, shape, strict=True):
        ends = [0, *(end for _, end in ranges)]
        if [begin for begin, _ in ranges] != ends[:-1] or ends[-1] != size:
            return False
    return len(cells) == len(chunks) == math.prod(map(len, cuts))


def check_header(header: Any, size: int) -> None:
    """Check the header of a safetensors file with ``size`` bytes of arrays.

    Raises:
        Malformed: if its arrays are not where they may be.
    """
    for name, entry in _typed(header, dict, "the header").items():
        if name == "__metadata__":
            continue
        _fields(entry, {"dtype", "shape", "data_offsets"}, f"{shown(name)}")
        width = leaves.WIDTHS.get(_typed(entry["dtype"], str, f"the dtype of {shown(name)}"))
        shape = _typed(entry["shape"], list, f"the shape of {shown(name)}")
        for n in shape:
            _integer(n, 0, _MAX_BYTES, f"a size of {shown(name)}")
        offsets = _typed(entry["data_offsets"], list, f"the offsets of {shown(name)}")
        _expect(len(offsets) == 2, lambda offsets=offsets: f"the offsets {shown(offsets)}")
        begin = _integer(offsets[0], 0, size, f"an offset of {shown(name)}")
        end = _integer(offsets[1], begin, size, f"an offset of {shown(name)}")
        _expect(
            width is None or math.prod(shape) * width == end - begin,  # other programs' dtypes
            lambda name=name, n=end - begin: f"{n} bytes for {shown(name)}",
        )
