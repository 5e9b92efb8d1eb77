"""Partition programs for any number of devices without drivers, and count what they communicate.

The devices have memories of their own, as GPUs or processes have. Nothing runs: bytes come from the
program of one memory, by the formulas of ring algorithms.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

import gpuflow as gf
from gpuflow import P
from gpuflow.compiler.pipeline import run_passes
from gpuflow.compiler.shardings import result_shardings
from gpuflow.compiler.target import PLAIN_TARGET
from gpuflow.core.communicator import Across
from gpuflow.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Literal
from gpuflow.core.lowering import ScanForm
from gpuflow.core.mesh import Mesh
from gpuflow.core.sharding import NamedSharding
from gpuflow.errors import UnpartitionedWarning
from gpuflow.parallel.partition.whole_programs import partition
from gpuflow.runtime.device import Platform, devices, register_platform
from gpuflow.runtime.memories import memories_of

PLATFORM = "counted"
COUNT = int(os.environ.get("MESH_DEVICES", "8"))
register_platform(Platform(PLATFORM, lambda: COUNT, lambda k: None, shares_memory=False))
# What is sent to all others, twice and once.
_SUMS = ("psum", "psum_begin", "pmax", "pmin")
_EXCHANGES = ("reduce_scatter", "all_to_all")


@dataclass
class Counted:
    """The program of one memory.

    Attributes:
        sent: bytes that each device sends, by collective.
        permuted: bytes that each device sends to others in permutations, in the order of ranks.
        times: collectives that run.
        argument_bytes, peak_bytes: of one device; the peak without fusion, an upper bound.
        warnings: texts of those about operands that are gathered.
        seconds: partitioning took.
    """

    sent: Counter[str] = field(default_factory=Counter)
    permuted: Counter[int] = field(default_factory=Counter)
    times: Counter[str] = field(default_factory=Counter)
    argument_bytes: int = 0
    peak_bytes: int = 0
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def bytes_sent(self) -> float:
        """Bytes that the device that sends most sends in all."""
        return sum(self.sent.values()) + max(self.permuted.values(), default=0)


def mesh(shape: Sequence[int], names: Sequence[str]) -> Mesh:
    """A mesh of the first devices."""
    grid = np.empty(prod(shape), object)
    grid[:] = devices(PLATFORM)[: prod(shape)]
    return Mesh(grid.reshape(shape), tuple(names))


def count(
    function: Callable[..., Any], args: Any, specs: Any, over: Mesh, out_specs: Any = None
) -> Counted:
    """Partition a function.

    Args:
        function: of ``args``.
        args: arrays or ShapeDtypeStructs, in any tree.
        specs: a PartitionSpec or None for each leaf.
        over: the mesh.
        out_specs: the same for results; None follows the arguments.
    """
    leaves, found = gf.tree.leaves(args), Counted()
    entry = gf.jit(function).trace(*args)._entry
    constants = [NamedSharding(over, P()) for _ in entry.consts]
    ins = [*constants, *[NamedSharding(over, spec or P()) for spec in _specs(specs)]]
    assert len(ins) == len(entry.consts) + len(leaves), "a spec for each leaf"
    goal = result_shardings(entry.jaxpr.jaxpr, ins, over)
    assert goal is not None
    if out_specs is not None:
        pairs = zip(goal, _specs(out_specs), strict=True)
        goal = [follows if s is None else NamedSharding(over, s) for follows, s in pairs]
    memories = memories_of(over)
    assert memories is not None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.perf_counter()
        local = partition(entry.jaxpr, memories, ins, goal)
        found.seconds = time.perf_counter() - start
    found.warnings = [
        str(one.message) for one in caught if issubclass(one.category, UnpartitionedWarning)
    ]
    program, _ = run_passes(local.jaxpr, PLAIN_TARGET, lambda *_: None)
    for eqn, times in _collectives(program):
        name = eqn.primitive.name
        found.times[name] += times
        if name == "ppermute":
            for rank in _senders(eqn):
                found.permuted[rank] += eqn.inputs[0].aval.nbytes * times
        else:
            found.sent[name] += round(_sent(eqn) * times)
    found.argument_bytes = sum(x.aval.nbytes for x in local.jaxpr.jaxpr.invars)
    found.peak_bytes = _peak(program)
    return found


def _specs(specs: Any) -> list[Any]:
    return gf.tree.leaves(specs, is_leaf=lambda x: isinstance(x, P) or x is None)


def _inner(eqn: Eqn) -> Iterator[tuple[Jaxpr, int]]:
    """The programs in an equation, and how often each runs; of a while loop, once."""
    form = None if eqn.primitive.lower.form is None else eqn.primitive.lower.form(eqn.params)
    if isinstance(form, ScanForm):
        yield form.body.jaxpr, form.length
    elif eqn.primitive.subjaxprs is not None:
        programs = eqn.primitive.subjaxprs(eqn.params)
        yield from ((one.jaxpr, 1) for one in programs if type(one) is ClosedJaxpr)


def _collectives(program: Jaxpr, times: int = 1) -> Iterator[tuple[Eqn, int]]:
    for eqn in program.eqns:
        if _group_sizes(eqn):
            yield eqn, times
        for inner, trips in _inner(eqn):
            yield from _collectives(inner, times * trips)


def _group_sizes(eqn: Eqn) -> list[int]:
    """The sizes of the groups of memories that a collective joins."""
    if eqn.primitive.name in ("axis_index", "psum_end"):
        return []
    names = eqn.params.get("axes") or eqn.params.get("axis_name") or ()
    names = names if isinstance(names, tuple) else (names,)
    return [len(name.groups[0]) for name in names if isinstance(name, Across)]


def _senders(eqn: Eqn) -> Iterator[int]:
    """The devices that send in a permutation."""
    (axis,) = eqn.params["axis_name"]
    for group in axis.groups:
        yield from (group[sender] for sender, receiver in eqn.params["perm"] if sender != receiver)


def _sent(eqn: Eqn) -> float:
    """The bytes that a device sends in a ring."""
    name, size, sent = eqn.primitive.name, sum(x.aval.nbytes for x in eqn.inputs), 0.0
    for n in _group_sizes(eqn):
        if name in _SUMS:
            sent += 2 * (n - 1) / n * size
        elif name == "all_gather":
            sent, size = sent + (n - 1) * size, size * n
        else:
            assert name in _EXCHANGES, name
            sent += size * (n - 1) / n
    return sent


def _peak(program: Jaxpr) -> int:
    """The most bytes of values that live at once, if nothing is fused or donated."""
    last = {
        x: k for k, eqn in enumerate(program.eqns) for x in eqn.inputs if type(x) is not Literal
    }
    last |= {x: len(program.eqns) for x in program.outvars if type(x) is not Literal}
    now = sum(v.aval.nbytes for v in (*program.invars, *program.constvars))
    peak = now
    for k, eqn in enumerate(program.eqns):
        inner = [_peak(one) - sum(v.aval.nbytes for v in one.invars) for one, _ in _inner(eqn)]
        now += sum(v.aval.nbytes for v in eqn.outputs)
        peak = max(peak, now + max([0, *inner]))
        used = {x for x in (*eqn.inputs, *eqn.outputs) if type(x) is not Literal}
        now -= sum(v.aval.nbytes for v in used if last.get(v, k) <= k)
    return peak
