"""Forged JSON: each field of a valid value replaced, missing, nested, or joined by others."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from itertools import product
from typing import Any

WRONG: list[Any] = [
    None, True, False, -1, 0, 1, 2, 7, 2**31, 2**63, -(2**63), 10**30, 1.5, -0.0, float("nan"),
    float("inf"), "", "0", "x", "../x", "\0", "é\ud800", "float32", "9" * 4200, [], [[]], [None],
    [1, 2], [-1], [2**62, 2**62], ["a", "b"], [["[0]"]], {}, {"leaf": 0}, {"a": 1}, {"kind": "int"},
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all fields in a JSON value."""
    if path:
        yield path
    if isinstance(value, dict):
        keys: Any = value
    else:
        keys = range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield from places(value[key], (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def changed(value: Any, path: tuple[Any, ...], kind: str, wrong: Any = None) -> Any:
    """A copy that is changed at one place."""
    value = copy.deepcopy(value)
    parent, key = at(value, path[:-1]), path[-1]
    part = parent[key]
    if kind == "replaced":
        parent[key] = copy.deepcopy(wrong)
    elif kind == "missing":
        del parent[key]
    elif kind == "nested":
        parent[key] = [part]
    elif kind == "twice" and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(part))
    elif kind == "negative" and isinstance(part, int):
        parent[key] = -part - 1
    elif kind == "larger" and isinstance(part, int):
        parent[key] = part + 1
    elif kind == "extra" and isinstance(part, dict):
        part["extra"] = wrong
    elif kind == "extra" and isinstance(part, list):
        part.append(copy.deepcopy(wrong))
    elif kind == "turned" and isinstance(part, list):
        part.reverse()
    return value


KINDS = ("missing", "nested", "twice", "negative", "larger", "turned")


def forgeries(value: Any, seed: int, share: int = 1) -> Iterator[tuple[str, Any]]:
    """One of ``share`` of all changes of all places, each with its name; ``seed`` says which."""
    changes = [
        *((kind, None) for kind in KINDS),
        *(("replaced", wrong) for wrong in WRONG),
        *(("extra", wrong) for wrong in (1, "x", None)),
    ]
    for number, (path, (kind, wrong)) in enumerate(product(places(value), changes)):
        if (number - seed) % share == 0:
            yield f"{path} {kind} {wrong!r:.40}", changed(value, path, kind, wrong)


def drawn(value: Any, rng: random.Random) -> tuple[str, Any]:
    """One change at random."""
    path = rng.choice(list(places(value)))
    kind, wrong = rng.choice([*KINDS, "replaced", "replaced", "extra"]), rng.choice(WRONG)
    return f"{path} {kind} {wrong!r:.40}", changed(value, path, kind, wrong)
