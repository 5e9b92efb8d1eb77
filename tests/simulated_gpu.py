"""Which tests run on a simulated GPU: ``GPUFLOW_PLATFORM=cuda_sim pytest``.

    pytestmark = pytest.mark.simulated_gpu          this file's tests, or one test
    @pytest.mark.not_simulated("why not")           but not this one
    @pytest.mark.only_whole("why not")              this one where WHOLE_SWEEP=1 asks for all
    @pytest.mark.sampled                            of its cases a sample

Where files are named, all of their tests run but those that say why not. Nearly all of the time
goes into building kernels, so of an op sweep (tests with the parameter ``primitive``) a part runs:
of the ops of each lowering class one in four and three at least, drawn by SAMPLE_SEED, which CI
takes from the tree. WHOLE_SWEEP=1 runs all of them, on every dtype.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from pathlib import Path

import pytest

ON_SIMULATED_GPU = os.environ.get("GPUFLOW_PLATFORM") == "cuda_sim"
WHOLE = bool(os.environ.get("WHOLE_SWEEP"))
SEED = os.environ.get("SAMPLE_SEED", "0")
# Of the ops of one class: one in so many, and this many at least.
ONE_IN, AT_LEAST = 4, 3


def may_be_marked(path: Path) -> bool:
    """Whether a file has a test for a simulated GPU: the others need not be imported."""
    return "simulated_gpu" in path.read_text()


def chosen(items: list[pytest.Item], named: bool) -> list[pytest.Item]:
    """The tests that run on a simulated GPU.

    Args:
        items: the collected ones.
        named: whether the user named files, of which everything runs that can.
    """
    kept = [item for item in items if not item.get_closest_marker("not_simulated")]
    if not WHOLE:
        kept = [item for item in kept if not item.get_closest_marker("only_whole")]
    if named:
        return kept
    kept = [item for item in kept if item.get_closest_marker("simulated_gpu")]
    return kept if WHOLE else _sample(kept)


def _sample(items: list[pytest.Item]) -> list[pytest.Item]:
    """All tests that are not of a sweep, and of a sweep those of the drawn ops."""
    classes: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for item in items:
        if item.get_closest_marker("sampled"):
            classes[_class_of(item)][_op_of(item)] = None
    drawn = {group: set(_draw(group, list(ops))) for group, ops in classes.items()}
    return [
        item
        for item in items
        if not item.get_closest_marker("sampled") or _op_of(item) in drawn[_class_of(item)]
    ]


def _op_of(item: pytest.Item) -> str:
    return item.callspec.params["primitive"].name


def _class_of(item: pytest.Item) -> tuple[str, str]:
    """A test function and the lowering class of an op: one draw for each."""
    lower = item.callspec.params["primitive"].lower
    return item.originalname, type(lower).__name__


def _draw(group: tuple[str, str], names: list[str]) -> list[str]:
    """Some of the names, the same ones for a seed in every process."""

    def place(name: str) -> bytes:
        return hashlib.sha256(f"{SEED} {group} {name}".encode()).digest()

    return sorted(names, key=place)[: max(AT_LEAST, -(-len(names) // ONE_IN))]
