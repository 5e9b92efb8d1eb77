"""The figures of perf/house.py stay below their ceilings, which a change lowers or leaves.

Ceilings are in ``data/house_ceilings.json``. ``python tests/perf/test_house_ceilings.py`` lowers
them to the figures. A change that has to raise one says why in docs/design/0026-the-house.md.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "perf"))

import house

ROOT = house.HERE.parent

CEILINGS = ROOT / "tests" / "data" / "house_ceilings.json"
OF_A_CALL = ("functions", "files", "back to files")
# Lines of code may grow by so many percent before a note has to say why; and a call of another
# version of Python, or on another processor, passes some other functions.
ROOM_TO_GROW = 2


def figures() -> dict[str, int]:
    """The figures that have ceilings, by name."""
    source, passed = house.read_source(ROOT), house.measured(ROOT, "passed")
    return {
        **{f"cold jit(sin): {name}": passed[name] for name in OF_A_CALL},
        "forms of a program": len(house.FORMS),
        "isinstance on lowering classes": source.lowering_checks.total(),
        "files with isinstance on lowering classes": len(source.lowering_checks),
        "functions that return Any": len(source.returns_any),
        "retired words in definitions": source.retired.total(),
        **{f"files of {room}": n for room, n in source.rooms.items() if n > house.MAX_FILES},
        **{f"lines of code of {room}": n for room, n in source.code_of.items()},
    }


def above(found: dict[str, int], ceilings: dict[str, int]) -> list[str]:
    """The figures that are above their ceilings, or have none."""
    return [
        f"{name} is {figure}, at most {ceilings.get(name, 0)}. "
        "Fix: lower it, or say why not in a design note and raise the ceiling."
        for name, figure in found.items()
        if figure > ceilings.get(name, 0)
    ]


def lowered(found: dict[str, int], ceilings: dict[str, int]) -> dict[str, int]:
    """The ceilings for these figures: none rises, and those of figures that are gone go."""
    return {
        name: min(ceilings.get(name, with_room(name, figure)), with_room(name, figure))
        for name, figure in found.items()
    }


def with_room(name: str, figure: int) -> int:
    """The ceiling of a figure, with room to grow for lines of code and cold calls."""
    return figure + figure * ROOM_TO_GROW // 100 if name.startswith(("lines", "cold")) else figure


def test_no_figure_is_above_its_ceiling():
    complaints = above(figures(), json.loads(CEILINGS.read_text(encoding="utf-8")))
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("figure, is_above", [(9, False), (10, False), (11, True)])
def test_above(figure, is_above):
    assert bool(above({"files": figure}, {"files": 10})) is is_above


def test_a_figure_without_a_ceiling_is_above_it():
    assert above({"files of gpuflow/new": 46}, {})


def test_ceilings_fall_and_never_rise():
    ceilings = {"files": 10, "gone": 3, "lines of code of a": 1000}
    assert lowered({"files": 8, "lines of code of a": 900}, ceilings) == {
        "files": 8,
        "lines of code of a": 918,
    }
    assert lowered({"files": 12, "lines of code of a": 999}, ceilings) == {
        "files": 10,
        "lines of code of a": 1000,
    }


if __name__ == "__main__":
    now = json.loads(CEILINGS.read_text(encoding="utf-8"))
    CEILINGS.write_text(json.dumps(lowered(figures(), now), indent=1, sort_keys=True) + "\n")
