"""Bytes that jit over a mesh sends, and the memory of a device, compared with JAX's.

    MESH_DEVICES=64 python perf/bench_mesh.py

JAX's figures (0.12.0.1, 8 virtual CPU devices, stored) are of its compiled programs. Its CPU
backend makes no reduce-scatter of an all-reduce and a slice: on GPUs JAX sends less in such rows.
Nothing runs here: see mesh_counts.py. The steps of 7 billion parameters need MESH_DEVICES=64.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mesh_llama
from mesh_counts import COUNT, Counted, count, mesh
from mesh_programs import Programs

import gpuflow as gf
from gpuflow import P, lax
from gpuflow.sharding import AbstractMesh, NamedSharding

_JAX = Path(__file__).parent / "results" / "mesh_jax_0.12.json"


def counts() -> dict[str, Counted]:
    """What each program sends over 8 devices."""
    over: list[AbstractMesh] = []
    found = {}

    def constrain(x: Any, spec: Any) -> Any:
        return lax.with_sharding_constraint(x, NamedSharding(over[0], spec))

    for one in Programs(gf, constrain).all():
        over[:] = [mesh(one.shape, one.names)]
        found[one.name] = count(one.function, one.args, one.specs, over[0], one.outs)
    return found


def stored() -> dict[str, float]:
    """The bytes that JAX's programs send."""
    return {name: row["sent"] for name, row in json.loads(_JAX.read_text()).items()}


def model(scanned: bool, dim: int, layers: int = mesh_llama.LAYERS) -> Counted:
    """A step of 7 billion parameters in bfloat16, FSDP over all devices, without constraints."""
    args, specs = mesh_llama.arguments(COUNT, 4096, scanned=scanned, dim=dim, layers=layers)
    return count(mesh_llama.step, args, specs, mesh((COUNT,), ("x",)), (specs[0], P()))


def _ratio(ours: float, theirs: float) -> str:
    if ours == 0 or theirs == 0:
        return "1" if ours == theirs else "JAX sends nothing" if ours else "0"
    return f"{ours / theirs:.2f}"


def main() -> None:
    """Print the tables."""
    if COUNT == 8:
        jax = stored()
        print("| program | MB sent | JAX | ratio | warnings |")
        print("| --- | --- | --- | --- | --- |")
        for name, found in counts().items():
            ours, theirs = found.bytes_sent, jax.get(name)
            figures = ["", ""]
            if theirs is not None:
                figures = [f"{theirs / 1e6:.3f}", _ratio(ours, theirs)]
            row = name, f"{ours / 1e6:.3f}", *figures, str(len(found.warnings))
            print(f"| {' | '.join(row)} |")
        return
    print(f"| 7B step, FSDP over {COUNT}, 4,096 tokens each | GB sent | GB of memory | s |")
    print("| --- | --- | --- | --- |")
    for scanned, dim in ((True, 0), (False, 0), (True, 1)):
        found = model(scanned, dim)
        name = f"layers {'scanned' if scanned else 'unrolled'}, split on dimension {dim}"
        sizes = found.bytes_sent / 1e9, found.peak_bytes / 1e9, found.seconds
        print("| {} | {:.1f} | {:.1f} | {:.2f} |".format(name, *sizes))


if __name__ == "__main__":
    main()
