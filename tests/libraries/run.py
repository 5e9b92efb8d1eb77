"""Programs of libraries on top of JAX, on gpuflow, compared with what JAX found.

    python tests/libraries/run.py --all               every library that is installed, as a table
    python tests/libraries/run.py equinox lineax      some of them
    python tests/libraries/run.py --all --x64         in float64

The last column is the processor time of the whole program, imports and compiling with it, without
stored kernels, in seconds, and over JAX's where JAX is installed: the smallest of ``--runs`` runs,
of which those on gpuflow and on JAX alternate. Install the libraries without their dependency
on JAX (``pip install --no-deps``), and what else they import.
``--store`` writes stored.json anew, in an environment with JAX and without gpuflow's alias.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).parent
STORED = FOLDER / "stored.json"
TOLERANCES = {"float32": 1e-4, "float64": 1e-9}
# For one program: the slowest takes a minute.
SECONDS = 900


@dataclass(frozen=True)
class Library:
    """A library, by the name of its package.

    Attributes:
        name: of the package.
        program: in programs/.
        modules: what must be importable for it.
        single: parts that compute in float32 with JAX_ENABLE_X64, too: it is the library's dtype,
            or that of the data.
    """

    name: str
    program: str
    modules: tuple[str, ...]
    single: tuple[str, ...] = ()


LIBRARIES = (
    Library("equinox", "equinox_mlp", ("equinox", "jaxtyping", "wadler_lindig", "optax")),
    Library("lineax", "lineax_solve", ("lineax", "equinox", "jaxtyping", "wadler_lindig")),
    Library("optimistix", "optimistix_solve", ("optimistix", "lineax", "equinox")),
    Library("diffrax", "diffrax_solve", ("diffrax", "optimistix", "lineax", "equinox")),
    Library("jaxtyping", "jaxtyping_checks", ("jaxtyping", "wadler_lindig", "beartype")),
    Library(
        "dm-haiku",
        "haiku_train",
        ("haiku", "jmp", "tabulate", "optax"),
        ("train", "sequences"),
    ),
    Library("jaxopt", "jaxopt_solve", ("jaxopt", "scipy"), ("implicit",)),
    Library("jraph", "jraph_network", ("jraph",)),
    Library("rlax", "rlax_losses", ("rlax", "distrax", "tensorflow_probability", "chex")),
    Library("distrax", "distrax_fit", ("distrax", "tensorflow_probability", "chex")),
    Library("blackjax", "blackjax_sample", ("blackjax", "jaxopt", "optax", "fastprogress")),
    Library("numpyro", "numpyro_infer", ("numpyro", "multipledispatch", "tqdm")),
    Library("tinygp", "tinygp_fit", ("tinygp", "equinox", "jaxtyping")),
    Library("ott-jax", "ott_transport", ("ott", "lineax", "optax"), ("transport",)),
    Library("evosax", "evosax_evolve", ("evosax", "flax", "optax")),
    Library("mctx", "mctx_search", ("mctx", "chex")),
    Library("gymnax", "gymnax_roll", ("gymnax", "gymnasium", "matplotlib")),
    Library("penzai", "penzai_model", ("penzai", "treescope", "ordered_set"), ("model",)),
    Library("pgx", "pgx_play", ("pgx", "svgwrite")),
    Library("e3nn-jax", "e3nn_network", ("e3nn_jax", "sympy", "flax", "optax")),
    Library("jax-md", "jax_md_simulate", ("jax_md", "haiku", "jraph", "flax", "ml_collections")),
    Library("orbax-checkpoint", "orbax_restore", ("orbax", "tensorstore", "etils", "optax")),
    Library("mujoco-mjx", "mjx_simulate", ("mujoco", "trimesh")),
    Library("brax", "brax_roll", ("brax", "mujoco", "trimesh", "ml_collections", "flax")),
    Library("gpjax", "gpjax_fit", ("gpjax", "paramax", "lineax", "equinox", "optax")),
    Library(
        "keras",
        "keras_train",
        ("keras", "namex", "h5py", "optree", "rich"),
        ("functional", "sequences"),
    ),
    Library("jaxlie", "jaxlie_poses", ("jaxlie", "jax_dataclasses")),
    Library("flowjax", "flowjax_fit", ("flowjax", "paramax", "equinox", "optax")),
    Library("dynamax", "dynamax_filter", ("dynamax", "tensorflow_probability", "fastprogress")),
    Library("dm-pix", "dm_pix_images", ("dm_pix",)),
    Library("drjax", "drjax_rounds", ("drjax",)),
    Library("haliax", "haliax_layers", ("haliax", "equinox", "jaxtyping")),
    Library("jumanji", "jumanji_play", ("jumanji", "dm_env", "matplotlib")),
    Library("qdax", "qdax_elites", ("qdax", "brax", "flax", "sklearn")),
    Library("exojax", "exojax_spectrum", ("exojax", "radis", "hapi")),
    Library("pennylane", "pennylane_circuits", ("pennylane", "autoray", "rustworkx", "optax")),
    Library("netket", "netket_ground_state", ("netket", "igraph", "plum", "flax", "optax")),
    Library("jaxns", "jaxns_evidence", ("jaxns", "jaxctx", "tensorflow_probability")),
    Library("kfac-jax", "kfac_optimize", ("kfac_jax", "distrax", "immutabledict", "optax")),
    Library("folx", "folx_laplacian", ("folx", "jaxtyping")),
    Library("flax", "flax_checkpoints", ("flax", "orbax", "tensorstore", "etils", "optax")),
)


def missing(library: Library) -> list[str]:
    """The modules that are not installed."""
    return [name for name in library.modules if find_spec(name) is None]


def run(
    library: Library, precision: str, on_gpuflow: bool, settings: dict[str, str] | None = None
) -> tuple[dict, str]:
    """What a program prints; or nothing, and why.

    Args:
        library: which one.
        precision: "float32" or "float64".
        on_gpuflow: or on JAX.
        settings: further environment variables.
    """
    start = ["-m", "gpuflow.as_jax"] if on_gpuflow else []
    x64 = "1" if precision == "float64" else "0"
    done = subprocess.run(
        [sys.executable, *start, FOLDER / "programs" / f"{library.program}.py"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "JAX_ENABLE_X64": x64, "JAX_PLATFORMS": "cpu", **(settings or {})},
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return {}, lines[-1][:200] if lines else f"status {done.returncode}"
    # Some libraries print while they are imported.
    return json.loads(done.stdout.splitlines()[-1]), ""


def differences(found: dict, stored: dict) -> dict[str, float]:
    """For each part of a program how far its numbers are from JAX's, relative to them or to 1."""
    result = {}
    for part, wanted in stored.items():
        got = found.get(part, [])
        if len(got) != len(wanted):
            result[part] = float("inf")
            continue
        pairs = zip(got, wanted, strict=True)
        # A nan differs from everything but a nan.
        far = [abs(a - b) / max(1.0, abs(b)) for a, b in pairs if a == a or b == b]
        result[part] = max((d if d == d else float("inf") for d in far), default=0.0)
    return result


def tolerance(library: Library, part: str, precision: str) -> float:
    """How far the results of a part of a program may be from JAX's."""
    return TOLERANCES["float32" if part in library.single else precision]


def stored_results() -> dict:
    """What JAX found, by program and precision."""
    return json.loads(STORED.read_text()) if STORED.exists() else {}


def store(libraries: list[Library], precision: str) -> None:
    """Run programs on JAX and keep what they find."""
    for library in libraries:
        output, error = run(library, precision, on_gpuflow=False)
        if error:
            print(f"{library.name}: {error}", file=sys.stderr)
            continue
        everything = stored_results()
        entry = everything.setdefault(library.program, {})
        entry["version"] = metadata.version(library.name)
        entry["jax"] = metadata.version("jax")
        entry[precision] = output["results"]
        ordered = {name: everything[name] for name in sorted(everything)}
        STORED.write_text(json.dumps(ordered, separators=(",", ":")) + "\n")
        print(f"{library.name}: stored", flush=True)


def timed(library: Library, precision: str, on_gpuflow: bool) -> tuple[dict, str, float]:
    """What ``run`` gives, and the processor time that it took without stored kernels."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as cache:
        output, error = run(library, precision, on_gpuflow, {"GPUFLOW_CACHE_DIR": cache})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return output, error, seconds


def beside(library: Library, precision: str, seconds: float, runs: int) -> str:
    """The program's processor time on gpuflow, and over that on JAX where that is installed.

    ``seconds`` is that of the first of several runs; the smallest counts.
    """
    ours, others = [seconds], []
    for count in range(1, runs + 1):
        if find_spec("jax") is not None:
            _, error, theirs = timed(library, precision, on_gpuflow=False)
            others += [] if error else [theirs]
        if count < runs:
            ours.append(timed(library, precision, on_gpuflow=True)[2])
    return f"{min(ours):.0f} s" + (f", {min(ours) / min(others):.2f}" if others else "")


def compare(libraries: list[Library], precision: str, runs: int) -> bool:
    """Run programs on gpuflow and print the table; whether all agree with JAX."""
    stored = stored_results()
    print("| library | version | what runs | largest difference | from JAX's inside | time |")
    print("| --- | --- | --- | --- | --- | --- |")
    all_agree = True
    for library in libraries:
        wanted = stored.get(library.program, {}).get(precision)
        absent = missing(library)
        if absent or wanted is None:
            why = f"needs {', '.join(absent)}" if absent else "no stored results"
            print(f"| {library.name} | | not run: {why} | | | |", flush=True)
            continue
        output, error, seconds = timed(library, precision, on_gpuflow=True)
        version = metadata.version(library.name)
        if error:
            all_agree = False
            row = f"| {library.name} | {version} | fails: {error} | | | {seconds:.0f} s |"
            print(row, flush=True)
            continue
        far = differences(output["results"], wanted)
        agree = [part for part, d in far.items() if d <= tolerance(library, part, precision)]
        others = [part for part in far if part not in agree]
        all_agree &= not others
        what = ", ".join(agree) + (f"; differs: {', '.join(others)}" if others else "")
        private = ", ".join(name.removeprefix("jax.") for name in output["private"]) or "nothing"
        print(
            f"| {library.name} | {version} | {what} | {max(far.values()):.1e} | {private} "
            f"| {beside(library, precision, seconds, runs)} |",
            flush=True,
        )
    return all_agree


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="libraries")
    parser.add_argument("--all", action="store_true", help="all libraries")
    parser.add_argument("--x64", action="store_true", help="in float64")
    parser.add_argument("--store", action="store_true", help="run them on JAX, and keep that")
    parser.add_argument("--runs", type=int, default=1, help="how often to time each program")
    arguments = parser.parse_args()
    known = {library.name: library for library in LIBRARIES}
    unknown = [name for name in arguments.names if name not in known]
    if unknown or not (arguments.names or arguments.all):
        parser.error(f"libraries must be some of {', '.join(known)}, or --all; got {unknown}")
    libraries = list(LIBRARIES) if arguments.all else [known[name] for name in arguments.names]
    precision = "float64" if arguments.x64 else "float32"
    if arguments.store:
        store(libraries, precision)
        return 0
    return 0 if compare(libraries, precision, arguments.runs) else 1


if __name__ == "__main__":
    sys.exit(main())
