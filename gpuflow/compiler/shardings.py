"""Sharding propagation: shardings of a program's results, given those of its arguments.

Shardings propagate forward through equations. A dimension of a result that iterates with a
dimension of an operand is split over the same mesh axes. If operands disagree, the first wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from gpuflow.base.records import record
from gpuflow.compiler.fusion.space import iteration_of
from gpuflow.compiler.passes.program import inline
from gpuflow.core.blocks import Convolution, Decomposition, Product, Scan, Sort
from gpuflow.core.halo import Halo
from gpuflow.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var, all_eqns
from gpuflow.core.lowering import ScanForm, WhileForm, block_of
from gpuflow.core.mesh import Mesh
from gpuflow.core.sharding import NamedSharding, PartitionSpec, Sharding, names_of

# For each dimension of an array, the mesh axes that it is split over.
MeshAxes = tuple[tuple[Any, ...], ...]

_MOST_ROUNDS = 4  # of propagation through a loop's body, until its carries are a fixed point


@record
class Correspondence:
    """Sharding rule of an equation: dimensions with the same axis are split alike.

    Axes are those of the equation's iteration, not of a mesh.

    Attributes:
        sizes: size of each axis, that of the results.
        outs: for each result the axis of each dimension; None for a dimension without one.
        reads: for each operand pairs (dimension, axis).
        reduced: axes along which partial results of shards must be combined.
        halo: the rows of operands that blocks of the result need; None if the op has none.
        slides: for axes without a corresponding dimension, along which the result can be computed
            in blocks with a halo: the axis, and the dimension of rows of each operand.
        restored: (dimension of operands, axis) along which the op needs all elements, and its
            results are split again afterwards, as rows that are sorted.
    """

    sizes: tuple[int, ...]
    outs: tuple[tuple[int | None, ...], ...]
    reads: tuple[tuple[tuple[int, int], ...], ...]
    reduced: tuple[int, ...] = ()
    halo: Halo | None = None
    slides: tuple[tuple[int, tuple[int | None, ...]], ...] = ()
    restored: tuple[tuple[int, int], ...] = ()

    def can_split(self, size: int, axis: int, count: int) -> bool:
        """Whether a dimension of an operand is split like an axis, into a number of chunks.

        Their sizes differ where a dimension is broadcast, or regrouped by a reshape.
        """
        whole = self.sizes[axis]
        return size == whole or (size % count == 0 and whole % count == 0)


def corresponding(eqn: Eqn) -> Correspondence | None:
    """The sharding rule of an equation, from its lowering; None if it has none."""
    if not eqn.outputs:
        return None
    correspondence = _corresponding(eqn)
    make_halo = eqn.primitive.placement.halo
    if correspondence is None or make_halo is None:
        return correspondence
    out = eqn.outputs[0].aval
    halo = make_halo([atom.aval for atom in eqn.inputs], out, eqn.params)
    if halo is None or not out.size:
        return correspondence
    linked = {axis for links in correspondence.reads for _, axis in links}
    slides = []
    for axis in range(out.ndim):
        rows = None if axis in linked else halo.rows(axis, 0, out.shape[axis])
        if rows is not None:
            slides.append((axis, tuple(None if row is None else row[0] for row in rows)))
    return replace(correspondence, halo=halo, slides=tuple(slides))


def _corresponding(eqn: Eqn) -> Correspondence | None:
    rule = eqn.primitive.lower
    out, avals = eqn.outputs[0].aval, [atom.aval for atom in eqn.inputs]
    if rule.partitionable is not None:
        links = rule.partitionable(avals, out, eqn.params)
        return None if links is None else _linked(eqn, links)
    if not (rule.is_indexed or rule.is_library):
        iteration = iteration_of(eqn)
        if iteration is None or any(len(iteration.out) != var.aval.ndim for var in eqn.outputs):
            return None
        outs = (iteration.out,) * len(eqn.outputs)
        return Correspondence(iteration.sizes, outs, iteration.reads, iteration.reduced)
    block = block_of(eqn)
    corresponds = _along_stack if isinstance(block, Decomposition) else _BLOCKS.get(type(block))
    return None if corresponds is None else corresponds(eqn, block)


def _linked(eqn: Eqn, links: Sequence[Sequence[tuple[int, int]]]) -> Correspondence:
    """The correspondence given by links of operands, and of results after the first one."""
    first, *others = [var.aval.ndim for var in eqn.outputs]
    count = len(eqn.inputs)
    sizes = dict(enumerate(eqn.outputs[0].aval.shape))
    for atom, operand_links in zip(eqn.inputs, links[:count], strict=True):
        for dim, axis in operand_links:
            sizes.setdefault(axis, atom.aval.shape[dim])
    order = sorted(sizes)
    assert order == list(range(len(order))), "links leave no dimension out"
    outs: list[tuple[int | None, ...]] = [tuple(range(first))]
    for rank, output_links in zip(others, links[count:], strict=True):
        axes = dict(output_links)
        outs.append(tuple(axes.get(dim) for dim in range(rank)))
    return Correspondence(
        tuple(sizes[axis] for axis in order),
        tuple(outs),
        tuple(map(tuple, links[:count])),
        tuple(order[first:]),
    )


def _along_rows(eqn: Eqn, rows: Scan | Sort) -> Correspondence | None:
    """Sharding rule of an op along rows, such as a sort: all other dimensions correspond."""
    first = eqn.inputs[0].aval
    if not first.size:
        return None  # sizes do not identify the dimension
    dims = range(first.ndim)
    row_dims = [
        d for d in dims if (prod(first.shape[:d]), first.shape[d]) == (rows.outer, rows.length)
    ]
    if not row_dims or any(atom.aval.shape != first.shape for atom in eqn.inputs):
        return None
    row_dim = row_dims[-1]
    links = tuple((d, d) for d in dims if d != row_dim)
    outs = (tuple(dims),) * len(eqn.outputs)
    sizes, reads = eqn.outputs[0].aval.shape, (links,) * len(eqn.inputs)
    return Correspondence(sizes, outs, reads, restored=((row_dim, row_dim),))


def _sliding(rows: Convolution, rank: int) -> list[list[tuple[int, int]]]:
    """The links of a convolution: all but the spatial dimensions."""
    batch, free, others, _ = rows.out
    summed = range(rank, rank + len(rows.left[2]))
    left = [*zip(rows.left[0], batch), *zip(rows.left[1], free), *zip(rows.left[2], summed)]
    right = [*zip(rows.right[0], batch), *zip(rows.right[1], others), *zip(rows.right[2], summed)]
    return [left, right]


def _along_stack(eqn: Eqn, block: Decomposition) -> Correspondence | None:
    """Sharding rule of a decomposition: the dimensions of the stack of matrices."""
    del block
    rank = eqn.inputs[0].aval.ndim - 2
    if any(atom.aval.shape[:rank] != eqn.inputs[0].aval.shape[:rank] for atom in eqn.inputs):
        return None
    stack = [(dim, dim) for dim in range(rank)]
    return _linked(eqn, [stack] * (len(eqn.inputs) + len(eqn.outputs) - 1))


# Library calls whose block defines the sharding rule.
_BLOCKS: dict[type[Any], Callable[[Eqn, Any], Correspondence | None]] = {
    Scan: _along_rows,
    Sort: _along_rows,
    Convolution: lambda eqn, block: _linked(eqn, _sliding(block, eqn.outputs[0].aval.ndim)),
}


def result_shardings(
    jaxpr: Jaxpr, shardings: Sequence[Sharding | None], mesh: Mesh | None = None
) -> list[NamedSharding] | None:
    """The shardings of a program's outputs.

    Args:
        jaxpr: the program.
        shardings: shardings of its inputs; None for arrays on one device.
        mesh: of the outputs' shardings; by default that of the first NamedSharding of an input,
            else of the first sharding constraint in the program.

    Returns:
        One for each output; None if there is no mesh.
    """
    named = [sharding for sharding in shardings if isinstance(sharding, NamedSharding)]
    if mesh is None:
        first = next(iter(named or requested_shardings(jaxpr)), None)
        mesh = None if first is None else first.mesh
    if mesh is None:
        return None
    input_axes = [
        mesh_axes_of(sharding, var.aval.ndim, mesh)
        for sharding, var in zip(shardings, jaxpr.invars, strict=True)
    ]
    outs = _outputs(jaxpr, input_axes, mesh)
    pairs = zip(jaxpr.outvars, outs, strict=True)
    return [NamedSharding(mesh, _spec(_even(atom.aval.shape, axes, mesh))) for atom, axes in pairs]


def _even(shape: Sequence[int], mesh_axes: MeshAxes, mesh: Mesh) -> MeshAxes:
    """Mesh axes without those of dimensions that they do not divide."""
    return tuple(
        names if size % prod(mesh.shape[name] for name in names) == 0 else ()
        for size, names in zip(shape, mesh_axes, strict=True)
    )


def requested_shardings(jaxpr: Jaxpr) -> tuple[NamedSharding, ...]:
    """The sharding constraints in a program, and in its inner programs."""

    def named_shardings() -> tuple[NamedSharding, ...]:
        rules = [(eqn.primitive.placement.sharding, eqn.params) for eqn in all_eqns(jaxpr)]
        requested = [rule(params) for rule, params in rules if rule is not None]
        return tuple(sharding for sharding in requested if isinstance(sharding, NamedSharding))

    return jaxpr.memo("asked shardings", named_shardings)


def mesh_axes_of(sharding: Sharding | None, rank: int, mesh: Mesh) -> MeshAxes:
    """The mesh axes of each dimension of an array, if it is split over this mesh."""
    if not isinstance(sharding, NamedSharding) or sharding.mesh != mesh:
        return ((),) * rank
    mesh_axes = [names_of(entry) for entry in sharding.spec]
    return (*mesh_axes, *[()] * (rank - len(mesh_axes)))


def constrained(requested: MeshAxes, spec: PartitionSpec, current: MeshAxes) -> MeshAxes:
    """The resulting sharding of a value; unconstrained dimensions keep theirs."""
    taken = {name for names in requested for name in names}
    free = {dim for dim, entry in enumerate(spec) if entry is PartitionSpec.UNCONSTRAINED}
    return tuple(
        current[dim] if dim in free and not taken.intersection(current[dim]) else names
        for dim, names in enumerate(requested)
    )


def settled(requested: Sharding, current: Sharding | None, rank: int) -> Sharding:
    """A sharding for an array that has another: unconstrained dimensions keep theirs."""
    if not isinstance(requested, NamedSharding):
        return requested
    if PartitionSpec.UNCONSTRAINED not in requested.spec:
        return requested
    mesh = requested.mesh
    before, after = mesh_axes_of(current, rank, mesh), mesh_axes_of(requested, rank, mesh)
    return NamedSharding(mesh, _spec(constrained(after, requested.spec, before)))


def _spec(mesh_axes: MeshAxes) -> PartitionSpec:
    last = max([dim for dim, names in enumerate(mesh_axes) if names], default=-1)
    return PartitionSpec(*[names or None for names in mesh_axes[: last + 1]])


def _outputs(jaxpr: Jaxpr, inputs: Sequence[MeshAxes], mesh: Mesh) -> list[MeshAxes]:
    """The mesh axes of a program's outputs."""
    program = inline(jaxpr)
    sharded: dict[Var, MeshAxes] = dict(zip(program.invars, inputs, strict=True))

    def of(atom: Atom) -> MeshAxes:
        mesh_axes = None if type(atom) is Literal else sharded.get(atom)
        return ((),) * atom.aval.ndim if mesh_axes is None else mesh_axes

    for eqn in program.eqns:
        results = mesh_axes_of_results(eqn, [of(atom) for atom in eqn.inputs], mesh)
        sharded.update(zip(eqn.outputs, results, strict=True))
    return [of(atom) for atom in program.outvars]


def mesh_axes_of_results(eqn: Eqn, operands: Sequence[MeshAxes], mesh: Mesh) -> list[MeshAxes]:
    """The mesh axes of an equation's results, given those of its operands."""
    rule = eqn.primitive.lower
    if eqn.primitive.placement.sharding is not None:
        sharding = eqn.primitive.placement.sharding(eqn.params)
        if isinstance(sharding, NamedSharding) and sharding.mesh == mesh:
            requested = mesh_axes_of(sharding, eqn.outputs[0].aval.ndim, mesh)
            return [constrained(requested, sharding.spec, operands[0])]
        return [operands[0]]
    if rule.is_split:
        shardings = eqn.params["out_shardings"]
        pairs = zip(shardings, eqn.outputs, strict=True)
        return [mesh_axes_of(sharding, var.aval.ndim, mesh) for sharding, var in pairs]
    if rule.form is not None:
        form = rule.form(eqn.params)
        follow = _scan if isinstance(form, ScanForm) else _while
        return follow(form, operands, mesh)
    if rule.branches is not None:
        branch_outputs = [
            _outputs(branch.jaxpr, operands[1:], mesh) for branch in rule.branches(eqn.params)
        ]
        return [_common(column) for column in zip(*branch_outputs, strict=True)]
    block = block_of(eqn)
    if isinstance(block, Product):
        return [_product(block, operands)]
    return _iterated(eqn, operands, mesh)


def _iterated(eqn: Eqn, operands: Sequence[MeshAxes], mesh: Mesh) -> list[MeshAxes]:
    """Results whose dimensions correspond to dimensions of operands."""
    correspondence = corresponding(eqn)
    if correspondence is None:
        return [((),) * var.aval.ndim for var in eqn.outputs]
    split: dict[int, tuple[Any, ...]] = {}
    for atom, mesh_axes, links in zip(eqn.inputs, operands, correspondence.reads, strict=True):
        for dim, axis in links:
            names = mesh_axes[dim]
            count = prod(mesh.shape[name] for name in names)
            if names and correspondence.can_split(atom.aval.shape[dim], axis, count):
                split.setdefault(axis, names)
    for axis, dims in correspondence.slides:
        for mesh_axes, slide in zip(operands, dims, strict=True):
            names = () if slide is None else mesh_axes[slide]
            count = prod(mesh.shape[name] for name in names)
            if len(names) == 1 and count <= correspondence.sizes[axis]:
                split.setdefault(axis, names)
    for dim, axis in correspondence.restored:
        for mesh_axes in operands:
            if mesh_axes[dim]:
                split.setdefault(axis, mesh_axes[dim])
    outs = correspondence.outs
    return [_once(() if k is None else split.get(k, ()) for k in out) for out in outs]


def _product(product: Product, operands: Sequence[MeshAxes]) -> MeshAxes:
    """The mesh axes of a matrix product: contracted dimensions are dropped."""
    (batch, rows, _), (right_batch, _, columns) = product.left, product.right
    left, right = operands[:2]
    both = [left[a] or right[b] for a, b in zip(batch, right_batch, strict=True)]
    return _once([*both, *[left[d] for d in rows], *[right[d] for d in columns]])


def _scan(form: ScanForm, operands: Sequence[MeshAxes], mesh: Mesh) -> list[MeshAxes]:
    first, split = form.num_consts, form.num_consts + form.num_carry
    elements = [mesh_axes[1:] for mesh_axes in operands[split:]]

    def step(carries: Sequence[MeshAxes]) -> list[MeshAxes]:
        return _outputs(form.body.jaxpr, [*operands[:first], *carries, *elements], mesh)

    carries, outs = _loop_carries(step, operands[first:split])
    return [*carries, *[((), *mesh_axes) for mesh_axes in outs[form.num_carry :]]]


def _while(form: WhileForm, operands: Sequence[MeshAxes], mesh: Mesh) -> list[MeshAxes]:
    first = form.num_condition_consts
    split = first + form.num_body_consts

    def step(carries: Sequence[MeshAxes]) -> list[MeshAxes]:
        return _outputs(form.body.jaxpr, [*operands[first:split], *carries], mesh)

    return _loop_carries(step, operands[split:])[0]


def _loop_carries(
    step: Callable[[Sequence[MeshAxes]], list[MeshAxes]], initial: Sequence[MeshAxes]
) -> tuple[list[MeshAxes], list[MeshAxes]]:
    """Fixed point of a loop's carries: their mesh axes, and those of all outputs of its body.

    Carries are replicated if there is no fixed point after ``_MOST_ROUNDS``.
    """
    carries = _promoted(step, initial)
    for _ in range(_MOST_ROUNDS):
        outs = step(carries)
        merged = [_common(pair) for pair in zip(carries, outs, strict=False)]
        if merged == carries:
            break
        carries = merged
    else:
        carries = [((),) * len(mesh_axes) for mesh_axes in carries]
    return carries, outs


def _promoted(
    step: Callable[[Sequence[MeshAxes]], list[MeshAxes]], initial: Sequence[MeshAxes]
) -> list[MeshAxes]:
    """Carries that begin whole, as zeros do, with the mesh axes that the body gives them.

    Other carries keep theirs, and so do all if these axes do not remain.
    """
    outs = step(initial)
    carries = [
        out if any(out) and not any(axes) else axes
        for axes, out in zip(initial, outs, strict=False)
    ]
    promoted = [k for k, axes in enumerate(carries) if axes != initial[k]]
    if promoted:
        outs = step(carries)
    return carries if all(outs[k] == carries[k] for k in promoted) else list(initial)


def _common(several: Sequence[MeshAxes]) -> MeshAxes:
    """For each dimension the mesh axes, if all shardings agree on them; else none."""
    first = several[0]
    return tuple(
        names if all(other[dim] == names for other in several) else ()
        for dim, names in enumerate(first)
    )


def _once(mesh_axes: Iterable[tuple[Any, ...]]) -> MeshAxes:
    """Drop mesh axes that an earlier dimension uses."""
    seen: set[Any] = set()
    result = []
    for names in mesh_axes:
        result.append(() if seen.intersection(names) else names)
        seen.update(names)
    return tuple(result)
