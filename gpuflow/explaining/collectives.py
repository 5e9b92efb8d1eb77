"""The collectives of a plan of one device, in order, with the bytes that they send.

Tests: tests/explaining/test_mesh_explanation.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpuflow.base.records import record
from gpuflow.base.tables import Table, scaled
from gpuflow.base.util import SourceLocation
from gpuflow.compiler.planning.plan import Plan, ProgramStep
from gpuflow.core.communication import Communication
from gpuflow.explaining.costs import communication_of, short_origin
from gpuflow.explaining.topology import Topology
from gpuflow.timing import format_seconds


@record
class Collective:
    """A collective of a plan.

    Attributes:
        operation: "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute" or
            "broadcast".
        axes: names of the mesh axes that it is over.
        group_size: devices that take part with one another.
        dtype, shape: of the operand of one device.
        bytes_in: bytes of that operand.
        bytes_sent: bytes that the device that sends most sends in one call.
        times: how often it runs in a call of the program. One iteration counts of a loop of unknown
            length, and all branches of a branch.
        seconds: predicted for one call.
        link: "nvlink" or "nic", the slowest link that it crosses.
        is_async: whether other steps run while it does.
        line: the user's line that it belongs to.
        cause: why it is there: "" if the program asks for it, as in shard_map.
        communication: groups of ranks, and pairs of a permutation.
    """

    operation: str
    axes: tuple[Any, ...]
    group_size: int
    dtype: Any
    shape: tuple[int, ...]
    bytes_in: int
    bytes_sent: int
    times: int
    seconds: float
    link: str
    is_async: bool
    line: SourceLocation | None
    cause: str
    communication: Communication

    @property
    def total_sent(self) -> int:
        """Bytes sent in a call of the program."""
        return self.bytes_sent * self.times

    @property
    def is_unrequested(self) -> bool:
        """Whether it gathers operands of an op that is not partitioned."""
        return self.cause.endswith("is not partitioned")


def collectives_of(plan: Plan, topology: Topology) -> tuple[Collective, ...]:
    """All collectives of a plan, in the order in which they begin."""
    return tuple(
        Collective(
            found.method,
            found.axes,
            found.group_size,
            step.operands[0].aval.dtype,
            step.operands[0].aval.shape,
            found.nbytes,
            found.sent,
            times,
            topology.seconds(found),
            topology.links(found),
            found.phase == "begin",
            step.eqn.source,
            "" if step.eqn.source is None else step.eqn.source.cause,
            found,
        )
        for step, times in _repeated_steps(plan, 1)
        if (found := communication_of(step)) is not None and found.phase != "end"
    )


def _repeated_steps(plan: Plan, times: int) -> Iterator[tuple[Any, int]]:
    """The steps of a plan and of the programs in it, and how often each runs."""
    for step in plan.steps:
        yield step, times
        if isinstance(step, ProgramStep):
            trips = trips_of(step)
            for inner in step.programs:
                yield from _repeated_steps(inner.plan, times * trips)


def trips_of(step: ProgramStep) -> int:
    """How often the programs of a loop run; 1 if that is not known, and for branches."""
    form = step.eqn.primitive.lower.inner(step.eqn)
    trips = form.trip_count(1)
    return 1 if trips is None else trips


def bytes_sent(collectives: Sequence[Collective], axis: Any = None) -> int:
    """Bytes that the device that sends most sends in a call of the program.

    Args:
        collectives: of the program.
        axis: only those over this axis; None: all.
    """
    chosen = [c for c in collectives if axis is None or axis in c.axes]
    permuted: dict[int, int] = {}
    total = 0
    for c in chosen:
        if c.operation != "permute":
            total += c.total_sent
            continue
        for rank, sent in c.communication.sent_by_rank().items():
            permuted[rank] = permuted.get(rank, 0) + sent * c.times
    return total + max(permuted.values(), default=0)


def collectives_table(collectives: Sequence[Collective], top: int | None) -> Table:
    """The collectives that send most; equal ones of a line and cause are one row."""
    rows: dict[Any, list[Collective]] = {}
    for c in collectives:
        key = c.operation, c.axes, c.dtype, c.shape, c.line, c.cause, c.is_async
        rows.setdefault(key, []).append(c)
    ordered = sorted(rows.values(), key=lambda row: -sum(c.total_sent for c in row))
    texts = [_row(row) for row in ordered[:top]]
    count = sum(c.times for c in collectives)
    title = (
        f"{count} collective{'s' * (count != 1)} send {scaled(bytes_sent(collectives), 'B')}; "
        f"{len(texts)} of {len(ordered)} kinds"
    )
    columns = ("collective", "over", "operand", "times", "sent", "link", "predicted", "line", "why")
    return Table(title, columns, tuple(texts), (0, 1, 2, 5, 7, 8))


def _row(row: Sequence[Collective]) -> tuple[str, ...]:
    c = row[0]
    times = sum(one.times for one in row)
    return (
        f"{c.operation}{' (async)' if c.is_async else ''}",
        f"{', '.join(map(str, c.axes))} ({c.group_size})",
        f"{c.dtype}{list(c.shape)}",
        str(times),
        scaled(c.bytes_sent * times, "B"),
        c.link,
        format_seconds(c.seconds * times),
        short_origin(c.line),
        c.cause or "in the program",
    )
