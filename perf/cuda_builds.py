"""Times builds of CUDA kernels, each once, without a GPU.

    GPUFLOW_CACHE_DIR=$(mktemp -d) python perf/cuda_builds.py

Prints a Markdown table: processor seconds of each build, registers, spilled bytes, and accesses of
several elements at once in the PTX. To compare two versions of gpuflow, run it in a checkout of
each, with an empty folder as GPUFLOW_CACHE_DIR. The first kernel, which also imports Numba, is not
in the table.
"""

from __future__ import annotations

import re
import time
from typing import Any

import numpy as np

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax, nn
from gpuflow.targets.cuda.codegen import cached_builds as cached
from gpuflow.targets.cuda.codegen import handwritten


def chain(x: Any) -> Any:
    """A fused chain."""
    return nn.gelu(x * 2 + 1) * jnp.exp(-x)


def adam(p: Any, g: Any, m: Any, v: Any) -> Any:
    """A step of Adam."""
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v


def newton(x: Any) -> Any:
    """A loop inside a kernel."""
    return lax.while_loop(lambda y: jnp.abs(y * y - x) > 1e-3, lambda y: (y + x / y) / 2, x)


def attention(q: Any) -> Any:
    """Handwritten kernels of attention, forward and backward."""
    return gf.grad(lambda q: nn.dot_product_attention(q, q, q).astype(jnp.float32).sum())(q)


def programs() -> dict[str, tuple[Any, ...]]:
    """Functions and their operands; the first is not timed."""
    rng = np.random.default_rng(0)
    x = np.abs(rng.normal(size=(64, 256))).astype(np.float32) + 1
    q = jnp.asarray(rng.normal(size=(1, 128, 2, 64)), jnp.bfloat16)
    image, taps = np.ones((2, 8, 16, 16), np.float32), np.ones((8, 8, 3, 3), np.float32)
    return {
        "": (lambda x: jnp.sin(x) + 1, x),
        "chain, float32": (chain, x),
        "chain, bfloat16": (chain, x.astype(jnp.bfloat16)),
        "row: softmax": (lambda x: nn.softmax(x, -1), x),
        "column: sum": (lambda x: x.sum(0), x),
        "full: sum": (lambda x: x.sum(), x),
        "Adam step": (adam, x, x, x, x),
        "loop of lanes": (gf.vmap(gf.vmap(newton)), x),
        "sort": (lambda x: jnp.sort(x.ravel()), x),
        "attention, bfloat16": (attention, q),
        "convolution": (lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME"), image, taps),
    }


def main() -> None:
    """Print the table."""
    builds: list[tuple[str, float, Any]] = []
    real = cached.build_cuda

    def timed(*arguments: Any, **options: Any) -> Any:
        start = time.process_time()
        built = real(*arguments, **options)
        builds.append((arguments[1], time.process_time() - start, built))
        return built

    cached.build_cuda = handwritten.build_cuda = timed  # type: ignore[assignment]
    total = 0.0
    heads = ("program", "kernel", "s", "registers", "spilled bytes", "vector accesses")
    print("| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads))
    with gf.default_device(gf.devices("cuda_sim")[0]):
        for name, (function, *operands) in programs().items():
            builds.clear()
            gf.jit(function)(*operands)
            for entry, seconds, built in builds if name else []:
                vectors = len(re.findall(r"\.v[24]\.", built.ptx))
                row = name, entry, f"{seconds:.3f}", built.registers, built.spill_bytes, vectors
                print("| " + " | ".join(map(str, row)) + " |")
                total += seconds
    print(f"| all | | {total:.2f} | | | |")


if __name__ == "__main__":
    main()
