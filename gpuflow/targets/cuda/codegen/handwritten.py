"""Handwritten kernels: from Python functions to built code, through the path of generated kernels.

    function -> its text, and those of the functions and numbers it names -> build -> cache

The text is the key: a kernel is built once for each set of constants. kernels/language.py defines
the allowed constructs.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import FunctionType
from typing import Any

from gpuflow.base.records import record
from gpuflow.compiler.cache.kernel_cache import Entry, KernelCache, cache_key
from gpuflow.compiler.debugging import show
from gpuflow.targets.cuda.codegen.build import CudaObject, build_cuda
from gpuflow.targets.cuda.codegen.cached import cache_parts, entry_of, object_of
from gpuflow.targets.parsing import names_in, parsed

Number = int | float | bool
LaunchBounds = int | tuple[int, int] | None

_HEAD = """# Handwritten CUDA kernel: kernels/{module}.py, with
{numbers}
import math

import numpy as np"""
_UNROLLED = "unrolled"
# The constant that says how much dynamic shared memory a block has.
SHARED_BYTES = "SHARED_BYTES"
# NVVM has another optimizer for sm_100 and above, which leaves long loops over arrays in registers
# as they are, so that the arrays lie in memory.
_NEWEST_PTX = (9, 0)
_FOLDED = (ast.Name, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare)


@record
class HandwrittenKernel:
    """A handwritten kernel, built for one architecture.

    Attributes:
        text: the compiled text.
        signature: one type per parameter, as ``build_cuda`` takes them.
        built: its PTX and cubin, and their resource use.
        shared_bytes: dynamic shared memory of each block.
    """

    text: str
    signature: tuple[str, ...]
    built: CudaObject
    shared_bytes: int


def build_handwritten(
    kernel: Callable[..., None], signature: Sequence[str], constants: Mapping[str, Number],
    launch_bounds: LaunchBounds, cache: KernelCache, compute_capability: tuple[int, int],
) -> HandwrittenKernel:  # fmt: skip
    """The built kernel: from this process, from the cache's folder, or made now.

    Args:
        kernel: a function of kernels/.
        signature: one type per parameter: ``"int64"``, or ``"*float32"`` for a pointer.
        constants: values for names in the text of the kernel and of functions that it calls.
        launch_bounds: most threads per block, or (threads, blocks per multiprocessor).
        cache, compute_capability: as for ``cached.compile_cuda``.

    Raises:
        CudaBuildError: as ``build_cuda``.
        CudaToolchainError: the kernel must be built and its packages are missing.
    """
    build = handwritten_build(kernel, signature, constants, launch_bounds, compute_capability)
    return _loaded(build, int(constants.get(SHARED_BYTES, 0)), cache)


def build_text(
    text: str, name: str, signature: Sequence[str], launch_bounds: LaunchBounds, shared_bytes: int,
    cache: KernelCache, compute_capability: tuple[int, int], with_lines: bool = True,
) -> HandwrittenKernel:  # fmt: skip
    """The built kernel of a module's text; raises as ``build_handwritten``.

    Args:
        text: of the module.
        name: of the kernel in it.
        shared_bytes: dynamic shared memory of each block.
        signature, launch_bounds, cache, compute_capability: as for ``build_handwritten``.
        with_lines: as for ``build_cuda``.
    """
    build = _text_build(text, name, signature, launch_bounds, compute_capability, with_lines)
    return _loaded(build, shared_bytes, cache)


@record
class TextBuild:
    """The build of a module's text, which any process may do.

    Attributes:
        key: of the kernel in the cache.
        text, name, signature, launch_bounds, compute_capability, with_lines: as for
            ``build_text``.
    """

    key: str
    text: str
    name: str
    signature: tuple[str, ...]
    launch_bounds: LaunchBounds
    compute_capability: tuple[int, int]
    with_lines: bool

    def entry(self) -> Entry:
        """Build it."""
        show(4, f"source {self.name}", lambda: self.text)
        built = build_cuda(
            self.text, self.name, self.signature, self.compute_capability, self.launch_bounds,
            _NEWEST_PTX, self.with_lines,
        )  # fmt: skip
        return entry_of(built, self.text)


def handwritten_build(
    kernel: Callable[..., None], signature: Sequence[str], constants: Mapping[str, Number],
    launch_bounds: LaunchBounds, compute_capability: tuple[int, int],
) -> TextBuild:  # fmt: skip
    """The build of a handwritten kernel; arguments are those of ``build_handwritten``."""
    text = _source(kernel, tuple(constants.items()))
    name = kernel.__name__
    return _text_build(text, name, signature, launch_bounds, compute_capability, True)


def _text_build(
    text: str, name: str, signature: Sequence[str], launch_bounds: LaunchBounds,
    compute_capability: tuple[int, int], with_lines: bool,
) -> TextBuild:  # fmt: skip
    how = (name, *signature, str(launch_bounds), str(_NEWEST_PTX))
    key = cache_key(text, (*cache_parts(compute_capability), "handwritten", *how))
    return TextBuild(
        key, text, name, tuple(signature), launch_bounds, compute_capability, with_lines
    )


def _loaded(build: TextBuild, shared_bytes: int, cache: KernelCache) -> HandwrittenKernel:
    def load() -> HandwrittenKernel:
        built = object_of(cache.get(build.key, build.entry))
        return HandwrittenKernel(build.text, build.signature, built, shared_bytes)

    return cache.once(build.key, load)


@lru_cache(maxsize=1024)
def _source(kernel: Callable[..., None], constants: tuple[tuple[str, Number], ...]) -> str:
    return kernel_source(kernel, dict(constants))


def kernel_source(
    kernel: Callable[..., None], constants: Mapping[str, Number], is_device: bool = False
) -> str:
    """The module text of a kernel: the functions it calls as device functions, and itself.

    Values replace their names: Numba requires literals in some positions.

    Args:
        kernel, constants: as of ``build_handwritten``.
        is_device: it is a device function as well.
    """
    numbers: dict[str, Number] = dict(constants)
    trees: dict[Any, ast.FunctionDef] = {}
    _collect(kernel, numbers, trees)
    texts = []
    for function, tree in trees.items():
        mark = "" if function is kernel and not is_device else "@device_function\n"
        texts.append(mark + ast.unparse(ast.fix_missing_locations(tree)))
    lines = [f"#   {name} = {value!r}" for name, value in sorted(numbers.items())]
    head = _HEAD.format(module=kernel.__module__.rpartition(".")[2], numbers="\n".join(lines))
    return "\n\n\n".join([head, *texts]) + "\n"


def _collect(
    function: Any, numbers: dict[str, Number], trees: dict[Any, ast.FunctionDef]
) -> None:
    """Enter a function into ``trees``, behind those it calls, and the numbers that it names."""
    tree, known = _tree(function), function.__globals__
    for name in names_in(tree):
        if isinstance(known.get(name), Number):
            numbers.setdefault(name, known[name])
    tree = _Unroller(numbers).visit(tree)
    for name in sorted(names_in(tree)):
        value = known.get(name)
        if isinstance(value, FunctionType) and value is not function and value not in trees:
            _collect(value, numbers, trees)
    trees[function] = tree


def _tree(function: FunctionType) -> ast.FunctionDef:
    (tree,) = parsed(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(tree, ast.FunctionDef), function
    tree.returns, tree.decorator_list = None, []
    for argument in tree.args.args:
        argument.annotation = None
    return tree


class _Unroller(ast.NodeTransformer):
    """Writes ``unrolled`` loops out, decides tests of constants, and puts numbers for constants."""

    def __init__(self, numbers: Mapping[str, Number]) -> None:
        self._numbers = numbers

    def visit_For(self, node: ast.For) -> ast.AST | list[ast.stmt]:
        """Copies of the body, where the loop is over ``unrolled(...)``."""
        call = node.iter
        if not (isinstance(call, ast.Call) and getattr(call.func, "id", "") == _UNROLLED):
            return self.generic_visit(node)
        assert isinstance(node.target, ast.Name), ast.unparse(node)
        copies: list[ast.stmt] = []
        for number in range(*[self._value(argument) for argument in call.args]):
            inner = _Unroller({**self._numbers, node.target.id: number})
            copies += inner.statements(copy.deepcopy(node.body))
        return copies or [ast.Pass()]

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """``and`` and ``or`` without the operands that are constants."""
        settles = isinstance(node.op, ast.Or)
        kept: list[ast.expr] = []
        for operand in node.values:
            operand = self.visit(operand)
            if not isinstance(operand, ast.Constant):
                kept.append(operand)
            elif bool(operand.value) == settles:
                kept.append(ast.Constant(settles))
                break
        if len(kept) < 2 or isinstance(kept[0], ast.Constant):
            return kept[0] if kept else ast.Constant(not settles)
        return ast.BoolOp(node.op, kept)

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        """The branch that is taken, where the test is made of constants."""
        node.test = self.visit(node.test)
        if not self._is_constant(node.test):
            return self.generic_visit(node)
        kept = node.body if self._value(node.test) else node.orelse
        return self.statements(kept) or [ast.Pass()]

    def visit(self, node: ast.AST) -> Any:
        """A number in place of an expression of constants."""
        if isinstance(node, _FOLDED) and self._is_constant(node):
            value = self._value(node)
            return ast.Constant(value) if isinstance(value, Number) else node
        return super().visit(node)

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The unrolled statements of a body."""
        unrolled: list[ast.stmt] = []
        for statement in body:
            new = self.visit(statement)
            unrolled += new if isinstance(new, list) else [new]
        return unrolled

    def _is_constant(self, node: ast.expr) -> bool:
        """Whether an expression has no names but constants, no calls and no elements of arrays."""
        nodes = list(ast.walk(node))
        return names_in(node) <= set(self._numbers) and not any(
            isinstance(one, ast.Call | ast.Subscript | ast.Attribute)
            or isinstance(getattr(one, "ctx", None), ast.Store)
            for one in nodes
        )

    def _value(self, node: ast.expr) -> Any:
        expression = ast.fix_missing_locations(ast.Expression(node))
        code = compile(expression, "<constant>", "eval")
        return eval(code, {"__builtins__": {}}, dict(self._numbers))
