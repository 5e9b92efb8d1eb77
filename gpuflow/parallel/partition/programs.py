"""SPMD partitioner: converts a program of whole arrays to the program of one memory.

Each equation is partitioned by the correspondence of its dimensions, from its lowering.
Corresponding dimensions remain sharded; reductions over sharded dimensions get a collective.
Without such information operands are gathered, with a warning, and every memory computes the whole
equation. Every program is therefore correct, and warnings show what is slow.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from math import prod
from typing import Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.errors import UnpartitionedWarning
from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.compiler.passes.program import inline
from gpuflow.compiler.shardings import constrain_mesh_axes, corresponding
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.blocks import Product
from gpuflow.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from gpuflow.core.lowering import block_of
from gpuflow.core.primitive import Primitive
from gpuflow.core.sharding import NamedSharding
from gpuflow.core.staging import trace_to_jaxpr
from gpuflow.ops.collectives.axis_index import axis_index_p
from gpuflow.ops.collectives.psum import psum_p
from gpuflow.ops.collectives.reduce import pmax_p, pmin_p
from gpuflow.ops.elementwise.arithmetic import add, mul
from gpuflow.ops.elementwise.convert import convert_element_type
from gpuflow.parallel.partition.choices import (
    choose,
    factors_of,
    factors_of_product,
    operand_axes,
    wanted_axes,
    without_axes,
)
from gpuflow.parallel.partition.loops import partition_branch, partition_loop
from gpuflow.parallel.partition.resharding import (
    DimAxes,
    dim_axes_in,
    local_params,
    local_shape,
    resharded,
    scattered_sum,
)
from gpuflow.runtime.memories import Memories

# From the function of a reduction to the collective that combines the results of memories.
_COLLECTIVES = {"add": psum_p, "max": pmax_p, "min": pmin_p}
_COLLECTIVES_OF_BOOLS = {"add": pmax_p, "or": pmax_p, "max": pmax_p, "and": pmin_p, "min": pmin_p}


# For so many equations a gathered value stays for other readers: those of a layer and its
# gradient, but not those of the forward and the backward pass of a model.
_NEAR = 256
# Terms of a sum wait for so many equations: others may be added to them before they are added up
# over memories. They are as large as the whole sum.
_SOON = 32
# Elements from which on an array is made where it is read, if it can be.
_LARGE = 1024
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


@record(frozen=False)
class Split:
    """A value of a program of one memory.

    Attributes:
        value: the shard of the memory.
        dim_axes: for each dimension the mesh axes that it is split over.
        partial: the mesh axes over which ``value`` is a term of a sum that is not added up yet.
        dtype: of the sum, if the terms have a wider one.
        sum_axes: the mesh axes with which the sum is added up unless its readers want others.
        copies: the value with other splits, and the number of the equation that read it so.
        make: ``DimAxes -> shard | None``, of an array that is made where it is read, such as random
            bits; ``value`` is None until it is read whole. None if it cannot be made so.
    """

    value: Any
    dim_axes: DimAxes
    partial: tuple[Any, ...] = ()
    dtype: Any = None
    sum_axes: DimAxes | None = None
    copies: dict[DimAxes, tuple[Any, int]] = field(default_factory=dict)
    make: Callable[[DimAxes], Any] | None = None


class Partitioner:
    """Evaluates equations of whole arrays on the shards of one memory.

    Args:
        memories: the memories of the mesh.
        warns: whether to warn about large operands that are gathered.
    """

    def __init__(self, memories: Memories, warns: bool = True) -> None:
        self.memories = memories
        self._warns = warns
        self._count_of_equations = 0

    def evaluate(
        self, jaxpr: Jaxpr, operands: Sequence[Split], out_axes: Sequence[DimAxes]
    ) -> list[Split]:
        """Partition and bind the equations of a program, and return its outputs.

        Args:
            jaxpr: of whole arrays.
            operands: its operands.
            out_axes: the requested mesh axes of outputs.
        """
        program = inline(jaxpr)
        uses = Counter(atom for atom in _variables(program) if type(atom) is Var)
        readers: dict[Any, int] = {}
        for position, eqn in enumerate(program.eqns):
            for atom in eqn.inputs:
                if type(atom) is Var:
                    readers.setdefault(atom, position)
        wanted = wanted_axes(program, out_axes, self.memories)
        env: dict[Var, Split] = dict(safe_zip(program.invars, operands))

        def read(atom: Atom) -> Split:
            if type(atom) is not Literal:
                return env[atom]
            return Split(atom.operand, ((),) * atom.aval.ndim)

        for position, eqn in enumerate(program.eqns):
            self._count_of_equations += 1
            values = [read(atom) for atom in eqn.inputs]
            sums = [pair for pair in safe_zip(eqn.inputs, values) if pair[1].partial]
            outs = None
            if sums and all(uses[atom] == 1 for atom, _ in sums):
                outs = self._terms(eqn, values)
            if outs is None:
                for atom, value in sums:
                    want = wanted.get(atom, value.sum_axes)
                    if want is not None:
                        self._add_up(value, want)
                outs = self._equation(eqn, values, [wanted.get(var) for var in eqn.outputs])
            for var, out in safe_zip(eqn.outputs, outs):
                env[var] = out
                is_late = readers.get(var, len(program.eqns)) - position > _SOON
                if out.partial and is_late and var in wanted:
                    self._add_up(out, wanted[var])
        return [read(atom) for atom in program.outvars]

    def reshard(self, split: Split, want: DimAxes) -> Any:
        """The shard of a value after resharding; the terms of a sum are added up before."""
        self._add_up(split, want)
        if split.make is not None and split.value is None and not any(want):
            split.value = split.make(want)
        if split.dim_axes == want:
            return split.value
        copy, last = split.copies.get(want, (None, -_NEAR))
        if self._count_of_equations - last >= _NEAR:
            copy = None if split.make is None else split.make(want)
            if copy is None:
                whole = self.reshard(split, split.dim_axes)
                copy = resharded(whole, split.dim_axes, want, self.memories)
        split.copies[want] = copy, self._count_of_equations
        return copy

    def _add_up(self, split: Split, want: DimAxes) -> None:
        """Add up the terms of a sum, once for all readers.

        Where ``want`` splits a dimension over the axis of a sum, each memory gets its shard of the
        sum only. Readers that need all of it gather it, which sends as much as a sum for all does.
        """
        if not split.partial:
            return
        value, dim_axes = split.value, list(split.dim_axes)
        whole = []
        for name in [name for name in self.memories.names if name in split.partial]:
            dim = _splits(dim_axes, want, name)
            if dim is None:
                whole.append(self.memories.across(name))
                continue
            dim_axes[dim] = (*dim_axes[dim], name)
            value = scattered_sum(value, dim, dim_axes[dim], self.memories)
        if whole:
            value = psum_p.bind(value, axes=tuple(whole), axis_index_groups=None)
        if split.dtype is not None:
            value = convert_element_type(value, split.dtype)
        split.value, split.dim_axes, split.partial, split.dtype = value, tuple(dim_axes), (), None

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
            outs = self.evaluate(jaxpr.jaxpr, operands, out_axes)
            return [self.reshard(out, want) for out, want in safe_zip(outs, out_axes)]

        avals = [
            aval.update(shape=local_shape(aval, dim_axes, self.memories))
            for aval, dim_axes in safe_zip(jaxpr.in_avals, in_axes)
        ]
        local_jaxpr, consts = trace_to_jaxpr(local, avals)
        return ClosedJaxpr(local_jaxpr, tuple(consts))

    def _terms(self, eqn: Eqn, operands: Sequence[Split]) -> list[Split] | None:
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
        widened = any(operand.dtype is not None for operand in operands)
        if others or not split.isdisjoint(partial) or (widened and len(operands) > 1):
            return None
        values = [x.value if x.partial else self.reshard(x, x.dim_axes) for x in operands]
        pairs = safe_zip(values, operands)
        outs = self._equation(eqn, [Split(value, x.dim_axes) for value, x in pairs])
        for out in outs:
            out.partial, out.dtype = (*partial, *out.partial), operands[0].dtype
        return outs

    def _equation(
        self, eqn: Eqn, operands: Sequence[Split], wanted: Sequence[DimAxes | None] = ()
    ) -> list[Split]:
        rule = eqn.primitive.lower
        if eqn.primitive.placement.sharding is not None:
            return [self._constrained(eqn, operands[0])]
        if rule.is_split:
            return self._distributed(eqn, operands)
        if not any(any(operand.dim_axes) for operand in operands):
            deferred = self._deferred(eqn, operands)
            return [deferred] if deferred is not None else self._bound(eqn, self._shards(operands))
        outs: list[Split] | None = None
        if rule.is_barrier:
            outs = self._barrier(eqn, operands)
        elif rule.form is not None:
            outs = partition_loop(self, eqn, operands, Split, wanted)
        elif rule.branches is not None:
            outs = partition_branch(self, eqn, operands, Split, wanted)
        else:
            block = block_of(eqn)
            if isinstance(block, Product):
                outs = self._product(eqn, block, operands)
            else:
                outs = self._iterated(eqn, operands)
        return self._gathered(eqn, operands) if outs is None else outs

    def _count(self, names: Sequence[Any]) -> int:
        """The number of shards over mesh axes."""
        return prod(self.memories.between[name] for name in names)

    def _shards(self, operands: Sequence[Split]) -> list[Any]:
        """The shards of operands as they are split, with sums added up."""
        return [self.reshard(x, x.dim_axes) for x in operands]

    def _deferred(self, eqn: Eqn, operands: Sequence[Split]) -> Split | None:
        """An array that is made where it is read; None if the op is computed at once.

        These are blocks of indices and random bits, repeated elements, and what elementwise ops and
        layouts make of them.
        """
        rule, block = eqn.primitive.lower, eqn.primitive.placement.block
        if len(eqn.outputs) != 1 or eqn.effects or eqn.outputs[0].aval.size < _LARGE:
            return None
        is_repeated = rule.view is not None and operands[0].value is not None
        is_repeated = is_repeated and aval_of(operands[0].value).size == 1
        follows = rule.is_elementwise or rule.view is not None
        follows = follows and any(x.make is not None and x.value is None for x in operands)
        if block is None and not is_repeated and not follows:
            return None
        rank = eqn.outputs[0].aval.ndim

        def make(want: DimAxes) -> Any:
            if not any(want):
                return self._bound(eqn, self._shards(operands))[0].value
            if block is not None:
                return self._block(eqn, operands, want)
            return self._deferred_shard(eqn, operands, want)

        return Split(None, ((),) * rank, make=make)

    def _block(self, eqn: Eqn, operands: Sequence[Split], want: DimAxes) -> Any:
        """The block of an array that is made from indices; None if its chunks are not blocks."""
        names = [name for axes in want for name in axes]
        sizes = local_shape(eqn.outputs[0].aval, want, self.memories)
        if any(self.memories.within[name] > 1 for name in names) or not self._divides(eqn, want):
            return None
        starts = [mul(self._number(axes), np.int32(n)) for axes, n in safe_zip(want, sizes)]
        assert eqn.primitive.placement.block is not None
        return eqn.primitive.placement.block(starts, sizes, *self._shards(operands), **eqn.params)

    def _deferred_shard(self, eqn: Eqn, operands: Sequence[Split], want: DimAxes) -> Any:
        """The shard of an op on arrays that are made where they are read; None if it has none."""
        correspondence = corresponding(eqn)
        if correspondence is None or not self._divides(eqn, want):
            return None
        pairs = safe_zip(correspondence.outs[0], want)
        split = {axis: names for axis, names in pairs if axis is not None}
        goals = operand_axes(eqn, correspondence, split, self.memories)
        values = [self.reshard(*pair) for pair in safe_zip(operands, goals)]
        applied = self._applied(eqn, values, [want])
        return None if applied is None else applied[0].value

    def _divides(self, eqn: Eqn, want: DimAxes) -> bool:
        """Whether a split has equal chunks."""
        sizes = eqn.outputs[0].aval.shape
        return all(size % self._count(axes) == 0 for size, axes in safe_zip(sizes, want))

    def _number(self, names: Sequence[Any]) -> Any:
        """The number of a memory's chunk of a dimension that is split over mesh axes."""
        number: Any = np.int32(0)
        for name in names:
            index = axis_index_p.bind(axis_name=self.memories.across(name))
            number = add(mul(number, np.int32(self.memories.between[name])), index)
        return number

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
        dim_axes = constrain_mesh_axes(requested, sharding.spec, operand.dim_axes)
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
        outs = eqn.primitive.bind(*self._shards(operands), **eqn.params)
        outs = outs if eqn.primitive.multiple_results else [outs]
        return [Split(out, operand.dim_axes) for out, operand in safe_zip(outs, operands)]

    # --- corresponding dimensions ---

    def _iterated(self, eqn: Eqn, operands: Sequence[Split]) -> list[Split] | None:
        """Ops with corresponding dimensions: elementwise ops, layouts, reductions and others.

        ``choose`` gives each axis of iteration its mesh axes, to which operands are resharded. None
        if nothing can be split.
        """
        correspondence = corresponding(eqn)
        if correspondence is None:
            return None
        collective = _collective(eqn)
        factors = factors_of(eqn, correspondence)
        if collective is None:  # along these the op cannot be split
            factors = [
                replace(factor, operands=(None,) * len(operands))
                if axis in correspondence.reduced
                else factor
                for axis, factor in enumerate(factors)
            ]
        sizes = [atom.aval.nbytes for atom in (*eqn.inputs, eqn.outputs[0])]
        have = [x.dim_axes for x in operands]
        chunk = self._chunk(eqn, operands)
        if chunk is not None:
            # Where other operands are split over its axes, the sum may be.
            natural = choose(factors, have, sizes, self.memories)
            have = [without_axes(dim_axes, chunk[1]) for dim_axes in have]
        chosen = choose(factors, have, sizes, self.memories)
        split = {axis: names for axis, names in enumerate(chosen) if names}
        goals = operand_axes(eqn, correspondence, split, self.memories)
        if chunk is not None:
            dim, names = chunk
            goals[0] = (*goals[0][:dim], names, *goals[0][dim + 1 :])
        values = [self.reshard(*pair) for pair in safe_zip(operands, goals)]
        if not split and chunk is None:
            return None  # every memory would compute the whole op: gather with a warning
        dim_axes = [
            tuple(() if k is None else split.get(k, ()) for k in out) for out in correspondence.outs
        ]
        if chunk is not None:
            terms = self._chunk_terms(eqn, values, dim_axes[0], *chunk)
            terms.sum_axes = tuple(() if k is None else natural[k] for k in correspondence.outs[0])
            return [terms]
        names = [name for axis in correspondence.reduced for name in split.get(axis, ())]
        if not names:
            return self._applied(eqn, values, dim_axes)
        return self._combined(eqn, values, dim_axes, names)

    def _chunk(self, eqn: Eqn, operands: Sequence[Split]) -> tuple[int, tuple[Any, ...]] | None:
        """The dimension of the first operand that is read in chunks, and its mesh axes.

        None if it is not split, or if to gather it sends fewer bytes than to add up the result.
        """
        rule, aval = eqn.primitive.placement.chunk, eqn.outputs[0].aval
        if rule is None or dtypes.is_bool(aval.dtype) or dtypes.is_extended(aval.dtype):
            return None
        self._add_up(operands[0], operands[0].dim_axes)
        dim, _ = rule(eqn.params)
        names = operands[0].dim_axes[dim]
        if not names or any(self.memories.within[name] > 1 for name in names):
            return None
        gathered = eqn.inputs[0].aval.nbytes * (1 - 1 / self._count(names))
        return None if gathered < aval.nbytes else (dim, names)

    def _chunk_terms(
        self, eqn: Eqn, values: Sequence[Any], out: DimAxes, dim: int, names: Sequence[Any]
    ) -> Split:
        """The term of the output that a chunk of the first operand gives."""
        assert eqn.primitive.placement.chunk is not None
        _, apply = eqn.primitive.placement.chunk(eqn.params)
        length = aval_of(values[0]).shape[dim]
        start = mul(self._number(names), np.int32(length))
        value = apply(start, eqn.inputs[0].aval.shape[dim], *values)
        partial = tuple(name for name in self.memories.names if name in names)
        return Split(value, out, partial)

    def _combined(
        self, eqn: Eqn, values: Sequence[Any], dim_axes: Sequence[DimAxes], names: Sequence[Any]
    ) -> list[Split] | None:
        """The equation on shards, with results combined over the mesh axes that it reduces.

        Sums are left as terms, see ``_add_up``. Those of 16-bit floats are rounded once, after all
        memories' are added, where the call has a result in float32.
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
            if collective is psum_p:
                dtype = None if aval_of(out.value).dtype == var.aval.dtype else var.aval.dtype
                partial = tuple(name for name in self.memories.names if name in names)
                results.append(Split(out.value, out.dim_axes, partial, dtype))
                continue
            value = collective.bind(out.value, axes=tuple(across), axis_index_groups=None)
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
        """A batched matrix product; contracted dimensions may be sharded too."""
        left, right = operands[:2]
        for operand in operands:
            self._add_up(operand, operand.dim_axes)
        factors = factors_of_product(eqn, product)
        have = [left.dim_axes, right.dim_axes]
        sizes = [atom.aval.nbytes for atom in (*eqn.inputs[:2], eqn.outputs[0])]
        chosen = choose(factors, have, sizes, self.memories, moves=True)
        dims = [[()] * atom.aval.ndim for atom in (*eqn.inputs[:2], eqn.outputs[0])]
        for factor, names in safe_zip(factors, chosen):
            for side, dim in enumerate((*factor.operands, factor.out)):
                if dim is not None:
                    dims[side][dim] = names
        one, two, out = map(tuple, dims)
        values = [self.reshard(left, one), self.reshard(right, two)]
        values += [self.reshard(x, ((),) * len(x.dim_axes)) for x in operands[2:]]
        pairs = safe_zip(factors, chosen)
        summed = [name for factor, names in pairs if factor.out is None for name in names]
        if summed:
            return self._combined(eqn, values, [out], summed)
        return self._applied(eqn, values, [out])


def _variables(program: Jaxpr) -> Iterator[Atom]:
    """The operands of all equations, and the outputs."""
    for eqn in program.eqns:
        yield from eqn.inputs
    yield from program.outvars


def _splits(have: Sequence[tuple[Any, ...]], want: DimAxes, name: Any) -> int | None:
    """The dimension that ``want`` splits over one more axis; None if there is none."""
    pairs = enumerate(zip(have, want, strict=True))
    return next((d for d, (old, new) in pairs if new[: len(old) + 1] == (*old, name)), None)


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
