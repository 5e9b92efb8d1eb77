"""The predicted timeline of one device: its computation, and its communication.

The rules are those of the runtime: a sum between its begin and its end runs beside other steps, all
other collectives make them wait. Steps of one kind run one after the other.

Tests: tests/explaining/test_timeline.py.
"""

from __future__ import annotations

import html

from gpuflow.base.records import record
from gpuflow.compiler.planning.plan import Plan, ProgramStep, Step
from gpuflow.explaining.collectives import trips_of
from gpuflow.explaining.costs import TopologyRates, communication_of
from gpuflow.explaining.topology import Topology
from gpuflow.timing import format_seconds

_WIDTH, _ROW, _LEFT = 960, 26, 110
_MAX_BARS = 4000  # of a picture; shorter events are left out
_MAX_TRIPS = 3  # iterations of a loop whose events are listed


@record
class Event:
    """A step on the timeline.

    Attributes:
        name: of the step.
        start, seconds: when it runs, from the beginning of the call.
        is_communication: whether it occupies the links and not the device.
        text: for people.
    """

    name: str
    start: float
    seconds: float
    is_communication: bool
    text: str


@record
class Timeline:
    """When the steps of a plan run.

    Attributes:
        events: in the order in which they begin. Of loops, the first iterations.
        seconds: of a call.
        computation, communication: seconds in which the device computes, and the links are used.
        launches: steps that are started, iterations of loops included.
    """

    events: tuple[Event, ...]
    seconds: float
    computation: float
    communication: float
    launches: int

    @property
    def exposed_seconds(self) -> float:
        """Seconds in which the device waits for communication."""
        return max(self.seconds - self.computation, 0.0)

    @property
    def bound(self) -> float:
        """Seconds of a call whose communication and computation overlap entirely."""
        return max(self.computation, self.communication)

    def __str__(self) -> str:
        begin = (
            f"predicted {format_seconds(self.seconds)}: computation "
            f"{format_seconds(self.computation)}"
        )
        if not self.communication:
            return f"{begin}, no communication; {self.launches} launches"
        hidden = max(self.communication - self.exposed_seconds, 0.0) / self.communication
        return (
            f"{begin}, communication "
            f"{format_seconds(self.communication)}, of which {hidden:.0%} are hidden and "
            f"{format_seconds(self.exposed_seconds)} are exposed; "
            f"{format_seconds(self.bound)} if all were hidden; {self.launches} launches"
        )


class _Clock:
    """The state of a simulation: when the device and the links are free."""

    def __init__(self, topology: Topology) -> None:
        self.rates = TopologyRates(topology)
        self.device = self.links = 0.0
        self.computation = self.communication = 0.0
        self.launches = 0
        self.events: list[Event] = []
        self.ends: dict[tuple[int, int], float] = {}  # of begun sums, by plan and buffer

    def run(self, plan: Plan) -> None:
        """Run all steps of a plan."""
        for step in plan.steps:
            if isinstance(step, ProgramStep):
                self._repeat(step)
            else:
                self._step(plan, step)

    def _repeat(self, step: ProgramStep) -> None:
        """Run the programs of a loop, or the longest one of a branch.

        Iterations after the first ones take as long as the last of these: all begin with the same
        links free, relative to the time of the device.
        """
        trips = trips_of(step)
        if step.eqn.primitive.lower.inner(step.eqn).is_loop:
            programs = [inner.plan for inner in step.programs]
        else:
            programs = [max((inner.plan for inner in step.programs), key=self._length)]
        for trip in range(min(trips, _MAX_TRIPS)):
            before = self._totals()
            for plan in programs:
                self.run(plan)
            last = trip == _MAX_TRIPS - 1
            if last and trips > _MAX_TRIPS:
                self._add(trips - _MAX_TRIPS, before)

    def _totals(self) -> tuple[float, float, float, float, int]:
        return self.device, self.links, self.computation, self.communication, self.launches

    def _add(self, times: int, before: tuple[float, float, float, float, int]) -> None:
        """Advance by several times the difference between now and ``before``."""
        now = self._totals()
        device, links, computation, communication, launches = (
            b + times * (b - a) for a, b in zip(before, now, strict=True)
        )
        self.device, self.links = device, max(links, self.links)
        self.computation, self.communication = computation, communication
        self.launches = int(launches)

    def _length(self, plan: Plan) -> float:
        return sum(self.rates.step_seconds(plan, step) for step in plan.steps)

    def _step(self, plan: Plan, step: Step) -> None:
        found, seconds = communication_of(step), self.rates.step_seconds(plan, step)
        self.launches += 1
        if found is None:
            self._note(step.name, self.device, seconds, False, "")
            self.device += seconds
            self.computation += seconds
            return
        if found.phase == "end":
            self.device = max(self.device, self.ends.get((id(plan), step.operands[1].buffer), 0.0))
            return
        start = max(self.device, self.links)
        over = ", ".join(map(str, found.axes))
        self._note(found.method, start, seconds, True, f"over {over}")
        self.links = start + seconds
        self.communication += seconds
        if found.phase == "begin":
            self.ends[id(plan), step.outputs[0]] = self.links
        else:
            self.device = self.links

    def _note(self, name: str, start: float, seconds: float, is_sent: bool, text: str) -> None:
        self.events.append(Event(name, start, seconds, is_sent, text))


def timeline_of(plan: Plan, topology: Topology) -> Timeline:
    """Simulate a call of a plan."""
    clock = _Clock(topology)
    clock.run(plan)
    end = max(clock.device, clock.links)
    return Timeline(
        tuple(clock.events), end, clock.computation, clock.communication, clock.launches
    )


def timeline_picture(timeline: Timeline) -> str:
    """The timeline as an SVG of two rows of bars: computation above, communication below."""
    scale = (_WIDTH - _LEFT) / (timeline.seconds or 1.0)
    longest = sorted(timeline.events, key=lambda event: -event.seconds)[:_MAX_BARS]
    bars = [_bar(event, scale) for event in sorted(longest, key=lambda event: event.start)]
    height = 2 * _ROW + 34
    labels = "".join(
        f'<text x="{_LEFT - 8}" y="{k * _ROW + 22}" text-anchor="end">{name}</text>'
        for k, name in enumerate(("computation", "communication"))
    )
    end = (
        f'<text x="{_LEFT}" y="{height - 8}">0</text><text x="{_WIDTH}" y="{height - 8}" '
        f'text-anchor="end">{html.escape(format_seconds(timeline.seconds))}</text>'
    )
    return (
        f'<svg class="timeline" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="predicted computation and communication of one device">'
        f"{''.join(bars)}{labels}{end}</svg>"
    )


def _bar(event: Event, scale: float) -> str:
    row = int(event.is_communication)
    title = f"{event.name} {event.text}: {format_seconds(event.seconds)}"
    return (
        f'<rect class="{("computation", "communication")[row]}" '
        f'x="{_LEFT + event.start * scale:.2f}" y="{row * _ROW + 6}" '
        f'width="{max(event.seconds * scale, 0.3):.2f}" height="{_ROW - 6}">'
        f"<title>{html.escape(title)}</title></rect>"
    )
