"""Which calls of GPUs run on the host: what the ops say, and what docs/gpu.md says of them."""

import re
from functools import partial
from pathlib import Path

import numpy as np
from op_sweep import accepted_dtypes, all_primitives, operands
from samples import SAMPLES

from gpuflow.core.lowering import HostCall, Library, OnHost

PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
PRIMITIVES = all_primitives()
DTYPES = [np.dtype(name) for name in ("float32", "int32", "bool", "complex64", "float64")]


class NotNumPy:
    """A module of arrays that has nothing."""


def reason_of(call):
    """What an op says where a call is one for the host."""
    try:
        call()
    except OnHost as reason:
        return reason
    except Exception:
        return None  # it asked for operands, or the module for something
    return None


def calls_of(primitive):
    """Calls of an op's code for arrays that are not NumPy's: without any, and those of samples."""
    yield lambda: primitive.impl(NotNumPy())
    for sample in SAMPLES.get(primitive.name, ()):
        for dtype in accepted_dtypes(primitive, sample, DTYPES)[:1]:
            arrays = operands(primitive, sample, dtype)
            yield partial(primitive.impl, NotNumPy(), *arrays, **sample.params_for(dtype))


def left_to_the_host():
    """Names of library calls that no routine of a device is called for, with which of them."""
    names = set()
    for name, primitive in PRIMITIVES.items():
        if isinstance(primitive.lower, Library):
            reasons = [reason_of(call) for call in calls_of(primitive)]
            names |= {f"{name} {one.which}".strip() for one in reasons if one is not None}
    return names


def row_of_page(begin):
    """The names in the first cell of a row of the table."""
    text = PAGE.read_text().partition("## What runs on the host")[2].partition("\n## ")[0]
    (cell,) = [line.split("|")[1] for line in text.splitlines() if line.startswith(f"| {begin}")]
    return cell


def test_the_pages_list_is_what_the_ops_say():
    """Names in order, each with which of its calls are meant."""
    names = sorted(left_to_the_host())
    assert len(names) >= 5 and "schur" in names
    parts = [name.partition(" ") for name in names]
    printed = [f"`{plain}` {which}".strip() for plain, _, which in parts]
    begin = "no routine of CuPy's is called for:"
    assert row_of_page(begin).strip() == f"{begin} {', '.join(printed)}"


def test_what_python_computes_is_on_the_page():
    names = {name for name, one in PRIMITIVES.items() if isinstance(one.lower, HostCall)}
    # It keeps its operands alive, and does nothing.
    assert set(re.findall(r"`(\w+)`", row_of_page("functions of Python"))) == names - {"dce_sink"}
