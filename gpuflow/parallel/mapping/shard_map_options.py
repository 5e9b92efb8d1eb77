"""The resolved options of shard_map, and checks of arguments against them.

Tests: tests/parallel/test_shard_map.py, tests/parallel/test_shard_map_forms.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from gpuflow.base.cached import cached_property
from gpuflow.base.errors import check
from gpuflow.base.foreign import brief, fix_for
from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.control.jit_function import argument_names
from gpuflow.core.aval import aval_of, is_value
from gpuflow.core.mesh import AxisType, Mesh
from gpuflow.core.sharding import PartitionSpec, names_of


@record
class ShardMapOptions:
    """The options of ``shard_map``.

    Attributes:
        mesh, in_specs, out_specs, check_vma: as in ``shard_map``.
        axes: the manual axes, in the mesh's order.
    """

    mesh: Mesh
    in_specs: Any
    out_specs: Any
    check_vma: bool
    axes: tuple[Any, ...]

    @cached_property
    def inner_mesh(self) -> Mesh:
        """The mesh inside the function, where ``axes`` are manual."""
        mesh = self.mesh
        types = zip(mesh.axis_names, mesh.axis_types, strict=True)
        inner_types = [AxisType.Manual if name in self.axes else kind for name, kind in types]
        return Mesh(mesh.devices, mesh.axis_names, inner_types)

    @property
    def sizes(self) -> dict[Any, int]:
        """The size of each axis."""
        return dict(self.mesh.shape)


def check_inputs(
    function: Callable[..., Any],
    name: str,
    options: ShardMapOptions,
    args: Sequence[Any],
    leaves: Sequence[Any],
    specs: Sequence[PartitionSpec],
) -> None:
    """Check that arguments are arrays that their specs divide.

    Raises:
        TypeError: if an argument is not an array.
        ValueError: if a spec does not match the mesh, or does not divide an argument.
    """
    names = functools.cache(lambda: argument_names(function, tuple(args), {}))
    for k, (leaf, spec) in enumerate(safe_zip(leaves, specs)):
        check(
            is_value(leaf),
            lambda k=k, leaf=leaf: (
                f"[shard_map] arguments of {name} must be arrays or numbers; got "
                f"{brief(leaf)} as {names()[k]}. "
                f"Fix: {fix_for(leaf, 'close over it, as functools.partial does', names()[k])}."
            ),
            TypeError,
        )
        shape = aval_of(leaf).shape
        counts = counts_of(options, spec, shape, "in_specs", lambda k=k: names()[k])
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


def counts_of(
    options: ShardMapOptions,
    spec: PartitionSpec,
    shape: Sequence[int],
    what: str,
    name: Callable[[], str],
) -> list[int]:
    """The number of blocks of each dimension.

    Raises:
        ValueError: if the spec does not match the rank or the mesh.
    """
    check(
        len(spec) <= len(shape),
        lambda: (
            f"[shard_map] {what} must have at most one item for each dimension; got {spec} "
            f"for {name()} of shape {tuple(shape)}. Fix: leave out the last ones."
        ),
        ValueError,
    )
    check(
        PartitionSpec.UNCONSTRAINED not in spec and not spec.unreduced and not spec.reduced,
        lambda: (
            f"[shard_map] {what} must hold axes of the mesh and None only; got {spec} for {name()}."
            " Fix: None where a dimension is not cut, and lax.psum for sums that are open."
        ),
        ValueError,
    )
    names = [axis for entry in spec for axis in names_of(entry)]
    check(
        set(names) <= set(options.axes) and len(set(names)) == len(names),
        lambda: (
            f"[shard_map] {what} must hold axes of the mesh, each once; got {spec} for "
            f"{name()}. Fix: use names of {options.axes}, or None."
        ),
        ValueError,
    )
    counts = [prod(options.sizes[axis] for axis in names_of(entry)) for entry in spec]
    return counts + [1] * (len(shape) - len(spec))
