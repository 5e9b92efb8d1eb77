"""shard_map: a program for the blocks of arrays, one block for each device of a mesh.

Devices that share a driver are a batch: blocks become rows, the program is mapped over each axis of
the mesh, and collectives over it are its batch rules (docs/design/0016-many-devices.md).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import field
from math import prod
from typing import Any

from gpuflow.base import tree
from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.control.jit import operand_avals
from gpuflow.control.jit_function import JitFunction, argument_names
from gpuflow.control.jit_options import JitOptions, name_of
from gpuflow.control.mapped_axes import first_element, output_name
from gpuflow.core.aval import aval_of, is_value
from gpuflow.core.rules import AxisData
from gpuflow.core.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, names_of
from gpuflow.core.trace import eval_trace, thread_state
from gpuflow.ops.axes import move_axis, reshape, transpose
from gpuflow.ops.named_axes import repeat_in_front
from gpuflow.runtime.array import Array
from gpuflow.runtime.sharded import check_one_memory, whole_of, with_sharding
from gpuflow.transforms.batching import batch_flat


@record
class ShardMapOptions:
    """What ``shard_map`` was asked for; see there."""

    mesh: Mesh
    in_specs: Any
    out_specs: Any
    check_vma: bool
    axes: tuple[Any, ...]  # those over which the program is written, in the mesh's order

    @property
    def sizes(self) -> dict[Any, int]:
        """The size of each axis."""
        return dict(self.mesh.shape)


@record(frozen=False)
class _Blocks:
    """The program for one structure of arguments; what it gives is known once it was traced."""

    run: Callable[..., list[Any]]
    jitted: JitFunction
    out_tree: Any = None
    specs: list[PartitionSpec] = field(default_factory=list)
    shardings: dict[PartitionSpec, Sharding] = field(default_factory=dict)


class ShardMapFunction:
    """A function of whole arrays that runs on blocks; see ``shard_map``."""

    def __init__(self, function: Callable[..., Any], options: ShardMapOptions) -> None:
        functools.update_wrapper(self, function)
        self._function, self._options = function, options
        self._known: dict[Any, _Blocks] = {}
        self.name = name_of(function)

    def __repr__(self) -> str:
        return f"<shard_map of {self.name}>"

    def __call__(self, *args: Any) -> Any:
        options = self._options
        leaves, in_tree = tree.flatten(args)
        leaves = [whole_of(leaf) for leaf in leaves]
        specs = _specs("in_specs", options.in_specs, args, self.name)
        self._check_inputs(args, leaves, specs)
        key = (in_tree, tuple(specs), operand_avals(leaves))
        blocks = self._known.get(key)
        if blocks is None:
            blocks = self._known[key] = self._make(in_tree, specs)
        is_eager = thread_state.trace is eval_trace
        outs = blocks.jitted(*leaves) if is_eager else blocks.run(*leaves)
        if is_eager:
            outs = [self._placed(blocks, out, k) for k, out in enumerate(outs)]
        return tree.unflatten(blocks.out_tree, outs)

    def _placed(self, blocks: _Blocks, out: Any, number: int) -> Any:
        if type(out) is not Array:
            return out
        spec = blocks.specs[number]
        sharding = blocks.shardings.get(spec)
        if sharding is None:
            sharding = blocks.shardings[spec] = NamedSharding(self._options.mesh, spec)
        return with_sharding(out, sharding)

    def _check_inputs(
        self, args: Sequence[Any], leaves: Sequence[Any], specs: Sequence[PartitionSpec]
    ) -> None:
        names = functools.cache(lambda: argument_names(self._function, tuple(args), {}))
        for k, (leaf, spec) in enumerate(safe_zip(leaves, specs)):
            check(
                is_value(leaf),
                lambda k=k, leaf=leaf: (
                    f"[shard_map] arguments of {self.name} must be arrays or numbers; got "
                    f"{leaf!r} of type {type(leaf).__name__} as {names()[k]}. "
                    "Fix: close over it, as functools.partial does."
                ),
                TypeError,
            )
            shape = aval_of(leaf).shape
            counts = self._counts(spec, shape, "in_specs", lambda k=k: names()[k])
            for dim, count in enumerate(counts):
                check(
                    shape[dim] % count == 0,
                    lambda k=k, dim=dim, count=count, shape=shape, spec=spec: (
                        f"[shard_map] dimension {dim} of {names()[k]} must be divisible by "
                        f"{count}, the size of the mesh axes of {spec}; got shape {shape}. "
                        f"Fix: pad it to {-(-shape[dim] // count) * count}."
                    ),
                    ValueError,
                )

    def _counts(
        self, spec: PartitionSpec, shape: Sequence[int], what: str, name: Callable[[], str]
    ) -> list[int]:
        """Into how many blocks each dimension is cut."""
        options = self._options
        check(
            len(spec) <= len(shape),
            lambda: (
                f"[shard_map] {what} must have at most one item for each dimension; got {spec} "
                f"for {name()} of shape {tuple(shape)}. Fix: leave out the last ones."
            ),
            ValueError,
        )
        names = [own for part in spec for own in names_of(part)]
        check(
            set(names) <= set(options.axes) and len(set(names)) == len(names),
            lambda: (
                f"[shard_map] {what} must hold axes of the mesh, each once; got {spec} for "
                f"{name()}. Fix: use names of {options.axes}, or None."
            ),
            ValueError,
        )
        counts = [prod(options.sizes[own] for own in names_of(part)) for part in spec]
        return counts + [1] * (len(shape) - len(spec))

    def _make(self, in_tree: Any, specs: Sequence[PartitionSpec]) -> _Blocks:
        options = self._options
        results: list[Any] = []

        def user(*values: Any) -> list[Any]:
            result = self._function(*tree.unflatten(in_tree, values))
            outs, made.out_tree = tree.flatten(result)
            made.specs = _specs("out_specs", options.out_specs, result, self.name)
            results[:] = [result]
            for k, (out, spec) in enumerate(safe_zip(outs, made.specs)):
                self._counts(
                    spec, aval_of(out).shape, "out_specs",
                    lambda k=k: output_name(results[0], k, self.name),
                )  # fmt: skip
            return outs

        def level(number: int) -> Callable[..., list[Any]]:
            """The program for the blocks of one place along the first ``number`` axes."""
            if number == len(options.axes):
                return user
            name, inner = options.axes[number], level(number + 1)
            axis = AxisData(name, options.sizes[name])
            dims = [0 if name in _all_names(spec) else None for spec in specs]

            def mapped(*values: Any) -> list[Any]:
                uniform: list[bool] = []
                outs, out_dims = batch_flat(inner, axis, values, dims, uniform)
                return [
                    self._gathered(out, dim, axis, number, made.specs[k], uniform[k], results, k)
                    for k, (out, dim) in enumerate(safe_zip(outs, out_dims))
                ]

            return mapped

        def run(*leaves: Any) -> list[Any]:
            blocks = [
                into_blocks(leaf, spec, options.axes, options.sizes)
                for leaf, spec in safe_zip(leaves, specs)
            ]
            with config.override("varying_axes", options.axes if options.check_vma else ()):
                outs = level(0)(*blocks)
            return [
                out_of_blocks(out, spec, options.axes)
                for out, spec in safe_zip(outs, made.specs)
            ]

        made = _Blocks(run, JitFunction(run, JitOptions()))
        return made

    def _gathered(
        self, out: Any, dim: int | None, axis: AxisData, number: int, spec: PartitionSpec,
        is_uniform: bool, results: Sequence[Any], k: int,
    ) -> Any:  # fmt: skip
        """An output with the axis in front if its spec names it, and without it otherwise."""
        is_named = axis.name in _all_names(spec)
        if is_named:
            return _in_front(out, dim, axis.size)
        if dim is None:
            return out
        check(
            is_uniform or not self._options.check_vma,
            lambda: (
                f"[shard_map] an output that out_specs does not split over mesh axis "
                f"{axis.name!r} must be equal along it; got {spec} for "
                f"{output_name(results[0], k, self.name)}, which may vary. Fix: name the axis in "
                f"out_specs, reduce over it with lax.psum, or pass check_vma=False."
            ),
            ValueError,
        )
        return first_element(out, dim)


def _in_front(out: Any, dim: int | None, size: int) -> Any:
    return repeat_in_front(out, size) if dim is None else move_axis(out, dim, 0)


def _all_names(spec: PartitionSpec) -> list[Any]:
    return [name for part in spec for name in names_of(part)]


def _specs(what: str, given: Any, value: Any, name: str) -> list[PartitionSpec]:
    """The spec of each leaf; None stands for an empty one.

    Raises:
        TypeError: something else than a PartitionSpec.
        ValueError: no tree prefix.
    """
    found = tree.broadcast_prefix(given, value, f"shard_map {what}")
    for spec in found:
        check(
            spec is None or isinstance(spec, PartitionSpec),
            lambda spec=spec: (
                f"[shard_map] {what} must hold PartitionSpecs; got {spec!r} for {name}. "
                "Fix: PartitionSpec('x', None)."
            ),
            TypeError,
        )
    return [PartitionSpec() if spec is None else spec for spec in found]


def into_blocks(
    x: Any, spec: PartitionSpec, axes: Sequence[Any], sizes: dict[Any, int]
) -> Any:
    """The blocks of an array: mesh axes in front, in their order, then a block's dimensions."""
    names = _all_names(spec)
    if not names:
        return x
    shape, split, place = aval_of(x).shape, [], {}
    rest = []
    for dim, size in enumerate(shape):
        own = names_of(spec[dim]) if dim < len(spec) else ()
        for name in own:
            place[name] = len(split)
            split.append(sizes[name])
        rest.append(len(split))
        split.append(size // prod(sizes[name] for name in own))
    front = [place[name] for name in axes if name in place]
    return transpose(reshape(x, tuple(split)), (*front, *rest))


def out_of_blocks(x: Any, spec: PartitionSpec, axes: Sequence[Any]) -> Any:
    """The inverse of ``into_blocks``."""
    names = _all_names(spec)
    if not names:
        return x
    place = {name: k for k, name in enumerate(name for name in axes if name in names)}
    full = aval_of(x).shape
    order, shape = [], []
    for dim, size in enumerate(full[len(names) :]):
        own = names_of(spec[dim]) if dim < len(spec) else ()
        order += [place[name] for name in own] + [len(names) + dim]
        shape.append(size * prod(full[place[name]] for name in own))
    return reshape(transpose(x, tuple(order)), tuple(shape))


def shard_map(
    f: Callable[..., Any] | None = None,
    *,
    mesh: Mesh | None = None,
    in_specs: Any,
    out_specs: Any,
    axis_names: Collection[Any] = frozenset(),
    check_vma: bool = True,
) -> Any:
    """Write a program for blocks of arrays, one for each device of a mesh.

    Args:
        f: a function of blocks: arrays or trees. Without it, a decorator.
        mesh: the devices; by default the one that ``set_mesh`` chose.
        in_specs: how each argument is cut: a tree prefix of PartitionSpecs. Dimensions and axes
            that they do not name are not cut: each device gets all.
        out_specs: how the blocks of outputs are put together, likewise.
        axis_names: the axes over which ``f`` is written; all by default.
        check_vma: outputs that ``out_specs`` does not split must be known to be equal, and
            derivatives know which values are.

    Returns:
        A function of whole arrays. Collectives in ``f`` name axes of the mesh.

    Raises:
        ValueError: sizes that the mesh does not divide, unknown axes, outputs that may vary.
        TypeError: specs that are none.
    """
    if f is None:
        return functools.partial(
            shard_map, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=axis_names,
            check_vma=check_vma,
        )  # fmt: skip
    check(
        callable(f),
        lambda: f"[shard_map] the first argument must be a function; got {f!r}. "
        "Fix: shard_map(f, mesh=mesh, in_specs=..., out_specs=...).",
        TypeError,
    )
    mesh = mesh if mesh is not None else config.mesh
    check(
        isinstance(mesh, Mesh),
        lambda: f"[shard_map] the mesh must be a Mesh; got {mesh!r}. "
        "Fix: mesh=make_mesh((8,), ('x',)).",
        ValueError,
    )
    assert mesh is not None
    unknown = [name for name in axis_names if name not in mesh.axis_names]
    check(
        not unknown,
        lambda: (
            f"[shard_map] axis_names must be axes of the mesh; got {unknown} for {mesh}. "
            f"Fix: use names of {mesh.axis_names}."
        ),
        ValueError,
    )
    check_one_memory("shard_map", NamedSharding(mesh, PartitionSpec()))
    in_specs = tuple(in_specs) if type(in_specs) is list else in_specs
    axes = tuple(name for name in mesh.axis_names if not axis_names or name in axis_names)
    return ShardMapFunction(f, ShardMapOptions(mesh, in_specs, out_specs, check_vma, axes))
