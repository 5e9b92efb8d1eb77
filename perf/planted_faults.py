"""Faults of one line, planted into a copy of the tree: do the tests find them?

    python perf/planted_faults.py                     plants all of them, and prints Markdown
    python perf/planted_faults.py gamma strided       those with these names

A fault is looked for by the tests of the folders concerned, first those of the default run, then
the sample of a simulated GPU, each up to the first failure. In the end all tests that failed must
pass without faults. Where a fault is not found, a test is missing. GPUFLOW_CACHE_DIR may name
kernels to begin with: keys hold the texts of emitters, so a wrong one has kernels of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 600  # seconds for each file or folder


@dataclass(frozen=True)
class Fault:
    """One wrong line.

    Attributes:
        name: for people.
        area: the part of gpuflow.
        path: of the file.
        old: a text that occurs once in it.
        new: what replaces it.
        tests: the files and folders concerned, in the order in which they run.
    """

    name: str
    area: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def folders(self) -> list[str]:
        """The folders of the tests; files of the top folder alone."""
        parents = {test: test.rpartition("/")[0] for test in self.tests if test.endswith(".py")}
        found = [
            test if parents.get(test) == "tests" else parents.get(test, test) for test in self.tests
        ]
        return list(dict.fromkeys(found))


FAULTS = (
    Fault(
        "argmax of zeros", "ops", "gpuflow/ops/reductions/argmax.py",
        "builder.const(x.dtype, 0.0))  # -0.0 becomes 0.0", "builder.const(x.dtype, -0.0))",
        ("tests/ops/test_positions.py", "tests/ops"),
    ),
    Fault(
        "cummax of ties", "derivatives", "gpuflow/ops/reductions/cumulative.py",
        "share = where(eq(x, y), constant(x, 0.5), 1.0)",
        "share = where(eq(x, y), constant(x, 1.0), 1.0)",
        ("tests/ops/test_cumulative.py", "tests/transforms", "tests/ops"),
    ),
    Fault(
        "triangular solve", "derivatives", "gpuflow/ops/linalg/solve.py",
        '-1 if params["lower"] else 1\n', '1 if params["lower"] else -1\n',
        ("tests/ops/test_linalg_ops.py", "tests/transforms", "tests/ops"),
    ),
    Fault(
        "batched dot_general", "batching", "gpuflow/ops/contractions/dot_general.py",
        "lhs_dims_out = aval_of(operands[0]).ndim - len(left)\n",
        "lhs_dims_out = aval_of(operands[0]).ndim - len(left) - len(left_batch)\n",
        ("tests/ops/test_contractions.py", "tests/transforms", "tests/ops"),
    ),
    Fault(
        "batched cumsum", "batching", "gpuflow/ops/reductions/cumulative.py",
        "batched_axis = axis + (axis >= dims[0])", "batched_axis = axis + (axis > dims[0])",
        ("tests/ops/test_cumulative.py", "tests/ops/test_every_op.py", "tests/transforms"),
    ),
    Fault(
        "odd words", "random", "gpuflow/ops/random/threefry.py",
        "xp.where(partner < count, partner, 0)", "xp.where(partner <= count, partner, 0)",
        ("tests/ops/test_random_bits.py", "tests/random"),
    ),
    Fault(
        "transposed all_to_all", "collectives", "gpuflow/ops/collectives/all_to_all.py",
        "cotangent, split_axis=concat_axis, concat_axis=split_axis, **params",
        "cotangent, split_axis=split_axis, concat_axis=concat_axis, **params",
        ("tests/ops/test_collectives.py", "tests/parallel"),
    ),
    Fault(
        "sums of processes", "collectives", "gpuflow/parallel/collectives/combine.py",
        "is_short_float = dtypes.is_inexact(dtype) and dtype.itemsize < 4",
        "is_short_float = dtypes.is_inexact(dtype) and dtype.itemsize < 2",
        ("tests/parallel/test_communicators.py", "tests/parallel"),
    ),
    Fault(
        "donated and transposed", "fusion", "gpuflow/compiler/lowering/donation.py",
        "space.sizes[key] == 1 or stride_a == stride_b",
        "space.sizes[key] >= 1 or stride_a == stride_b",
        ("tests/compiler/test_donation.py", "tests/compiler"),
    ),
    Fault(
        "end of a split sum", "schedules",
        "gpuflow/targets/cpu/codegen/schedules/split_reductions.py",
        "Cut(chunks, chunk_groups, group_rows, rows - chunks * chunk_groups * group_rows)",
        "Cut(chunks, chunk_groups, group_rows, group_count - chunks * chunk_groups)",
        ("tests/compiler/test_split_reductions.py", "tests/compiler", "tests/targets/cpu"),
    ),
    Fault(
        "phases of the second row", "schedules",
        "gpuflow/targets/cpu/codegen/schedules/row_phases.py",
        'if argument.kind in ("pointer", "base"):', 'if argument.kind == "pointer":',
        ("tests/targets/cpu/test_row_phases.py", "tests/targets/cpu", "tests/compiler"),
    ),
    Fault(
        "gamma", "CPU emitters", "gpuflow/targets/cpu/codegen/gamma.py",
        "1 / 1188,", "1 / 1180,",
        ("tests/targets/cpu/test_cpu_gamma.py", "tests/targets/cpu"),
    ),
    Fault(
        "strided loads", "CPU emitters", "gpuflow/targets/cpu/codegen/strided_loads.py",
        "mask = first_elements_mask((active_count - 1) * stride + (1 - start), width)",
        "mask = first_elements_mask(active_count * stride + (1 - start), width)",
        ("tests/targets/cpu/test_strided_vectors.py", "tests/targets/cpu"),
    ),
    Fault(
        "bfloat16 halfway", "CPU emitters", "gpuflow/targets/cpu/codegen/narrow_floats.py",
        "bits + 0x7FFF + ((bits >> 16) & 1)", "bits + 0x8000",
        ("tests/targets/cpu/test_cpu_functions.py", "tests/targets/cpu"),
    ),
    Fault(
        "barrier of a row", "CUDA emitters",
        "gpuflow/targets/cuda/codegen/printing/group_reductions.py",
        '        "        barrier()",\n        *_butterfly(combine, values, "        "),',
        '        *_butterfly(combine, values, "        "),',
        ("tests/targets/cuda/test_cuda_schedule.py", "tests/targets/cuda"),
    ),
    Fault(
        "32-bit indices", "CUDA emitters", "gpuflow/targets/cuda/codegen/schedules/index_bits.py",
        "max_offset = sum([stride *", "max_offset = max([stride *",
        ("tests/targets/cuda/test_gpu_index_bits.py", "tests/targets/cuda"),
    ),
    Fault(
        "saturated integers", "CUDA emitters",
        "gpuflow/targets/cuda/codegen/intrinsics/arithmetic.py",
        '((target.minval, "<"), (target.maxval, ">"))', '((target.minval, "<"),)',
        ("tests/targets/cuda/test_cuda_scalar.py", "tests/targets/cuda"),
    ),
    Fault(
        "views of donated memory", "runtime", "gpuflow/runtime/holders.py",
        "return to_data > most_to_data or to_memory > most_to_memory",
        "return to_data > most_to_data",
        ("tests/runtime/test_holders.py", "tests/numpy/test_numpy_exchange.py", "tests/runtime"),
    ),
    Fault(
        "damage behind the first page", "checkpoints", "gpuflow/checkpointing/reading.py",
        "return zlib.crc32(bytes_of(array))", "return zlib.crc32(bytes_of(array)[:4096])",
        ("tests/checkpointing/test_damage.py", "tests/checkpointing"),
    ),
    Fault(
        "keys of a dict", "as_jax", "gpuflow/as_jax/internals/tree_util.py",
        "keys = tuple(sorted(node))", "keys = tuple(node)",
        ("tests/test_as_jax.py", "tests/test_as_jax_names.py", "tests/test_as_jax_primitives.py",
         "tests/test_as_jax_serialization.py"),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What became of a fault.

    Attributes:
        found_by: the test that failed; None: no test did.
        run: the run that found it, or why there is no answer.
        seconds: until then.
    """

    fault: Fault
    found_by: str | None
    run: str
    seconds: float


class Copy:
    """A copy of the tree's files, in which faults are planted one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
        for name in names.split("\0")[:-1]:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
        self._time = time.time()

    def write(self, path: str, text: str) -> None:
        """Change a file. Its time grows by whole seconds, by which Python knows its bytecode."""
        file = self.folder / path
        file.write_text(text)
        self._time += 2
        os.utime(file, (self._time, self._time))

    def failed(self, arguments: Sequence[str], simulated: bool = False) -> tuple[str | None, int]:
        """The first test that fails, and pytest's exit status; 124 where time ran out."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONDONTWRITEBYTECODE", "PYTEST_ADDOPTS", "GPUFLOW_PLATFORM")
        }
        environment["PYTHONPATH"] = str(self.folder)
        environment["PYTHONPYCACHEPREFIX"] = str(self.folder / ".bytecode")
        if simulated:
            environment["GPUFLOW_PLATFORM"] = "cuda_sim"
        last = self.folder / ".pytest_cache/v/cache/lastfailed"
        last.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", *arguments]
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=environment,
                timeout=LIMIT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        except subprocess.TimeoutExpired:
            return None, 124
        tests = json.loads(last.read_text()) if last.exists() else {}
        if done.returncode not in (0, 1, 5):
            print(done.stdout[-2000:], file=sys.stderr)
        return next(iter(tests), None), done.returncode


def plant(fault: Fault, copy: Copy) -> Outcome:
    """Run the tests with a fault in the copy."""
    text = (ROOT / fault.path).read_text()
    start = time.monotonic()
    # One after the other: collecting a folder takes longer than most files.
    runs = [("default", [test], False) for test in fault.tests]
    # Without names of files, a sample runs.
    runs.append(("simulated GPU", ["-o", f"testpaths={' '.join(fault.folders)}"], True))
    late = []
    copy.write(fault.path, text.replace(fault.old, fault.new))
    try:
        for run, arguments, simulated in runs:
            test, status = copy.failed(arguments, simulated)
            if status == 124:
                late.append(arguments[-1])
            elif status not in (0, 5):
                # Where the process crashes, pytest notes no test.
                return Outcome(fault, test or arguments[-1], run, time.monotonic() - start)
    finally:
        copy.write(fault.path, text)
    run = f"no time: {', '.join(late)}" if late else "both"
    return Outcome(fault, None, run, time.monotonic() - start)


def confirmed(outcomes: Sequence[Outcome], copy: Copy) -> list[Outcome]:
    """The outcomes, without those whose test fails in the unchanged copy."""
    kept = list(outcomes)
    for simulated in (False, True):
        run = "simulated GPU" if simulated else "default"
        while tests := [o.found_by for o in kept if o.run == run and o.found_by]:
            failed, status = copy.failed(tests, simulated)
            if status == 0:
                break
            kept = [
                replace(o, found_by=None, run=f"{o.found_by} fails without it")
                if o.found_by == failed or failed is None
                else o
                for o in kept
            ]
    return kept


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """The lines of a table, and the rate."""
    yield "| fault | area | found | by | run | s |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for o in outcomes:
        found = "yes" if o.found_by else "**no**"
        by = f"`{o.found_by}`" if o.found_by else ""
        yield f"| {o.fault.name} | {o.fault.area} | {found} | {by} | {o.run} | {o.seconds:.0f} |"
    yield ""
    yield f"{sum(o.found_by is not None for o in outcomes)} of {len(outcomes)} found"


def main() -> None:
    """Plant the named faults, or all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="parts of names of faults (default: all)")
    names = parser.parse_args().names
    chosen = [f for f in FAULTS if not names or any(name in f.name for name in names)]
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="gpuflow-faults-") as folder:
        copy = Copy(Path(folder))
        for fault in chosen:
            outcomes.append(plant(fault, copy))
            print(*list(table(outcomes[-1:]))[2:3], file=sys.stderr, flush=True)
        outcomes = confirmed(outcomes, copy)
    print(*table(outcomes), sep="\n")


if __name__ == "__main__":
    main()
