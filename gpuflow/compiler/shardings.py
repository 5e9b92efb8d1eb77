"""Sharding propagation: shardings of a program's results, given those of its arguments.

Shardings propagate forward through equations. A dimension of a result that iterates with a
dimension of an operand is split over the same mesh axes. If operands disagree, the first wins.

Results depend on the program and the shardings of its arguments alone, so all processes that run
it compute the same.

Tests: tests/parallel/test_shardings.py, tests/parallel/test_asked_shardings.py,
tests/parallel/test_partitioner.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

from gpuflow.base.records import record
from gpuflow.compiler.fusion.space import iteration_of
from gpuflow.compiler.passes.program import inline
from gpuflow.core.blocks import Convolution, Decomposition, Product, Scan, Sort
from gpuflow.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var, all_eqns
from gpuflow.core.lowering import ScanForm, WhileForm, block_of
from gpuflow.core.mesh import Mesh
from gpuflow.core.sharding import NamedSharding, PartitionSpec, Sharding, names_of

# For each dimension of an array, the mesh axes that it is split over.
MeshAxes = tuple[tuple[Any, ...], ...]

_MOST_ROUNDS = 4  # of propagation through a loop's body, until its carries are a fixed point


@record
class Correspondence:
    """Sharding rule of an equation: dimensions with the same axis are split in the same way.

    Axes are those of the equation's iteration, not of a mesh, and are named by index.

    Attributes:
        sizes: size of each axis: of the dimension of the results that has it, else of an operand.
        outs: for each result the axis of each dimension; None for a dimension without one.
        reads: for each operand pairs (dimension, axis); other dimensions correspond to no axis.
        reduced: axes along which partial results of shards must be combined.
    """

    sizes: tuple[int, ...]
    outs: tuple[tuple[int | None, ...], ...]
    reads: tuple[tuple[tuple[int, int], ...], ...]
    reduced: tuple[int, ...] = ()

    def can_split(self, size: int, axis: int, count: int) -> bool:
        """Whether a dimension of an operand is split like an axis.

        Their sizes differ where a dimension is broadcast, or regrouped by a reshape.

        Args:
            size: size of the dimension of the operand.
            axis: the axis that it has in ``reads``.
            count: count of chunks, the product of the sizes of the mesh axes.
        """
        whole = self.sizes[axis]
        return size == whole or (size % count == 0 and whole % count == 0)


def corresponding(eqn: Eqn) -> Correspondence | None:
    """The sharding rule of an equation, from its lowering; None if it has none."""
    lowering = eqn.primitive.lower
    if not eqn.outputs:
        return None
    out, avals = eqn.outputs[0].aval, [atom.aval for atom in eqn.inputs]
    if lowering.partitionable is not None:
        links = lowering.partitionable(avals, out, eqn.params)
        return None if links is None else _linked(eqn, links)
    if not (lowering.is_indexed or lowering.is_library):
        iteration = iteration_of(eqn)
        if iteration is None or any(len(iteration.out) != var.aval.ndim for var in eqn.outputs):
            return None
        outs = (iteration.out,) * len(eqn.outputs)
        return Correspondence(iteration.sizes, outs, iteration.reads, iteration.reduced)
    block = block_of(eqn)
    corresponds = _along_stack if isinstance(block, Decomposition) else _BLOCKS.get(type(block))
    return None if corresponds is None else corresponds(eqn, block)


def _linked(eqn: Eqn, links: Sequence[Sequence[tuple[int, int]]]) -> Correspondence:
    """The correspondence given by links, pairs (dimension, axis).

    Args:
        eqn: the equation. Axes are the dimensions of its first result, followed by reduced axes.
        links: those of each operand, then of each result after the first one.
    """
    first_rank, *others = [var.aval.ndim for var in eqn.outputs]
    count = len(eqn.inputs)
    sizes = dict(enumerate(eqn.outputs[0].aval.shape))
    for atom, operand_links in zip(eqn.inputs, links[:count], strict=True):
        for dim, axis in operand_links:
            sizes.setdefault(axis, atom.aval.shape[dim])
    order = sorted(sizes)
    assert order == list(range(len(order))), "links leave no dimension out"
    outs: list[tuple[int | None, ...]] = [tuple(range(first_rank))]
    for rank, output_links in zip(others, links[count:], strict=True):
        axes = dict(output_links)
        outs.append(tuple(axes.get(dim) for dim in range(rank)))
    return Correspondence(
        tuple(sizes[axis] for axis in order),
        tuple(outs),
        tuple(map(tuple, links[:count])),
        tuple(order[first_rank:]),
    )


def _along_rows(eqn: Eqn, block: Scan | Sort) -> Correspondence | None:
    """Sharding rule of an op along rows, such as a sort: all other dimensions correspond."""
    operand_aval = eqn.inputs[0].aval
    if not operand_aval.size:
        return None  # sizes do not identify the dimension
    dims = range(operand_aval.ndim)
    row_dims = [
        d
        for d in dims
        if (prod(operand_aval.shape[:d]), operand_aval.shape[d]) == (block.outer, block.length)
    ]
    if not row_dims or any(atom.aval.shape != operand_aval.shape for atom in eqn.inputs):
        return None
    links = tuple((d, d) for d in dims if d != row_dims[-1])
    outs = (tuple(dims),) * len(eqn.outputs)
    return Correspondence(eqn.outputs[0].aval.shape, outs, (links,) * len(eqn.inputs))


def _convolution_links(block: Convolution, rank: int) -> list[list[tuple[int, int]]]:
    """The links of a convolution whose result has ``rank`` dimensions: all but spatial ones."""
    batch, left_free, right_free, _ = block.out
    left, right = block.left, block.right
    contracted = range(rank, rank + len(left[2]))
    left_links = [*zip(left[0], batch), *zip(left[1], left_free), *zip(left[2], contracted)]
    right_links = [*zip(right[0], batch), *zip(right[1], right_free), *zip(right[2], contracted)]
    return [left_links, right_links]


def _along_convolution(eqn: Eqn, block: Convolution) -> Correspondence:
    """Sharding rule of a convolution: dimensions over which a window slides are not split."""
    return _linked(eqn, _convolution_links(block, eqn.outputs[0].aval.ndim))


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
    Convolution: _along_convolution,
}


def result_shardings(
    jaxpr: Jaxpr, shardings: Sequence[Sharding | None], mesh: Mesh | None = None
) -> list[NamedSharding] | None:
    """The shardings of a program's outputs.

    Args:
        jaxpr: the program.
        shardings: shardings of its inputs; None for arrays on one device.
        mesh: the mesh of the outputs' shardings; by default that of the first NamedSharding of an
            input, else of the first sharding constraint in the program.

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
    outs = _output_mesh_axes(jaxpr, input_axes, mesh)
    return [NamedSharding(mesh, _spec(mesh_axes)) for mesh_axes in outs]


def requested_shardings(jaxpr: Jaxpr) -> tuple[NamedSharding, ...]:
    """The sharding constraints in a program, and in its inner programs."""

    def named_shardings() -> tuple[NamedSharding, ...]:
        rules = [(eqn.primitive.placement.sharding, eqn.params) for eqn in all_eqns(jaxpr)]
        requested = [rule(params) for rule, params in rules if rule is not None]
        return tuple(sharding for sharding in requested if isinstance(sharding, NamedSharding))

    return jaxpr.memo("asked shardings", named_shardings)


def mesh_axes_of(sharding: Sharding | None, rank: int, mesh: Mesh) -> MeshAxes:
    """The mesh axes of each dimension of an array of ``rank`` dimensions.

    Empty for all if the array is not split over this mesh.
    """
    if not isinstance(sharding, NamedSharding) or sharding.mesh != mesh:
        return ((),) * rank
    mesh_axes = [names_of(entry) for entry in sharding.spec]
    return (*mesh_axes, *[()] * (rank - len(mesh_axes)))


def constrain_mesh_axes(requested: MeshAxes, spec: PartitionSpec, current: MeshAxes) -> MeshAxes:
    """The mesh axes of a value under a sharding constraint.

    Args:
        requested: the mesh axes of the constraint; none for unconstrained dimensions.
        spec: the spec of the constraint, which marks unconstrained dimensions.
        current: the mesh axes of the value. Unconstrained dimensions keep theirs, unless another
            dimension requests one of them.
    """
    requested_names = {name for names in requested for name in names}
    unconstrained_dims = {
        dim for dim, entry in enumerate(spec) if entry is PartitionSpec.UNCONSTRAINED
    }
    return tuple(
        current[dim]
        if dim in unconstrained_dims and not requested_names.intersection(current[dim])
        else names
        for dim, names in enumerate(requested)
    )


def resolve_unconstrained(requested: Sharding, current: Sharding | None, rank: int) -> Sharding:
    """The sharding that an array gets on request: unconstrained dimensions keep their mesh axes.

    Args:
        requested: the sharding that is requested.
        current: that of the array; None if it is on one device.
        rank: count of its dimensions.
    """
    if not isinstance(requested, NamedSharding):
        return requested
    if PartitionSpec.UNCONSTRAINED not in requested.spec:
        return requested
    mesh = requested.mesh
    before, after = mesh_axes_of(current, rank, mesh), mesh_axes_of(requested, rank, mesh)
    return NamedSharding(mesh, _spec(constrain_mesh_axes(after, requested.spec, before)))


def _spec(mesh_axes: MeshAxes) -> PartitionSpec:
    last = max([dim for dim, names in enumerate(mesh_axes) if names], default=-1)
    return PartitionSpec(*[names or None for names in mesh_axes[: last + 1]])


def _output_mesh_axes(jaxpr: Jaxpr, inputs: Sequence[MeshAxes], mesh: Mesh) -> list[MeshAxes]:
    """The mesh axes of a program's outputs."""
    program = inline(jaxpr)
    mesh_axes_by_var: dict[Var, MeshAxes] = dict(zip(program.invars, inputs, strict=True))

    def mesh_axes_of_atom(atom: Atom) -> MeshAxes:
        mesh_axes = None if type(atom) is Literal else mesh_axes_by_var.get(atom)
        return ((),) * atom.aval.ndim if mesh_axes is None else mesh_axes

    for eqn in program.eqns:
        results = mesh_axes_of_results(eqn, [mesh_axes_of_atom(atom) for atom in eqn.inputs], mesh)
        mesh_axes_by_var.update(zip(eqn.outputs, results, strict=True))
    return [mesh_axes_of_atom(atom) for atom in program.outvars]


def mesh_axes_of_results(eqn: Eqn, operands: Sequence[MeshAxes], mesh: Mesh) -> list[MeshAxes]:
    """The mesh axes of an equation's results, given those of its operands."""
    lowering = eqn.primitive.lower
    if eqn.primitive.placement.sharding is not None:
        sharding = eqn.primitive.placement.sharding(eqn.params)
        if isinstance(sharding, NamedSharding) and sharding.mesh == mesh:
            requested = mesh_axes_of(sharding, eqn.outputs[0].aval.ndim, mesh)
            return [constrain_mesh_axes(requested, sharding.spec, operands[0])]
        return [operands[0]]
    if lowering.is_split:
        shardings = eqn.params["out_shardings"]
        pairs = zip(shardings, eqn.outputs, strict=True)
        return [mesh_axes_of(sharding, var.aval.ndim, mesh) for sharding, var in pairs]
    if lowering.form is not None:
        loop = lowering.form(eqn.params)
        rule_of_loop = _scan_mesh_axes if isinstance(loop, ScanForm) else _while_mesh_axes
        return rule_of_loop(loop, operands, mesh)
    if lowering.branches is not None:
        branch_outputs = [
            _output_mesh_axes(branch.jaxpr, operands[1:], mesh)
            for branch in lowering.branches(eqn.params)
        ]
        return [_agreed_axes(column) for column in zip(*branch_outputs, strict=True)]
    block = block_of(eqn)
    if isinstance(block, Product):
        return [_product_mesh_axes(block, operands)]
    return _corresponding_results(eqn, operands, mesh)


def _corresponding_results(eqn: Eqn, operands: Sequence[MeshAxes], mesh: Mesh) -> list[MeshAxes]:
    """Results whose dimensions correspond to dimensions of operands."""
    correspondence = corresponding(eqn)
    if correspondence is None:
        return [((),) * var.aval.ndim for var in eqn.outputs]
    names_of_axis: dict[int, tuple[Any, ...]] = {}
    for atom, mesh_axes, links in zip(eqn.inputs, operands, correspondence.reads, strict=True):
        for dim, axis in links:
            names = mesh_axes[dim]
            count = prod(mesh.shape[name] for name in names)
            if names and correspondence.can_split(atom.aval.shape[dim], axis, count):
                names_of_axis.setdefault(axis, names)
    return [
        _without_repeated_axes(() if k is None else names_of_axis.get(k, ()) for k in out)
        for out in correspondence.outs
    ]


def _product_mesh_axes(product: Product, operands: Sequence[MeshAxes]) -> MeshAxes:
    """The mesh axes of a matrix product: contracted dimensions are dropped."""
    (batch, rows, _), (right_batch, _, columns) = product.left, product.right
    left, right = operands[:2]
    both = [left[a] or right[b] for a, b in zip(batch, right_batch, strict=True)]
    return _without_repeated_axes([*both, *[left[d] for d in rows], *[right[d] for d in columns]])


def _scan_mesh_axes(loop: ScanForm, operands: Sequence[MeshAxes], mesh: Mesh) -> list[MeshAxes]:
    """The mesh axes of a scan's results: carries, then stacks, whose first dimension is whole."""
    first_carry, first_element = loop.num_consts, loop.num_consts + loop.num_carry
    elements = [mesh_axes[1:] for mesh_axes in operands[first_element:]]

    def run_body(carries: Sequence[MeshAxes]) -> list[MeshAxes]:
        inputs = [*operands[:first_carry], *carries, *elements]
        return _output_mesh_axes(loop.body.jaxpr, inputs, mesh)

    carries, outs = _loop_carries(run_body, operands[first_carry:first_element])
    return [*carries, *[((), *mesh_axes) for mesh_axes in outs[loop.num_carry :]]]


def _while_mesh_axes(loop: WhileForm, operands: Sequence[MeshAxes], mesh: Mesh) -> list[MeshAxes]:
    """The mesh axes of a while_loop's carries."""
    first_body_const = loop.num_condition_consts
    first_carry = first_body_const + loop.num_body_consts

    def run_body(carries: Sequence[MeshAxes]) -> list[MeshAxes]:
        inputs = [*operands[first_body_const:first_carry], *carries]
        return _output_mesh_axes(loop.body.jaxpr, inputs, mesh)

    return _loop_carries(run_body, operands[first_carry:])[0]


def _loop_carries(
    run_body: Callable[[Sequence[MeshAxes]], list[MeshAxes]], initial: Sequence[MeshAxes]
) -> tuple[list[MeshAxes], list[MeshAxes]]:
    """Fixed point of a loop's carries: their mesh axes, and those of all outputs of its body.

    Carries are replicated if there is no fixed point after ``_MOST_ROUNDS``.
    """
    carries = _with_axes_of_body(run_body, initial)
    for _ in range(_MOST_ROUNDS):
        outs = run_body(carries)
        merged = [_agreed_axes(pair) for pair in zip(carries, outs, strict=False)]
        if merged == carries:
            break
        carries = merged
    else:
        carries = [((),) * len(mesh_axes) for mesh_axes in carries]
    return carries, outs


def _with_axes_of_body(
    run_body: Callable[[Sequence[MeshAxes]], list[MeshAxes]], initial: Sequence[MeshAxes]
) -> list[MeshAxes]:
    """Initial carries: replicated ones, such as zeros, get the mesh axes of the body's outputs.

    Other carries keep theirs. If the body does not preserve the new axes, all carries keep theirs.
    """
    outs = run_body(initial)
    carries = [
        out if any(out) and not any(axes) else axes
        for axes, out in zip(initial, outs, strict=False)
    ]
    promoted = [k for k, axes in enumerate(carries) if axes != initial[k]]
    if promoted:
        outs = run_body(carries)
    return carries if all(outs[k] == carries[k] for k in promoted) else list(initial)


def _agreed_axes(alternatives: Sequence[MeshAxes]) -> MeshAxes:
    """For each dimension the mesh axes, if all shardings agree on them; else none."""
    first = alternatives[0]
    return tuple(
        names if all(other[dim] == names for other in alternatives) else ()
        for dim, names in enumerate(first)
    )


def _without_repeated_axes(mesh_axes: Iterable[tuple[Any, ...]]) -> MeshAxes:
    """Drop mesh axes that an earlier dimension uses."""
    seen: set[Any] = set()
    result = []
    for names in mesh_axes:
        result.append(() if seen.intersection(names) else names)
        seen.update(names)
    return tuple(result)
