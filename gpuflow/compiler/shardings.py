"""Sharding propagation: shardings of a program's results, given those of its arguments.

Shardings propagate forward through equations. A dimension of a result that iterates with a
dimension of an operand is split over the same mesh axes. If operands disagree, the first dimension
of the result wins, which is mostly the one of a batch.

Results depend on the program and the shardings of its arguments alone, so all processes that run
it compute the same.

Tests: tests/parallel/test_shardings.py, tests/parallel/test_asked_shardings.py,
tests/parallel/test_partitioner.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from gpuflow.compiler.correspondence import corresponding
from gpuflow.compiler.passes.program import inline
from gpuflow.compiler.splits import MeshAxes, choose, factors_of, factors_of_product
from gpuflow.core.blocks import Product
from gpuflow.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var, all_eqns
from gpuflow.core.lowering import ScanForm, WhileForm, block_of
from gpuflow.core.mesh import Mesh
from gpuflow.core.sharding import NamedSharding, PartitionSpec, Sharding, names_of

_MAX_ROUNDS = 4  # of propagation through a loop's body, until its carries are a fixed point


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
        return [_product_mesh_axes(eqn, block, operands, mesh)]
    return _corresponding_results(eqn, operands, mesh)


def _corresponding_results(eqn: Eqn, operands: Sequence[MeshAxes], mesh: Mesh) -> list[MeshAxes]:
    """Results whose dimensions correspond to dimensions of operands."""
    correspondence = corresponding(eqn)
    if correspondence is None:
        return [((),) * var.aval.ndim for var in eqn.outputs]
    factors = factors_of(eqn, correspondence, lambda axis: False)
    split = choose(factors, operands, None, mesh.shape)
    for dim, axis in correspondence.restored:
        for mesh_axes in operands:
            if mesh_axes[dim] and not split[axis]:
                restored = mesh_axes[dim]
                split = [tuple(n for n in names if n not in restored) for names in split]
                split[axis] = restored
    return [tuple(() if k is None else split[k] for k in out) for out in correspondence.outs]


def _product_mesh_axes(
    eqn: Eqn, product: Product, operands: Sequence[MeshAxes], mesh: Mesh
) -> MeshAxes:
    """The mesh axes of a matrix product: contracted dimensions are dropped."""
    factors = factors_of_product(eqn, product)
    chosen = choose(factors, operands[:2], None, mesh.shape)
    split = {factor.out: names for factor, names in zip(factors, chosen, strict=True)}
    return tuple(split[dim] for dim in range(eqn.outputs[0].aval.ndim))


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

    Carries keep their mesh axes if the body does, else they get those that the body gives them,
    if it keeps these. Otherwise they are replicated where the two differ, and all of them if there
    is no fixed point after ``_MAX_ROUNDS``.
    """
    carries, count = list(initial), len(initial)
    for _ in range(_MAX_ROUNDS):
        outs = run_body(carries)
        if outs[:count] == carries:
            break
        split = [out if any(out) else axes for axes, out in zip(carries, outs, strict=False)]
        others = run_body(split)
        if others[:count] == split:
            return split, others
        carries = [_agreed_axes(pair) for pair in zip(carries, outs, strict=False)]
    else:
        carries = [((),) * len(mesh_axes) for mesh_axes in carries]
    return carries, outs


def _agreed_axes(alternatives: Sequence[MeshAxes]) -> MeshAxes:
    """For each dimension the mesh axes, if all shardings agree on them; else none."""
    first = alternatives[0]
    return tuple(
        names if all(other[dim] == names for other in alternatives) else ()
        for dim, names in enumerate(first)
    )
