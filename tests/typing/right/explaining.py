"""What a program became, and where its time goes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import gpuflow as gf
import gpuflow.numpy as jnp


@gf.jit
def layer(x: gf.Array, w: gf.Array) -> gf.Array:
    return jnp.sort(jnp.tanh(x @ w), axis=1)


def slowest(x: gf.Array, w: gf.Array) -> str:
    found = gf.explain(layer, x, w, top=3)
    step = max(found.steps, key=lambda step: step.seconds)
    rate: float | None = step.bytes_per_second
    assert rate is None and not found.is_measured
    page: Path = found.to_html(Path(tempfile.mkdtemp()) / "layer.html")
    assert page.exists() and max(found.memory) > 0
    return f"{step.name} at {step.line.line if step.line else 0}: {step.share:.0%}\n{found}"


def main() -> None:
    x, w = jnp.ones((64, 32)), jnp.ones((32, 16))
    assert "longest first" in slowest(x, w)
    with gf.profiler.trace(tempfile.mkdtemp()):
        layer(x, w).block_until_ready()
    found = gf.profiler.table(top=5)
    names: list[str] = [op.name for op in found.ops]
    total: float = sum(line.seconds for line in found.lines)
    assert "sort" in names and total > 0
    print(found)


if __name__ == "__main__":
    main()
