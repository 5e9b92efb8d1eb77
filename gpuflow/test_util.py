"""Checks of derivatives against finite differences, under the names of jax.test_util.

Tests: tests/test_test_util.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.api.derivatives import jvp, vjp
from gpuflow.base import dtypes, tree
from gpuflow.base.errors import check
from gpuflow.base.names import public_names, publish
from gpuflow.base.util import safe_zip
from gpuflow.core.aval import aval_of

EPS = 1e-4
# By the names of dtypes: how far a derivative may be from a difference with a step of EPS.
_TOLERANCES = {
    "bfloat16": 1e-1,
    "float16": 1e-2,
    "float32": 2e-3,
    "float64": 1e-5,
    "complex64": 1e-3,
    "complex128": 1e-5,
}
Tolerance = float | dict[Any, float] | None


def check_grads(
    f: Callable[..., Any],
    args: Sequence[Any],
    order: int,
    modes: str | Sequence[str] = ("fwd", "rev"),
    atol: Tolerance = None,
    rtol: Tolerance = None,
    eps: float | None = None,
) -> None:
    """Compare derivatives of ``f`` at ``args`` with finite differences, in a random direction.

    Args:
        f: function of arrays or pytrees of floats or complex numbers.
        args: arguments of the function.
        order: highest order of derivatives to check.
        modes: ``"fwd"``, ``"rev"`` or both; for higher orders all combinations are checked.
        atol, rtol: tolerances, or dicts of them by dtype; 2e-3 for float32 by default.
        eps: step size of the finite differences.

    Raises:
        AssertionError: if a derivative differs.
        ValueError: if the mode is unknown.
    """
    directions = (modes,) if isinstance(modes, str) else tuple(modes)
    check(
        set(directions) <= {"fwd", "rev"},
        lambda: f"[check_grads] modes must be 'fwd' or 'rev'; got {modes!r}. Fix: modes=['rev'].",
        ValueError,
    )
    _check_order(f, tuple(args), order, directions, (atol, rtol, eps or EPS), "")


def _check_order(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    order: int,
    modes: Sequence[str],
    limits: tuple[Any, Any, float],
    what: str,
) -> None:
    def forward(*both: Any) -> Any:
        half = len(both) // 2
        return jvp(f, both[:half], both[half:])

    def backward(*primals: Any) -> Any:
        out, pull = vjp(f, *primals)
        return pull(out)

    of = f" of {what}" if what else ""
    if "fwd" in modes:
        check_jvp(f, functools.partial(jvp, f), args, *limits, f"JVP{of}")
        if order > 1:
            _check_order(forward, (*args, *args), order - 1, modes, limits, f"JVP{of}")
    if "rev" in modes:
        check_vjp(f, functools.partial(vjp, f), args, *limits, f"VJP{of}")
        if order > 1:
            _check_order(backward, args, order - 1, modes, limits, f"VJP{of}")


def check_jvp(
    f: Callable[..., Any],
    f_jvp: Callable[..., Any],
    args: Sequence[Any],
    atol: Tolerance = None,
    rtol: Tolerance = None,
    eps: float = EPS,
    err_msg: str = "",
) -> None:
    """Compare ``f_jvp`` with finite differences of ``f``, in a random direction.

    Args:
        f: function.
        f_jvp: its derivative, ``(args, tangents) -> (out, out_tangent)``, such as
            ``partial(gpuflow.jvp, f)``.
        args, atol, rtol, eps: as for ``check_grads``.
        err_msg: the beginning of the error message.

    Raises:
        AssertionError: if they differ.
    """
    args = tuple(args)
    tangents = _random_like(np.random.RandomState(0), args)
    out, out_tangent = f_jvp(args, tangents)
    want = f(*args)
    for value, other in ((out_tangent, out), (want, out)):
        _check_types(value, other, err_msg)
    _check_close(out, want, atol, rtol, f"{err_msg} primal".strip())
    slope = _difference(f, args, tangents, eps)
    _check_close(out_tangent, slope, atol, rtol, f"{err_msg} tangent".strip())


def check_vjp(
    f: Callable[..., Any],
    f_vjp: Callable[..., Any],
    args: Sequence[Any],
    atol: Tolerance = None,
    rtol: Tolerance = None,
    eps: float = EPS,
    err_msg: str = "",
) -> None:
    """Compare ``f_vjp`` with finite differences of ``f``, in a random direction.

    Args:
        f_vjp: ``(*args) -> (out, function of the cotangent)``, such as ``partial(gpuflow.vjp, f)``.
        f, args, atol, rtol, eps, err_msg: as for ``check_jvp``.

    Raises:
        AssertionError: if they differ.
    """
    args = tuple(args)
    rng = np.random.RandomState(0)
    out, pull = f_vjp(*args)
    _check_close(out, f(*args), atol, rtol, f"{err_msg} primal".strip())
    tangents = _random_like(rng, args)
    slope = _difference(f, args, tangents, eps)
    cotangents = _random_like(rng, out)
    back = _conjugate(pull(_conjugate(cotangents)))
    _check_close(
        _inner_product(tangents, back),
        _inner_product(slope, cotangents),
        atol,
        rtol,
        f"{err_msg} cotangent projection".strip(),
    )


# --- arithmetic of trees, in NumPy ---------------------------------------------------------


def _random_like(rng: np.random.RandomState, x: Any) -> Any:
    """Normal samples in the tree, the shapes and the dtypes of ``x``; float0 for integers."""

    def draw(leaf: Any) -> Any:
        aval = aval_of(leaf)
        if dtypes.tangent_dtype(aval.dtype) == dtypes.float0:
            return np.zeros(aval.shape, dtypes.float0)
        samples = rng.randn(*aval.shape)
        if dtypes.is_complex(aval.dtype):
            samples = samples + 1j * rng.randn(*aval.shape)
        return np.asarray(samples, aval.dtype)

    return tree.tree_map(draw, x)


def _conjugate(xs: Any) -> Any:
    return tree.tree_map(lambda x: np.conj(x) if dtypes.is_complex(x.dtype) else x, xs)


def _shifted(args: Any, tangents: Any, step: float) -> Any:
    def move(x: Any, t: Any) -> Any:
        if t.dtype == dtypes.float0:
            return x
        return (np.asarray(x) + t * step).astype(t.dtype)

    return tree.tree_map(move, args, tangents)


def _difference(f: Callable[..., Any], args: Any, tangents: Any, eps: float) -> Any:
    """The central difference of ``f`` along ``tangents``."""

    def divide(above: Any, below: Any) -> Any:
        above, below = np.asarray(above), np.asarray(below)
        if dtypes.tangent_dtype(above.dtype) == dtypes.float0:
            return np.zeros(above.shape, dtypes.float0)
        with np.errstate(invalid="ignore"):
            change = np.where(above == below, np.zeros_like(above), above - below)
        return (change * (0.5 / eps)).astype(above.dtype)

    ends = [f(*_shifted(args, tangents, step)) for step in (eps, -eps)]
    return tree.tree_map(divide, *ends)


def _inner_product(xs: Any, ys: Any) -> Any:
    """The real part of the inner product; leaves without derivative are skipped."""
    total: Any = np.float32(0)
    for x, y in safe_zip(tree.leaves(xs), tree.leaves(ys)):
        x, y = np.asarray(x), np.asarray(y)
        if dtypes.float0 not in (x.dtype, y.dtype):
            total = total + np.real(np.dot(np.conj(x).reshape(-1), y.reshape(-1)))
    return np.asarray(total)


def _tolerance(dtype: Any, tolerance: Tolerance) -> float:
    if tolerance is not None and not isinstance(tolerance, dict):
        return tolerance
    named = {np.dtype(key).name: value for key, value in (tolerance or {}).items()}
    return named.get(dtype.name, _TOLERANCES.get(dtype.name, 1e-1))


def _check_close(xs: Any, ys: Any, atol: Tolerance, rtol: Tolerance, what: str) -> None:
    """Compare leaves; tolerances grow with their sizes, as errors of sums do."""

    def compare(x: Any, y: Any) -> None:
        x, y = np.asarray(x), np.asarray(y)
        assert x.shape == y.shape, f"{what}: shapes {x.shape} and {y.shape}"
        if dtypes.float0 in (x.dtype, y.dtype) or not dtypes.is_inexact(x.dtype):
            assert x.dtype == y.dtype and (x.dtype == dtypes.float0 or (x == y).all()), what
            return
        absolute = max(_tolerance(z.dtype, atol) for z in (x, y)) * x.size
        relative = max(_tolerance(z.dtype, rtol) for z in (x, y)) * x.size
        wide = np.complex128 if dtypes.is_complex(x.dtype) else np.float64
        np.testing.assert_allclose(
            x.astype(wide), y.astype(wide), atol=absolute, rtol=relative, err_msg=what
        )

    tree.tree_map(compare, xs, ys)


def _check_types(xs: Any, ys: Any, what: str) -> None:
    """Check that dtypes agree; those of tangents with those of their primals."""

    def compare(x: Any, y: Any) -> None:
        kinds = {dtypes.tangent_dtype(np.asarray(z).dtype) for z in (x, y)}
        assert len(kinds - {dtypes.float0}) <= 1, f"{what}: dtypes {kinds}"

    tree.tree_map(compare, xs, ys)


publish(globals(), "test_util", public_names(globals(), __name__))
