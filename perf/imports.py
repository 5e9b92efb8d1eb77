"""Import every module of public libraries, on JAX and on gpuflow.

    python perf/imports.py FOLDER                        install, import, print the table
    python perf/imports.py FOLDER --only optax brax      some of the libraries
    python perf/imports.py FOLDER --here                 gpuflow only; JAX's results are in FOLDER
    python perf/imports.py FOLDER --document             write the table into docs/as_jax.md

FOLDER gets two environments: ``libraries`` has the libraries, what they require and what gpuflow
requires; ``jax`` adds JAX to it, and nothing else. The libraries take about 10 GB.
Needs pip and ``packaging``. Results are in FOLDER/results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
CHILD = ROOT / "perf" / "imports_child.py"
DOCUMENT = ROOT / "docs" / "as_jax.md"
BEGIN, END = "<!-- imports: begin -->\n", "<!-- imports: end -->\n"
JAX = ("jax==0.10.2", "jaxlib==0.10.2")
OURS = ("numpy", "numba", "llvmlite", "optree", "ml_dtypes", "scipy", "opt_einsum")
# JAX itself is in one environment only. torch and the tensorflow for GPUs are several GB.
# tfp-nightly has the same modules as tensorflow-probability, which JAX 0.10 does not import.
LEFT_OUT = ("jax", "jaxlib", "torch", "tensorflow", "triton", "tensorflow-probability")
# For all modules of one library that remain.
SECONDS = 600


@dataclass(frozen=True)
class Library:
    """A distribution on PyPI.

    Attributes:
        name: of the distribution.
        module: of its package.
        extra: further distributions that its modules import and its metadata does not require.
        versions: those that are not the newest release, for which there is a reason.
    """

    name: str
    module: str
    extra: tuple[str, ...] = ()
    versions: str = ""


LIBRARIES = (
    Library("optax", "optax"),
    Library("flax", "flax"),
    Library("equinox", "equinox"),
    Library("diffrax", "diffrax"),
    Library("chex", "chex"),
    Library("distrax", "distrax"),
    Library("dm-haiku", "haiku"),
    Library("jraph", "jraph"),
    Library("mctx", "mctx"),
    Library("orbax-checkpoint", "orbax.checkpoint"),
    Library("numpyro", "numpyro"),
    Library("blackjax", "blackjax"),
    Library("jaxopt", "jaxopt"),
    Library("tinygp", "tinygp"),
    Library("flowjax", "flowjax"),
    Library("e3nn-jax", "e3nn_jax", ("dm-haiku", "flax")),
    Library("optimistix", "optimistix"),
    Library("lineax", "lineax"),
    Library("gpjax", "gpjax"),
    Library("evosax", "evosax"),
    Library("gymnax", "gymnax"),
    Library("brax", "brax"),
    Library("jax-md", "jax_md"),
    Library("ott-jax", "ott"),
    Library("dynamax", "dynamax"),
    Library("neural-tangents", "neural_tangents", ("tensorflow-cpu",)),
    Library("kfac-jax", "kfac_jax"),
    Library("jaxtyping", "jaxtyping"),
    Library("penzai", "penzai", ("treescope",)),
    # The release of 2024 does not import on JAX 0.10.
    Library("haliax", "haliax", versions=">=1.4.dev453"),
    Library("netket", "netket"),
    Library("pennylane", "pennylane"),
    Library("pgx", "pgx"),
    Library("jumanji", "jumanji"),
    Library("qdax", "qdax"),
    Library("jaxns", "jaxns"),
    Library("exojax", "exojax"),
    Library("folx", "folx"),
    Library("dm-pix", "dm_pix"),
    Library("clu", "clu", ("tensorflow-cpu",)),
    Library("drjax", "drjax"),
)


# --- environments -------------------------------------------------------------------------------


def python_of(environment: Path) -> Path:
    """The interpreter of an environment, which is made if it does not exist."""
    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    return python


def packages_of(environment: Path) -> Path:
    """The folder of an environment's packages."""
    (found,) = (environment / "lib").glob("python*/site-packages")
    return found


def pip(environment: Path, requirements: list[str]) -> dict[str, str]:
    """Install requirements without theirs; those that pip refuses, each with its last line."""
    if not requirements:
        return {}
    command = [python_of(environment), "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check"]
    done = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return {}
    if len(requirements) == 1:
        return {requirements[0]: (done.stderr.strip().splitlines() or ["no reason"])[-1][:200]}
    half = len(requirements) // 2
    return pip(environment, requirements[:half]) | pip(environment, requirements[half:])


def required(packages: Path, skipped: set[str]) -> list[str]:
    """What installed distributions require and what is neither installed nor skipped."""
    installed = {
        canonicalize_name(one.metadata["Name"]): one
        for one in metadata.distributions(path=[str(packages)])
    }
    extras: dict[str, set[str]] = {}
    wanted: dict[str, Requirement] = {}
    for name, one in installed.items():
        for text in one.requires or ():
            need = Requirement(text)
            used = {"", *extras.get(name, ())}
            if need.marker and not any(need.marker.evaluate({"extra": e}) for e in used):
                continue
            its_name = canonicalize_name(need.name)
            extras.setdefault(its_name, set()).update(need.extras)
            if its_name in installed or its_name in skipped or its_name.startswith("nvidia-"):
                continue
            if its_name in wanted:
                need.specifier &= wanted[its_name].specifier
            wanted[its_name] = need
    return [f"{name}{need.specifier}" for name, need in sorted(wanted.items())]


def install(folder: Path, libraries: list[Library]) -> dict[str, str]:
    """Make both environments; what pip refused, with its reason."""
    environment = folder / "libraries"
    python_of(environment)
    refused = pip(environment, [*OURS, *(f"{one.name}{one.versions}" for one in libraries)])
    refused |= pip(environment, sorted({e for library in libraries for e in library.extra}))
    skipped = {canonicalize_name(name) for name in LEFT_OUT}
    while missing := required(packages_of(environment), skipped):
        print(f"installing {' '.join(missing)}", file=sys.stderr, flush=True)
        refused |= pip(environment, missing)
        # Each once: what pip refused is not asked for again.
        skipped |= {canonicalize_name(Requirement(text).name) for text in missing}
    with_jax = folder / "jax"
    python_of(with_jax)
    paths = packages_of(with_jax) / "libraries.pth"
    paths.write_text(f"{packages_of(environment)}\n")
    return refused | pip(with_jax, list(JAX))


# --- imports ------------------------------------------------------------------------------------


def imports(folder: Path, library: Library, on_gpuflow: bool) -> dict[str, str]:
    """Import a library's modules; the error of each, empty if it was imported.

    They are imported in one process. If that dies or hangs, the module it was at gets that as its
    error, and another process continues after it.
    """
    python = python_of(folder / ("libraries" if on_gpuflow else "jax"))
    start = ["-m", "gpuflow.as_jax"] if on_gpuflow else []
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT) if on_gpuflow else "",
        "JAX_PLATFORMS": "cpu",
        "MPLBACKEND": "agg",
    }
    found: dict[str, str] = {}
    while True:
        with tempfile.NamedTemporaryFile("r") as records:
            command = [python, *start, CHILD, library.module, records.name, str(len(found))]
            try:
                done = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    timeout=SECONDS,
                    check=False,
                    env=environment,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                )
                end = f"the process ended with {done.returncode}"
            except subprocess.TimeoutExpired:
                end = f"the process took more than {SECONDS} s"
            started = ""
            for line in records:
                name, error = json.loads(line)
                started = name if error is None else ""
                if error is not None:
                    found[name] = error
        if not started:
            return found if found else {library.module: end}
        found[started] = end


def measure(folder: Path, libraries: list[Library], here_only: bool) -> dict[str, dict]:
    """Import all modules on both, and keep the results in FOLDER/results.json."""
    stored = folder / "results.json"
    results = json.loads(stored.read_text()) if stored.exists() else {}
    packages = packages_of(folder / "libraries")
    versions = {
        canonicalize_name(one.metadata["Name"]): one.version
        for one in metadata.distributions(path=[str(packages)])
    }
    for library in libraries:
        version = versions.get(canonicalize_name(library.name))
        if version is None:
            continue
        entry = results.setdefault(library.name, {})
        entry["version"] = version
        if not here_only or "jax" not in entry:
            entry["jax"] = imports(folder, library, on_gpuflow=False)
        entry["here"] = imports(folder, library, on_gpuflow=True)
        stored.write_text(json.dumps(results, indent=1) + "\n")
        print(row(library.name, entry), file=sys.stderr, flush=True)
    return results


def failing(entry: dict) -> dict[str, str]:
    """The modules of a library that JAX imports and gpuflow does not, with the errors."""
    return {
        name: entry["here"].get(name, "not found")
        for name, error in entry["jax"].items()
        if not error and entry["here"].get(name, "not found")
    }


def row(name: str, entry: dict) -> str:
    """A library's row of the table."""
    works = [module for module, error in entry["jax"].items() if not error]
    fails = failing(entry)
    first = next((f"`{module}`: {error}" for module, error in fails.items()), "")
    first = first.replace("|", "\\|").replace("\n", " ")[:250]
    return (
        f"| {name} | {entry['version']} | {len(entry['jax'])} | {len(works)} "
        f"| {len(works) - len(fails)} | {first} |"
    )


def table(results: dict[str, dict]) -> str:
    """The table of all libraries, as Markdown."""
    rows = [
        row(library.name, results[library.name]) for library in LIBRARIES if library.name in results
    ]
    return (
        "\n".join(
            [
                "| library | version | modules | imported by JAX | of those by gpuflow | first "
                "error |",
                "| --- | --- | --- | --- | --- | --- |",
                *rows,
            ]
        )
        + "\n"
    )


def main() -> int:
    """The command line; 1 if a module that JAX imports is not imported here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="for the environments, of about 10 GB")
    parser.add_argument("--only", nargs="+", default=[], help="libraries; default: all")
    parser.add_argument("--here", action="store_true", help="reuse JAX's results")
    parser.add_argument("--installed", action="store_true", help="install nothing")
    parser.add_argument("--document", action="store_true", help="write docs/as_jax.md")
    arguments = parser.parse_args()
    libraries = [one for one in LIBRARIES if not arguments.only or one.name in arguments.only]
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not arguments.installed:
        for name, why in install(folder, libraries).items():
            print(f"not installed: {name}: {why}", file=sys.stderr)
    results = measure(folder, libraries, arguments.here)
    print(table(results))
    if arguments.document:
        before, _, tail = DOCUMENT.read_text().partition(BEGIN)
        _, _, after = tail.partition(END)
        DOCUMENT.write_text(f"{before}{BEGIN}{table(results)}{END}{after}")
    return 1 if any(failing(results[one.name]) for one in libraries if one.name in results) else 0


if __name__ == "__main__":
    sys.exit(main())
