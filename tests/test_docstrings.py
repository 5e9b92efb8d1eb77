"""Public functions say what they take and what they give, and show it by an example that runs.

In the examples ``gf``, ``jnp``, ``lax`` and ``np`` are what they are everywhere. They run in the
process of the tests, all of a module in one test.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpuflow as gf
from gpuflow import lax
from gpuflow import numpy as jnp

DISTRIBUTIONS = tuple(
    f"scipy.stats.{name}"
    for name in dir(gf.scipy.stats)
    if inspect.ismodule(getattr(gf.scipy.stats, name))
)
# What these show does not depend on kernels, and theirs take long to build.
OP_BY_OP = (
    "lax.linalg",
    "nn",
    "nn.initializers",
    "numpy",
    "numpy.fft",
    "numpy.linalg",
    "random",
    "scipy.linalg",
    "scipy.ndimage",
    "scipy.signal",
    "scipy.special",
    "scipy.stats",
    *DISTRIBUTIONS,
)
MODULES = ("", "flatten_util", "image", "lax", "tree", "tree_util", *OP_BY_OP)
LENIENT = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NAMES = {"gf": gf, "jnp": jnp, "lax": lax, "np": np}
# Taken because NumPy's functions take them; an error says what to write.
REFUSED = {"out", "kind", "order"}
HEADINGS = re.compile(r"^(Args|Returns|Raises|Example|Source|Cost|Yields):", re.MULTILINE)


def functions_of(name: str) -> list[tuple[str, Callable[..., Any]]]:
    """The public functions of a module by their first names, classes and other things left out."""
    module = importlib.import_module(f"gpuflow.{name}".rstrip("."))
    found: dict[int, tuple[str, Callable[..., Any]]] = {}
    for key in sorted(dir(module)):
        value = getattr(module, key)
        is_one = callable(value) and not isinstance(value, type) and hasattr(value, "__module__")
        if not key.startswith("_") and is_one and value.__module__.startswith("gpuflow"):
            found.setdefault(id(value), (key, value))
    return list(found.values())


def parameters_of(function: Callable[..., Any]) -> list[str]:
    """The names of the parameters that a docstring has to mention."""
    names = inspect.signature(function).parameters
    return [name for name in names if name not in REFUSED and not name.startswith("_")]


def complaints(name: str, doc: str, parameters: list[str]) -> list[str]:
    """What a docstring lacks."""
    headings = set(HEADINGS.findall(inspect.cleandoc(doc)))
    wanted = {"Returns", "Example"} | ({"Args"} if parameters else set())
    lacking = [f"{name}: no {heading}:" for heading in sorted(wanted - headings)]
    if not doc.split("\n")[0].strip():
        lacking.append(f"{name}: its first line does not say what it gives")
    if "Example" in headings and ">>> " not in doc:
        lacking.append(f"{name}: its example has no line that begins with >>>")
    return lacking + [
        f"{name}: nothing about {parameter}"
        for parameter in parameters
        if not re.search(rf"\b{parameter}\b", doc)
    ]


@pytest.mark.parametrize("module", MODULES)
def test_sections(module):
    functions = functions_of(module)
    found = [
        complaint
        for name, function in functions
        for complaint in complaints(name, function.__doc__ or "", parameters_of(function))
    ]
    assert functions and not found, "\n".join([f"{len(found)} complaints", *found])


@pytest.mark.parametrize("module", MODULES)
def test_examples(module):
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=LENIENT)
    said: list[str] = []
    for name, function in functions_of(module):
        example = parser.get_doctest(function.__doc__ or "", dict(NAMES), name, None, None)
        with gf.disable_jit(module in OP_BY_OP):
            runner.run(example, out=said.append)
    assert runner.tries and not runner.failures, "".join(said)


def test_complaints():
    whole = """Adds one.

    Args:
        x: f32[n].
        step: what to add.

    Returns:
        f32[n].

    Example:
        >>> jnp.ones(1) + 1
        Array([2.], dtype=float32)
    """
    assert complaints("f", whole, ["x", "step"]) == []
    assert complaints("f", whole.replace("step", "by"), ["x", "step"]) == ["f: nothing about step"]
    assert complaints("f", whole.replace("Returns", "Gives"), ["x"]) == ["f: no Returns:"]
    assert complaints("f", whole.replace("Adds one.", "", 1), ["x"]) == [
        "f: its first line does not say what it gives"
    ]
    assert complaints("f", "Adds one.", []) == ["f: no Example:", "f: no Returns:"]
    assert complaints("f", whole.replace(">>>", ""), []) == [
        "f: its example has no line that begins with >>>"
    ]
