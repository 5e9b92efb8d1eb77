"""Run programs of whole arrays over several memories: jitted programs, and eager ops.

A program is partitioned for a mesh and shardings, cached, and run in each memory. These functions
implement the hooks of ``runtime.distributed.programs``.

Tests: tests/parallel/test_sharded_arrays.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuflow.base.caches import cache, register_table
from gpuflow.base.records import record
from gpuflow.base.util import params_key, safe_zip
from gpuflow.compiler.shardings import requested_shardings, result_shardings
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Var, all_eqns
from gpuflow.core.mesh import Mesh
from gpuflow.core.primitive import Primitive
from gpuflow.core.sharding import NamedSharding, PartitionSpec, Sharding
from gpuflow.core.staging import hoist_consts
from gpuflow.core.trace import eval_trace
from gpuflow.ops.effects.device_put import device_put
from gpuflow.parallel.partition.memory_programs import placed, run_local
from gpuflow.parallel.partition.programs import Partitioner
from gpuflow.parallel.partition.resharding import dim_axes_in
from gpuflow.runtime.array import Array
from gpuflow.runtime.distributed import DistributedArray, distribute, gathered
from gpuflow.runtime.execute import Executable, executable_of
from gpuflow.runtime.memories import Memories, holdings, is_in_one_memory, memories_of
from gpuflow.runtime.sharded import with_sharding

_MAX_OPS = 4096
_ops: dict[Any, ClosedJaxpr] = {}
register_table("programs of single ops over a mesh", _ops, _MAX_OPS)


@record(eq=False)
class LocalProgram:
    """A partitioned program: the program of one memory.

    Attributes:
        jaxpr: ``(*constants, *shards of operands) -> shards of results``.
        consts: the constants, replicated in every memory.
        in_shardings, out_shardings: of the operands and results of the program of whole arrays.
    """

    jaxpr: ClosedJaxpr
    consts: tuple[Any, ...]
    in_shardings: tuple[NamedSharding, ...]
    out_shardings: tuple[NamedSharding, ...]

    def executable(self, donated: Sequence[bool]) -> Executable:
        """The executable of one memory, for operands of which some are donated."""
        flags = (*[False] * len(self.consts), *donated) if any(donated) else ()
        return executable_of(self.jaxpr, flags or (False,) * len(self.jaxpr.in_avals))


def partition(
    jaxpr: ClosedJaxpr,
    memories: Memories,
    in_shardings: Sequence[NamedSharding],
    out_shardings: Sequence[NamedSharding],
    warns: bool = True,
) -> LocalProgram:
    """Partition a program.

    Args:
        jaxpr: a program of whole arrays, without constants.
        memories: the memories of the mesh of the shardings.
        in_shardings, out_shardings: the shardings of operands and results.
        warns: whether to warn about large operands that are gathered.
    """
    ins = [dim_axes_in(s, a.ndim, memories) for s, a in safe_zip(in_shardings, jaxpr.in_avals)]
    outs = [dim_axes_in(s, a.ndim, memories) for s, a in safe_zip(out_shardings, jaxpr.out_avals)]
    local = Partitioner(memories, warns).traced(jaxpr, ins, outs)
    program = ClosedJaxpr(hoist_consts(local.jaxpr))
    return LocalProgram(program, local.consts, tuple(in_shardings), tuple(out_shardings))


def local_program(
    jaxpr: ClosedJaxpr,
    memories: Memories,
    in_shardings: Sequence[Sharding | None],
    out_shardings: Sequence[Sharding | None],
    warns: bool = True,
) -> LocalProgram:
    """The program of one memory for given shardings, cached with the program of whole arrays.

    Args:
        jaxpr: the program of whole arrays, without constants.
        memories: the memories that run it.
        in_shardings: shardings of operands. Those over other devices are replicated.
        out_shardings: requested shardings of results; None, or one over other devices, means that
            it is propagated.
        warns: whether to warn about large operands that are gathered.
    """
    mesh = memories.mesh

    def is_over(sharding: Sharding | None) -> bool:
        return isinstance(sharding, NamedSharding) and sharding.mesh == mesh

    everywhere = NamedSharding(mesh, PartitionSpec())
    ins: tuple[Any, ...] = tuple(s if is_over(s) else everywhere for s in in_shardings)
    followed = jaxpr.jaxpr.memo(
        ("shardings", mesh, ins), lambda: result_shardings(jaxpr.jaxpr, ins, mesh)
    )
    outs = tuple(
        sharding if is_over(sharding) else follows
        for sharding, follows in safe_zip(out_shardings, followed)
    )
    return jaxpr.jaxpr.memo(
        ("memories", mesh, memories.team, ins, outs),
        lambda: partition(jaxpr, memories, ins, outs, warns),
    )


def run(
    jaxpr: ClosedJaxpr,
    operands: Sequence[Any],
    out_shardings: Sequence[Sharding | None] | None = None,
    donated: Sequence[bool] = (),
    warns: bool = True,
) -> list[Any]:
    """Run a program of whole arrays in all memories.

    Args:
        jaxpr: the program, without constants.
        operands: arrays and scalars.
        out_shardings: requested shardings of results; None means that they are propagated.
        donated: for each operand whether it is donated; if empty, no operand is.
        warns: whether to warn about large operands that are gathered.
    """
    out_shardings = out_shardings or [None] * len(jaxpr.out_avals)
    distributed = [x.sharding for x in operands if type(x) is DistributedArray]
    memories = _memories(jaxpr, (*distributed, *out_shardings))
    if memories is None:  # distributed operands without a mesh
        gathered_operands = [gathered(x) if type(x) is DistributedArray else x for x in operands]
        outs = executable_of(jaxpr, (False,) * len(gathered_operands))(gathered_operands)
        pairs = safe_zip(outs, out_shardings)
        return [x if sharding is None else placed(x, sharding) for x, sharding in pairs]
    shardings = [x.sharding if isinstance(x, Array) else None for x in operands]
    local = local_program(jaxpr, memories, shardings, out_shardings, warns)
    everywhere = NamedSharding(memories.mesh, PartitionSpec())
    shards = [placed(x, everywhere) for x in local.consts]
    shards += [placed(x, sharding) for x, sharding in safe_zip(operands, local.in_shardings)]
    shapes = [aval.shape for aval in jaxpr.out_avals]
    flags = (*[False] * len(local.consts), *donated) if any(donated) else ()
    outs = run_local(local.jaxpr, shards, memories, local.out_shardings, shapes, flags)
    return [
        x if sharding is None or sharding == x.sharding else placed(x, sharding)
        for x, sharding in safe_zip(outs, out_shardings)
    ]


def _memories(jaxpr: ClosedJaxpr, shardings: Sequence[Sharding | None]) -> Memories | None:
    """The memories of the meshes of a program and of shardings; None if there is only one.

    Of equal meshes the one with the largest team counts: that of a pmap over several processes.
    """
    found = []
    for sharding in (*shardings, *requested_shardings(jaxpr.jaxpr)):
        mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
        memories = memories_of(mesh) if isinstance(mesh, Mesh) else None
        if memories is not None:
            found.append(memories)
    for eqn in all_eqns(jaxpr.jaxpr):
        if eqn.primitive.lower.is_split:
            found.append(eqn.params["memories"])
    return max(found, key=lambda candidate: len(candidate.team), default=None)


def local_program_over(
    jaxpr: ClosedJaxpr,
    in_shardings: Sequence[Sharding | None],
    out_shardings: Sequence[Sharding | None],
) -> LocalProgram | None:
    """The program of one memory; None if all shardings are in one memory. See ``local_program``."""
    memories = _memories(jaxpr, (*in_shardings, *out_shardings))
    return None if memories is None else local_program(jaxpr, memories, in_shardings, out_shardings)


def evaluate(primitive: Primitive, operands: Sequence[Any], params: dict[str, Any]) -> Any:
    """Run an op eagerly on operands of which some are distributed."""
    if primitive.placement.device is not None and primitive.placement.device(params) is not None:
        gathered_operands = [gathered(x) if type(x) is DistributedArray else x for x in operands]
        return eval_trace.process(primitive, tuple(gathered_operands), params)
    is_program = primitive.execute is not None  # a single op does not warn
    outs = run(_program(primitive, operands, params), operands, warns=is_program)
    return outs if primitive.multiple_results else outs[0]


def _program(primitive: Primitive, operands: Sequence[Any], params: dict[str, Any]) -> ClosedJaxpr:
    """A program of one equation, cached by op, types and params."""
    avals = tuple(map(aval_of, operands))
    key = (primitive, avals, params_key(params))
    try:
        program = _ops.get(key)
    except TypeError:
        return _one_equation(primitive, avals, params)
    if program is None:
        if len(_ops) > _MAX_OPS:
            _ops.clear()
        program = _ops[key] = _one_equation(primitive, avals, params)
    return program


def _one_equation(
    primitive: Primitive, avals: Sequence[Any], params: dict[str, Any]
) -> ClosedJaxpr:
    result = primitive.shape(*avals, **params)
    inputs = tuple(map(Var, avals))
    outputs = tuple(map(Var, result if primitive.multiple_results else (result,)))
    effects = primitive.effects(params)
    eqn = Eqn(primitive, inputs, outputs, params, None, effects)
    return ClosedJaxpr(Jaxpr((), inputs, outputs, (eqn,), effects))


def reshard(value: Any, sharding: Sharding) -> Any:
    """Reshard an array eagerly, over several memories or one.

    Raises:
        ValueError: if the sharding does not divide it.
    """
    if type(value) is not DistributedArray:
        return placed(value, sharding)
    current, rank = value.sharding, value.aval.ndim
    if current == sharding or holdings(current, rank) == holdings(sharding, rank):
        return placed(value, sharding)
    if is_in_one_memory(sharding):
        device = sharding._devices[0]
        return with_sharding(device_put(assembled_array(value), device), sharding)
    if isinstance(sharding, NamedSharding) and sharding.mesh == getattr(current, "mesh", None):
        sharding.shard_shape(value.aval.shape)
        return run(_identity(value.aval), [value], [sharding])[0]
    return distribute(assembled_array(value), sharding)


def assembled_array(value: DistributedArray) -> Array:
    """Gather all elements in a memory of this process; all processes must call it."""
    sharding = value.sharding
    if sharding.is_fully_addressable or not isinstance(sharding, NamedSharding):
        return gathered(value)
    everywhere = NamedSharding(sharding.mesh, PartitionSpec())
    return run(_identity(value.aval), [value], [everywhere])[0].arrays[0]


@cache
def _identity(aval: ShapedArray) -> ClosedJaxpr:
    variable = Var(aval)
    return ClosedJaxpr(Jaxpr((), (variable,), (variable,), ()))
