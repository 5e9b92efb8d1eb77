"""``shard_map_p``: a shard_map over several memories as a primitive, and its rules.

The equation holds the program of one memory. Operands and results are whole arrays; those of the
program are a memory's shards. Replicas of a value in several memories are equal. Transposition
therefore divides the cotangent of a replicated output equally among them, and sums the cotangents
of a replicated operand.

Tests: tests/parallel/test_sharded_arrays.py, tests/parallel/test_memories.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from gpuflow.base.util import safe_zip
from gpuflow.control.program_rules import backward_jaxpr, operand_cotangents
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.core.key_use import follow_shards
from gpuflow.core.lowering import Distributed
from gpuflow.core.primitive import make_primitive, register
from gpuflow.core.rules import AxisData, Zero, is_undefined
from gpuflow.core.sharding import NamedSharding, PartitionSpec
from gpuflow.core.staging import hoist_consts, trace_to_jaxpr
from gpuflow.ops.collectives.psum import psum_p
from gpuflow.ops.elementwise.arithmetic import constant, mul
from gpuflow.ops.layout.axes import insert_axis, squeeze
from gpuflow.ops.layout.transpose import move_axis
from gpuflow.parallel.partition.array_blocks import all_names
from gpuflow.parallel.partition.memory_programs import placed, run_local
from gpuflow.runtime.distributed import delete_donated
from gpuflow.runtime.memories import Memories
from gpuflow.transforms.batching import batch_jaxpr
from gpuflow.transforms.jvp import jvp_jaxpr
from gpuflow.transforms.linearize import linearize_jaxpr

Shardings = tuple[NamedSharding, ...]


def local_aval(aval: ShapedArray, sharding: NamedSharding, memories: Memories) -> ShapedArray:
    """The type of an array's shard in a memory."""
    return aval.update(shape=_scaled(aval.shape, sharding, memories, lambda a, b: a // b))


def whole_aval(aval: ShapedArray, sharding: NamedSharding, memories: Memories) -> ShapedArray:
    """The type of the whole array for that of a memory's shard."""
    return aval.update(shape=_scaled(aval.shape, sharding, memories, lambda a, b: a * b))


def _scaled(
    shape: Sequence[int],
    sharding: NamedSharding,
    memories: Memories,
    scale: Callable[[int, int], int],
) -> tuple[int, ...]:
    sizes = list(shape)
    for dim, entry in enumerate(sharding.spec):
        names = all_names(PartitionSpec(entry))
        sizes[dim] = scale(sizes[dim], prod(memories.between[name] for name in names))
    return tuple(sizes)


def bind_shard_map(
    jaxpr: ClosedJaxpr,
    operands: Sequence[Any],
    consts: Sequence[Any],
    *,
    name: str,
    memories: Memories,
    in_shardings: Shardings,
    out_shardings: Shardings,
    donated: Sequence[bool] = (),
) -> list[Any]:
    """Bind a program of one memory.

    Args:
        jaxpr: the program; its constants are its first inputs.
        operands: whole arrays.
        consts: values of the constants, which are replicated in every memory.
        name: name of the function, for messages.
        memories: the memories that run it.
        in_shardings, out_shardings: shardings of operands and results.
        donated: for each operand whether it is donated; if empty, no operand is.
    """
    whole = NamedSharding(memories.blocks, PartitionSpec())
    return shard_map_p.bind(
        *consts,
        *operands,
        jaxpr=jaxpr,
        name=name,
        memories=memories,
        in_shardings=(*[whole] * len(consts), *in_shardings),
        out_shardings=tuple(out_shardings),
        donated=(*[False] * len(consts), *donated) if any(donated) else (),
    )


def _bind_derived(
    jaxpr: ClosedJaxpr,
    name: str,
    operands: Sequence[Any],
    memories: Memories,
    in_shardings: Sequence[NamedSharding],
    out_shardings: Sequence[NamedSharding],
) -> list[Any]:
    """Bind a derived program; its constants become operands."""
    hoisted = jaxpr.jaxpr.memo("hoisted", lambda: ClosedJaxpr(hoist_consts(jaxpr.jaxpr)))
    return bind_shard_map(
        hoisted,
        operands,
        jaxpr.consts,
        name=name,
        memories=memories,
        in_shardings=tuple(in_shardings),
        out_shardings=tuple(out_shardings),
    )


def _shape(
    *avals: ShapedArray,
    jaxpr: ClosedJaxpr,
    memories: Memories,
    in_shardings: Shardings,
    out_shardings: Shardings,
    **params: Any,
) -> list[ShapedArray]:
    del params
    for operand, sharding, expected in safe_zip(avals, in_shardings, jaxpr.in_avals):
        local = local_aval(operand, sharding, memories)
        if (local.shape, local.dtype) != (expected.shape, expected.dtype):
            raise TypeError(
                f"[shard_map] operands must match the traced program; got {local} for {expected}. "
                "Fix: the rule that bound this shard_map; programs cannot cause it."
            )
    return [
        whole_aval(aval, sharding, memories)
        for aval, sharding in safe_zip(jaxpr.out_avals, out_shardings)
    ]


def _execute(operands: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    shapes = [aval.shape for aval in _shape(*map(aval_of, operands), **params)]
    shards = [placed(x, sharding) for x, sharding in safe_zip(operands, params["in_shardings"])]
    outs = run_local(
        params["jaxpr"],
        shards,
        params["memories"],
        params["out_shardings"],
        shapes,
        params["donated"],
    )
    delete_donated(operands, params["donated"])
    return outs


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    jaxpr: ClosedJaxpr,
    name: str,
    memories: Memories,
    in_shardings: Shardings,
    out_shardings: Shardings,
    donated: Sequence[bool],
) -> tuple[list[Any], list[Any]]:
    del donated  # of the call, not of derived programs
    nonzeros = tuple(type(tangent) is not Zero for tangent in tangents)
    derivative, out_nonzeros = jvp_jaxpr(jaxpr, nonzeros, False)
    nonzero_tangents = [tangent for tangent in tangents if type(tangent) is not Zero]
    results = _bind_derived(
        derivative,
        f"jvp({name})",
        [*primals, *nonzero_tangents],
        memories,
        [*in_shardings, *_selected(in_shardings, nonzeros)],
        [*out_shardings, *_selected(out_shardings, out_nonzeros)],
    )
    count = len(jaxpr.out_avals)
    tangent_results = iter(results[count:])
    outs = results[:count]
    out_tangents = [
        next(tangent_results) if nonzero else Zero(aval_of(out).tangent())
        for nonzero, out in safe_zip(out_nonzeros, outs)
    ]
    return outs, out_tangents


def _selected(shardings: Sequence[NamedSharding], flags: Sequence[bool]) -> list[NamedSharding]:
    return [sharding for sharding, flag in safe_zip(shardings, flags) if flag]


def _linearize(
    nonzeros: tuple[bool, ...],
    *primals: Any,
    jaxpr: ClosedJaxpr,
    name: str,
    memories: Memories,
    in_shardings: Shardings,
    out_shardings: Shardings,
    donated: Sequence[bool],
) -> tuple[Any, ...]:
    """The linearize rule; residuals are sharded over all memories, along a new first axis."""
    del donated  # of the call, not of derived programs
    known, linear, out_nonzeros, count = linearize_jaxpr(jaxpr, nonzeros)
    stacked = NamedSharding(memories.blocks, PartitionSpec(memories.names))
    evaluation, tangents = jaxpr.jaxpr.memo(
        ("shard_map", nonzeros), lambda: _with_memory_axis(known, ClosedJaxpr(linear), count)
    )
    outs = _bind_derived(
        evaluation, name, primals, memories, in_shardings, [*out_shardings, *[stacked] * count]
    )
    split = len(outs) - count

    def tangent_function(residuals: Sequence[Any], *nonzero_tangents: Any) -> list[Any]:
        return _bind_derived(
            tangents,
            f"linear({name})",
            [*residuals, *nonzero_tangents],
            memories,
            [*[stacked] * count, *_selected(in_shardings, nonzeros)],
            _selected(out_shardings, out_nonzeros),
        )

    return outs[:split], out_nonzeros, outs[split:], tangent_function


def _with_memory_axis(
    known: ClosedJaxpr, linear: ClosedJaxpr, count: int
) -> tuple[ClosedJaxpr, ClosedJaxpr]:
    """Give residuals a new first axis over the memories, since each memory has different ones."""

    def evaluation(*primals: Any) -> list[Any]:
        outs = known(*primals)
        split = len(outs) - count
        return [*outs[:split], *[insert_axis(x, 0) for x in outs[split:]]]

    def tangents(*values: Any) -> list[Any]:
        rows = [squeeze(x, (0,)) for x in values[:count]]
        return linear(*rows, *values[count:])

    rows = [aval.update(shape=(1, *aval.shape)) for aval in linear.in_avals[:count]]
    return (
        _traced(evaluation, known.in_avals),
        _traced(tangents, [*rows, *linear.in_avals[count:]]),
    )


def _traced(function: Callable[..., Any], avals: Sequence[ShapedArray]) -> ClosedJaxpr:
    jaxpr, consts = trace_to_jaxpr(function, avals)
    return ClosedJaxpr(jaxpr, tuple(consts))


def _transpose(
    cotangents: Sequence[Any],
    *operands: Any,
    jaxpr: ClosedJaxpr,
    name: str,
    memories: Memories,
    in_shardings: Shardings,
    out_shardings: Shardings,
    donated: Sequence[bool],
) -> list[Any]:
    del donated  # of the call, not of derived programs
    undefined = tuple(is_undefined(operand) for operand in operands)
    nonzeros = tuple(type(cotangent) is not Zero for cotangent in cotangents)
    backward, out_nonzeros = backward_jaxpr(jaxpr, undefined, nonzeros)
    known = [k for k, flag in enumerate(undefined) if not flag]
    cotangent_shardings = _selected(out_shardings, nonzeros)
    grad_shardings = _selected(_selected(in_shardings, undefined), out_nonzeros)
    program = jaxpr.jaxpr.memo(
        ("shared", undefined, nonzeros, memories, in_shardings, out_shardings),
        lambda: _backward_of_replicas(
            backward, len(known), cotangent_shardings, grad_shardings, memories
        ),
    )
    gradients = _bind_derived(
        program,
        f"transpose({name})",
        [*[operands[k] for k in known], *[ct for ct in cotangents if type(ct) is not Zero]],
        memories,
        [*[in_shardings[k] for k in known], *cotangent_shardings],
        grad_shardings,
    )
    return operand_cotangents(operands, gradients, out_nonzeros)


def _backward_of_replicas(
    backward: ClosedJaxpr,
    count: int,
    cotangent_shardings: Sequence[NamedSharding],
    grad_shardings: Sequence[NamedSharding],
    memories: Memories,
) -> ClosedJaxpr:
    """The backward pass for replicas: divides incoming cotangents, and sums resulting ones.

    Args:
        backward: ``(*known operands, *cotangents) -> operand cotangents`` of one memory.
        count: the number of known operands.
        cotangent_shardings, grad_shardings: shardings of cotangents and results.
        memories: the memories that run it.
    """

    def shared(*values: Any) -> list[Any]:
        cotangents = []
        for value, sharding in safe_zip(values[count:], cotangent_shardings):
            copies = prod(memories.between[name] for name in _replicated_axes(sharding, memories))
            share = constant(value, 1 / copies) if copies > 1 else None
            cotangents.append(value if share is None else mul(value, share))
        results = []
        for result, sharding in safe_zip(backward(*values[:count], *cotangents), grad_shardings):
            across = tuple(memories.across(name) for name in _replicated_axes(sharding, memories))
            results.append(
                psum_p.bind(result, axes=across, axis_index_groups=None) if across else result
            )
        return results

    return _traced(shared, backward.in_avals)


def _replicated_axes(sharding: NamedSharding, memories: Memories) -> list[Any]:
    """The axes across memories along which values of this sharding are replicated."""
    split_names = all_names(sharding.spec)
    return [name for name in memories.names if name not in split_names]


def _batch(
    axis: AxisData,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    jaxpr: ClosedJaxpr,
    name: str,
    memories: Memories,
    in_shardings: Shardings,
    out_shardings: Shardings,
    donated: Sequence[bool],
) -> tuple[list[Any], list[int | None]]:
    del donated  # of the call, not of derived programs
    batched = tuple(dim is not None for dim in dims)
    mapped, out_batched = batch_jaxpr(jaxpr, axis, batched)
    moved = [x if dim is None else move_axis(x, dim, 0) for x, dim in safe_zip(operands, dims)]

    def widened(shardings: Sequence[NamedSharding], flags: Sequence[bool]) -> list[NamedSharding]:
        return [
            NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec)) if flag else sharding
            for sharding, flag in safe_zip(shardings, flags)
        ]

    outs = _bind_derived(
        mapped,
        name,
        moved,
        memories,
        widened(in_shardings, batched),
        widened(out_shardings, out_batched),
    )
    return outs, [0 if flag else None for flag in out_batched]


shard_map_p = register(
    make_primitive(
        "shard_map",
        shape=_shape,
        execute=_execute,
        jvp=_jvp,
        linearize=_linearize,
        transpose=_transpose,
        batch=_batch,
        lower=Distributed(),
        multiple_results=True,
        effects=lambda params: params["jaxpr"].effects,
        subjaxprs=lambda params: [params["jaxpr"]],
        keys=follow_shards,
    )
)
