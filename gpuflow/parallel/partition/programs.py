"""SPMD partitioner: converts a program of whole arrays to the program of one memory.

Each equation is partitioned by the correspondence of its dimensions, from its lowering.
Corresponding dimensions remain sharded; reductions over sharded dimensions get a collective.
Without such information operands are gathered, with a warning, and every memory computes the whole
equation. Every program is therefore correct, and warnings show what is slow.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from gpuflow.base import dtypes
from gpuflow.base.errors import UnpartitionedWarning
from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.compiler.passes.program import inline
from gpuflow.compiler.shardings import constrained, corresponding
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.blocks import Product
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering import block_of
from gpuflow.core.primitive import Primitive
from gpuflow.core.sharding import NamedSharding
from gpuflow.core.staging import trace_to_jaxpr
from gpuflow.ops.collectives.psum import psum_p
from gpuflow.ops.collectives.reduce import pmax_p, pmin_p
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.parallel.partition.loops import partition_branch, partition_loop
from gpuflow.parallel.partition.resharding import (
    DimAxes,
    dim_axes_in,
    local_params,
    local_shape,
    resharded,
)
from gpuflow.runtime.memories import Memories

# From the function of a reduction to the collective that combines the results of memories.
_COLLECTIVES = {"add": psum_p, "max": pmax_p, "min": pmin_p}
_COLLECTIVES_OF_BOOLS = {"add": pmax_p, "or": pmax_p, "max": pmax_p, "and": pmin_p, "min": pmin_p}


# Gathers up to this size cost little more than a call, so they do not warn.
QUIET_BYTES = 1_000_000
_warned_sources: set[Any] = set()


def _warn(eqn: Eqn, gathered_bytes: int) -> None:
    """Warn about an equation that is not partitioned, once per source line."""
    name, source = eqn.primitive.name, eqn.source
    key = name if source is None else (source.file, source.line)
    if gathered_bytes <= QUIET_BYTES or key in _warned_sources:
        return
    types = ", ".join(str(atom.aval) for atom in eqn.inputs)
    message = (
        f"[jit] {name} of {types}{f' at {source}' if source else ''} is not partitioned: "
        f"operands of {gathered_bytes / 1e6:.1f} MB are gathered, and each device computes the "
        "whole result. "
        "Fix: split other dimensions, or compute it in shard_map."
    )
    if source is None:
        warnings.warn(message, UnpartitionedWarning, stacklevel=3)
    else:
        warnings.warn_explicit(message, UnpartitionedWarning, source.file, source.line)
    _warned_sources.add(key)  # not reached if warnings are errors: then it warns each time


@record
class Split:
    """A value of a program of one memory.

    Attributes:
        value: the shard of the memory.
        dim_axes: for each dimension the mesh axes that it is split over.
    """

    value: Any
    dim_axes: DimAxes


class Partitioner:
    """Evaluates equations of whole arrays on the shards of one memory.

    Args:
        memories: the memories of the mesh.
        warns: whether to warn about large operands that are gathered.
    """

    def __init__(self, memories: Memories, warns: bool = True) -> None:
        self.memories = memories
        self._warns = warns

    def evaluate(self, jaxpr: Jaxpr, operands: Sequence[Split]) -> list[Split]:
        """Partition and bind the equations of a program, and return its outputs."""
        program = inline(jaxpr)
        env: dict[Var, Split] = dict(safe_zip(program.invars, operands))

        def read(atom: Atom) -> Split:
            if type(atom) is not Literal:
                return env[atom]
            return Split(atom.operand, ((),) * atom.aval.ndim)

        for eqn in program.eqns:
            outs = self._equation(eqn, [read(atom) for atom in eqn.inputs])
            env.update(safe_zip(eqn.outputs, outs))
        return [read(atom) for atom in program.outvars]

    def reshard(self, split: Split, want: DimAxes) -> Any:
        """The shard of a value after resharding."""
        return resharded(split.value, split.dim_axes, want, self.memories)

    def traced(
        self, jaxpr: ClosedJaxpr, in_axes: Sequence[DimAxes], out_axes: Sequence[DimAxes]
    ) -> ClosedJaxpr:
        """Partition a program without constants.

        Args:
            jaxpr: the program of whole arrays.
            in_axes, out_axes: for each input and output the mesh axes of its dimensions.
        """

        def local(*values: Any) -> list[Any]:
            operands = [Split(*pair) for pair in safe_zip(values, in_axes)]
            outs = self.evaluate(jaxpr.jaxpr, operands)
            return [self.reshard(out, want) for out, want in safe_zip(outs, out_axes)]

        avals = [
            aval.update(shape=local_shape(aval, dim_axes, self.memories))
            for aval, dim_axes in safe_zip(jaxpr.in_avals, in_axes)
        ]
        local_jaxpr, consts = trace_to_jaxpr(local, avals)
        return ClosedJaxpr(local_jaxpr, tuple(consts))

    def _equation(self, eqn: Eqn, operands: Sequence[Split]) -> list[Split]:
        rule = eqn.primitive.lower
        if eqn.primitive.placement.sharding is not None:
            return [self._constrained(eqn, operands[0])]
        if rule.is_split:
            return self._distributed(eqn, operands)
        if not any(any(operand.dim_axes) for operand in operands):
            return self._bound(eqn, [operand.value for operand in operands])
        outs: list[Split] | None = None
        if rule.is_barrier:
            outs = self._barrier(eqn, operands)
        elif rule.form is not None:
            outs = partition_loop(self, eqn, operands, Split)
        elif rule.branches is not None:
            outs = partition_branch(self, eqn, operands, Split)
        else:
            block = block_of(eqn)
            if isinstance(block, Product):
                outs = self._product(eqn, block, operands)
            else:
                outs = self._iterated(eqn, operands)
        return self._gathered(eqn, operands) if outs is None else outs

    def _bound(self, eqn: Eqn, values: Sequence[Any]) -> list[Split]:
        """Bind an equation on unsharded values."""
        outs = eqn.primitive.bind(*values, **eqn.params)
        outs = outs if eqn.primitive.multiple_results else [outs]
        return [Split(out, ((),) * aval_of(out).ndim) for out in outs]

    def _gathered(self, eqn: Eqn, operands: Sequence[Split]) -> list[Split]:
        if self._warns:
            pairs = safe_zip(eqn.inputs, operands)
            _warn(eqn, sum(atom.aval.nbytes for atom, x in pairs if any(x.dim_axes)))
        return self._bound(eqn, [self.reshard(x, ((),) * len(x.dim_axes)) for x in operands])

    def _constrained(self, eqn: Eqn, operand: Split) -> Split:
        """Apply a sharding constraint of the user."""
        assert eqn.primitive.placement.sharding is not None
        sharding, memories = eqn.primitive.placement.sharding(eqn.params), self.memories
        if not isinstance(sharding, NamedSharding) or sharding.mesh != memories.mesh:
            return operand
        requested = dim_axes_in(sharding, eqn.inputs[0].aval.ndim, memories)
        dim_axes = constrained(requested, sharding.spec, operand.dim_axes)
        return Split(self.reshard(operand, dim_axes), dim_axes)

    def _distributed(self, eqn: Eqn, operands: Sequence[Split]) -> list[Split]:
        """A shard_map equation: it holds the program of one memory, so reshard its operands."""
        params, ours = eqn.params, self.memories
        theirs: Memories = params["memories"]
        if theirs.team != ours.team:
            raise NotImplementedError(
                f"[jit] all meshes of a program must have the same devices in the same order; got "
                f"{theirs.mesh} and {ours.mesh}. Fix: use one mesh."
            )
        values = []
        for operand, sharding in safe_zip(operands, params["in_shardings"]):
            dim_axes = dim_axes_in(sharding, len(operand.dim_axes), theirs)
            whole = ((),) * len(operand.dim_axes)
            if theirs is ours:
                values.append(self.reshard(operand, dim_axes))
            else:
                values.append(resharded(self.reshard(operand, whole), whole, dim_axes, theirs))
        outs = []
        results = params["jaxpr"](*values)
        for value, var, sharding in safe_zip(results, eqn.outputs, params["out_shardings"]):
            dim_axes, whole = dim_axes_in(sharding, var.aval.ndim, theirs), ((),) * var.aval.ndim
            if theirs is not ours:
                value, dim_axes = resharded(value, dim_axes, whole, theirs), whole
            outs.append(Split(value, dim_axes))
        return outs

    def _barrier(self, eqn: Eqn, operands: Sequence[Split]) -> list[Split]:
        outs = eqn.primitive.bind(*[operand.value for operand in operands], **eqn.params)
        outs = outs if eqn.primitive.multiple_results else [outs]
        return [Split(out, operand.dim_axes) for out, operand in safe_zip(outs, operands)]

    # --- corresponding dimensions ---

    def _iterated(self, eqn: Eqn, operands: Sequence[Split]) -> list[Split] | None:
        """Ops with corresponding dimensions: elementwise ops, layouts, reductions and others.

        Each axis of iteration takes the mesh axes of the first operand that has it split; the other
        operands are resharded. None if nothing can be split.
        """
        correspondence = corresponding(eqn)
        if correspondence is None:
            return None
        collective = _collective(eqn)
        split: dict[int, tuple[Any, ...]] = {}
        used: set[Any] = set()
        for atom, operand, links in safe_zip(eqn.inputs, operands, correspondence.reads):
            for dim, axis in links:
                names = operand.dim_axes[dim]
                is_full = atom.aval.shape[dim] == correspondence.sizes[axis]
                may_split = axis not in correspondence.reduced or collective is not None
                if names and is_full and may_split and axis not in split and not used & {*names}:
                    split[axis] = names
                    used.update(names)
        values = []
        for atom, operand, links in safe_zip(eqn.inputs, operands, correspondence.reads):
            want: list[tuple[Any, ...]] = [()] * atom.aval.ndim
            for dim, axis in links:
                if atom.aval.shape[dim] == correspondence.sizes[axis]:
                    want[dim] = split.get(axis, ())
            values.append(self.reshard(operand, tuple(want)))
        if not split:
            return None  # every memory would compute the whole op: gather with a warning
        dim_axes = [
            tuple(() if k is None else split.get(k, ()) for k in out) for out in correspondence.outs
        ]
        names = [name for axis in correspondence.reduced for name in split.get(axis, ())]
        if not names:
            return self._applied(eqn, values, dim_axes)
        return self._combined(eqn, values, dim_axes, names)

    def _combined(
        self, eqn: Eqn, values: Sequence[Any], dim_axes: Sequence[DimAxes], names: Sequence[Any]
    ) -> list[Split] | None:
        """The equation on shards, with results combined over the mesh axes that it reduces.

        If the op has a dtype param, sums of 16-bit floats are computed in float32, and rounded once
        after the collective.
        """
        # In the order of the mesh, so that reductions over the same axes share a communicator.
        across = [self.memories.across(name) for name in self.memories.names if name in names]
        if not across:
            return self._applied(eqn, values, dim_axes)
        outs = self._applied(_with_float32_result(eqn), values, dim_axes)
        collective = _collective(eqn)
        if outs is None or collective is None:
            return None
        results = []
        for out, var in safe_zip(outs, eqn.outputs):
            value = collective.bind(out.value, axes=tuple(across), axis_index_groups=None)
            if aval_of(value).dtype != var.aval.dtype:
                value = convert_element_type(value, var.aval.dtype)
            results.append(Split(value, out.dim_axes))
        return results

    def _applied(
        self, eqn: Eqn, values: Sequence[Any], dim_axes: Sequence[DimAxes]
    ) -> list[Split] | None:
        """The equation on shards; None if this does not give the expected shape of the result."""
        pairs = safe_zip(eqn.outputs, dim_axes)
        expected = [local_shape(var.aval, axes, self.memories) for var, axes in pairs]
        params = local_params(eqn, dim_axes[0], expected[0])
        try:
            out = eqn.primitive.shape(*map(aval_of, values), **params)
        except (TypeError, ValueError):
            return None
        avals: Sequence[ShapedArray] = out if eqn.primitive.multiple_results else [out]
        if [aval.shape for aval in avals] != expected:
            return None
        outs = eqn.primitive.bind(*values, **params)
        outs = outs if eqn.primitive.multiple_results else [outs]
        return [Split(*pair) for pair in safe_zip(outs, dim_axes)]

    def _product(self, eqn: Eqn, product: Product, operands: Sequence[Split]) -> list[Split] | None:
        """A batched matrix product; contracted dimensions may be sharded too.

        A mesh axis splits at most one dimension. Batch dimensions choose first, then contracted
        dimensions, rows and columns.
        """
        (batch, rows, depth), (right_batch, right_depth, columns) = product.left, product.right
        left, right = operands[:2]
        taken_axes: set[Any] = set()

        def select(*options: tuple[Any, ...]) -> tuple[Any, ...]:
            axes = next((names for names in options if names and not taken_axes & {*names}), ())
            taken_axes.update(axes)
            return axes

        batch_axes = [
            select(left.dim_axes[a], right.dim_axes[b]) for a, b in safe_zip(batch, right_batch)
        ]
        depth_axes = [
            select(left.dim_axes[a], right.dim_axes[b]) for a, b in safe_zip(depth, right_depth)
        ]
        row_axes = [select(left.dim_axes[d]) for d in rows]
        column_axes = [select(right.dim_axes[d]) for d in columns]
        left_axes = _arranged(
            len(left.dim_axes), (batch, batch_axes), (rows, row_axes), (depth, depth_axes)
        )
        right_axes = _arranged(
            len(right.dim_axes),
            (right_batch, batch_axes),
            (right_depth, depth_axes),
            (columns, column_axes),
        )
        values = [self.reshard(left, left_axes), self.reshard(right, right_axes)]
        values += [self.reshard(x, ((),) * len(x.dim_axes)) for x in operands[2:]]
        dim_axes = [(*batch_axes, *row_axes, *column_axes)]
        names = [name for group in depth_axes for name in group]
        if names:
            return self._combined(eqn, values, dim_axes, names)
        return self._applied(eqn, values, dim_axes)


def _collective(eqn: Eqn) -> Primitive | None:
    """The collective that combines the results of memories; None if there is none."""
    is_bool = dtypes.is_bool(eqn.outputs[0].aval.dtype)
    collectives = _COLLECTIVES_OF_BOOLS if is_bool else _COLLECTIVES
    return collectives.get(eqn.primitive.lower.combine_shards)


def _with_float32_result(eqn: Eqn) -> Eqn:
    """The equation with a float32 result instead of 16-bit floats or narrower, if possible."""
    rule, dtype = eqn.primitive.lower, eqn.outputs[0].aval.dtype
    if rule.dtype_param is None:
        return eqn
    if not dtypes.is_floating(dtype) or dtype.itemsize > 2:
        return eqn
    return eqn.replace(params={**eqn.params, rule.dtype_param: dtypes.float32})


def _arranged(rank: int, *groups: tuple[Sequence[int], Sequence[tuple[Any, ...]]]) -> DimAxes:
    """The mesh axes of all dimensions, from groups of dimensions and their mesh axes."""
    dim_axes: list[tuple[Any, ...]] = [()] * rank
    for dims, names in groups:
        for dim, axes in safe_zip(dims, names):
            dim_axes[dim] = axes
    return tuple(dim_axes)
