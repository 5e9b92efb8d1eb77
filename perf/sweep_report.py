"""What sweep.py says of its cells: how ratios are distributed, and every one above the limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

LIMIT = 1.1
MAX_RATIO = 2.0  # no cell above it without a reason
SHARE_ABOVE = 0.02
EAGER_MEAN = 0.6
BOUNDS = (0.5, 1.0, LIMIT, MAX_RATIO)
OURS, JAX = "gpuflow", "jax"
# Why cells of a function may be above MAX_RATIO, by the beginning of their names.
REASONS: dict[str, str] = {}


@dataclass
class Outcome:
    """What came out of a cell.

    Attributes:
        first: seconds until the first result, by framework.
        clock, processors: the least seconds per call of all rounds, by framework.
        wrong: how our result differs from JAX's.
        failures: why there is no time, by framework.
    """

    name: str
    function: str
    mode: str
    size: int
    variant: str
    first: dict[str, float] = field(default_factory=dict)
    clock: dict[str, float] = field(default_factory=dict)
    processors: dict[str, float] = field(default_factory=dict)
    wrong: str = ""
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, framework: str, times: Sequence[float]) -> None:
        """Adds a round: seconds by the clock, and of processors."""
        for least, seconds in zip((self.clock, self.processors), times, strict=True):
            least[framework] = min(seconds, least.get(framework, math.inf))

    def after(self, earlier: Outcome | None) -> Outcome:
        """This outcome, with the times of an earlier one where they are less."""
        if earlier is None or earlier.failures or self.failures:
            return self
        for framework in self.clock:
            self.add(framework, (earlier.clock[framework], earlier.processors[framework]))
        return self

    def ratios(self) -> tuple[float, float]:
        """Our time over JAX's, by the clock and of processors."""
        return tuple(times[OURS] / times[JAX] for times in (self.clock, self.processors))  # type: ignore[return-value]

    def ratio(self, threads: int) -> float:
        """The ratio that counts."""
        return self.ratios()[threads == 1]

    def is_remarkable(self, threads: int) -> bool:
        """Whether a sweep shows it at once."""
        return bool(self.failures or self.wrong) or self.ratio(threads) > LIMIT

    def line(self, threads: int) -> str:
        """The cell in one line."""
        if self.failures:
            return f"FAILED {self.name}: {self.failures}"
        times = f"{1e6 * self.clock[OURS]:.4g} us, jax {1e6 * self.clock[JAX]:.4g} us"
        other = f"{'clock' if threads == 1 else 'processors'} {self.ratios()[threads != 1]:.2f}"
        wrong = f" WRONG {self.wrong}" if self.wrong else ""
        reason = next((why for name, why in REASONS.items() if self.name.startswith(name)), "")
        reason = f" because {reason}" if reason else ""
        return f"{self.ratio(threads):.2f} ({other}; {times}) {self.name}{wrong}{reason}"

    @property
    def is_timed(self) -> bool:
        return not self.failures


def geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def distribution(name: str, ratios: Sequence[float]) -> str:
    """A row: how many, the geometric mean, the share in each range, and the largest."""
    shares, below = [], 0
    for bound in BOUNDS:
        count = sum(ratio <= bound for ratio in ratios)
        shares.append(f"{100 * (count - below) / len(ratios):.1f} %")
        below = count
    shares.append(f"{100 * (len(ratios) - below) / len(ratios):.1f} %")
    mean, most = geometric_mean(ratios), max(ratios)
    return f"| {name} | {len(ratios)} | {mean:.2f} | {' | '.join(shares)} | {most:.2f} |"


def table(outcomes: Sequence[Outcome], threads: int) -> str:
    """Rows of all cells, and by mode, by size of each mode, and by variant."""
    groups: dict[str, list[float]] = {}
    for outcome in outcomes:
        ratio = outcome.ratio(threads)
        sized = f"{outcome.mode}, {outcome.size:,}"
        for name in ("all", outcome.mode, sized, outcome.variant):
            groups.setdefault(name, []).append(ratio)
    ranges = ["<= 0.5", "<= 1", f"<= {LIMIT}", f"<= {MAX_RATIO:g}", "more"]
    head = ["cells", "number", "mean", *ranges, "largest"]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *(distribution(name, rs) for name, rs in groups.items())])


def misses(outcomes: Sequence[Outcome], threads: int) -> list[str]:
    """The goals that are missed."""
    timed = [outcome for outcome in outcomes if outcome.is_timed]
    ratios = [outcome.ratio(threads) for outcome in timed]
    above = sum(ratio > LIMIT for ratio in ratios)
    eager = [outcome.ratio(threads) for outcome in timed if outcome.mode == "eager"]
    unexplained = [
        outcome
        for outcome in timed
        if outcome.ratio(threads) > MAX_RATIO and not outcome.name.startswith(tuple(REASONS))
    ]
    found = []
    if above > SHARE_ABOVE * len(ratios):
        share = 100 * above / len(ratios)
        found.append(f"{share:.1f} % of cells are above {LIMIT}; at most {100 * SHARE_ABOVE:g} %")
    if unexplained:
        found.append(f"{len(unexplained)} cells are above {MAX_RATIO:g} without a reason")
    if eager and geometric_mean(eager) > EAGER_MEAN:
        found.append(f"eager calls: mean {geometric_mean(eager):.2f}; at most {EAGER_MEAN}")
    for what in ("wrong", "failures"):
        count = sum(bool(getattr(outcome, what)) for outcome in outcomes)
        if count:
            found.append(f"{count} cells: {what}")
    return found


def report_text(
    outcomes: Sequence[Outcome], wanted: int, missing: Sequence[str], threads: int
) -> str:
    """The report: distribution, cells that are wrong or failed, every cell above LIMIT, goals."""
    timed = sorted((o for o in outcomes if o.is_timed), key=lambda o: -o.ratio(threads))
    lines = [f"{len(outcomes)} of {wanted} cells; ratios of gpuflow's time to JAX's", ""]
    if timed:
        lines += [table(timed, threads), ""]
    bad = [o for o in outcomes if o.failures or o.wrong]
    lines += [o.line(threads) for o in bad]
    lines += ["", f"cells above {LIMIT}:"]
    lines += [o.line(threads) for o in timed if o.ratio(threads) > LIMIT]
    lines += ["", *(f"MISS {text}" for text in misses(outcomes, threads))]
    if missing:
        lines.append(f"neither timed nor under a reason: {' '.join(missing)}")
    return "\n".join(lines)
