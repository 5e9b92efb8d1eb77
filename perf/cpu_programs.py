"""Compares what two trees make of CPU kernels: loop programs and LLVM's instructions.

usage, from the root of a tree:

    python perf/cpu_programs.py collect KERNELS tests/numpy tests/ops ...
    python perf/cpu_programs.py digest KERNELS DIGESTS
    python perf/cpu_programs.py compare DIGESTS OTHER_DIGESTS

``collect`` runs pytest and stores each kernel that the tests ask for in the folder KERNELS;
``digest`` writes a line for each: digests of the program's text, as a syntax tree, and of the LLVM
module before its passes, and the level of optimization. It runs in each of the trees.
"""

from __future__ import annotations

import ast
import hashlib
import pickle
import sys
from pathlib import Path

import pytest

from gpuflow.kir.nodes import Kernel
from gpuflow.kir.text import kernel_text
from gpuflow.targets.cpu.codegen.build import _optimization_level, compile_module
from gpuflow.targets.cpu.runtime import kernels


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Collector:
    """A plugin of pytest that stores the kernels for which keys are made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        kernels.kernel_text = self.text  # type: ignore[attr-defined]

    def text(self, kernel: Kernel) -> str:
        """The text of a kernel, which is stored."""
        text = kernel_text(kernel)
        path = self.folder / f"{_digest(text)}.kernel"
        if not path.exists():
            path.write_bytes(pickle.dumps(kernel))
        return text


def collect(folder: str, *arguments: str) -> None:
    """Store the kernels of a run of tests."""
    sys.exit(pytest.main([*arguments, "-q", "-p", "no:xdist"], [_Collector(Path(folder))]))


def digest(folder: str, output: str) -> None:
    """Write the digests of stored kernels."""
    lines = []
    for path in sorted(Path(folder).glob("*.kernel")):
        source = kernels.print_cpu(pickle.loads(path.read_bytes()))
        module = compile_module(source)
        tree = _digest(ast.dump(ast.parse(source.text)))
        level = _optimization_level(source, module)
        lines.append(f"{path.stem} {tree} {_digest(str(module))} {level}\n")
    Path(output).write_text("".join(lines))


def compare(one: str, other: str) -> None:
    """Print how many kernels differ, and which."""
    first, second = (
        {line.split()[0]: line.split()[1:] for line in Path(path).read_text().splitlines()}
        for path in (one, other)
    )
    both = [name for name in first if name in second]
    different = [name for name in both if first[name] != second[name]]
    counts = [sum(first[name][k] != second[name][k] for name in both) for k in range(3)]
    print(f"{len(both)} kernels; programs, modules, levels that differ: {counts}")
    print("\n".join(different))


if __name__ == "__main__":
    {"collect": collect, "digest": digest, "compare": compare}[sys.argv[1]](*sys.argv[2:])
