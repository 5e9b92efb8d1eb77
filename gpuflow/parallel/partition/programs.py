"""SPMD partitioner: converts a program of whole arrays to the program of one memory.

Each equation is partitioned by the correspondence of its dimensions, from its lowering.
Corresponding dimensions remain sharded; reductions over sharded dimensions get a collective.
Without such information operands are gathered, with a warning, and every memory computes the whole
equation. Every program is therefore correct, and warnings show what is slow.

Tests: tests/parallel/test_partitioned_products.py, tests/parallel/test_partitioner.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from gpuflow.base import dtypes
from gpuflow.base.errors import UnpartitionedWarning
from gpuflow.base.util import because, safe_zip
from gpuflow.compiler.passes.program import inline
from gpuflow.compiler.shardings import constrain_mesh_axes
from gpuflow.core.aval import aval_of
from gpuflow.core.blocks import Product
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering import block_of
from gpuflow.core.sharding import NamedSharding
from gpuflow.core.staging import trace_to_jaxpr
from gpuflow.core.trace import made_at
from gpuflow.ops.zeros import zeros_of
from gpuflow.parallel.partition.iterated import iterated, multiplied
from gpuflow.parallel.partition.loops import partition_branch, partition_loop
from gpuflow.parallel.partition.made import deferred
from gpuflow.parallel.partition.readers import Readers, wanted_axes
from gpuflow.parallel.partition.resharding import (
    MeshAxes,
    dim_axes_in,
    is_even,
    local_shape,
    resharded,
)
from gpuflow.parallel.partition.shards import Shards, Split, splits_of
from gpuflow.runtime.memories import Memories

# Terms of a sum wait for so many equations: others may be added to them before they are added up
# over memories. They are as large as the whole sum.
_SOON = 32

# Gathers up to this size cost little more than a call, so they do not warn.
QUIET_BYTES = 1_000_000
_warned_sources: set[Any] = set()


def _warn(eqn: Eqn, names: Sequence[Any], gathered_bytes: int) -> None:
    """Warn about an equation that is not partitioned over mesh axes, once per source line."""
    name, source = eqn.primitive.name, eqn.source
    key = name if source is None else (source.file, source.line)
    if gathered_bytes <= QUIET_BYTES or key in _warned_sources:
        return
    types = ", ".join(str(atom.aval) for atom in eqn.inputs)
    message = (
        f"[jit] {name} of {types}{f' at {source}' if source else ''} is not partitioned over "
        f"{', '.join(map(repr, names))}: "
        f"operands of {gathered_bytes / 1e6:.1f} MB are gathered, and each device computes the "
        "same result. "
        "Fix: split other dimensions, or compute it in shard_map."
    )
    if source is None:
        warnings.warn(message, UnpartitionedWarning, stacklevel=3)
    else:
        warnings.warn_explicit(message, UnpartitionedWarning, source.file, source.line)
    _warned_sources.add(key)  # not reached if warnings are errors: then it warns each time


class Partitioner:
    """Evaluates equations of whole arrays on the shards of one memory.

    Args:
        memories: the memories of the mesh.
        warns: whether to warn about large operands that are gathered.
    """

    def __init__(self, memories: Memories, warns: bool = True) -> None:
        self.memories = memories
        self._shards = Shards(memories)
        self._warns = warns

    def evaluate(
        self, jaxpr: Jaxpr, operands: Sequence[Split], out_axes: Sequence[MeshAxes]
    ) -> list[Split]:
        """Partition and bind the equations of a program, and return its outputs.

        Args:
            jaxpr: of whole arrays.
            operands: its operands.
            out_axes: the requested mesh axes of outputs.
        """
        program = inline(jaxpr)
        readers = Readers(program)
        wanted = wanted_axes(program, out_axes, self.memories)
        env: dict[Var, Split] = dict(safe_zip(program.invars, operands))

        def read(atom: Atom) -> Split:
            if type(atom) is not Literal:
                return env[atom]
            return Split(atom.operand, atom.aval, ((),) * atom.aval.ndim)

        for position, eqn in enumerate(program.eqns):
            self._shards.count_of_equations += 1
            values = [read(atom) for atom in eqn.inputs]
            with made_at(because(eqn.source, f"operand of {eqn.primitive.name}")):
                outs = self._results(eqn, values, readers, wanted)
            for var, out in safe_zip(eqn.outputs, outs):
                env[var] = out
                if out.partial and out.origin is None:
                    out.origin = because(eqn.source, f"sum of terms of {eqn.primitive.name}")
                is_late = readers.first(var) - position > _SOON
                if out.partial and is_late and var in wanted:
                    self._shards.add_up(out, wanted[var])
        return [read(atom) for atom in program.outvars]

    def traced(
        self, jaxpr: ClosedJaxpr, in_axes: Sequence[MeshAxes], out_axes: Sequence[MeshAxes]
    ) -> ClosedJaxpr:
        """Partition a program without constants.

        Args:
            jaxpr: the program of whole arrays.
            in_axes, out_axes: for each input and output the mesh axes of its dimensions.
        """

        def local(*values: Any) -> list[Any]:
            triples = zip(values, jaxpr.in_avals, in_axes, strict=True)
            operands = [Split(*triple) for triple in triples]
            outs = self.evaluate(jaxpr.jaxpr, operands, out_axes)
            results = []
            for atom, out, want in safe_zip(jaxpr.jaxpr.outvars, outs, out_axes):
                source = sources.get(atom) if type(atom) is Var else None
                with made_at(because(source, "sharding of a result")):
                    results.append(self._shards.reshard(out, want))
            return results

        sources = {var: eqn.source for eqn in jaxpr.jaxpr.eqns for var in eqn.outputs}

        avals = [
            aval.update(shape=local_shape(aval, dim_axes, self.memories))
            for aval, dim_axes in safe_zip(jaxpr.in_avals, in_axes)
        ]
        local_jaxpr, consts = trace_to_jaxpr(local, avals)
        return ClosedJaxpr(local_jaxpr, tuple(consts))

    def _results(
        self,
        eqn: Eqn,
        operands: Sequence[Split],
        readers: Readers,
        wanted: Mapping[Atom, MeshAxes],
    ) -> list[Split]:
        """The results of an equation; terms of sums remain terms where the op allows it."""
        sums = [pair for pair in safe_zip(eqn.inputs, operands) if pair[1].partial]
        outs = None
        if sums and all(readers.count(atom) == 1 for atom, _ in sums):
            outs = self._terms(eqn, operands, readers)
        if outs is None:
            for atom, value in sums:
                want = wanted.get(atom, value.sum_axes)
                if want is not None:
                    self._shards.add_up(value, want)
            goals = [wanted.get(var) for var in eqn.outputs]
            outs = self._equation(eqn, operands, readers, goals)
        return outs

    def _terms(self, eqn: Eqn, operands: Sequence[Split], readers: Readers) -> list[Split] | None:
        """The terms of an op's sum, given terms of its operands'; None if they are to be added."""
        if eqn.primitive.placement.sharding is not None:
            return None
        sums, layout = eqn.primitive.placement.sums, eqn.primitive.lower.view is not None
        flags = [bool(operand.partial) for operand in operands]
        if not (layout and len(operands) == 1 if sums is None else sums(flags)):
            return None
        largest = max(x.aval.size for x, flag in safe_zip(eqn.inputs, flags) if flag)
        if any(var.aval.size > largest for var in eqn.outputs):
            return None  # the terms of a broadcast are more than those of its operand
        partial, *others = {operand.partial for operand in operands if operand.partial}
        split = {name for x in operands for names in x.dim_axes for name in names}
        # Terms with a wider dtype combine with others of that dtype only.
        widened = any(operand.dtype is not None for operand in operands)
        dtypes_of_terms = {aval_of(operand.value).dtype for operand in operands}
        is_mixed = widened and not (all(flags) and len(dtypes_of_terms) == 1)
        if others or not split.isdisjoint(partial) or is_mixed:
            return None
        values = [x.value if x.partial else self._shards.reshard(x, x.dim_axes) for x in operands]
        pairs = safe_zip(values, operands)
        values = [Split(value, x.aval, x.dim_axes) for value, x in pairs]
        outs = self._equation(eqn, values, readers)
        for out in outs:
            out.partial, out.dtype = (*partial, *out.partial), operands[0].dtype
            out.origin = next(x.origin for x in operands if x.partial)
        return outs

    def _equation(
        self,
        eqn: Eqn,
        operands: Sequence[Split],
        readers: Readers,
        wanted: Sequence[MeshAxes | None] = (),
    ) -> list[Split]:
        rule = eqn.primitive.lower
        if eqn.primitive.placement.sharding is not None:
            return [self._constrained(eqn, operands[0])]
        if rule.is_split:
            return self._distributed(eqn, operands)
        if _is_empty(eqn):
            return [Split(zeros_of(x.aval), x.aval, ((),) * x.aval.ndim) for x in eqn.outputs]
        if not any(any(operand.dim_axes) for operand in operands):
            made = deferred(self._shards, eqn, operands)
            return self._whole(eqn, operands) if made is None else [made]
        outs: list[Split] | None = None
        if rule.is_barrier:
            outs = self._barrier(eqn, operands)
        elif rule.form is not None:
            outs = partition_loop(self, eqn, operands, wanted)
        elif rule.branches is not None:
            outs = partition_branch(self, eqn, operands, wanted)
        else:
            block = block_of(eqn)
            if isinstance(block, Product):
                outs = multiplied(self._shards, eqn, block, operands)
            else:
                outs = iterated(self._shards, eqn, operands, readers, self._lost)
        if outs is not None:
            return outs
        names = {name for x in operands for axes in x.dim_axes for name in axes}
        gathered = sum(x.aval.nbytes for x in operands if any(x.dim_axes))
        self._lost(eqn, [name for name in self.memories.names if name in names], gathered)
        return self._whole(eqn, operands)

    def _whole(self, eqn: Eqn, operands: Sequence[Split]) -> list[Split]:
        """The equation on whole operands, in every memory."""
        with made_at(because(eqn.source, f"{eqn.primitive.name} is not partitioned")):
            whole = [self._shards.reshard(x, ((),) * x.aval.ndim) for x in operands]
        return self._shards.bound(eqn, whole)

    def _lost(self, eqn: Eqn, names: Sequence[Any], gathered_bytes: int) -> None:
        if self._warns:
            _warn(eqn, names, gathered_bytes)

    def reshard(self, split: Split, want: MeshAxes) -> Any:
        """The shard of a value after resharding; see ``Shards.reshard``."""
        return self._shards.reshard(split, want)

    def _constrained(self, eqn: Eqn, operand: Split) -> Split:
        """Apply a sharding constraint of the user."""
        assert eqn.primitive.placement.sharding is not None
        sharding, memories = eqn.primitive.placement.sharding(eqn.params), self.memories
        if not isinstance(sharding, NamedSharding) or sharding.mesh != memories.mesh:
            return operand
        requested = dim_axes_in(sharding, operand.aval.ndim, memories)
        dim_axes = constrain_mesh_axes(requested, sharding.spec, operand.dim_axes)
        can_be_uneven = not dtypes.is_extended(operand.aval.dtype)
        dim_axes = tuple(
            names if is_even(size, names, memories) or (can_be_uneven and len(names) == 1) else ()
            for size, names in safe_zip(operand.aval.shape, dim_axes)
        )
        with made_at(because(eqn.source, "sharding constraint")):
            return Split(self._shards.reshard(operand, dim_axes), operand.aval, dim_axes)

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
                values.append(self._shards.reshard(operand, dim_axes))
            else:
                value = self._shards.reshard(operand, whole)
                values.append(resharded(value, operand.aval.shape, whole, dim_axes, theirs))
        outs = []
        results = params["jaxpr"](*values)
        for value, var, sharding in safe_zip(results, eqn.outputs, params["out_shardings"]):
            dim_axes, whole = dim_axes_in(sharding, var.aval.ndim, theirs), ((),) * var.aval.ndim
            if theirs is not ours:
                shape = var.aval.shape
                value, dim_axes = resharded(value, shape, dim_axes, whole, theirs), whole
            outs.append(Split(value, var.aval, dim_axes))
        return outs

    def _barrier(self, eqn: Eqn, operands: Sequence[Split]) -> list[Split]:
        outs = eqn.primitive.bind(*self._shards.of(operands), **eqn.params)
        outs = outs if eqn.primitive.multiple_results else [outs]
        return splits_of(eqn, outs, [x.dim_axes for x in operands])


def _is_empty(eqn: Eqn) -> bool:
    """Whether an equation gives arrays without elements only, which need no operand."""
    avals = [var.aval for var in eqn.outputs]
    is_plain = not any(aval.size or dtypes.is_extended(aval.dtype) for aval in avals)
    return is_plain and not eqn.effects
