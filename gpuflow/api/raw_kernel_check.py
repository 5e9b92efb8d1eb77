"""Raw kernels and their rules, compared with each other at several sizes.

Tests: tests/test_raw_kernels.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gpuflow.api.derivatives import jvp, vjp
from gpuflow.api.devices import device_put
from gpuflow.api.programs import enable_x64
from gpuflow.api.vmap import vmap
from gpuflow.base import dtypes, tree
from gpuflow.base.records import record

Function = Callable[..., Any]
_COPIES = 3  # elements of a mapped axis
# Relative to the largest value. A derivative by differences of float64 is good for 1e-8 or so; by
# differences of float32, with steps of 1e-2, for a few percent where second derivatives are of the
# size of the values.
_STEP = {"float32": 1e-2, "float64": 1e-5}
_BY_DIFFERENCES = {"float32": 5e-2, "float64": 1e-5}
# Sums of a thousand products in another order, and functions of another library.
_ROUNDING = {"float16": 2e-2, "float32": 1e-3, "float64": 1e-9}


@record
class Compared:
    """One comparison.

    Attributes:
        what: names of the two compared computations.
        sizes: the dimensions of the arguments, original and substituted.
        difference: the largest, relative to the largest value.
    """

    what: str
    sizes: dict[int, int]
    difference: float


@record
class Report:
    """Comparisons of ``check``; printed as a table."""

    rows: tuple[Compared, ...]

    def __str__(self) -> str:
        table = ["what                                  sizes            largest difference"]
        for row in self.rows:
            sizes = ", ".join(f"{a}: {b}" for a, b in row.sizes.items()) or "as given"
            table.append(f"{row.what:37} {sizes:16} {row.difference:.1e}")
        return "\n".join(table)


def check_kernel(
    kernel: Any,
    reference: Function | None,
    has_derivative: bool,
    has_gradient: bool,
    args: Sequence[Any],
    sizes: Sequence[int],
) -> Report:
    """Implementation of ``RawKernel.check``."""
    rows: list[Compared] = []
    name = kernel.__name__
    run, reference = _of_arrays(kernel), None if reference is None else _of_arrays(reference)
    for changed, case_args in _cases(args, sizes):
        rng = np.random.default_rng(0)
        try:
            for what, result, expected, tolerance in _comparisons(
                run, reference, has_derivative, has_gradient, case_args, rng
            ):
                difference = _difference(result, expected)
                if not difference <= tolerance:
                    raise AssertionError(
                        f"[raw_kernel] of {name}, {what} must agree to {tolerance:.0e} of the "
                        f"largest value; got a difference of {difference:.1e} at sizes "
                        f"{_describe(changed, case_args)}. Fix: the rule or kernel that is wrong "
                        "there."
                    )
                rows.append(Compared(what, changed, difference))
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(
                f"[raw_kernel] {name} must run at sizes {_describe(changed, case_args)}; got "
                f"{type(error).__name__}: {error} Fix: the kernel, or sizes= that it is for."
            ) from error
    return Report(tuple(rows))


def _of_arrays(function: Function) -> Function:
    """The function, also for NumPy arrays."""

    def run(*args: Any) -> Any:
        return function(*[device_put(x) if isinstance(x, np.ndarray) else x for x in args])

    return run


def _comparisons(
    kernel: Function,
    reference: Function | None,
    has_derivative: bool,
    has_gradient: bool,
    args: Sequence[Any],
    rng: np.random.Generator,
) -> Iterator[tuple[str, Any, Any, float]]:
    """(name, result, reference, tolerance) of each comparison."""
    arrays = [k for k, arg in enumerate(args) if isinstance(arg, np.ndarray)]
    floats = [k for k in arrays if dtypes.is_inexact(args[k].dtype)]

    def at(function: Function, positions: Sequence[int]) -> Function:
        def run(*values: Any) -> Any:
            whole = list(args)
            for k, value in zip(positions, values, strict=True):
                whole[k] = value
            return function(*whole)

        return run

    out = kernel(*args)
    kind = _widest([*[args[k] for k in floats], *tree.leaves(out)])
    rounding = _ROUNDING[kind]
    if reference is not None:
        yield "values with the reference", out, reference(*args), rounding
    if floats and (has_derivative or has_gradient):
        primals = [args[k] for k in floats]
        run = at(kernel, floats)
        tangents = [_noise(rng, x) for x in primals]
        if has_derivative:
            derivative = jvp(run, tuple(primals), tuple(tangents))[1]
            differences, precision = _differences(
                at(reference or kernel, floats), primals, tangents, reference is not None
            )
            tolerance = max(_BY_DIFFERENCES[precision], rounding)
            yield "jvp with differences", derivative, differences, tolerance
        if has_gradient:
            _, pull = vjp(run, *primals)
            cotangent = tree.tree_map(lambda x: _noise(rng, np.asarray(x)), out)
            back = _inner(pull(cotangent), tangents)
            if has_derivative:
                forth = _inner([cotangent], [derivative])
                yield "vjp with jvp", back, forth, rounding
            else:
                slopes, precision = _differences(run, primals, tangents, False)
                forth = _inner([cotangent], [slopes])
                yield "vjp with differences", back, forth, _BY_DIFFERENCES[precision]
    if arrays:
        yield from _mapped(at, kernel, arrays, args, rng, rounding)


def _mapped(
    at: Function,
    kernel: Function,
    arrays: Sequence[int],
    args: Sequence[Any],
    rng: np.random.Generator,
    tolerance: float,
) -> Iterator[tuple[str, Any, Any, float]]:
    """vmap over all arrays, and over each of several."""
    mapped_sets = [list(arrays), *([[k] for k in arrays] if len(arrays) > 1 else [])]
    for positions in mapped_sets:
        stacks = [_stack(rng, args[k]) for k in positions]
        run = at(kernel, positions)
        single = [run(*[stack[n] for stack in stacks]) for n in range(_COPIES)]
        loop = tree.tree_map(lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *single)
        label = "all arguments" if len(positions) == len(arrays) else f"argument {positions[0]}"
        yield f"vmap over {label} with a loop", vmap(run)(*stacks), loop, tolerance


def _differences(
    function: Function, primals: Sequence[np.ndarray], tangents: Sequence[np.ndarray], wide: bool
) -> tuple[Any, str]:
    """Central differences along ``tangents``, and the precision they were made in.

    Args:
        function, primals, tangents: the point and direction.
        wide: the function takes float64.
    """
    kind = "float64" if wide else _widest(primals)
    kind = kind if kind in _STEP else "float32"
    step = _STEP[kind]

    def shifted(sign: float) -> Any:
        pairs = zip(primals, tangents, strict=True)
        points = [
            (x.astype(_wide(x.dtype)) + sign * step * v).astype(_wide(x.dtype) if wide else x.dtype)
            for x, v in pairs
        ]
        return tree.tree_map(_as_wide, function(*points))

    if wide:
        with enable_x64(True):
            up, down = shifted(1.0), shifted(-1.0)
    else:
        up, down = shifted(1.0), shifted(-1.0)
    return tree.tree_map(lambda a, b: (a - b) / (2 * step), up, down), kind


def _wide(dtype: Any) -> Any:
    return np.complex128 if dtypes.is_complex(dtype) else np.float64


def _as_wide(x: Any) -> np.ndarray:
    array = np.asarray(x)
    return array.astype(_wide(array.dtype))


def _widest(arrays: Sequence[Any]) -> str:
    """The least precise of the dtypes of floats."""
    names = [np.dtype(x.dtype).name for x in arrays]
    kinds = {"complex64": "float32", "complex128": "float64"}
    present = {kinds.get(name, name) for name in names}
    for name in ("float32", "float64"):
        if name in present:
            return name
    return "float16" if present & {"float16", "bfloat16"} else "float32"


def _noise(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Numbers of the type of an array, from a normal distribution."""
    values = rng.standard_normal(x.shape)
    if dtypes.is_complex(x.dtype):
        return (values + 1j * rng.standard_normal(x.shape)).astype(x.dtype)
    if dtypes.is_inexact(x.dtype):
        return values.astype(x.dtype)
    return np.zeros(x.shape, dtypes.float0)


def _stack(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Copies of ``x``: floats perturbed, other elements permuted."""
    copies = []
    for _ in range(_COPIES):
        if dtypes.is_inexact(x.dtype):
            copies.append((x + 0.01 * _noise(rng, x)).astype(x.dtype))
        else:
            copies.append(rng.permutation(x.reshape(-1)).reshape(x.shape))
    return np.stack(copies)


def _inner(cotangents: Any, tangents: Any) -> np.ndarray:
    """The sum of products of two lists of trees, in float64."""
    pairs = zip(tree.leaves(cotangents), tree.leaves(tangents), strict=True)
    total = 0.0
    for a, b in pairs:
        if np.asarray(a).dtype != dtypes.float0 and np.asarray(b).dtype != dtypes.float0:
            total += float(np.sum(_as_wide(a) * _as_wide(b)).real)
    return np.asarray(total)


def _difference(result: Any, expected: Any) -> float:
    """The largest difference of two trees, relative to the largest expected value."""
    lefts, rights = tree.leaves(result), tree.leaves(expected)
    if tree.structure(result) != tree.structure(expected):
        return np.inf
    worst = 0.0
    for left, right in zip(lefts, rights, strict=True):
        x, y = np.asarray(left), np.asarray(right)
        if x.shape != y.shape:
            return np.inf
        if x.dtype == dtypes.float0 or not x.size:
            continue
        x, y = _as_wide(x), _as_wide(y)
        equal = (x == y) | (np.isnan(x) & np.isnan(y))
        with np.errstate(invalid="ignore"):
            gaps = np.where(equal, 0.0, np.abs(x - y))
        finite = np.abs(y[np.isfinite(y)])
        scale = max(float(finite.max(initial=0.0)), 1.0)
        worst = max(worst, float(np.where(np.isnan(gaps), np.inf, gaps).max()) / scale)
    return worst


def _cases(args: Sequence[Any], sizes: Sequence[int]) -> Iterator[tuple[dict[int, int], list[Any]]]:
    """The arguments as they are, and with other sizes."""
    arguments = [
        arg if isinstance(arg, bool | int | float | complex | np.generic) else np.asarray(arg)
        for arg in args
    ]
    yield {}, arguments
    arrays = [arg for arg in arguments if isinstance(arg, np.ndarray)]
    for old in sorted({n for x in arrays for n in x.shape}):
        for new in sizes:
            if new == old:
                continue
            resized = [_resized(x, old, new) if isinstance(x, np.ndarray) else x for x in arguments]
            if all(x is not None for x in resized):
                yield {old: new}, resized


def _resized(x: np.ndarray, old: int, new: int) -> np.ndarray | None:
    """``x`` with size ``new`` for each dimension of size ``old``; None: indices into an empty one.

    Integers that could be indices of the dimension stay in bounds.
    """
    may_be_index = dtypes.is_integer(x.dtype) and x.size and x.min() >= 0 and x.max() < old
    for axis, size in enumerate(x.shape):
        if size == old:
            indices = np.arange(new) % max(old, 1)
            resized = _at(x.shape, axis, new)
            x = np.take(x, indices, axis) if old else np.zeros_like(x, shape=resized)
    if may_be_index and x.size:
        return None if new == 0 else x % new
    return x


def _at(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _describe(changed: dict[int, int], case: Sequence[Any]) -> str:
    shapes = ", ".join(str(list(x.shape)) for x in case if isinstance(x, np.ndarray))
    return f"{shapes}" + "".join(f" ({new} for {old})" for old, new in changed.items())
