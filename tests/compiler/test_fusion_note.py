"""The examples of the note on fusion are what the compiler does."""

import re
from pathlib import Path

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler.fusion.legality import MAX_OPERANDS, MAX_SCALAR_OPERANDS
from gpuflow.compiler.fusion.regions import MAX_MEMBERS, MAX_MEMBERS_IN_LOOPS

NOTE = Path(__file__).parents[2] / "docs" / "design" / "0024-fusion.md"
EXAMPLES = r"## ([^\n]+)\n[^#]*?```python\n(.*?)\n```\n\n```text\n(.*?)\n```"


class _Float32:
    """``f32[2, 3]`` is an array of zeros."""

    def __getitem__(self, shape):
        return np.zeros(shape, np.float32)


def groups_of(code):
    """The groups of a program of the note, without parameters that fill a line each."""
    texts = []

    def example(function, *args):
        texts.append(gf.jit(function).lower(*args).compile().explain("groups"))

    exec(code, {"jnp": jnp, "lax": lax, "f32": _Float32(), "example": example})
    return re.sub(r"\[\n.*?\n    \]", "[...]", texts[0], flags=re.DOTALL)


def examples():
    return [pytest.param(*found[1:], id=found[0]) for found in re.findall(EXAMPLES, _text(), re.S)]


def _text():
    return NOTE.read_text()


@pytest.mark.parametrize(("code", "groups"), examples())
def test_an_example_has_the_groups_that_the_note_says(code, groups):
    assert groups_of(code) == groups


def test_the_note_has_three_examples():
    assert len(examples()) == 3


def test_the_note_knows_the_limits():
    text = " ".join(_text().split())
    limits = f"at most {MAX_OPERANDS} arrays ({MAX_SCALAR_OPERANDS} without axes)"
    assert f"{limits}, {MAX_MEMBERS_IN_LOOPS} equations in loops, {MAX_MEMBERS} in all" in text
    assert f"The limit is {MAX_MEMBERS_IN_LOOPS}." in text
