"""Start-up: a process that loads an exported training step beside one that traces it.

    python perf/bench_export.py [--rounds 7]

For each model: the seconds from the start of a process to the first step's result, those of them
behind the imports and the arrays, and the processor's seconds in these. In turn, `--rounds`
processes of each kind:

    traced      the model's source, its kernels in the cache folder
    exported    the file of `export`, its kernels in the file, the cache folder empty but for BLAS

Medians, and the ratio of medians. Nothing may be built in either.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MODELS = ("TRANSFORMER", "CNN")
KINDS = ("traced", "exported")


def child(kind: str, model: str, folder: Path) -> None:
    """One process: print the seconds behind its imports, and what was built."""
    import numpy as np

    import gpuflow as gf
    import gpuflow.numpy as jnp

    if kind == "exported":
        from gpuflow import export
    else:
        import compiler_steps

        source = getattr(compiler_steps, model)
        inner = compiler_steps.training_step(gf, jnp, source.loss, source.update)
        step = gf.jit(inner, donate_argnums=0)
        treedef = gf.tree.structure((source.state(), *source.data()))
    stored = np.load(folder / f"{model}.npz")
    leaves = [jnp.asarray(stored[f"arr_{k}"]) for k in range(len(stored.files))]
    gf.block_until_ready(leaves)
    start, used = time.perf_counter(), time.process_time()
    if kind == "exported":
        exported = export.deserialize((folder / f"{model}.gf").read_bytes())
        args, _ = gf.tree.unflatten(exported.in_tree, leaves)
        out = exported.call(*args)
    else:
        out = step(*gf.tree.unflatten(treedef, leaves))
    gf.block_until_ready(out)
    seconds, used = time.perf_counter() - start, time.process_time() - used
    print(json.dumps({"seconds": seconds, "used": used, "built": gf.cache_stats().built}))


def prepare(model: str, folder: Path) -> int:
    """Write the file of a model's step and its arguments; the bytes of the file."""
    import compiler_steps
    import numpy as np

    import gpuflow as gf
    import gpuflow.numpy as jnp
    from gpuflow import export

    step, state, data = getattr(compiler_steps, model).jitted(gf, jnp)
    np.savez(folder / f"{model}.npz", *map(np.asarray, gf.tree.leaves((state, *data))))
    blob = export.export(step)(state, *data).serialize()
    (folder / f"{model}.gf").write_bytes(blob)
    return len(blob)


def measured(kind: str, model: str, folder: Path) -> dict[str, Any]:
    """What one process took."""
    environment = {**os.environ, "GPUFLOW_CACHE_DIR": str(folder / kind)}
    command = [sys.executable, __file__, "--child", kind, model, str(folder)]
    start = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return {"process": time.perf_counter() - start, **json.loads(done.stdout)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--child", nargs=3)
    options = parser.parse_args()
    if options.child:
        kind, model, folder = options.child
        child(kind, model, Path(folder))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in options.models:
            size = prepare(model, folder)
            for kind in KINDS:  # fills the cache of kernels, and both copies of BLAS
                measured(kind, model, folder)
            runs = [
                (kind, measured(kind, model, folder))
                for _ in range(options.rounds)
                for kind in KINDS
            ]
            print(f"{model.lower()}: a file of {size / 1e3:.0f} kB", flush=True)
            for what in ("used", "seconds", "process"):
                middle = {
                    kind: statistics.median(run[what] for k, run in runs if k == kind)
                    for kind in KINDS
                }
                shown = ", ".join(f"{kind} {1e3 * middle[kind]:.0f} ms" for kind in KINDS)
                ratio = middle["exported"] / middle["traced"]
                print(f"  {what:8} {shown}, ratio {ratio:.2f}", flush=True)
            assert not any(run["built"] for _, run in runs), "a kernel was built"


if __name__ == "__main__":
    main()
