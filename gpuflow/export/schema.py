"""Validation of an exported function's header and programs when it is read.

These are the types, ranges and references of the JSON. Whether a program follows the rules of the
ops is checked as soon as it is built, when the file is read too (``program.py``).

Tests: tests/ops/test_exported_ops.py, tests/test_export_forgeries.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_KEY = re.compile(r"[0-9a-f]{64}")
_SUFFIX = re.compile(r"[a-z]{1,16}")
_MAX_INTEGER = 1 << 62
_MAX_NAME = 1000


class Malformed(ValueError):
    """A field that an exported function cannot have."""


def expect(condition: bool, what: str, value: Any) -> None:
    """Raise Malformed for a value that does not satisfy a condition."""
    if not condition:
        text = repr(value)
        raise Malformed(f"{what} cannot be {text if len(text) <= 80 else text[:77] + '...'}")


def is_size(value: Any) -> bool:
    """Whether a value can be a size, offset or position."""
    return type(value) is int and 0 <= value <= _MAX_INTEGER


def is_index(value: Any, count: int) -> bool:
    """Whether a value is an index below ``count``."""
    return type(value) is int and 0 <= value < count


def is_text(value: Any) -> bool:
    """Whether a value is a text."""
    return type(value) is str


def check_list(value: Any, is_item: Callable[[Any], bool], what: str) -> list[Any]:
    """Check a list and each of its items."""
    expect(type(value) is list and all(map(is_item, value)), what, value)
    return value


def check_fields(value: Any, names: set[str], what: str) -> dict[str, Any]:
    """Check that a value is an object with these fields."""
    expect(type(value) is dict, what, value)
    expect(set(value) == names, f"the fields of {what}", sorted(value))
    return value


def check_header(content: Any, sections: Mapping[str, int]) -> None:
    """Check the description of a function in the header of a file.

    Args:
        content: of the header.
        sections: their lengths by name.

    Raises:
        Malformed: if no function can have it.
    """
    names = {"name", "in", "out", "trees", "arrays", "donated", "constraints", "settings"}
    check_fields(content, names | {"platforms", "checks", "kernels"}, "the content")
    missing = {"program", "arrays", "code"} - set(sections)
    expect(not missing, "missing sections", sorted(missing))
    name = content["name"]
    expect(is_text(name) and len(name) <= _MAX_NAME, "the name", name)
    for side in ("in", "out"):
        for one in check_list(content[side], lambda one: type(one) is list, "types"):
            check_type(one)
    expect(type(content["trees"]) is list and len(content["trees"]) == 2, "trees", content["trees"])
    for one in check_list(content["arrays"], lambda one: type(one) is list, "arrays"):
        expect(len(one) == 6, "an array", one)
        check_type(one[:3])
        expect(type(one[3]) is bool, "an array's origin", one[3])
        check_range(one[4:], sections["arrays"], "an array's bytes")
    donated = check_list(content["donated"], lambda k: is_index(k, len(content["in"])), "donated")
    expect(donated == sorted(set(donated)), "donated", donated)
    check_list(content["constraints"], is_text, "constraints")
    expect(type(content["settings"]) is dict, "settings", content["settings"])
    platforms = check_list(content["platforms"], is_text, "platforms")
    is_named = all(0 < len(one) <= _MAX_NAME for one in platforms)
    expect(0 < len(platforms) <= 16 and is_named, "platforms", platforms)
    check_list(content["checks"], is_text, "checks")
    _check_kernels(content["kernels"], sections["code"])


def check_type(one: list[Any]) -> None:
    """Check a type: the name of a dtype, sizes that may be texts, and whether it is weak."""
    expect(len(one) == 3, "a type", one)
    dtype, shape, weak = one
    expect(is_text(dtype), "a dtype", dtype)
    check_list(shape, lambda size: is_size(size) or is_text(size), "a shape")
    expect(type(weak) is bool, "a weak type", weak)


def check_range(pair: Any, length: int, what: str) -> None:
    """Check an offset and a length in a section."""
    expect(type(pair) is list and len(pair) == 2 and all(map(is_size, pair)), what, pair)
    expect(sum(pair) <= length, what, pair)


def _check_kernels(kernels: Any, length: int) -> None:
    """Check the table of kernels. Their code cannot be checked: it is trusted."""
    check_fields(kernels, {"built", "processor", "table"}, "the kernels")
    built, processor = kernels["built"], kernels["processor"]
    expect(type(built) is dict and all(map(is_text, built.values())), "their target", built)
    if processor is not None:
        expect(type(processor) is list and len(processor) == 2, "the processor", processor)
        digest, fields = processor
        expect(is_text(digest) and _KEY.fullmatch(digest) is not None, "the processor", digest)
        check_fields(fields, {"cpu", "flags", "features"}, "the processor")
        expect(is_text(fields["cpu"]) and is_text(fields["flags"]), "the processor", fields)
        check_list(fields["features"], is_text, "features of the processor")
    for row in check_list(kernels["table"], lambda row: type(row) is list, "the kernels"):
        expect(len(row) == 6, "a kernel", row)
        key, suffix, entry, imports, info, byte_range = row
        expect(is_text(key) and _KEY.fullmatch(key) is not None, "a kernel's key", key)
        is_suffix = is_text(suffix) and _SUFFIX.fullmatch(suffix) is not None
        expect(is_suffix, "a kernel's kind", suffix)
        expect(is_text(entry), "a kernel's symbol", entry)
        check_list(imports, is_text, "a kernel's imports")
        expect(type(info) is dict, "what is said of a kernel", info)
        check_range(byte_range, length, "a kernel's bytes")


def check_records(records: Any) -> None:
    """Check the outer form of programs; ``records.Reader`` checks the rest as it builds them.

    Raises:
        Malformed: if they are not programs.
    """
    check_fields(records, {"programs", "consts"}, "the records")
    expect(type(records["consts"]) is list, "the constants", records["consts"])
    programs = check_list(records["programs"], lambda one: type(one) is dict, "the programs")
    expect(bool(programs), "the programs", programs)
    for program in programs:
        check_fields(program, {"consts", "const", "in", "eqns", "out"}, "a program")
        for name, field in program.items():
            expect(type(field) is list, f"{name} of a program", field)
        for eqn in program["eqns"]:
            expect(type(eqn) is list and len(eqn) == 4 and is_text(eqn[0]), "an equation", eqn)
            for field in eqn[1:]:
                expect(type(field) is list, f"a part of {eqn[0]}", field)
            pairs = eqn[3]
            check_list(
                pairs,
                lambda one: type(one) is list and len(one) == 2 and is_text(one[0]),
                f"params of {eqn[0]}",
            )
            expect(len({name for name, _ in pairs}) == len(pairs), f"params of {eqn[0]}", pairs)


def check_structure(record: Any) -> int:
    """Check a structure of a tree.

    Returns:
        how many leaves it has.

    Raises:
        Malformed: if it is not one.
    """
    if record is None:
        return 0
    if type(record) is int:
        expect(record == 0, "a leaf", record)
        return 1
    expect(type(record) is list and bool(record), "a container", record)
    kind, *items = record
    if kind in ("tuple", "list"):
        return sum(map(check_structure, items))
    if kind == "dict":
        check_list(items, lambda one: type(one) is list and len(one) == 2, "a dict")
        keys = [key for key, _ in items]
        plain = all(map(is_text, keys)) or all(type(key) in (int, bool) for key in keys)
        plain = plain or keys == [None]  # others cannot be sorted, as keys of trees are
        expect(plain and len(set(keys)) == len(keys), "keys of a dict", keys)
        return sum(check_structure(child) for _, child in items)
    expect(kind == "node" and len(items) >= 2, "a kind of container", kind)
    expect(is_text(items[0]) and is_text(items[1]), "a registered class", items[:2])
    return sum(map(check_structure, items[2:]))
