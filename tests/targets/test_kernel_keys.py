"""A changed emitter has its kernels built again: the keys of kernels hold the texts of all modules
that decide about code.

kir.nodes was once not in the key: with another order of the argument block, built kernels would
have read wrong words. Later the list of modules lacked the parser, the builder of KernelIR and the
order of the CPU's rewrites, so folders of modules are in the key now.
"""

import ast
import gc
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import cuda_zoo
import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from plan_on_cuda import plan_of

import gpuflow
from gpuflow import lax, nn
from gpuflow import numpy as jnp
from gpuflow.compiler.cache import kernel_cache
from gpuflow.compiler.planning.plan import KernelStep
from gpuflow.targets.cpu.codegen.build import build_cpu
from gpuflow.targets.cpu.runtime import kernels
from gpuflow.targets.cpu.runtime.native import object_code
from gpuflow.targets.cuda.codegen import cached_builds as cached
from gpuflow.targets.cuda.codegen.build import build_cuda
from gpuflow.targets.cuda.codegen.printing.printers import print_scheduled
from gpuflow.targets.cuda.codegen.schedules.launch_config import schedule_cuda

PACKAGE = Path(gpuflow.__file__).parent
# Tools without opinions about kernels, and the cache itself.
NEUTRAL = ("gpuflow.base", "gpuflow.compiler.cache", "gpuflow.compiler.debugging")
# What makes KernelIR, whose text is in the key. Emitters may import its types and run none of it.
BEFORE_KERNEL_IR = (
    "gpuflow.core",
    "gpuflow.compiler.passes",
    "gpuflow.compiler.fusion",
    "gpuflow.compiler.lowering",
    "gpuflow.compiler.schedules",
    "gpuflow.compiler.planning",
)
# What handwritten kernels and programs of blocks are made of: their whole texts are in the key.
IN_TEXTS = ("gpuflow.kernels", "gpuflow.targets.layouts")
# What asks for kernels and runs them.
RUNTIME = ("gpuflow.runtime", "gpuflow.targets.cpu.runtime.native")


def module_of(path):
    parts = Path(path).relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def digested(emitters):
    """The names of all modules whose texts are in a digest."""
    return {module_of(file) for module in emitters for file in kernel_cache._files_of(module)}


def is_within(module, packages):
    return any(module == package or module.startswith(f"{package}.") for package in packages)


@cache
def imports_of(module):
    """The modules of gpuflow that one imports when it runs."""
    (path,) = [p for p in (path_of(module), path_of(module) / "__init__.py") if p.is_file()]
    found = set()

    def visit(nodes):
        for node in nodes:
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                visit(node.orelse)
            elif isinstance(node, ast.ImportFrom) and node.module.startswith("gpuflow"):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                found.update(name if path_of(name).exists() else node.module for name in names)
            elif isinstance(node, ast.Import):
                found.update(a.name for a in node.names if a.name.startswith("gpuflow"))
            elif isinstance(node, ast.Constant) and is_lazy(node.value):
                found.add(node.value)
            else:
                visit(ast.iter_child_nodes(node))

    visit(ast.parse(path.read_text()).body)
    return found


def path_of(module):
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return path if path.is_dir() else path.with_suffix(".py")


def is_lazy(value):
    """The name of a module, as LazyModule takes it."""
    return isinstance(value, str) and value.startswith("gpuflow.") and path_of(value).exists()


@pytest.mark.parametrize("target", [kernels, cached], ids=["cpu", "cuda"])
def test_all_that_an_emitter_imports_is_in_the_key(target):
    held = digested(target._CODE_MODULES)
    assert len(held) > 40
    imported = set().union(*(imports_of(module) for module in held))
    allowed = (*NEUTRAL, *BEFORE_KERNEL_IR, *IN_TEXTS, *RUNTIME)
    assert {m for m in imported - held if not is_within(m, allowed)} == set()


@cache
def sample():
    """Kernels of many kinds: those of the zoo that are built alone, and those of some programs."""
    x, rows = np.linspace(0.1, 2, 12, dtype=np.float32), np.ones((6, 5), np.float32)
    programs = [
        (lambda x: lax.lgamma(x) + jnp.sin(x) * lax.erf_inv(x / 3), x),
        (lambda x: jnp.sum(x.astype(jnp.bfloat16) * 2, 0), rows),
        (lambda x: nn.softmax(x) @ x.T, rows),
        (lambda x: lax.fori_loop(0, 9, lambda i, y: y.at[i % 6].add(i), x), rows),
        (lambda x: (jnp.cumsum(x, 1), jnp.argmax(x), jnp.arange(6) // 4), rows),
        (lambda x: (x * 1j).conj().T, rows),
    ]
    steps = [step for f, *args in programs for step in plan_of(f, args).steps]
    alone = [k for name, k in cuda_zoo.zoo().items() if "segments" not in name]
    return [*alone, *(step.kernel for step in steps if isinstance(step, KernelStep))]


def modules_that_run(build, kernels):
    """The modules of gpuflow with functions that are called while each kernel is built.

    The garbage collector waits: finalizers of what other tests left would be among them.
    """
    files = set()

    def note(frame, event, _):
        if event == "call":
            files.add(frame.f_code.co_filename)

    for kernel in kernels:
        before, is_collecting = sys.getprofile(), gc.isenabled()
        gc.disable()
        sys.setprofile(note)
        try:
            build(kernel)
        finally:
            sys.setprofile(before)
            if is_collecting:
                gc.enable()
    return {module_of(file) for file in files if Path(file).is_relative_to(PACKAGE)}


def test_no_module_outside_of_the_key_runs_while_kernels_are_built_for_the_cpu():
    ran = modules_that_run(lambda kernel: build_cpu(kernels.print_cpu(kernel)), sample())
    assert {m for m in ran - digested(kernels._CODE_MODULES) if not is_within(m, NEUTRAL)} == set()
    assert {f"gpuflow.{m}" for m in ("kir.builder", "targets.kernel_walk")} <= ran


@requires_cuda_tools
def test_no_module_outside_of_the_key_runs_while_kernels_are_built_for_gpus():
    def printed(kernel):
        launch = schedule_cuda(kernel, True)
        return print_scheduled(kernel, launch), launch

    def build(kernel):
        source, launch = printed(kernel)
        build_cuda(source.text, source.entry, source.signature, (9, 0), launch.max_threads)

    ran = modules_that_run(printed, sample())
    ran |= modules_that_run(build, sample()[::6])  # each takes seconds
    assert {m for m in ran - digested(cached._CODE_MODULES) if not is_within(m, NEUTRAL)} == set()


def test_the_native_runtime_is_built_with_modules_that_are_in_its_key():
    held = digested((object_code.codegen, object_code.image))
    module = object_code.product_module("s")
    files = set()
    sys.setprofile(lambda frame, event, _: files.add(frame.f_code.co_filename))
    try:
        object_code.image_if_supported(object_code.compile_ir(module.text, 0).code, module.symbols)
    finally:
        sys.setprofile(None)
    ran = {module_of(file) for file in files if Path(file).is_relative_to(PACKAGE)}
    assert {m for m in ran - held if not is_within(m, NEUTRAL)} == set()


# --- a copy of the package, changed between two processes ----------------------------------


class Copy:
    """A copy of the package, and a kernel cache that its processes share."""

    def __init__(self, folder):
        self.folder, self.cache = folder, folder / "cache"
        shutil.copytree(PACKAGE, folder / "gpuflow", symlinks=True)
        if not (PACKAGE / "kernels").is_dir():  # in a checkout they are next to the package
            shutil.copytree(PACKAGE.parent / "kernels", folder / "kernels")

    def append(self, path, text):
        """Add text to the end of a file."""
        with open(self.folder / path, "a") as file:
            file.write(text)

    def replace(self, path, old, new):
        """Change one piece of a file to one of another length, as Python's bytecode notices."""
        assert len(old) != len(new)
        file = self.folder / path
        text = file.read_text()
        assert text.count(old) == 1
        file.write_text(text.replace(old, new))

    def built(self, program):
        """The entries that a process adds to the cache, and how many it finds there."""
        before = set(self.cache.rglob("*.json"))
        settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        settings.pop("PYTHONDONTWRITEBYTECODE", None)
        settings["GPUFLOW_CACHE_DIR"] = str(self.cache)
        out = subprocess.run(
            [sys.executable, "-c", f"{program}\n{_REPORT}"],
            cwd=self.folder,
            env=settings,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert out.returncode == 0, out.stderr
        made_of, loaded = out.stdout.split()
        assert Path(made_of).is_relative_to(self.folder), "another package was imported"
        new = {path for path in self.cache.rglob("*.json") if len(path.parent.name) == 2} - before
        return sorted(json.loads(path.read_text())["entry"] for path in new), int(loaded)


_REPORT = "print(gpuflow.__file__, gpuflow.cache_stats().loaded)"
_PROGRAM = """
import gpuflow, numpy
x = numpy.ones((3, 40), numpy.float32)
y = gpuflow.jit(lambda x: gpuflow.numpy.sin(x) + x.sum(1, keepdims=True))(x)
numpy.testing.assert_allclose(y, 40 + numpy.sin(1), rtol=1e-6)
"""


def test_a_changed_emitter_has_kernels_built_and_nothing_else_does(tmp_path):
    copy = Copy(tmp_path)
    first, _ = copy.built(_PROGRAM)
    ours = [name for name in first if name != "native"]
    assert ours and "native" in first
    assert copy.built(_PROGRAM) == ([], len(first))

    # Ops make KernelIR, which is in the key by its text.
    copy.append("gpuflow/ops/elementwise/unary.py", "# changed\n")
    assert copy.built(_PROGRAM) == ([], len(first))

    # The native runtime is not printed.
    copy.append("gpuflow/targets/cpu/codegen/schedules/pipeline.py", "# changed\n")
    assert copy.built(_PROGRAM)[0] == ours

    copy.append("gpuflow/targets/cpu/codegen/host.py", "# changed\n")
    assert copy.built(_PROGRAM)[0] == first

    copy.append("gpuflow/targets/cpu/runtime/native/pool.ll", "; changed\n")
    assert copy.built(_PROGRAM) == (["native"], len(first) - 1)
    assert copy.built(_PROGRAM) == ([], len(first))


# A generated kernel, and a handwritten one; no GPU is needed.
_CUDA_PROGRAM = """
import gpuflow, numpy
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.kernels.transposing import copy_transposed
from gpuflow.runtime.kernel_cache import kernel_cache
from gpuflow.targets.cuda.codegen.cached_builds import cuda_kernels
from gpuflow.targets.cuda.codegen.handwritten import build_handwritten
jaxpr = gpuflow.jit(gpuflow.numpy.sin).lower(numpy.ones(40, numpy.float32)).jaxpr
cuda_kernels(compile_plan(jaxpr, [])[0].steps, kernel_cache())
kinds = ("*uint32", "*uint32", *["int64"] * 9)
build_handwritten(copy_transposed, kinds, {"SIZE": 4, "PITCH": 65}, 256, kernel_cache(), (9, 0))
"""


@requires_cuda_tools
def test_a_changed_emitter_or_source_has_kernels_of_gpus_built(tmp_path):
    copy = Copy(tmp_path)
    both, handwritten = copy.built(_CUDA_PROGRAM)[0], "copy_transposed"
    assert len(both) == 2 and handwritten in both
    assert copy.built(_CUDA_PROGRAM) == ([], 2)

    copy.append("gpuflow/targets/cpu/codegen/printing/loop_printer.py", "# changed\n")
    assert copy.built(_CUDA_PROGRAM) == ([], 2)

    copy.append("gpuflow/targets/cuda/codegen/printing/points.py", "# changed\n")
    assert copy.built(_CUDA_PROGRAM)[0] == both

    # The text of a handwritten kernel is in its key, without comments.
    folder = "gpuflow/kernels" if (copy.folder / "gpuflow/kernels").is_dir() else "kernels"
    copy.append(f"{folder}/transposing.py", "# changed\n")
    assert copy.built(_CUDA_PROGRAM) == ([], 2)
    copy.replace(f"{folder}/transposing.py", "TILE = 64 ", "TILE = 2 * 16 ")
    assert copy.built(_CUDA_PROGRAM) == ([handwritten], 1)
