"""gf.kernel: a function of one index, run for each index of a grid in one kernel.

Tests: tests/control/test_kernel.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gpuflow.api.block_kernel import block
from gpuflow.api.programs import explain, jit
from gpuflow.base import tree
from gpuflow.base.errors import check
from gpuflow.control.jit_options import check_callable, name_of
from gpuflow.control.loops.lane_kernel import INDEX, bind_kernel
from gpuflow.control.programs import trace_program
from gpuflow.core.aval import aval_of
from gpuflow.core.refs import Ref

if TYPE_CHECKING:
    from gpuflow.explaining.explanation import Explanation


class Kernel:
    """A function that ``gf.kernel`` made; call it with the arguments after the index.

    It can be used in ``jit``, ``vmap``, ``pmap``, ``shard_map`` and loops, and has derivatives.
    """

    def __init__(self, function: Callable[..., Any], grid: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._grid = function, grid
        self._jitted = jit(self._bind)
        self._jitted.__name__ = name_of(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._jitted(*args, **kwargs)

    def explain(self, *args: Any, stage: str = "text", **kwargs: Any) -> Explanation:
        """The kernel for such arguments, without running it.

        Args:
            args, kwargs: arrays or ShapeDtypeStructs, as of a call.
            stage: as of ``gf.explain``: by default the text of the kernel.

        Returns:
            Explanation: print it.
        """
        return explain(self._jitted, *args, stage=stage, **kwargs)

    def _bind(self, *args: Any, **kwargs: Any) -> Any:
        name = name_of(self._function)
        sizes = _sizes(self._grid(*args, **kwargs), name)
        leaves, in_tree = tree.flatten((args, kwargs))
        for leaf in leaves:
            check(
                type(leaf) is not Ref,
                lambda leaf=leaf: (
                    f"[kernel] arguments of {name} must be arrays, which it only reads; got "
                    f"{leaf.aval}. Fix: return the value to write at each index, and assign "
                    "ref[...] = kernel(ref[...])."
                ),
            )

        def one(index: Any, operands: Any) -> Any:
            call_args, call_kwargs = operands
            return self._function(index, *call_args, **call_kwargs)

        index = tuple([INDEX] * len(sizes)) if len(sizes) != 1 else INDEX
        _, whole = tree.flatten((index, tree.unflatten(in_tree, leaves)))
        avals = [*[INDEX] * len(sizes), *map(aval_of, leaves)]
        program = trace_program("kernel", one, whole, avals, name, identity=self)
        check(
            not program.jaxpr.effects,
            lambda: (
                f"[kernel] {name} must have no effects; got "
                f"{sorted(map(str, program.jaxpr.effects))}. Fix: print, call back or check "
                "outside of the kernel."
            ),
        )
        operands = [*program.closed_values, *leaves]
        outs = bind_kernel(program.jaxpr, len(program.closed_values), operands, sizes, name)
        return tree.unflatten(program.out_tree, outs)


class _KernelFunction(Protocol):
    """A function of ``kernel``, with that of programs of one block."""

    block: Callable[..., Any]

    def __call__(
        self, function: Callable[..., Any] | None = None, *, grid: Callable[..., Any]
    ) -> Callable[..., Any]: ...


def _with_block(function: Any) -> _KernelFunction:
    function.block = block
    return function


@_with_block
def kernel(
    function: Callable[..., Any] | None = None, *, grid: Callable[..., Any]
) -> Callable[..., Any]:
    """Compile a function of an index to exactly one kernel, or raise an error with the reason.

    The function is traced once, for one index. It may read arrays at computed indices, run loops of
    dynamic length, branch, and draw random numbers. It returns the values at its index and has no
    other outputs. It can use at most 128 values of an array at a time; longer arrays are read
    element by element.

    Forward-mode derivatives and vmap, which adds leading dimensions to the grid, are single kernels
    again. Gradients are not: they sum, for each element, over all indices that read it, and use the
    steps of ``jit(vmap(...))``.

    Args:
        function: ``(index, *args, **kwargs) -> tree of arrays``. The index is an int32 scalar, or a
            tuple of them unless the grid is one-dimensional. Arguments are whole arrays.
        grid: ``(*args, **kwargs) -> sizes``, a function of shapes that returns ints, outermost
            first; () for a single work item.

    Returns:
        A function of ``(*args, **kwargs)``. Its results have the dimensions of the grid, followed
        by those of one index. ``print(f.explain(*args))`` prints the source of the kernel.

    Raises:
        TypeError: when the kernel is called, if the program cannot be one kernel, has effects, or
            the grid does not consist of ints. The message contains the equation and its line.

    Example:
        >>> @gf.kernel(grid=lambda x, index, scale: index.shape)
        ... def lookup(i, x, index, scale):
        ...     return x[index[i]] * scale
        >>> lookup(jnp.array([1.0, 5.0, 7.0]), jnp.array([2, 0]), 10.0)
        Array([70., 10.], dtype=float32)
    """
    if function is None:
        return functools.partial(kernel, grid=grid)
    check_callable(function, "kernel")
    check_callable(grid, "kernel")
    return Kernel(function, grid)


def _sizes(grid: Any, name: str) -> tuple[int, ...]:
    sizes = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
    check(
        all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 0 for n in sizes),
        lambda: (
            f"[kernel] the grid of {name} must be ints that are not negative; got {grid!r}. Fix: "
            "take them from shapes, as in grid=lambda x: x.shape; values of arrays are not known."
        ),
    )
    return tuple(int(size) for size in sizes)
