"""What the flags save that tell hot paths that nothing unusual was ever asked for.

usage: python perf/bench_flags.py

``in_use.several``, ``in_use.distributed`` and ``config.may_check`` are set for good when a process
first uses a second device, an array in several memories, or a check of values; until then
operations do not look. Each row calls something with the flag as it is and, in turn with that, with
the flag set: then each call looks, and sees that there is nothing to do. Time is the processor's of
this process, for one call, the least of many repeats.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base.config import config
from gpuflow.runtime.device import in_use

_CALLS, _REPEATS = 400, 120


def _seconds(function: Callable[[], Any]) -> float:
    start = time.process_time_ns()
    for _ in range(_CALLS):
        function()
    return (time.process_time_ns() - start) * 1e-9 / _CALLS


def _compared(function: Callable[[], Any], owner: Any, flag: str) -> tuple[float, float]:
    """Seconds of a call as it is, and with the flag set."""
    usual, looking = [], []
    for _ in range(_REPEATS):
        usual.append(_seconds(function))
        setattr(owner, flag, True)
        looking.append(_seconds(function))
        setattr(owner, flag, False)
    return min(usual), min(looking)


def main() -> None:
    x, y = jnp.arange(16.0), jnp.ones(16)
    weights = [jnp.ones(4) * k for k in range(20)]
    small = gf.jit(lambda x, y: x + y)
    large = gf.jit(lambda x, weights: [x[:4] + w for w in weights])
    rows: list[tuple[str, Callable[[], Any], Any, str]] = [
        ("add, eager", lambda: x + y, in_use, "several"),
        ("add, jitted", lambda: small(x, y), in_use, "several"),
        ("21 operands, jitted", lambda: large(x, weights), in_use, "several"),
        ("add, eager", lambda: x + y, in_use, "distributed"),
        ("sum, eager", lambda: jnp.sum(x), in_use, "distributed"),
        ("loop, eager", lambda: gf.lax.fori_loop(0, 2, _step, x), in_use, "distributed"),
        ("add of a number, eager", lambda: x + 1.0, in_use, "distributed"),
        ("add, eager", lambda: x + y, config, "may_check"),
        ("x[1:3]", lambda: x[1:3], config, "may_check"),
    ]
    for name, function, owner, flag in rows:
        for _ in range(20):
            function()
        usual, looking = _compared(function, owner, flag)
        more = f"{100 * (looking / usual - 1):+.0f} %"
        print(f"{flag:10} {name:24} {usual * 1e6:7.2f} us {looking * 1e6:7.2f} us {more}")


def _step(_k: Any, x: Any) -> Any:
    return x + 1


if __name__ == "__main__":
    main()
