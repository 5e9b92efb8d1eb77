"""gf.kernel.block: a function of one block, which computes a tile of the results, run for each.

Tests: tests/test_block_kernels.py.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

import gpuflow.numpy as jnp
from gpuflow.api.block_tuning import Parameters, fastest
from gpuflow.api.programs import explain, jit
from gpuflow.base import dtypes, tree
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.control.checkpoint import checkpoint
from gpuflow.control.jit_options import check_callable, name_of
from gpuflow.control.loops.branches import cond
from gpuflow.control.loops.scan_and_map import map as lax_map
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.refs import Ref
from gpuflow.ops.contractions.dot_general import dot_general
from gpuflow.ops.elementwise.arithmetic import div, rem
from gpuflow.ops.indexing.dynamic_slices import dynamic_slice
from gpuflow.runtime.device import default_device

if TYPE_CHECKING:
    from gpuflow.explaining.explanation import Explanation

Shape = tuple[int, ...]


@record
class _Tiling:
    """The tiling of one result.

    Attributes:
        aval: the aval of the result.
        tile: the shape of a tile; the last ones may exceed the result.
        counts: the number of tiles along each dimension.
    """

    aval: ShapedArray
    tile: Shape
    counts: Shape

    def merged(self, stacked: Any) -> Any:
        """The result from all its tiles, (number of tiles, \\*tile)."""
        if prod(self.counts) == 1:
            whole = stacked[0]
        else:
            ndim = len(self.tile)
            tiles = stacked.reshape(*self.counts, *self.tile)
            order = [d for pair in safe_zip(range(ndim), range(ndim, 2 * ndim)) for d in pair]
            sizes = [count * size for count, size in safe_zip(self.counts, self.tile)]
            whole = tiles.transpose(order).reshape(sizes)
        return whole[tuple([slice(n) for n in self.aval.shape])]


class Block:
    """One block of a kernel: its position in the grid, and loads of tiles.

    Attributes:
        index: its index in the grid, an int32 scalar for each dimension of the first result.
        start: the first element of its tile, an int32 scalar for each dimension.
        tile: the shape of that tile.
    """

    def __init__(self, name: str, tiling: _Tiling, index: tuple[Any, ...]) -> None:
        self._name, self._tiling = name, tiling
        self.index, self.tile = index, tiling.tile
        self.start = tuple([i * size for i, size in safe_zip(index, tiling.tile)])

    def load(
        self,
        x: Any,
        start: Sequence[Any] | None = None,
        shape: Sequence[int | None] | None = None,
        *,
        fill: Any = 0,
    ) -> Any:
        """A tile of an array.

        Args:
            x: the array.
            start: its first element, an integer for each dimension of ``x``; it may be computed,
                and be out of bounds. None: ``self.start``.
            shape: of the tile, ints; None for a whole dimension. None: ``self.tile``.
            fill: the value of elements of the tile that are out of bounds of ``x``. None: the tile
                must be in bounds; this is not checked, and the start is clamped, as by
                ``lax.dynamic_slice``.

        Returns:
            The tile, of the dtype of ``x``.

        Raises:
            TypeError, ValueError: the number of dimensions differs, or ``fill`` is not a value of
                the dtype.
        """
        x = jnp.asarray(x)
        whole = x.shape
        starts = self._per_dimension("start", x, self.start if start is None else start)
        sizes = self._per_dimension("shape", x, self.tile if shape is None else shape)
        sizes = [n if size is None else size for size, n in safe_zip(sizes, whole)]
        check(
            all(_is_int(size) and size >= 0 for size in sizes),
            lambda: (
                f"[kernel.block] the shape of a tile of {self._name} must be of ints, or None for "
                f"a whole dimension; got {tuple(sizes)!r}. Fix: take sizes from shapes or "
                "parameters; values of arrays are not known."
            ),
        )
        open_dims = [d for d in range(x.ndim) if not self._in_bounds(starts[d], sizes[d], whole[d])]
        starts = [jnp.asarray(s, np.int32) for s in starts]
        sizes_within = all(size <= n for size, n in safe_zip(sizes, whole))
        if sizes_within and (fill is None or not open_dims):
            return dynamic_slice(x, starts, sizes)
        value = self._fill(0 if fill is None else fill, x.dtype)

        def at_edge() -> Any:
            if 0 in whole:
                return jnp.full(sizes, value)
            indices = [s + jnp.arange(n, dtype=np.int32) for s, n in safe_zip(starts, sizes)]
            in_bounds = [(p >= 0) & (p < n) for p, n in safe_zip(indices, whole)]
            near = [jnp.clip(p, 0, n - 1) for p, n in safe_zip(indices, whole)]
            across = [i[(slice(None), *[None] * k)] for k, i in enumerate(reversed(in_bounds))]
            all_in_bounds = functools.reduce(operator.and_, reversed(across), np.True_)
            return jnp.where(all_in_bounds, x[jnp.ix_(*near)], value)

        if not sizes_within:
            return at_edge()
        tile_in_bounds = functools.reduce(
            operator.and_,
            [(starts[d] >= 0) & (starts[d] <= whole[d] - sizes[d]) for d in open_dims],
        )
        return cond(tile_in_bounds, lambda: dynamic_slice(x, starts, sizes), at_edge)

    def dot(self, a: Any, b: Any, add: Any = None) -> Any:
        """The product of two matrices, ``add + a @ b``; sums of 16-bit floats are float32.

        Args:
            a: (m, k).
            b: (k, n), of the same dtype.
            add: (m, n), or None.

        Raises:
            TypeError: if they are not such matrices.
        """
        a, b = jnp.asarray(a), jnp.asarray(b)
        check(
            a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0],
            lambda: (
                f"[kernel.block] dot in {self._name} must get tiles of (m, k) and (k, n); got "
                f"{aval_of(a)} and {aval_of(b)}. Fix: transpose one of them, or load as much of "
                "both."
            ),
        )
        is_half = dtypes.is_floating(a.dtype) and a.dtype.itemsize < 4
        product = dot_general(
            a, b, (((1,), (0,)), ((), ())), preferred_element_type=np.float32 if is_half else None
        )
        return product if add is None else add + product

    def _per_dimension(self, what: str, x: Any, given: Sequence[Any]) -> list[Any]:
        values = list(given) if isinstance(given, list | tuple) else [given]
        check(
            len(values) == x.ndim,
            lambda: (
                f"[kernel.block] {what} in {self._name} must have a number for each dimension of "
                f"{aval_of(x)}; got {len(values)}. Fix: b.load(x, (b.start[0], 0), (8, None))."
            ),
        )
        return values

    def _in_bounds(self, start: Any, size: int, whole: int) -> bool:
        """Whether a tile is statically in bounds of an array, along one dimension."""
        if isinstance(start, int | np.integer):
            return 0 <= int(start) <= whole - size
        own = [d for d, at in enumerate(self.start) if at is start]
        sizes = self._tiling.aval.shape
        return any(
            size <= self.tile[d] and sizes[d] % max(self.tile[d], 1) == 0 and sizes[d] <= whole
            for d in own
        )

    def _fill(self, fill: Any, dtype: np.dtype) -> Any:
        constant = np.asarray(fill)
        check(
            constant.ndim == 0 and (dtypes.is_inexact(dtype) or np.isfinite(constant)),
            lambda: (
                f"[kernel.block] fill in {self._name} must be representable in {dtype.name}; got "
                f"{fill!r}. Fix: jnp.iinfo(x.dtype).min instead of -inf."
            ),
            ValueError,
        )
        return jnp.asarray(fill, dtype)


class BlockKernel:
    """A function that ``gf.kernel.block`` made; call it with the arguments after the block.

    It can be used in ``jit``, ``vmap``, ``pmap``, ``shard_map`` and loops, and has derivatives.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        out: Callable[..., Any],
        tile: Callable[..., Any],
        autotune: Sequence[Mapping[str, Any]],
    ) -> None:
        functools.update_wrapper(self, function)
        self.__name__ = name_of(function)
        self._function, self._out, self._tile = function, out, tile
        self._autotune = tuple([tuple(sorted(candidate.items())) for candidate in autotune])
        self._selected: dict[Any, Parameters] = {}
        self._jitted = jit(self._bind, static_argnums=0)
        self._jitted.__name__ = self.__name__

    def __call__(self, *args: Any, **parameters: Any) -> Any:
        return self._jitted(self._parameters(args, parameters), *args)

    def explain(self, *args: Any, stage: str = "kernels", **parameters: Any) -> Explanation:
        """The composition of the blocks of such arguments, without running them.

        Args:
            args: arrays or ShapeDtypeStructs, as of a call.
            stage: as of ``gf.explain``.
            parameters: as of a call.

        Returns:
            Explanation: print it.
        """
        return explain(self._jitted, self._parameters(args, parameters), *args, stage=stage)

    def tuned(self, *args: Any, **parameters: Any) -> dict[str, Any]:
        """The parameters that calls with such arguments take, those of ``autotune`` included."""
        return dict(self._parameters(args, parameters))

    def _parameters(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> Parameters:
        for name, value in named.items():
            check(
                isinstance(value, int | float | bool | str | np.generic | None),
                lambda name=name, value=value: (
                    f"[kernel.block] parameters of {self.__name__} must be numbers or strings, "
                    f"which are part of the program; got {name}={value!r}. Fix: pass arrays by "
                    "position."
                ),
            )
        requested = tuple(sorted(named.items()))
        candidates = [
            tuple(sorted({**dict(candidate), **named}.items()))
            for candidate in self._autotune
            if all(named.get(name, value) == value for name, value in candidate)
        ]
        if len(set(candidates)) < 2:
            return candidates[0] if candidates else requested
        leaves, in_tree = tree.flatten(args)
        avals = tuple([aval_of(leaf) for leaf in leaves])
        key = (requested, avals, in_tree, default_device().platform)
        if key not in self._selected:
            ordered = list(dict.fromkeys(candidates))
            self._selected[key] = fastest(self.__name__, self._jitted, ordered, avals, in_tree)
        return self._selected[key]

    def _bind(self, parameters: Parameters, *args: Any) -> Any:
        name, named = self.__name__, dict(parameters)
        for leaf in tree.leaves(args):
            check(
                type(leaf) is not Ref,
                lambda leaf=leaf: (
                    f"[kernel.block] arguments of {name} must be arrays, which it reads alone; got "
                    f"{leaf.aval}. Fix: ref[...] = kernel(ref[...])."
                ),
            )
        specs, out_tree = tree.flatten(self._out(*args, **named))
        tilings = _tilings(name, specs, self._tile(*args, **named), out_tree)
        grid = tilings[0].counts

        def one(block_id: Any) -> list[Any]:
            block = Block(name, tilings[0], _unravelled(block_id, grid))
            tiles, tile_tree = tree.flatten(self._function(block, *args, **named))
            _check_tiles(name, tiles, tile_tree, tilings, out_tree)
            return tiles

        block_ids = jnp.arange(prod(grid), dtype=np.int32)
        # Derivatives load and compute a tile again: only the loaded arrays are residuals.
        run = checkpoint(one)
        stacks = lax_map(run, block_ids)
        results = [tiling.merged(stack) for tiling, stack in safe_zip(tilings, stacks)]
        return tree.unflatten(out_tree, results)


def block(
    function: Callable[..., Any] | None = None,
    *,
    out: Callable[..., Any],
    tile: Callable[..., Any],
    autotune: Sequence[Mapping[str, Any]] = (),
) -> Callable[..., Any]:
    """Make a kernel of a function of one block, which computes one tile of the results.

    Example::

        @gf.kernel.block(
            out=lambda x, rows: x, tile=lambda x, rows: (rows, None), autotune=[{"rows": 4},
                                                                               {"rows": 32}])
        def softmax(b, x, rows):
            values = b.load(x)
            e = jnp.exp(values - values.max(1, keepdims=True))
            return e / e.sum(1, keepdims=True)

    The function is traced once, for any block. It loads tiles, computes with them by any ``jnp``
    and ``lax`` functions (sums, running sums, products, loops over further tiles), and returns its
    tile of each result. It has no other outputs. Tiles cover the results, so that blocks do not see
    each other's writes.

    On the CPU several threads take blocks, each with memory for one block. On GPUs they are blocks
    of one kernel, if their programs contain only operations that a block can run by itself: all
    except library calls other than ``b.dot``.

    Derivatives, in both modes, compute tiles again; only the loaded tiles of a block are stored.
    ``vmap`` computes a block for all elements at once.

    Args:
        function: ``(block, *args, **parameters) -> tree of tiles``; see ``Block``. Arguments are
            whole arrays.
        out: ``(*args, **parameters) -> tree of arrays or ShapeDtypeStructs``, which the results
            are like.
        tile: ``(*args, **parameters) -> shape of a tile``, ints, or None for a whole dimension; for
            several results a tree like ``out`` of such shapes, which make as many blocks each.
        autotune: parameters to choose from: the fastest for the shapes of the arguments, which is
            measured once, with ones for elements, and kept with compiled kernels.

    Returns:
        A function of ``(*args, **parameters)``. Parameters are numbers or strings, and part of the
        program; those that a call names are not tuned.

    Raises:
        TypeError, ValueError: when the kernel is called, if tiles are not as described above.
    """
    if function is None:
        return functools.partial(block, out=out, tile=tile, autotune=autotune)
    for given in (function, out, tile):
        check_callable(given, "kernel.block")
    for candidate in autotune:
        check(
            isinstance(candidate, Mapping),
            lambda candidate=candidate: (
                "[kernel.block] autotune must be a list of dictionaries of parameters; got "
                f"{candidate!r} in it. Fix: autotune=[{{'rows': 4}}, {{'rows': 8}}]."
            ),
        )
    return BlockKernel(function, out, tile, autotune)


def _is_shape(item: Any) -> bool:
    return isinstance(item, list | tuple) and all(n is None or _is_int(n) for n in item)


def _is_int(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _unravelled(block_id: Any, grid: Shape) -> tuple[Any, ...]:
    """The index of a block in the grid, row-major."""
    index: list[Any] = []
    remaining = prod(grid)
    for count in reversed(grid):
        remaining //= max(count, 1)
        if count == 1:
            index.append(jnp.zeros((), np.int32))
        elif remaining == 1:
            index.append(block_id)
        else:
            index.append(rem(block_id, np.int32(count)))
            block_id = div(block_id, np.int32(count))
    return tuple(reversed(index))


def _tilings(name: str, specs: list[Any], tile: Any, out_tree: Any) -> list[_Tiling]:
    """The tilings of all results."""
    check(
        bool(specs) and all(hasattr(s, "shape") and hasattr(s, "dtype") for s in specs),
        lambda: (
            f"[kernel.block] out of {name} must be arrays or ShapeDtypeStructs; got {specs!r}. "
            "Fix: out=lambda x: gf.ShapeDtypeStruct(x.shape, x.dtype)."
        ),
    )
    shapes, tile_tree = tree.flatten(tile, _is_shape)
    check(
        tile_tree == out_tree,
        lambda: (
            f"[kernel.block] tile of {name} must be a shape for each result, in a tree like out; "
            f"got {tile!r}. Fix: tile=lambda x: (8, None) for one result."
        ),
    )
    tilings = []
    for spec, shape in safe_zip(specs, shapes):
        aval = ShapedArray(tuple(spec.shape), dtypes.canonicalize(spec.dtype))
        sizes = shape if isinstance(shape, list | tuple) else (shape,)
        check(
            len(sizes) == aval.ndim and all(n is None or (_is_int(n) and n > 0) for n in sizes),
            lambda aval=aval, sizes=sizes: (
                f"[kernel.block] a tile of {name} must have a size above 0, or None, for each "
                f"dimension of {aval}; got {tuple(sizes)!r}. Fix: (8, None) for eight whole rows."
            ),
            ValueError,
        )
        whole = tuple([n if size is None else int(size) for n, size in safe_zip(aval.shape, sizes)])
        pairs = safe_zip(aval.shape, whole)
        counts = tuple([1 if n == size else -(-n // size) for n, size in pairs])
        tilings.append(_Tiling(aval, whole, counts))
    blocks = [tuple([n for n in tiling.counts if n != 1]) for tiling in tilings]
    check(
        len(set(blocks)) == 1,
        lambda: (
            f"[kernel.block] results of {name} must have as many tiles each; got "
            f"{' and '.join(str(t.counts) for t in tilings)}. Fix: tiles of as many rows."
        ),
        ValueError,
    )
    return tilings


def _check_tiles(
    name: str, tiles: Sequence[Any], tile_tree: Any, tilings: Sequence[_Tiling], out_tree: Any
) -> None:
    check(
        tile_tree == out_tree,
        lambda: (
            f"[kernel.block] {name} must return a tile for each result, in a tree like out, "
            f"{tree.text(out_tree)}; got {tree.text(tile_tree)}. "
            "Fix: return as many tiles as out has arrays."
        ),
    )
    for tile, tiling in safe_zip(tiles, tilings):
        got, expected = aval_of(tile), ShapedArray(tiling.tile, tiling.aval.dtype)
        check(
            (got.shape, got.dtype) == (expected.shape, expected.dtype),
            lambda got=got, expected=expected: (
                f"[kernel.block] {name} must return a tile of {expected}; got {got}. Fix: "
                f".astype(jnp.{expected.dtype.name}) and the shape given by tile=; tiles at edges "
                "have the same shape."
            ),
        )
