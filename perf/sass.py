"""What the machine code of GPU kernels consists of: registers, memory accesses, divisions.

usage: python perf/sass.py [--capability 9.0] [--rows TEXT,TEXT] [--results FOLDER --suffix TEXT]

Kernels are built here, without a GPU: those whose printed text the tests keep, and what some
programs launch at full size on a GPU that only plans (gpu_planned.py), with the grid of an H100's
132 multiprocessors. Numbers are of instructions as they stand in the code, not as often as they
run; an access that an unrolled loop makes four times counts four times. Nothing here is a time.
With --results the table is stored there, by date.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gpu_planned
from gpu_rows import chosen
from report import commit

import gpuflow
import gpuflow.numpy as jnp
from gpuflow.base.records import record
from gpuflow.compiler.cache.versions import version_of
from gpuflow.targets.cuda.codegen.build import CudaObject, build_cuda
from gpuflow.targets.cuda.codegen.cached_builds import PACKAGES
from gpuflow.targets.cuda.codegen.disassembly import disassemble
from gpuflow.targets.cuda.codegen.printing.printers import print_cuda

TESTS = Path(__file__).resolve().parents[1] / "tests"
COLUMNS = (
    "kernel",
    "grid x block",
    "registers",
    "instructions",
    "loads by bits",
    "stores by bits",
    "64-bit divisions",
    "32-bit divisions",
    "shared bytes",
    "spilled bytes",
)
F32, BF16 = "float32", "bfloat16"


@record
class Code:
    """What stands in a kernel's machine code.

    Attributes:
        instructions: how many, without what only fills up.
        loads, stores: of global memory, how many of each number of bits.
        wide_divisions: of 64-bit integers: calls of the routine for them, or its text.
        divisions: of 32-bit integers.
    """

    instructions: int
    loads: dict[int, int]
    stores: dict[int, int]
    wide_divisions: int
    divisions: int


def code_of(lines: Sequence[str]) -> Code:
    """Counts the instructions of ``disassemble``."""
    names = [re.sub(r"^@!?U?P\w+\s+", "", line) for line in lines]
    names = [name for name in names if not name.startswith("NOP")]
    calls = sum(bool(re.match(r"CALL.*(div|rem)_[su]64", name)) for name in names)
    inline = sum(bool(re.match(r"I2F\.[US]64\.RP", name)) for name in names)
    narrow = sum(bool(re.match(r"I2F\.(U32\.)?RP", name)) for name in names)
    return Code(len(names), _widths(names, "LDG"), _widths(names, "STG"), calls or inline, narrow)


def _widths(names: Sequence[str], opcode: str) -> dict[int, int]:
    bits: Counter[int] = Counter()
    for name in names:
        word = name.split()[0].split(".")
        if word[0] == opcode:
            sizes = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128}
            bits[next((sizes[part] for part in word if part in sizes), 32)] += 1
    return dict(sorted(bits.items(), reverse=True))


def table_row(name: str, shape: str, built: CudaObject) -> str:
    """One line of the table."""
    code = code_of(disassemble(built.cubin))
    cells = [
        name,
        shape,
        built.registers,
        code.instructions,
        _counts(code.loads),
        _counts(code.stores),
        code.wide_divisions,
        code.divisions,
        built.shared_bytes,
        built.spill_bytes,
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _counts(widths: dict[int, int]) -> str:
    return ", ".join(f"{bits}: {count}" for bits, count in widths.items()) or "-"


GOLDEN = ("map", "map_two_axes", "row", "column", "full", "segments", "full_segments")


def golden_kernels(capability: tuple[int, int]) -> Iterator[tuple[str, CudaObject]]:
    """The kernels whose printed text is kept in tests/targets/cuda/golden."""
    sys.path[:0] = [str(TESTS), str(TESTS / "targets" / "cuda"), str(TESTS / "targets")]
    import cuda_zoo  # beside the tests that use it

    for name in GOLDEN:
        source = print_cuda(cuda_zoo.zoo()[name])
        bounds = source.launch.max_threads
        yield (
            f"golden: {name}",
            build_cuda(source.text, source.entry, source.signature, capability, bounds),
        )


def _layernorm(x: Any) -> Any:
    centered = x - x.mean(-1, keepdims=True)
    return centered / jnp.sqrt((centered * centered).mean(-1, keepdims=True) + 1e-5)


def _statistics(x: Any) -> Any:
    return x.mean(0), x.var(0)


# Name, function, shapes of its arguments and their dtype.
PROGRAMS: tuple[tuple[str, Callable[..., Any], tuple[tuple[int, ...], ...], str], ...] = (
    ("copy", jnp.copy, ((4096, 4096),), F32),
    ("slice of whole vectors", lambda x: x[:, 8:2056], ((4096, 4096),), F32),
    ("slice", lambda x: x[1:, 1:], ((4096, 4096),), F32),
    ("strided slice", lambda x: x[::2, ::3], ((4096, 4096),), F32),
    ("rows of a strided slice", lambda x: x[::2], ((4096, 4096),), BF16),
    ("reversed slice", lambda x: x[:, ::-1], ((4096, 4096),), F32),
    ("transpose", lambda x: x.T, ((4096, 4096),), F32),
    ("transpose bfloat16", lambda x: x.T, ((4096, 4096),), BF16),
    ("transpose (2, 0, 1)", lambda x: x.transpose(2, 0, 1), ((64, 256, 512),), F32),
    ("transpose (1, 0, 2)", lambda x: x.transpose(1, 0, 2), ((64, 256, 512),), F32),
    ("broadcast", lambda x: jnp.broadcast_to(x[:, None], (4096, 4096)), ((4096,),), F32),
    ("sine of a slice", lambda x: jnp.sin(x[1:, 1:]), ((4096, 4096),), F32),
    ("add of a transposed operand", lambda x, y: x + y.T, ((4096, 4096),) * 2, F32),
    (
        "sine of a transpose (2, 0, 1)",
        lambda x: jnp.sin(x.transpose(2, 0, 1)),
        ((64, 256, 512),),
        F32,
    ),
    ("softmax rows", gpuflow.nn.softmax, ((4096, 4096),), F32),
    ("softmax of 8 x 128256", gpuflow.nn.softmax, ((8, 128256),), F32),
    ("column sum float32", lambda x: x.sum(0), ((16384, 4096),), F32),
    ("column sum bfloat16", lambda x: x.sum(0), ((16384, 4096),), BF16),
    ("column sum bfloat16 of 4097", lambda x: x.sum(0), ((16384, 4097),), BF16),
    ("column sum float16", lambda x: x.sum(0), ((16384, 4096),), "float16"),
    ("column mean bfloat16", lambda x: x.mean(0), ((16384, 4096),), BF16),
    ("column max bfloat16", lambda x: x.max(0), ((16384, 4096),), BF16),
    ("column argmax bfloat16", lambda x: jnp.argmax(x, 0), ((16384, 4096),), BF16),
    ("sum of 8 columns", lambda x: x.sum(0), ((1 << 20, 8),), F32),
    ("sum of 8 columns bfloat16", lambda x: x.sum(0), ((1 << 20, 8),), BF16),
    ("layernorm", _layernorm, ((4096, 4096),), F32),
    ("batchnorm statistics", _statistics, ((200704, 64),), F32),
    ("batchnorm statistics bfloat16", _statistics, ((200704, 64),), BF16),
)


def launches_of(
    function: Callable[..., Any],
    shapes: Sequence[tuple[int, ...]],
    dtype: str,
    capability: tuple[int, int],
) -> list[gpu_planned.Launched]:
    """What a jitted call launches on a GPU that only plans."""
    device = gpu_planned.planned_device(capability)
    arrays = [gpu_planned.planned_array(device, shape, dtype) for shape in shapes]
    launched = device.driver.api.launched
    launched.clear()
    gpuflow.jit(function)(*arrays)
    return list(launched)


def table(capability: tuple[int, int], only: str = "") -> list[str]:
    """The lines of the table."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}"]
    for name, built in golden_kernels(capability):
        if chosen(name, only):
            lines.append(table_row(name, "-", built))
    for name, function, shapes, dtype in PROGRAMS:
        if not chosen(name, only):
            continue
        for one in launches_of(function, shapes, dtype, capability):
            grid, block = (" ".join(map(str, _trimmed(dim))) for dim in (one.grid, one.block))
            title = f"{name}: {one.kernel.built.entry}"
            lines.append(table_row(title, f"{grid} x {block}", one.kernel.built))
    return lines


def _trimmed(dim: Sequence[int]) -> list[int]:
    sizes = list(dim)
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return sizes


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, and store it if asked to."""
    parser = argparse.ArgumentParser(description="Machine code of GPU kernels, as a table.")
    parser.add_argument("--capability", default="9.0")
    parser.add_argument("--rows", default="", help="rows whose name contains one of these")
    parser.add_argument("--results", type=Path, help="folder to store the table in")
    parser.add_argument("--suffix", default="", help="behind the date in the file's name")
    options = parser.parse_args(arguments)
    major, minor = map(int, options.capability.split("."))
    today = datetime.date.today().isoformat()
    versions = ", ".join(f"{name} {version_of(name)}" for name in PACKAGES)
    text = "\n".join(
        [
            f"# sass, {today}",
            "",
            f"- architecture: sm_{major}{minor}; no GPU took part",
            f"- commit: {commit()}",
            f"- {versions}, nvidia-cuda-nvdisasm {version_of('nvidia-cuda-nvdisasm')}",
            "",
            *table((major, minor), options.rows),
            "",
        ]
    )
    print(text)
    if options.results is not None:
        options.results.mkdir(parents=True, exist_ok=True)
        suffix = f"-{options.suffix}" if options.suffix else ""
        (options.results / f"sass-{today}{suffix}.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
