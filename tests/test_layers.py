"""The rules of the source tree, read from its syntax trees: layers, cycles, lengths, environment.

Each rule is a function from a tree (`{path: source}`) to a list of complaints, so that the rules
themselves are tested on small made-up trees below.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Folder (or top-level module) -> (height, column). What is not named here is surface.
# A module may import its own folder and whatever lies strictly lower, but "left" (what a program
# means) never imports "right" (how it runs), nor the reverse; core is a floor that both may read.
LAYERS: dict[str, tuple[int, str]] = {
    "version": (-1, "floor"),
    "base": (0, "floor"),
    "kernels": (0, "floor"),
    "kir": (1, "floor"),
    "core": (2, "floor"),
    "ops": (3, "left"),
    "compiler": (3, "right"),
    "transforms": (4, "left"),
    "runtime": (4, "right"),
    "targets": (5, "right"),
    "control": (6, "join"),
    "parallel": (7, "join"),
}
SURFACE = (8, "join")

# The rooms of the compiler in the order in which a program passes them: each imports itself, those
# before it and the cache of kernels, which imports none.
COMPILER_ROOMS = ("cache", "lanes", "passes", "fusion", "lowering", "schedules", "planning")
# What targets share; each target imports that and itself. The simulated GPU is the CUDA target with
# another driver below, and the table of platforms names all.
SHARED_BY_TARGETS = ("kernel_walk", "printer", "parsing", "llvm", "layouts")
TARGETS = {"cpu": ("cpu",), "cuda": ("cuda",), "cuda_sim": ("cuda_sim", "cuda")}
# The rooms of a target: kernels are made in the first, which knows neither arrays nor devices, nor
# the other two. The library has what is not generated: BLAS, cuDNN, FFT and the providers of both.
TARGET_ROOMS = ("codegen", "library", "runtime")

# Optional or slow third-party packages, the only ones that a function may import. `cuda` is
# NVIDIA's cuda.core and cuda.bindings, which come with numba-cuda.
LAZY_PACKAGES = frozenset(
    {"cuda", "cudnn", "cupy", "cupyx", "llvmlite", "matplotlib", "mpi4py", "numba", "nvmath"}
    | {"absl", "cupy_backends", "opt_einsum", "pygments", "rich", "safetensors", "scipy", "sklearn"}
    | {"tensorstore"}
)

# Files that may touch the process environment, each with its reason.
ENVIRONMENT_FILES = {"gpuflow/base/config.py": "every variable is read and documented there"}

MAX_FILE_LINES = 600
WARN_FILE_LINES = 300
MAX_FUNCTION_LINES = 100

Tree = Mapping[str, str]


@dataclass(frozen=True)
class Import:
    """One imported module: `target` is a dotted name, relative imports resolved."""

    target: str
    line: int
    in_function: bool
    type_checking: bool


def load_tree(root: Path) -> dict[str, str]:
    """Reads gpuflow/ and kernels/, the latter under the name it is installed by."""
    tree = {}
    for folder, prefix in (("gpuflow", "gpuflow"), ("kernels", "gpuflow/kernels")):
        for path in sorted((root / folder).rglob("*.py")):
            tree[f"{prefix}/{path.relative_to(root / folder).as_posix()}"] = path.read_text()
    return tree


def module_name(path: str) -> str:
    parts = path.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def folder_of(module: str) -> str:
    """`gpuflow.core.aval` -> `core`, `gpuflow.api` -> `api`, `gpuflow` -> the empty string."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


@cache  # four rules ask the same of each file
def imports_of(path: str, source: str, modules: frozenset[str]) -> tuple[Import, ...]:
    """All imports of one file; `from a import b` names `a.b` where that is a module."""
    package = module_name(path).split(".")
    if not path.endswith("__init__.py"):
        package = package[:-1]
    found: list[Import] = []

    def add(target: str, node: ast.AST, in_function: bool, checking: bool) -> None:
        found.append(Import(target, getattr(node, "lineno", 0), in_function, checking))

    def walk(node: ast.AST, in_function: bool, checking: bool) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                add(alias.name, node, in_function, checking)
        elif isinstance(node, ast.ImportFrom):
            kept = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*kept, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                add(full if full in modules else base, node, in_function, checking)
        elif isinstance(node, ast.Call) and node.args:
            first = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
            function = dotted(node.func).rpartition(".")[2]
            if function in ("import_module", "__import__") and isinstance(first, str):
                add(first, node, in_function, checking)
        inside = in_function or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        if is_type_checking(node):
            assert isinstance(node, ast.If)
            for child in node.body:
                walk(child, inside, True)
            for child in node.orelse:
                walk(child, inside, checking)
            return
        for child in ast.iter_child_nodes(node):
            walk(child, inside, checking)

    walk(ast.parse(source), False, False)
    return tuple(found)


def dotted(node: ast.AST) -> str:
    """`os.environ.get` as text; empty where the expression is no dotted name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def all_imports(tree: Tree) -> Iterator[tuple[str, Import]]:
    modules = frozenset(module_name(path) for path in tree)
    for path, source in tree.items():
        for item in imports_of(path, source, modules):
            yield path, item


def is_ours(target: str) -> bool:
    return target == "gpuflow" or target.startswith("gpuflow.")


def upward_imports(tree: Tree) -> list[str]:
    """Imports that do not go down, or that cross from one column to the other."""
    complaints = []
    for path, item in all_imports(tree):
        if not is_ours(item.target):
            continue
        here, there = folder_of(module_name(path)), folder_of(item.target)
        if here == there:
            continue
        (height, column), (other_height, other_column) = (
            LAYERS.get(here, SURFACE),
            LAYERS.get(there, SURFACE),
        )
        both_surface = height == other_height == SURFACE[0]
        crosses = {column, other_column} == {"left", "right"}
        if crosses or not (other_height < height or both_surface):
            word = "across the columns" if crosses else "upwards"
            complaints.append(f"{path}:{item.line} imports {item.target} {word}")
    return complaints


def room_of(module: str) -> tuple[str, ...]:
    """`gpuflow.targets.cpu.codegen.build` -> `("targets", "cpu", "codegen", "build")`."""
    return tuple(module.split(".")[1:])


def imports_between_rooms(tree: Tree) -> list[str]:
    """Imports that go against the order of the compiler's rooms, or from one target to another."""
    complaints = []
    for path, item in all_imports(tree):
        here, there = room_of(module_name(path)), room_of(item.target)
        if len(here) < 2 or len(there) < 2:
            continue
        wrong = ""
        if here[0] == there[0] == "compiler" and {here[1], there[1]} <= {*COMPILER_ROOMS}:
            if COMPILER_ROOMS.index(there[1]) > COMPILER_ROOMS.index(here[1]):
                wrong = f"{there[1]}/ comes after {here[1]}/"
        elif here[0] == "targets" and (here[1] in TARGETS or here[1] in SHARED_BY_TARGETS):
            known = {*SHARED_BY_TARGETS, *TARGETS.get(here[1], ())}
            makes_kernels = len(here) > 3 and here[2] == "codegen"
            if there[0] == "targets" and there[1] not in known:
                wrong = f"{here[1]} imports another target"
            elif makes_kernels and there[0] == "runtime":
                wrong = f"{here[2]}/ knows kernels, not arrays"
            elif makes_kernels and there[1] in TARGETS and there[2] != "codegen":
                wrong = f"{here[2]}/ is below {there[2]}"
        if wrong:
            complaints.append(f"{path}:{item.line} imports {item.target}: {wrong}")
    return complaints


def rooms_of_targets(tree: Tree) -> list[str]:
    """Modules of a target outside of its rooms; one file beside them puts the target together."""
    complaints = []
    for path in tree:
        parts = path.split("/")
        is_target = parts[:2] == ["gpuflow", "targets"] and parts[2] in ("cpu", "cuda")
        if is_target and parts[3] not in (*TARGET_ROOMS, "__init__.py", "target.py"):
            complaints.append(f"{path} is in none of {TARGET_ROOMS}")
    return complaints


def unregistered_caches(tree: Tree) -> list[str]:
    """Module-level functions that functools caches: those of base/caches.py are registered."""
    complaints = []
    for path, source in tree.items():
        if path == "gpuflow/base/caches.py" or "cache" not in source:
            continue
        module = ast.parse(source)
        methods = [node.body for node in module.body if isinstance(node, ast.ClassDef)]
        from_functools = {
            alias.asname or alias.name
            for node in module.body
            if isinstance(node, ast.ImportFrom) and node.module == "functools"
            for alias in node.names
            if alias.name in ("cache", "lru_cache")
        }
        spelled = {"functools.cache", "functools.lru_cache", *from_functools}
        for node in [node for body in (module.body, *methods) for node in body]:
            used = list(getattr(node, "decorator_list", ()))
            if isinstance(node, ast.Assign):
                used = [part for part in ast.walk(node.value) if isinstance(part, ast.Call)]
            functions = [one.func if isinstance(one, ast.Call) else one for one in used]
            if any(dotted(function) in spelled for function in functions):
                complaints.append(f"{path}:{node.lineno}: import it from gpuflow.base.caches")
    return complaints


def import_cycles(tree: Tree) -> list[str]:
    """Each cycle once, as `a -> b -> a`; imports for type checkers only do not count."""
    edges: dict[str, list[str]] = {module_name(path): [] for path in tree}
    for path, item in all_imports(tree):
        if item.target in edges and not item.type_checking and not item.in_function:
            edges[module_name(path)].append(item.target)
    state: dict[str, str] = {}
    cycles: list[str] = []

    def visit(module: str, trail: list[str]) -> None:
        state[module] = "open"
        for target in edges[module]:
            if state.get(target) == "open":
                cycle = [*trail[trail.index(target) :], target]
                cycles.append(" -> ".join(cycle))
            elif target not in state:
                visit(target, [*trail, target])
        state[module] = "done"

    for module in edges:
        if module not in state:
            visit(module, [module])
    return cycles


def function_imports(tree: Tree) -> list[str]:
    """Imports inside functions, except of the optional or slow packages."""
    return [
        f"{path}:{item.line} imports {item.target} inside a function"
        for path, item in all_imports(tree)
        if item.in_function and item.target.split(".")[0] not in LAZY_PACKAGES
    ]


def environment_uses(tree: Tree) -> list[str]:
    """Uses of the process environment outside the allowed files."""
    names = ("os.environ", "os.environb", "os.getenv", "os.putenv", "os.unsetenv")
    complaints = []
    for path, source in tree.items():
        if path in ENVIRONMENT_FILES:
            continue
        for node in ast.walk(ast.parse(source)):
            from_os = isinstance(node, ast.ImportFrom) and node.module == "os"
            taken = {alias.name for alias in node.names} if from_os else set()
            if (isinstance(node, ast.Attribute) and dotted(node) in names) or any(
                f"os.{name}" in names for name in taken
            ):
                complaints.append(f"{path}:{node.lineno} touches the environment")
    return complaints


def long_files(tree: Tree, limit: int) -> list[str]:
    return [
        f"{path} has {len(source.splitlines())} lines, more than {limit}"
        for path, source in tree.items()
        if len(source.splitlines()) > limit
    ]


def long_functions(tree: Tree, limit: int) -> list[str]:
    complaints = []
    for path, source in tree.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > limit:
                    complaints.append(f"{path}:{node.lineno} {node.name} has {lines} lines")
    return complaints


def folders_without_init(tree: Tree) -> list[str]:
    """Folders that setup.py's find_packages would leave out of an installation."""
    folders = {path.rpartition("/")[0] for path in tree}
    return sorted(f"{f} has no __init__.py" for f in folders if f"{f}/__init__.py" not in tree)


# --- the real tree ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tree() -> dict[str, str]:
    return load_tree(ROOT)


def test_ptxsim_stands_alone():
    """It imports itself, NumPy, ml_dtypes and the standard library."""
    tree = {
        f"ptxsim/{path.name}": path.read_text() for path in sorted((ROOT / "ptxsim").glob("*.py"))
    }
    modules = frozenset(map(module_name, tree))
    allowed = {"ptxsim", "numpy", "ml_dtypes", *sys.stdlib_module_names}
    found = {
        (path, item.target)
        for path, source in tree.items()
        for item in imports_of(path, source, modules)
        if item.target.partition(".")[0] not in allowed
    }
    assert "ptxsim/kernel.py" in tree and not found
    lengths = long_files(tree, MAX_FILE_LINES) + long_functions(tree, MAX_FUNCTION_LINES)
    assert not lengths and not import_cycles(tree)


def test_tree_is_found(tree):
    assert "gpuflow/version.py" in tree and "gpuflow/kernels/__init__.py" in tree


@pytest.mark.parametrize(
    "rule",
    [
        upward_imports,
        imports_between_rooms,
        import_cycles,
        function_imports,
        environment_uses,
        folders_without_init,
        rooms_of_targets,
        unregistered_caches,
    ],
    ids=lambda rule: rule.__name__,
)
def test_rule_holds(rule, tree):
    complaints = rule(tree)
    assert not complaints, "\n".join(complaints)


def test_lengths(tree):
    for complaint in long_files(tree, WARN_FILE_LINES):
        warnings.warn(complaint, stacklevel=1)
    complaints = long_files(tree, MAX_FILE_LINES) + long_functions(tree, MAX_FUNCTION_LINES)
    assert not complaints, "\n".join(complaints)


def test_environment_files_are_still_there(tree):
    stale = [path for path in ENVIRONMENT_FILES if path not in tree]
    assert not stale, f"remove from ENVIRONMENT_FILES: {stale}"


# --- the rules themselves --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("core/trace", "base/config", True),
        ("core/lowering", "kir/nodes", True),
        ("kir/nodes", "core/aval", False),
        ("base/util", "kir/nodes", False),
        ("ops/sin", "core/aval", True),
        ("ops/sin", "kir/scalar", True),
        ("ops/sin", "compiler/fuse", False),
        ("ops/sin", "transforms/jvp", False),
        ("transforms/jvp", "ops/sin", True),
        ("transforms/jvp", "compiler/fuse", False),
        ("compiler/fuse", "core/jaxpr", True),
        ("compiler/fuse", "ops/sin", False),
        ("compiler/fuse", "runtime/array", False),
        ("compiler/fuse", "targets/cpu/runtime/kernels", False),
        ("runtime/eager", "targets/cpu/runtime/kernels", False),
        ("targets/cpu/runtime/driver", "runtime/array", True),
        ("targets/cpu/runtime/driver", "ops/sin", False),
        ("control/jit", "targets/platforms", True),
        ("runtime/eager", "compiler/cache", True),
        ("runtime/eager", "core/aval", True),
        ("runtime/eager", "ops/sin", False),
        ("runtime/eager", "transforms/jvp", False),
        ("control/jit", "transforms/jvp", True),
        ("control/jit", "runtime/execute", True),
        ("control/jit", "parallel/pmap", False),
        ("control/jit", "api", False),
        ("numpy/linear", "control/jit", True),
        ("numpy/linear", "wiring", True),
        ("api", "numpy/linear", True),
        ("base/config", "version", True),
        ("kernels/scan", "base/util", False),
        ("ops/sin", "kernels/scan", True),
    ],
)
def test_upward_imports_rule(importer, imported, allowed):
    name = "gpuflow." + imported.replace("/", ".")
    made_up = {f"gpuflow/{importer}.py": f"import {name}\n", f"gpuflow/{imported}.py": ""}
    assert (not upward_imports(made_up)) == allowed


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("compiler/fusion/fuse", "compiler/passes/program", True),
        ("compiler/fusion/fuse", "compiler/lowering/emit", False),
        ("compiler/planning/plan", "compiler/lowering/lower", True),
        ("compiler/pipeline", "compiler/planning/bind", True),
        ("compiler/cache/size", "compiler/fusion/space", False),
        ("targets/cpu/codegen/printing/borders", "targets/printer", True),
        ("targets/cpu/codegen/printing/borders", "targets/cpu/codegen/machine_code", True),
        ("targets/cpu/codegen/printing/borders", "targets/cpu/runtime/native/pool", False),
        ("targets/cpu/codegen/printing/borders", "runtime/array", False),
        (
            "targets/cpu/codegen/printing/borders",
            "targets/cuda/codegen/printing/full_reductions",
            False,
        ),
        ("targets/cpu/runtime/native/pool", "targets/cpu/codegen/machine_code", True),
        ("targets/cuda/runtime/driver/launch", "targets/cpu/runtime/native/pool", False),
        ("targets/cuda/runtime/driver/launch", "targets/cuda_sim/driver", False),
        ("targets/cuda_sim/driver", "targets/cuda/runtime/driver/launch", True),
        ("targets/llvm/lanes", "targets/cpu/codegen/machine_code", False),
        ("targets/platforms", "targets/cpu/runtime/driver", True),
    ],
)
def test_rule_of_rooms(importer, imported, allowed):
    name = "gpuflow." + imported.replace("/", ".")
    made_up = {f"gpuflow/{importer}.py": f"import {name}\n", f"gpuflow/{imported}.py": ""}
    assert (not imports_between_rooms(made_up)) == allowed


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("targets/cpu/target.py", True),
        ("targets/cuda/library/dnn/calls.py", True),
        ("targets/llvm/ir_values.py", True),
        ("targets/cuda/printing/points.py", False),
        ("targets/cpu/driver.py", False),
    ],
)
def test_rule_of_rooms_of_targets(path, allowed):
    assert (not rooms_of_targets({f"gpuflow/{path}": ""})) == allowed


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("from gpuflow.base.caches import cache\n@cache\ndef f(): pass", True),
        ("from functools import cache\ndef f():\n    @cache\n    def g(): pass", True),
        ("from functools import cache\n@cache\ndef f(): pass", False),
        ("from functools import lru_cache as c\nf = c(4)(len)", False),
        ("import functools\n@functools.lru_cache(maxsize=4)\ndef f(): pass", False),
        ("import functools\nclass A:\n    @functools.cache\n    def f(self): pass", False),
    ],
)
def test_rule_of_caches(text, allowed):
    assert (not unregistered_caches({"gpuflow/base/a.py": text})) == allowed


@pytest.mark.parametrize(
    "text",
    [
        "from gpuflow.runtime import array",
        "from gpuflow.runtime.array import Array",
        "from ..runtime import array",
        "from .. import runtime",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import gpuflow.runtime.array",
        "import importlib\nA = importlib.import_module('gpuflow.runtime.array')",
        "import gpuflow",
        "def f():\n    import gpuflow.runtime",
    ],
)
def test_upward_imports_are_seen_in_every_spelling(text):
    made_up = {
        "gpuflow/core/trace.py": text,
        "gpuflow/runtime/__init__.py": "",
        "gpuflow/runtime/array.py": "",
        "gpuflow/__init__.py": "",
    }
    assert len(upward_imports(made_up)) == 1


def test_cycle_rule():
    made_up = {
        "gpuflow/core/a.py": "from gpuflow.core import b",
        "gpuflow/core/b.py": "from gpuflow.core.c import name",
        "gpuflow/core/c.py": "from . import a",
    }
    (cycle,) = import_cycles(made_up)
    assert cycle == "gpuflow.core.a -> gpuflow.core.b -> gpuflow.core.c -> gpuflow.core.a"
    assert not import_cycles({**made_up, "gpuflow/core/c.py": ""})


def test_cycle_rule_ignores_imports_for_type_checkers():
    made_up = {
        "gpuflow/core/a.py": "from gpuflow.core import b",
        "gpuflow/core/b.py": "if TYPE_CHECKING:\n    from gpuflow.core import a",
    }
    assert not import_cycles(made_up)


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import numba", True),
        ("from numba.core import types", True),
        ("import cupy", True),
        ("import json", False),
        ("import gpuflow.core.aval", False),
        ("from . import b", False),
        ("__import__('json')", False),
    ],
)
def test_function_import_rule(statement, allowed):
    inside = {"gpuflow/core/a.py": f"class C:\n    def f(self):\n        {statement}\n"}
    assert (not function_imports(inside)) == allowed
    assert not function_imports({"gpuflow/core/a.py": f"{statement}\n"})


@pytest.mark.parametrize(
    "text",
    [
        "import os\nx = os.environ['A']",
        "import os\nx = os.getenv('A')",
        "from os import environ",
        "import os\nos.environ.pop('A', None)",
    ],
)
def test_environment_rule(text):
    assert len(environment_uses({"gpuflow/core/a.py": text})) == 1
    assert not environment_uses({"gpuflow/base/config.py": text})
    assert not environment_uses({"gpuflow/core/a.py": "from os import path"})


def test_length_rules():
    assert not long_files({"a.py": "x\n" * 600}, 600)
    assert len(long_files({"a.py": "x\n" * 601}, 600)) == 1
    body = "def f():\n" + "    x = 1\n" * 99
    assert not long_functions({"a.py": body}, 100)
    (complaint,) = long_functions({"a.py": body + "    x = 2\n"}, 100)
    assert complaint == "a.py:1 f has 101 lines"


def test_missing_init_rule():
    assert folders_without_init({"gpuflow/core/a.py": ""}) == ["gpuflow/core has no __init__.py"]
    assert not folders_without_init({"gpuflow/core/a.py": "", "gpuflow/core/__init__.py": ""})
