"""Cases by number, what they return, and how results are compared.

A case is a function of its number alone. ``stored`` cases hold no subnormal numbers, so that JAX's
results, which are stored as digests, say what is right.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
from awkward import arithmetic, control, moves
from awkward.values import FLOATS, dtype_of, make_operand
from awkward.writer import BITS, EXACT, Case, Value, Writer, write_case

SAMPLE = 8  # elements of a rounded result that are stored


def draws(depth: int) -> Sequence[Callable[[Writer], None]]:
    """The steps of a block in which blocks may be nested so deep."""
    plain = (*moves.DRAWS, *arithmetic.DRAWS)
    if depth == 0:
        return plain
    return (*plain, *[partial(draw, draws=draws) for draw in control.DRAWS] * 2)


def make_case(number: int, subnormal: bool = False) -> Case:
    """The case of a number."""
    return write_case(random.Random(number), draws, subnormal)


def operands(case: Case) -> list[np.ndarray]:
    """Fresh operands of a case, in their layouts."""
    return [make_operand(operand) for operand in case.operands]


def function_of(case: Case, framework: ModuleType) -> Callable[..., tuple[Any, ...]]:
    """The program of a case with ``jax``, ``jnp`` and ``lax`` of a framework."""
    names = {"jax": framework, "jnp": framework.numpy, "lax": framework.lax}
    exec(compile(case.source, f"<{framework.__name__} program>", "exec"), names)
    return names["program"]


# --- comparing -----------------------------------------------------------------------------


def _is_float(x: np.ndarray) -> bool:
    return x.dtype.kind in "fc" or x.dtype.name in FLOATS


def canonical(x: Any, grade: int) -> np.ndarray:
    """The array with one nan for all, unless its bits are meant."""
    x = np.array(x, order="C")
    if grade == BITS or not _is_float(x):
        return x
    for part in (x.real, x.imag) if x.dtype.kind == "c" else (x,):
        part[np.isnan(part)] = np.nan
    return x


def digest(x: Any, grade: int) -> str:
    """A few letters that say what an exact result is."""
    bits = canonical(x, grade).tobytes()
    return hashlib.blake2b(bits, digest_size=5).hexdigest()


def wide(x: Any) -> np.ndarray:
    """As float64."""
    return np.asarray(x).astype(np.float64)


def sample(x: Any) -> list[float]:
    """Some elements of a rounded result, which is real."""
    flat = wide(x).ravel()
    chosen = np.linspace(0, max(flat.size - 1, 0), min(SAMPLE, flat.size)).astype(int)
    return flat[chosen].tolist()


def check_type(got: Any, value: Value, what: str) -> None:
    dtype = np.dtype(got.dtype).name
    assert np.shape(got) == value.shape, f"{what} {value}: got the shape {np.shape(got)}"
    assert dtype == value.dtype, f"{what} {value}: got the dtype {dtype}"


def check_same(got: Any, want: Any, value: Value, what: str) -> None:
    """Two ways of computing a result agree as closely as its grade says."""
    if value.grade < EXACT:
        check_near(wide(got), wide(want), value, what)
        return
    a, b = canonical(got, value.grade), canonical(want, value.grade)
    shown = f"{what} {value}: got\n{a}\nwant\n{b}"
    assert a.tobytes() == b.tobytes(), shown


# An elementary function is right within some units in the last place, in 16 bits within one.
UNITS = {"float32": 8, "float16": 1, "bfloat16": 1}


def check_near(got: Any, want: Any, value: Value, what: str) -> None:
    """Within some units in the last place, nan and infinities where the other has them."""
    limits = ml_dtypes.finfo(dtype_of(value.dtype))
    np.testing.assert_allclose(
        got,
        want,
        rtol=UNITS[value.dtype] * float(limits.eps),
        atol=float(limits.smallest_subnormal),
        equal_nan=True,
        err_msg=f"{what} {value}",
    )


def source_digest(case: Case) -> str:
    """A few letters that say which program stored results belong to."""
    text = case.source + repr(case.operands)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
