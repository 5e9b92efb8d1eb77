"""A model, not a measurement: data-parallel training on 8 to 1024 GPUs.

    python perf/scaling_model.py [--step SECONDS] [--bytes GRADIENTS]

The sum of gradients is made in three parts: reduce-scatter among the GPUs of a machine over NVLink,
all-reduce of each GPU's share between machines over InfiniBand, all-gather in the machine. Link
rates are the published ones; no GPU was measured. The step time is one that was measured on a CPU,
so that the column to trust is the one that needs none: how long a step must take.

Sources: the ring, Patarasuk and Yuan 2009; trees, Sanders, Speck and Traeff 2009; rates, NVIDIA's
data sheets of H100 (NVLink 4: 900 GB/s in both directions together) and of ConnectX-7 (NDR:
400 Gb/s). Latencies of a hop are assumptions of the order that NCCL's users report.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2

# perf/results/parallel-2026-11-21.md: 0.4821 ms for eight virtual devices, one after the other.
MEASURED_STEP = 0.4821e-3 / 8
MEASURED_BYTES = 4 * (64 * 256 + 256 * 10)
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Link:
    """A kind of connection: seconds for a hop, and bytes in a second in one direction."""

    latency: float
    rate: float


NVLINK = Link(2e-6, 450e9)
INFINIBAND = Link(5e-6, 50e9)
GPUS_OF_A_MACHINE = 8


def ring(count: int, size: float, link: Link) -> float:
    """Seconds of an all-reduce of ``size`` bytes around a ring of ``count``."""
    if count == 1:
        return 0.0
    return 2 * (count - 1) * link.latency + 2 * (count - 1) / count * size / link.rate


def tree(count: int, size: float, link: Link) -> float:
    """Seconds of an all-reduce through two trees, each with half of the data."""
    if count == 1:
        return 0.0
    return 2 * ceil(log2(count)) * link.latency + 2 * size / link.rate


def all_reduce(count: int, size: float) -> float:
    """Seconds of a sum of ``size`` bytes over ``count`` GPUs."""
    inside = min(count, GPUS_OF_A_MACHINE)
    machines = ceil(count / inside)
    share = size / inside
    between = min(ring(machines, share, INFINIBAND), tree(machines, share, INFINIBAND))
    return ring(inside, size, NVLINK) + between


@dataclass(frozen=True)
class Row:
    """What the model says of a number of GPUs.

    Attributes:
        count: of GPUs.
        seconds: of the sum of gradients.
        behind: efficiency when it follows the backward pass.
        beside: efficiency when it runs beside it; the backward pass is two thirds of a step.
        needed: seconds that a step must take for an efficiency of 0.9 without overlap.
    """

    count: int
    seconds: float
    behind: float
    beside: float
    needed: float


def model(step: float, size: float, sizes: Sequence[int] = SIZES) -> list[Row]:
    """The table for a step of ``step`` seconds with ``size`` bytes of gradients."""
    rows = []
    for count in sizes:
        seconds = all_reduce(count, size)
        hidden = min(seconds, 2 / 3 * step)
        rows.append(
            Row(
                count,
                seconds,
                step / (step + seconds),
                step / (step + seconds - hidden),
                9 * seconds,
            )
        )
    return rows


def table(step: float, size: float) -> str:
    """The model as a Markdown table."""
    lines = [
        f"A model: step {1e3 * step:.3f} ms (measured on a CPU), gradients {size / 1e6:.3f} MB.",
        "",
        "| GPUs | sum of gradients | efficiency, sum after | overlapped | step for 0.9 |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in model(step, size):
        lines.append(
            f"| {row.count} | {1e3 * row.seconds:.3f} ms | {row.behind:.3f} | {row.beside:.3f} | "
            f"{1e3 * row.needed:.2f} ms |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step", type=float, default=MEASURED_STEP, help="seconds")
    parser.add_argument("--bytes", type=float, default=MEASURED_BYTES, help="of gradients")
    options = parser.parse_args()
    print(table(options.step, options.bytes))
