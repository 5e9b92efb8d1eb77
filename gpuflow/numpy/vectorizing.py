"""``vectorize``: map functions of scalars, or of arrays with core axes, over arrays.

Tests: tests/numpy/test_numpy_gradients.py, tests/numpy/test_numpy_errors.py.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from gpuflow.api.vmap import vmap
from gpuflow.base.errors import check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.aval import aval_of
from gpuflow.numpy.creation import asarray
from gpuflow.numpy.promotion import broadcast_shapes, check_rank_promotion
from gpuflow.numpy.shaping import expand_dims, squeeze

Function = Callable[..., Any]
Dims = tuple[str, ...]


@explained
def vectorize(
    pyfunc: Function,
    *,
    excluded: Collection[int | str] = frozenset(),
    signature: str | None = None,
) -> Function:
    """Vectorize a function of scalars, or of arrays with core dimensions.

    Args:
        pyfunc: the function; it may return a tuple.
        excluded: arguments that are not mapped: indices, and names of keyword arguments.
        signature: core dimensions of the function, as in ``"(m,n),(n)->(m)"``; none by default.

    Returns:
        A function that maps ``pyfunc`` over all other axes, which broadcast.

    Raises:
        TypeError, ValueError: immediately, if ``excluded`` or ``signature`` is invalid; when the
            returned function is called, if shapes do not match.

    Example:
        >>> product = jnp.vectorize(jnp.dot, signature="(n),(n)->()")
        >>> product(jnp.array([[1, 2], [3, 4]]), jnp.array([1, 10]))
        Array([21, 43], dtype=int32)
    """
    check(
        all(isinstance(item, (int, str)) for item in excluded),
        lambda: (
            f"[vectorize] excluded must hold positions and names; got {set(excluded)!r}. "
            "Fix: excluded={0, 'name'}."
        ),
    )
    check(
        all(isinstance(item, str) or item >= 0 for item in excluded),
        lambda: (
            f"[vectorize] excluded positions must not be negative; got {set(excluded)!r}. "
            "Fix: count from the front."
        ),
        ValueError,
    )
    parsed = None if signature is None else _parse(signature)

    @functools.wraps(pyfunc)
    def vectorized(*args: Any, **kwargs: Any) -> Any:
        fixed = {k for k, arg in enumerate(args) if k in excluded or arg is None}
        positional = [asarray(arg) for k, arg in enumerate(args) if k not in fixed]
        constants = {name: value for name, value in kwargs.items() if name in excluded}
        mapped = {n: asarray(value) for n, value in kwargs.items() if n not in excluded}

        def function(*values: Any) -> Any:
            remaining = iter(values)
            full = [args[k] if k in fixed else next(remaining) for k in range(len(args))]
            return pyfunc(*full, **dict(zip(mapped, remaining, strict=True)), **constants)

        inputs, outputs = _dims_of(parsed, args, excluded, len(mapped))
        return _broadcast_map(function, [*positional, *mapped.values()], inputs, outputs)

    return vectorized


_NAME = r"\w+"
_DIMS = rf"\((?:{_NAME}(?:,{_NAME})*)?\)"
_SIGNATURE = re.compile(rf"{_DIMS}(?:,{_DIMS})*->{_DIMS}(?:,{_DIMS})*")


def _parse(signature: str) -> tuple[list[Dims], list[Dims]]:
    text = signature.replace(" ", "")
    check(
        _SIGNATURE.fullmatch(text) is not None,
        lambda: (
            f"[vectorize] signature must have the form '(m,n),(n)->(m)'; got {signature!r}. "
            "Fix: write () for numbers."
        ),
        ValueError,
    )
    sides = [re.findall(_DIMS, side) for side in text.split("->")]
    inputs, outputs = ([tuple(re.findall(_NAME, dims)) for dims in side] for side in sides)
    return inputs, outputs


def _dims_of(
    parsed: Any, args: Sequence[Any], excluded: Collection[int | str], keywords: int
) -> tuple[list[Dims], list[Dims] | None]:
    """Core axes of each mapped argument and of the results."""
    mapped = [arg for k, arg in enumerate(args) if k not in excluded]
    if parsed is None:
        return [()] * (sum(arg is not None for arg in mapped) + keywords), None
    inputs, outputs = parsed
    check(
        len(inputs) == len(mapped),
        lambda: (
            "[vectorize] the signature must have one term for each of the positional "
            f"arguments, and has {len(inputs)}; got {len(mapped)}. Fix: change the signature."
        ),
    )
    check(
        all(arg is not None or not dims for arg, dims in zip(mapped, inputs, strict=True)),
        lambda: (
            "[vectorize] None must be an argument without axes in the signature; got None with "
            f"{inputs}. Fix: excluded=..."
        ),
        ValueError,
    )
    core_dims = [dims for arg, dims in zip(mapped, inputs, strict=True) if arg is not None]
    return core_dims + [()] * keywords, outputs


def _broadcast_map(
    function: Function, args: list[Any], inputs: list[Dims], outputs: list[Dims] | None
) -> Any:
    """Map over the axes in front of the core axes."""
    sizes: dict[str, int] = {}
    outer = []
    for arg, dims in zip(args, inputs, strict=True):
        shape = aval_of(arg).shape
        _note_sizes(sizes, shape, dims, is_input=True)
        outer.append(shape[: len(shape) - len(dims)])
    _check_ranks(outer)
    full = broadcast_shapes(*outer, name="vectorize")
    mapped = function if outputs is None else _checked(function, outputs, sizes)
    added = []
    # Axes of size 1 are dropped, and not mapped for that argument: it broadcasts.
    for d in range(1, len(full) + 1):
        axis_sizes = [shape[-d] if d <= len(shape) else 1 for shape in outer]
        if all(n == 1 for n in axis_sizes):
            added.append(len(full) - d)
        else:
            mapped = vmap(mapped, tuple(None if n == 1 else 0 for n in axis_sizes))
    thin = [
        squeeze(arg, tuple(k for k, n in enumerate(shape) if n == 1))
        for arg, shape in zip(args, outer, strict=True)
    ]
    out = mapped(*thin)
    if not added:
        return out
    axes = tuple(sorted(added))
    if isinstance(out, tuple):
        return tuple(expand_dims(result, axes) for result in out)
    return expand_dims(out, axes)


def _check_ranks(outer: Sequence[tuple[int, ...]]) -> None:
    if len({len(shape) for shape in outer if shape}) > 1:
        check_rank_promotion("vectorize", outer)


def _note_sizes(
    sizes: dict[str, int], shape: tuple[int, ...], dims: Dims, *, is_input: bool
) -> None:
    """Record the sizes of named axes; ValueError if they do not match."""
    fits = len(shape) >= len(dims) if is_input else len(shape) == len(dims)
    check(
        fits,
        lambda: (
            f"[vectorize] the signature wants the axes {dims}; got shape {shape}. "
            "Fix: change the signature."
        ),
        ValueError,
    )
    for name, size in zip(dims, shape[len(shape) - len(dims) :], strict=True):
        recorded = sizes.setdefault(name, size)
        check(
            recorded == size,
            lambda name=name, recorded=recorded, size=size: (
                f"[vectorize] axis {name!r} must have one size; got {recorded} and {size}. "
                "Fix: give the axes different names."
            ),
            ValueError,
        )


def _checked(function: Function, outputs: list[Dims], sizes: dict[str, int]) -> Function:
    """The function with a check of its results against the signature."""

    def wrapped(*args: Any) -> Any:
        out = function(*args)
        results = out if isinstance(out, tuple) else (out,)
        check(
            len(results) == len(outputs) and (len(outputs) == 1 or isinstance(out, tuple)),
            lambda: (
                f"[vectorize] the function must return the {len(outputs)} results of the "
                f"signature; got {len(results)}. Fix: return a tuple."
            ),
        )
        all_sizes = dict(sizes)
        for result, dims in zip(results, outputs, strict=True):
            _note_sizes(all_sizes, aval_of(result).shape, dims, is_input=False)
        return out

    return wrapped
