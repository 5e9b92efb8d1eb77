"""``MeshExplanation``: the plan of one device of a mesh, which need not exist.

Tests: tests/explaining/test_mesh_explanation.py.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuflow.base import tree
from gpuflow.base.cached import cached_property
from gpuflow.base.config import config
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.base.tables import Table, scaled
from gpuflow.base.util import SourceLocation, safe_zip
from gpuflow.compiler import explain_stages
from gpuflow.compiler.explain import eqns_of
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.compiler.planning.plan import Plan, ProgramStep, flops_of, nbytes
from gpuflow.control.entry import Entry
from gpuflow.control.jit_function import JitFunction
from gpuflow.core.aval import ShapedArray
from gpuflow.core.mesh import AbstractMesh, Mesh
from gpuflow.core.sharding import NamedSharding, PartitionSpec, Sharding, on_mesh
from gpuflow.explaining.collectives import (
    Collective,
    bytes_sent,
    collectives_of,
    collectives_table,
    trips_of,
)
from gpuflow.explaining.costs import Rates, TopologyRates, short_origin
from gpuflow.explaining.explanation import Explanation, Subject
from gpuflow.explaining.memory import LiveArray, live_at_peak, memory_over
from gpuflow.explaining.timeline import Timeline, timeline_of, timeline_picture
from gpuflow.explaining.topology import Topology
from gpuflow.parallel.meshes import planned_mesh
from gpuflow.parallel.partition.whole_programs import LocalProgram, local_program
from gpuflow.runtime.device import default_device, target_of
from gpuflow.runtime.memories import memories_of
from gpuflow.timing import format_seconds

# A line computes redundantly if all devices together do more than this times the work of one.
_REDUNDANT = 1.1
_MAX_ARRAYS = 8  # in a table
_STAGES = tuple(stage for stage in explain_stages.STAGES if stage != "driver")  # without a device


@record
class Redundancy:
    """A line whose operations several devices repeat.

    Attributes:
        line: the user's line; None: unknown.
        flops: of one device.
        needed: its share, if the devices split the operations of the whole program evenly.
    """

    line: SourceLocation | None
    flops: int
    needed: float


class MeshExplanation(Explanation):
    """Explanation of the program of one device of a mesh, returned by ``gpuflow.explain``.

    ``print`` it, show it in a notebook, or write a page with ``to_html``; or assert on its fields
    in a test. Times are predicted for ``topology``; nothing runs.

    Attributes:
        mesh: the axes of the mesh.
        topology: links and rates.
        name, stage, top: as of ``Explanation``.

    Example:
        >>> mesh = gf.sharding.AbstractMesh((8,), ("data",))
        >>> x = gf.ShapeDtypeStruct((64, 16), jnp.float32, sharding=gf.P("data"))
        >>> plan = gf.explain(lambda x: (x.T @ x).sum(), x, mesh=mesh)
        >>> [(c.operation, c.axes, c.cause) for c in plan.collectives]
        [('all_reduce', ('data',), 'sum of terms of dot_general')]
        >>> plan.bytes_sent("data") < 10_000
        True
    """

    _hint = ""

    def __init__(
        self,
        name: str,
        stage: str,
        top: int | None,
        subject: Subject,
        mesh: AbstractMesh,
        topology: Topology,
        entry: Entry,
        arguments: Sequence[LiveArray],
    ) -> None:
        super().__init__(name, stage, top, subject)
        self.mesh, self.topology = mesh, topology
        self._entry, self._arguments = entry, arguments

    @property
    def _rates(self) -> Rates:
        return TopologyRates(self.topology)

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives of a call, in the order in which they begin."""
        return collectives_of(self._subject.plan, self.topology)

    def bytes_sent(self, axis: Any = None) -> int:
        """Bytes that the device that sends most sends in a call.

        Args:
            axis: count collectives over this mesh axis only; None: all. A collective over several
                axes counts for each.

        Raises:
            ValueError: if the mesh has no such axis.
        """
        check(
            axis is None or axis in self.mesh.axis_names,
            lambda: (
                f"[bytes_sent] the axis must be one of {self.mesh.axis_names}; got {axis!r}. "
                "Fix: leave it out to count all."
            ),
            ValueError,
        )
        return bytes_sent(self.collectives, axis)

    @property
    def argument_bytes(self) -> int:
        """Bytes of the arguments on each device."""
        return sum(map(nbytes, self._subject.plan.jaxpr.in_avals))

    @cached_property
    def peak_bytes(self) -> int:
        """The largest memory of a device during a call: arguments, temporaries and results."""
        return self.argument_bytes + max(memory_over(self._subject.plan), default=0)

    @cached_property
    def arrays_at_peak(self) -> tuple[LiveArray, ...]:
        """The arrays in the memory of a device when it needs most, largest first."""
        arrays = [*self._arguments, *live_at_peak(self._subject.plan)]
        return tuple(sorted(arrays, key=lambda array: -array.nbytes))

    @cached_property
    def flops(self) -> int:
        """Floating-point operations of one device."""
        return sum(map(flops_of, self._subject.plan.steps))

    @cached_property
    def _whole(self) -> Plan:
        """The plan of the program of whole arrays."""
        return compile_plan(self._entry.jaxpr, (), target=self._subject.target)[0]

    @property
    def needed_flops(self) -> float:
        """Operations of one device, if the devices split those of the whole program evenly."""
        return sum(map(flops_of, self._whole.steps)) / self.mesh.size

    @cached_property
    def redundant(self) -> tuple[Redundancy, ...]:
        """The lines whose operations several devices repeat, the most expensive first."""
        local, whole = _flops_by_line(self._subject.plan), _flops_by_line(self._whole)
        found = [Redundancy(line, n, whole[line] / self.mesh.size) for line, n in local.items()]
        found = [one for one in found if one.flops > _REDUNDANT * one.needed]
        return tuple(sorted(found, key=lambda one: one.needed - one.flops))

    @cached_property
    def timeline(self) -> Timeline:
        """The predicted computation and communication of one device."""
        return timeline_of(self._subject.plan, self.topology)

    @property
    def exposed_seconds(self) -> float:
        """Predicted seconds of a call in which a device waits for communication."""
        return self.timeline.exposed_seconds

    @property
    def seconds(self) -> float:
        """Predicted seconds of a call."""
        return self.timeline.seconds

    def diff(self, other: MeshExplanation) -> Table:
        """Differences between this plan and another: bytes by collective, memory, time.

        Args:
            other: the plan to compare, for example with other shardings.

        Returns:
            A table: print it. Rows that are equal in both are left out.

        Raises:
            TypeError: if the other is not a plan over a mesh.
        """
        check(
            isinstance(other, MeshExplanation),
            lambda: (
                f"[diff] other must be a plan over a mesh; got {type(other).__name__}. "
                "Fix: gpuflow.explain(f, x, mesh=mesh)."
            ),
        )
        mine, theirs = self._figures(), other._figures()
        rows = []
        for name in dict.fromkeys([*mine, *theirs]):
            before, after = mine.get(name, (0.0, "0")), theirs.get(name, (0.0, "0"))
            if before[1] != after[1]:
                ratio = f"{after[0] / before[0]:.2f}" if before[0] else ""
                rows.append((name, before[1], after[1], ratio))
        return Table(f"{self.name} and {other.name}", ("", "this", "other", "ratio"), tuple(rows))

    def _figures(self) -> dict[str, tuple[float, str]]:
        """Figures by name: each as a number and as text."""
        found = {
            "memory at the peak": (self.peak_bytes, scaled(self.peak_bytes, "B")),
            "arguments": (self.argument_bytes, scaled(self.argument_bytes, "B")),
            "operations": (self.flops, scaled(self.flops, "FLOP")),
            "predicted time": (self.seconds, format_seconds(self.seconds)),
            "exposed communication": (self.exposed_seconds, format_seconds(self.exposed_seconds)),
            "bytes sent": (self.bytes_sent(), scaled(self.bytes_sent(), "B")),
        }
        sent: Counter[str] = Counter()
        for c in self.collectives:
            sent[f"{c.operation} over {', '.join(map(str, c.axes))}"] += c.total_sent
        return found | {name: (count, scaled(count, "B")) for name, count in sorted(sent.items())}

    @property
    def _head(self) -> str:
        sizes = " x ".join(f"{name}={size}" for name, size in self.mesh.shape_tuple)
        return f"{super()._head}; one device of {sizes}"

    def _tables(self) -> list[Table]:
        tables = [collectives_table(self.collectives, self.top), self._memory_table()]
        unrequested = [c for c in self.collectives if c.is_unrequested]
        if unrequested:
            table = collectives_table(unrequested, self.top)
            title = f"gathers that no sharding asks for: {table.title}"
            tables.append(Table(title, table.columns, table.rows, table.left))
        if self.redundant:
            rows = tuple(
                (short_origin(one.line), scaled(one.flops, "FLOP"), scaled(one.needed, "FLOP"))
                for one in self.redundant[: self.top]
            )
            columns = ("line", "each device", "whole / devices")
            tables.append(Table("lines that several devices compute", columns, rows))
        return tables

    def _memory_table(self) -> Table:
        arrays = self.arrays_at_peak[:_MAX_ARRAYS]
        rows = tuple(
            (a.name, a.kind, str(a.aval), scaled(a.nbytes, "B"), short_origin(a.line))
            for a in arrays
        )
        title = (
            f"{scaled(self.peak_bytes, 'B')} of memory at the peak, "
            f"{scaled(self.argument_bytes, 'B')} of them arguments; the largest arrays"
        )
        return Table(title, ("array", "kind", "type", "size", "line"), rows, (0, 1, 2, 4))

    def __str__(self) -> str:
        if self.stage != "plan":
            return self.text
        tables = [str(table) for table in (*self._tables(), self.table)]
        return "\n\n".join([self._head, str(self.timeline), *tables])

    __repr__ = __str__

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        if self.stage == "plan":
            yield str(self.timeline)
            yield from self._tables()
        yield from super().__rich_console__(console, options)

    def _sections(self) -> Sequence[str]:
        tables = [f'<section class="mesh">{t._repr_html_()}</section>' for t in self._tables()]
        picture = timeline_picture(self.timeline)
        text = html.escape(str(self.timeline))
        return [f"<figure>{picture}<figcaption>{text}</figcaption></figure>", *tables]

    def _repr_html_(self) -> str:
        if self.stage != "plan":
            return super()._repr_html_()
        return f"{''.join(self._sections())}{super()._repr_html_()}"


def _flops_by_line(plan: Plan, times: int = 1) -> Counter[SourceLocation | None]:
    """Operations by line; those of a kernel are divided among its equations."""
    found: Counter[SourceLocation | None] = Counter()
    for step in plan.steps:
        if isinstance(step, ProgramStep):
            for inner in step.programs:
                found.update(_flops_by_line(inner.plan, times * trips_of(step)))
            continue
        eqns, flops = eqns_of(step), flops_of(step)
        for eqn in eqns:
            found[eqn.source] += flops * times // len(eqns)
    return found


def mesh_of(mesh: Any, arguments: Any) -> Mesh | AbstractMesh | None:
    """The mesh of a call: the one that is given, or that of a sharded argument; None: one device.

    Args:
        mesh: the user's value, or None.
        arguments: a tree of arrays and ShapeDtypeStructs. PartitionSpecs refer to the current mesh.

    Raises:
        TypeError: if ``mesh`` is not a mesh.
        ValueError: if it has no axes, or a PartitionSpec has no mesh.
    """
    check(
        mesh is None or isinstance(mesh, Mesh | AbstractMesh),
        lambda: (
            f"[explain] mesh must be a Mesh or an AbstractMesh; got {mesh!r}. "
            "Fix: gpuflow.sharding.AbstractMesh((8,), ('data',))."
        ),
    )
    check(
        mesh is None or mesh.size > 0,
        lambda: f"[explain] mesh must have axes; got {mesh}. Fix: leave it out for one device.",
        ValueError,
    )
    if mesh is not None:
        return mesh
    for leaf in tree.leaves(arguments):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, PartitionSpec):
            sharding = on_mesh("explain", sharding, config.mesh)
        if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1:
            return sharding.mesh
    return None


def can_be_measured(mesh: Mesh | AbstractMesh) -> bool:
    """Whether all devices of a mesh share one memory, so that a run is one program."""
    return isinstance(mesh, Mesh) and memories_of(mesh) is None


def explained_over(
    jitted: JitFunction[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    mesh: Mesh | AbstractMesh,
    topology: Topology | None,
    stage: str,
    platform: str | None,
    top: int | None,
) -> MeshExplanation:
    """Explain the program of one device of a mesh.

    Args:
        jitted: the function.
        args, kwargs: arrays or ShapeDtypeStructs; their shardings over other meshes with the same
            axes count as those over ``mesh``.
        mesh: the mesh.
        topology, stage, platform, top: as for ``gpuflow.explain``.

    Raises:
        ValueError: if a sharding does not divide its argument, or the stage needs a device.
    """
    check(
        stage in _STAGES,
        lambda: (
            f"[explain] stage over a mesh must be one of {_STAGES}; got {stage!r}. "
            "Fix: leave it out to see the plan."
        ),
        ValueError,
    )
    name = platform or _platform_of(mesh)
    target, planned = target_of(name), planned_mesh(mesh, name)
    memories = memories_of(planned)
    with config.override("mesh", planned):
        traced = jitted.trace(*args, **kwargs)
        entry, requested = traced.entry, traced.requested
        positional, keywords = tree.unflatten(traced.in_tree, range(traced.in_tree.num_leaves))
        names = jitted.argument_names(positional, keywords)
        pairs = safe_zip(names, requested.inputs, tree.leaves(traced.in_avals))
        ins = [_planned(planned, f"the argument {name}", *pair) for name, *pair in pairs]
        outs = [
            _planned(planned, "a result", sharding, aval)
            for sharding, aval in zip(requested.outputs, entry.jaxpr.out_avals, strict=False)
        ]
        outs += [None] * (len(entry.jaxpr.out_avals) - len(outs))
        local = local_program(entry.jaxpr, memories, [*[None] * entry.hidden, *ins], outs)
        flags = [*[False] * len(local.consts), *entry.donated]
        donated = tuple(k for k, flag in enumerate(flags) if flag)
        plan, _ = compile_plan(local.jaxpr, donated, target=target)
        text = None
        if stage != "plan":
            text = explain_stages.explain_stage(stage, local.jaxpr, plan, target)
    subject = Subject(plan, target, lambda step: (), planned.devices.flat[0], text)
    arguments = _arguments(names, local)
    axes = planned.abstract_mesh
    topology = topology or Topology()
    return MeshExplanation(traced.fun_name, stage, top, subject, axes, topology, entry, arguments)


def _planned(
    planned: Mesh, name: str, sharding: Sharding | None, aval: ShapedArray
) -> NamedSharding | None:
    """A sharding of an argument or result over the planned mesh, by the names of its axes.

    Raises:
        ValueError: if the mesh lacks an axis, or the sharding does not divide the value.
    """
    if not isinstance(sharding, NamedSharding):
        return None
    try:
        found = NamedSharding(planned, sharding.spec)
        found.shard_shape(aval.shape)
    except ValueError as error:
        raise ValueError(f"[explain] the sharding of {name} must fit the mesh; {error}") from None
    return found


def _platform_of(mesh: Mesh | AbstractMesh) -> str:
    """The platform of a mesh's devices; without devices that of new arrays."""
    device = mesh.devices.flat[0] if isinstance(mesh, Mesh) else default_device()
    return device.platform


def _arguments(names: Sequence[str], local: LocalProgram) -> list[LiveArray]:
    """The arguments of the program of one device; constants come first."""
    avals: list[ShapedArray] = local.jaxpr.in_avals
    every = [*["a constant"] * (len(avals) - len(names)), *names]
    return [
        LiveArray(name, "argument", aval, nbytes(aval), None)
        for name, aval in safe_zip(every, avals)
    ]
