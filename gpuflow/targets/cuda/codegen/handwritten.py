"""Compile handwritten kernels: Python functions of kernels/, specialized to constants.

    function -> module text, with the functions that it calls and constants as literals
             -> ``build_cuda``, as for generated kernels -> kernel cache

The text is the cache key, so a kernel is built once for each set of constants.
kernels/language.py defines the allowed constructs.

Tests: tests/targets/cuda/test_handwritten.py.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

from gpuflow.base.caches import lru_cache
from gpuflow.base.records import record
from gpuflow.compiler.cache.kernel_cache import CacheEntry, KernelCache, cache_key
from gpuflow.compiler.debugging import show
from gpuflow.targets.cuda.codegen.build import CudaObject, build_cuda
from gpuflow.targets.cuda.codegen.cached_builds import cache_key_inputs, entry_of, object_of
from gpuflow.targets.parsing import names_in, parsed

Scalar = int | float | bool
LaunchBounds = int | tuple[int, int] | None

_HEAD = """# Handwritten CUDA kernel: kernels/{module}.py, with
{constants}
import math

import numpy as np"""
_UNROLLED = "unrolled"  # name of the range in kernels/language.py whose loops are unrolled
# Name of the constant that sets the dynamic shared memory of a block, in bytes.
SHARED_BYTES = "SHARED_BYTES"
# PTX is generated for this architecture at most: NVVM's optimizer for sm_100 and above does not
# unroll long loops over arrays in registers, and so puts these arrays into memory.
_NEWEST_PTX_CAPABILITY = (9, 0)
# Expressions that are folded if they are constant.
_FOLDABLE = (ast.Name, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare)


@record
class HandwrittenKernel:
    """A handwritten kernel, built for one architecture.

    Attributes:
        text: the compiled module text.
        signature: one type per parameter, in the notation of ``build_cuda``.
        built: PTX, cubin and resource usage.
        shared_bytes: dynamic shared memory of each block.
    """

    text: str
    signature: tuple[str, ...]
    built: CudaObject
    shared_bytes: int


def build_handwritten(
    kernel: Callable[..., None],
    signature: Sequence[str],
    constants: Mapping[str, Scalar],
    launch_bounds: LaunchBounds,
    cache: KernelCache,
    compute_capability: tuple[int, int],
) -> HandwrittenKernel:
    """Return the built kernel: from memory, from the cache's folder, or compiled now.

    Args:
        kernel: a function of kernels/.
        signature: one type per parameter: ``"int64"``, or ``"*float32"`` for a pointer.
        constants: values of names in the kernel and the functions that it calls.
        launch_bounds: most threads per block, or (threads, blocks per multiprocessor).
        cache, compute_capability: as for ``cached_builds.compile_cuda``.

    Raises:
        CudaBuildError: as ``build_cuda``.
        CudaToolchainError: if the kernel must be built and packages are missing.
    """
    build = handwritten_build(kernel, signature, constants, launch_bounds, compute_capability)
    return _load_or_build(build, int(constants.get(SHARED_BYTES, 0)), cache)


def build_text(
    text: str,
    name: str,
    signature: Sequence[str],
    launch_bounds: LaunchBounds,
    shared_bytes: int,
    cache: KernelCache,
    compute_capability: tuple[int, int],
    lineinfo: bool = True,
) -> HandwrittenKernel:
    """Return the built kernel of a module's text; raises as ``build_handwritten``.

    Args:
        text: text of the module.
        name: name of the kernel in the module.
        shared_bytes: dynamic shared memory of each block.
        signature, launch_bounds, cache, compute_capability: as for ``build_handwritten``.
        lineinfo: as for ``build_cuda``.
    """
    build = _text_build(text, name, signature, launch_bounds, compute_capability, lineinfo)
    return _load_or_build(build, shared_bytes, cache)


@record
class TextBuild:
    """The build of a module's text: picklable, so that another process can do it.

    Attributes:
        key: key of the kernel in the cache.
        text, name, signature, launch_bounds, compute_capability, lineinfo: as for
            ``build_text``.
    """

    key: str
    text: str
    name: str
    signature: tuple[str, ...]
    launch_bounds: LaunchBounds
    compute_capability: tuple[int, int]
    lineinfo: bool

    def entry(self) -> CacheEntry:
        """Build the kernel and return its cache entry."""
        show(4, f"source {self.name}", lambda: self.text)
        built = build_cuda(
            self.text,
            self.name,
            self.signature,
            self.compute_capability,
            self.launch_bounds,
            _NEWEST_PTX_CAPABILITY,
            self.lineinfo,
        )
        return entry_of(built, self.text)


def handwritten_build(
    kernel: Callable[..., None],
    signature: Sequence[str],
    constants: Mapping[str, Scalar],
    launch_bounds: LaunchBounds,
    compute_capability: tuple[int, int],
) -> TextBuild:
    """The build of a handwritten kernel; arguments are those of ``build_handwritten``."""
    text = _source(kernel, tuple(constants.items()))
    name = kernel.__name__
    return _text_build(text, name, signature, launch_bounds, compute_capability, True)


def _text_build(
    text: str,
    name: str,
    signature: Sequence[str],
    launch_bounds: LaunchBounds,
    compute_capability: tuple[int, int],
    lineinfo: bool,
) -> TextBuild:
    options = (name, *signature, str(launch_bounds), str(_NEWEST_PTX_CAPABILITY))
    key = cache_key(text, (*cache_key_inputs(compute_capability), "handwritten", *options))
    return TextBuild(key, text, name, tuple(signature), launch_bounds, compute_capability, lineinfo)


def _load_or_build(build: TextBuild, shared_bytes: int, cache: KernelCache) -> HandwrittenKernel:
    def load() -> HandwrittenKernel:
        built = object_of(cache.get(build.key, build.entry))
        return HandwrittenKernel(build.text, build.signature, built, shared_bytes)

    return cache.load_once(build.key, load)


@lru_cache(1024)
def _source(kernel: Callable[..., None], constants: tuple[tuple[str, Scalar], ...]) -> str:
    return kernel_source(kernel, dict(constants))


def kernel_source(
    kernel: Callable[..., None], constants: Mapping[str, Scalar], is_device: bool = False
) -> str:
    """The module text of a kernel and, as device functions, the functions that it calls.

    Constants are replaced by literals, which Numba requires in some positions.

    Args:
        kernel, constants: as for ``build_handwritten``.
        is_device: whether ``kernel`` becomes a device function as well.
    """
    all_constants: dict[str, Scalar] = dict(constants)
    functions: dict[Any, ast.FunctionDef] = {}
    _collect_functions(kernel, all_constants, functions)
    function_texts = []
    for function, tree in functions.items():
        decorator = "" if function is kernel and not is_device else "@device_function\n"
        function_texts.append(decorator + ast.unparse(ast.fix_missing_locations(tree)))
    constant_lines = [f"#   {name} = {value!r}" for name, value in sorted(all_constants.items())]
    module = kernel.__module__.rpartition(".")[2]
    head = _HEAD.format(module=module, constants="\n".join(constant_lines))
    return "\n\n\n".join([head, *function_texts]) + "\n"


def _collect_functions(
    function: Any, constants: dict[str, Scalar], functions: dict[Any, ast.FunctionDef]
) -> None:
    """Add a function to ``functions``, after those it calls, and its globals to ``constants``.

    Given constants take precedence over globals of the same name. Functions must not be recursive.
    """
    tree, names = _tree(function), function.__globals__
    for name in names_in(tree):
        if isinstance(names.get(name), Scalar):
            constants.setdefault(name, names[name])
    tree = _Unroller(constants).visit(tree)
    for name in sorted(names_in(tree)):
        value = names.get(name)
        if isinstance(value, FunctionType) and value is not function and value not in functions:
            _collect_functions(value, constants, functions)
    functions[function] = tree


def _tree(function: FunctionType) -> ast.FunctionDef:
    """The syntax tree of a function, without annotations and decorators."""
    (tree,) = parsed(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(tree, ast.FunctionDef), function
    tree.returns, tree.decorator_list = None, []
    for argument in tree.args.args:
        argument.annotation = None
    return tree


class _Unroller(ast.NodeTransformer):
    """Partial evaluation: unrolls ``unrolled`` loops, drops dead branches, folds constants."""

    def __init__(self, constants: Mapping[str, Scalar]) -> None:
        self._constants = constants

    def visit_For(self, node: ast.For) -> ast.AST | list[ast.stmt]:
        """Replace a loop over ``unrolled(...)`` by copies of its body."""
        call = node.iter
        if not (isinstance(call, ast.Call) and getattr(call.func, "id", "") == _UNROLLED):
            return self.generic_visit(node)
        assert isinstance(node.target, ast.Name), ast.unparse(node)
        copies: list[ast.stmt] = []
        for value in range(*[self._value(argument) for argument in call.args]):
            inner = _Unroller({**self._constants, node.target.id: value})
            copies += inner.statements(copy.deepcopy(node.body))
        return copies or [ast.Pass()]

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """Drop constant operands of ``and`` and ``or``."""
        absorbing = isinstance(node.op, ast.Or)
        remaining: list[ast.expr] = []
        for operand in node.values:
            operand = self.visit(operand)
            if not isinstance(operand, ast.Constant):
                remaining.append(operand)
            elif bool(operand.value) == absorbing:
                remaining.append(ast.Constant(absorbing))
                break
        if len(remaining) < 2 or isinstance(remaining[0], ast.Constant):
            return remaining[0] if remaining else ast.Constant(not absorbing)
        return ast.BoolOp(node.op, remaining)

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        """Replace a branch with a constant test by the side that runs."""
        node.test = self.visit(node.test)
        if not self._is_constant(node.test):
            return self.generic_visit(node)
        selected = node.body if self._value(node.test) else node.orelse
        return self.statements(selected) or [ast.Pass()]

    def visit(self, node: ast.AST) -> Any:
        """Fold an expression of constants into a literal; other nodes as usual."""
        if isinstance(node, _FOLDABLE) and self._is_constant(node):
            value = self._value(node)
            return ast.Constant(value) if isinstance(value, Scalar) else node
        return super().visit(node)

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Visit the statements of a body; each may become several."""
        visited: list[ast.stmt] = []
        for statement in body:
            replacement = self.visit(statement)
            visited += replacement if isinstance(replacement, list) else [replacement]
        return visited

    def _is_constant(self, node: ast.expr) -> bool:
        """Whether an expression has only names of constants, no calls, subscripts or attributes."""
        nodes = list(ast.walk(node))
        return names_in(node) <= set(self._constants) and not any(
            isinstance(child, ast.Call | ast.Subscript | ast.Attribute)
            or isinstance(getattr(child, "ctx", None), ast.Store)
            for child in nodes
        )

    def _value(self, node: ast.expr) -> Any:
        """The value of an expression that ``_is_constant`` accepts."""
        expression = ast.fix_missing_locations(ast.Expression(node))
        code = compile(expression, "<constant>", "eval")
        return eval(code, {"__builtins__": {}}, dict(self._constants))
