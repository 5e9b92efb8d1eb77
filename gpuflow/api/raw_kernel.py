"""gf.raw_kernel: a kernel in Numba or CUDA C as an operation among others.

Tests: tests/test_raw_kernels.py.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpuflow.api.derivatives import jvp as jvp_of
from gpuflow.api.programs import ShapeDtypeStruct, jit
from gpuflow.api.raw_kernel_check import Report, check_kernel
from gpuflow.base import dtypes, tree
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.control.custom.jvp import custom_jvp
from gpuflow.control.custom.linear_call import linear_call
from gpuflow.control.custom.vjp import custom_vjp
from gpuflow.control.custom.vmap import custom_vmap, sequential_vmap
from gpuflow.control.jit_options import check_callable, name_of
from gpuflow.control.platform_dependent import platform_dependent
from gpuflow.core.aval import ShapedArray, aval_of
from gpuflow.core.blocks import CudaText, UserKernel
from gpuflow.ops.foreign.raw_kernel import raw_kernel_p
from gpuflow.ops.zeros import zeros_of

_MAX_THREADS = 1024
_MAX_GRID_DIM = (2**31 - 1, 65535, 65535)
_MAX_BLOCK_DIM = (1024, 1024, 64)
_BOUNDS = r"(?:__launch_bounds__\([^)]*\)\s*)?"
_KERNELS = re.compile(rf"__global__\s+(?:[\w()]+\s+)*?{_BOUNDS}void\s+{_BOUNDS}(\w+)")
Function = Callable[..., Any]


@record
class _StaticScalar:
    """A static scalar argument; scalars of equal value and different dtype are different."""

    dtype: str
    value: Any


@record
class _Rules:
    """Further rules of a kernel, as users gave them; None: there is none."""

    jvp: Function | None = None
    forward: Function | None = None
    backward: Function | None = None
    batch: Function | None = None
    reference: Function | None = None


class RawKernel:
    """A kernel that ``gf.raw_kernel`` made an operation of; call it with arrays and numbers.

    It can be used in ``jit``, ``vmap``, ``pmap``, ``shard_map`` and loops. Transformations without
    a rule raise an error, or use the reference.
    """

    def __init__(
        self,
        code: Function | CudaText,
        name: str,
        out: Any,
        grid: Any,
        inout: tuple[int, ...],
        arguments: Function | None,
        on_cpu: Function | None,
    ) -> None:
        self.__name__ = name
        self._code, self._out, self._grid, self._inout = code, out, grid, inout
        self._arguments, self._on_cpu = arguments, on_cpu
        self._set(_Rules())

    def __repr__(self) -> str:
        return f"<raw kernel {self.__name__}>"

    def __call__(self, *args: Any) -> Any:
        scalars, arrays = [], []
        for position, arg in enumerate(args):
            if isinstance(arg, bool | int | float | np.number | np.bool_):
                scalars.append(_static_scalar(arg))
                continue
            try:
                aval_of(arg)
            except TypeError:
                raise TypeError(
                    f"[raw_kernel] arguments of {self.__name__} must be arrays or numbers; got "
                    f"{type(arg).__name__} for argument {position}. Fix: pass the leaves of trees "
                    "one by one."
                ) from None
            scalars.append(None)
            arrays.append(arg)
        return self._jitted(tuple(scalars), *arrays)

    def defjvp(self, jvp: Function) -> Function:
        """Set the rule ``(primals, tangents) -> (out, tangent of out)``, as of ``custom_jvp``."""
        self._set(replace(self._rules, jvp=jvp))
        return jvp

    def defvjp(self, forward: Function, backward: Function) -> None:
        """Set the rules of reverse mode, as of ``custom_vjp``.

        Args:
            forward: ``(*arrays) -> (out, residuals)``.
            backward: ``(residuals, cotangent of out) -> cotangents``, one for each array.
        """
        self._set(replace(self._rules, forward=forward, backward=backward))

    def defbatch(self, batch: Function) -> Function:
        """Set behavior under vmap: ``(size, in_batched, *arrays) -> (out, out_batched)``.

        As of ``custom_vmap``: mapped arrays have the axis in front. Without it the kernel runs in a
        loop.
        """
        self._set(replace(self._rules, batch=batch))
        return batch

    def defreference(self, reference: Function) -> Function:
        """Set the reference computation of the kernel in gpuflow: ``(*args) -> out``.

        It runs on the CPU where there is no ``cpu=``; its derivatives are the kernel's where no
        rule is set; and ``check`` compares with it.
        """
        self._set(replace(self._rules, reference=reference))
        return reference

    def check(self, *args: Any, sizes: Sequence[int] = (0, 1, 31, 33, 1009)) -> Report:
        """Compare the kernel and its rules with each other, at several sizes.

        It compares values with the reference, forward derivatives with differences (of the
        reference, if there is one), reverse with forward derivatives, and vmap with a loop, as far
        as there are rules. Dimensions of ``args`` of one size are assumed to be one size; each is
        replaced by each of ``sizes``, and arrays are truncated or repeated.

        Args:
            args: arguments as of a call, near which derivatives exist.
            sizes: sizes to try in addition to those of ``args``.

        Returns:
            The comparisons, with the largest difference of each; ``print`` shows a table.

        Raises:
            AssertionError: if two of them differ; the message contains the comparison and the
                sizes.
        """
        rules = self._rules
        has_derivative = rules.jvp is not None or rules.reference is not None
        has_gradient = rules.backward is not None or has_derivative
        return check_kernel(self, rules.reference, has_derivative, has_gradient, args, sizes)

    # --- one call ---

    def _set(self, rules: _Rules) -> None:
        self._rules = rules
        self._jitted = jit(self._bind, static_argnums=0)
        self._jitted.__name__ = self.__name__

    def _bind(self, scalars: tuple[_StaticScalar | None, ...], *arrays: Any) -> Any:
        """The kernel with its rules, on tracers."""

        def whole(values: Sequence[Any]) -> list[Any]:
            remaining = iter(values)
            return [next(remaining) if n is None else _scalar(n) for n in scalars]

        rules = self._rules
        given = rules.reference
        reference = None if given is None else lambda *values: given(*whole(values))

        def run(*values: Any) -> Any:
            if reference is not None and self._on_cpu is None:
                return platform_dependent(*values, cpu=reference, default=launch)
            return launch(*values)

        def launch(*values: Any) -> Any:
            return self._launch(whole(values))

        if not arrays:
            return run()
        if rules.batch is None:
            mapped = sequential_vmap(run)
        else:
            mapped = custom_vmap(run)
            mapped.def_vmap(rules.batch)
        return self._with_derivatives(mapped, reference)(*arrays)

    def _with_derivatives(self, run: Function, reference: Function | None) -> Function:
        """A function that has the derivatives that were set."""
        rules = self._rules
        rule = rules.jvp
        if rule is None and reference is not None:
            rule = _rule_of(run, reference)

        def function(*arrays: Any) -> Any:
            return run(*arrays)

        function.__name__ = self.__name__
        if rules.forward is not None and rules.backward is not None:
            if rule is not None:
                both = custom_jvp(function)
                both.defjvp(_both_rules(rule, rules.forward, rules.backward))
                return both
            reverse = custom_vjp(function)
            reverse.defvjp(rules.forward, rules.backward)
            return reverse
        if rule is not None:
            forward = custom_jvp(function)
            forward.defjvp(rule)
            return forward
        return function

    def _launch(self, args: list[Any]) -> Any:
        """Bind the op with ``out``, ``grid`` and ``arguments`` evaluated for these arguments."""
        name = self.__name__
        arrays = [arg for arg in args if not isinstance(arg, np.generic)]
        handles = [arg if isinstance(arg, np.generic) else _handle(aval_of(arg)) for arg in args]
        described = [arg.item() if isinstance(arg, np.generic) else arg for arg in handles]
        specs, out_tree = tree.flatten(self._out(*described) if callable(self._out) else self._out)
        fresh = [self._out_aval(spec) for spec in specs]
        changed = [self._inout_aval(handles, position) for position in self._inout]
        new = [_handle(aval) for aval in fresh]
        ordinals: dict[int, int] = {}
        for handle in handles:
            if not isinstance(handle, np.generic):
                ordinals[id(handle)] = len(ordinals)
        initial_operands: list[int | None] = [None] * len(fresh)
        for position, handle in enumerate(new):
            ordinals[id(handle)] = len(arrays) + position
        for position in self._inout:
            initial_operands.append(ordinals[id(handles[position])])
            ordinals[id(handles[position])] = len(arrays) + len(initial_operands) - 1
        parameters: Any = (*handles, *new)
        if self._arguments is not None:
            given = self._arguments(*described, *new)
            parameters = given if isinstance(given, tuple | list) else (given,)
        kernel = UserKernel(
            name,
            self._code,
            tuple(self._parameter(p, ordinals) for p in parameters),
            tuple(initial_operands),
            *self._launch_shape(described),
        )
        self._check_count(len(kernel.parameters))
        results = raw_kernel_p.bind(
            *arrays, kernel=kernel, on_cpu=self._on_cpu, result_avals=(*fresh, *changed)
        )
        out = tree.unflatten(out_tree, results[: len(fresh)])
        if not self._inout:
            return out
        values = [*([] if self._out is None else [out]), *results[len(fresh) :]]
        return values[0] if len(values) == 1 else tuple(values)

    def _out_aval(self, spec: Any) -> ShapedArray:
        check(
            hasattr(spec, "shape") and hasattr(spec, "dtype"),
            lambda: (
                f"[raw_kernel] out of {self.__name__} must be arrays or ShapeDtypeStructs; got "
                f"{spec!r}. Fix: out=lambda x: gf.ShapeDtypeStruct(x.shape, x.dtype)."
            ),
        )
        return ShapedArray(tuple(spec.shape), dtypes.canonicalize(spec.dtype))

    def _inout_aval(self, handles: Sequence[Any], position: int) -> ShapedArray:
        in_range = 0 <= position < len(handles)
        check(
            in_range and not isinstance(handles[position], np.generic),
            lambda: (
                f"[raw_kernel] inout of {self.__name__} must be positions of arrays; got "
                f"{position} in a call with {len(handles)} arguments"
                f"{' of which it is a number' if in_range else ''}. Fix: inout=(0,)."
            ),
        )
        return ShapedArray(handles[position].shape, handles[position].dtype)

    def _parameter(self, parameter: Any, ordinals: dict[int, int]) -> int | np.generic:
        if id(parameter) in ordinals:
            return ordinals[id(parameter)]
        check(
            isinstance(parameter, bool | int | float | np.number | np.bool_),
            lambda: (
                f"[raw_kernel] arguments of {self.__name__} must return the arrays that it is "
                f"given, and numbers; got {parameter!r}. Fix: arguments=lambda x, out: (x, out, "
                "np.int32(x.size))."
            ),
        )
        return _scalar(_static_scalar(parameter))

    def _launch_shape(self, described: Sequence[Any]) -> tuple[Any, Any, int]:
        """Blocks, threads and bytes of shared memory."""
        grid: Any = self._grid(*described) if callable(self._grid) else self._grid
        check(
            isinstance(grid, tuple | list) and len(grid) in (2, 3),
            lambda: (
                f"[raw_kernel] grid of {self.__name__} must be (blocks, threads) or (blocks, "
                f"threads, bytes of shared memory); got {grid!r}. Fix: "
                "grid=lambda x: (-(-x.size // 128), 128)."
            ),
        )
        blocks = self._three("blocks", grid[0], _MAX_GRID_DIM, 0)
        threads = self._three("threads of a block", grid[1], _MAX_BLOCK_DIM, 1)
        count = threads[0] * threads[1] * threads[2]
        check(
            count <= _MAX_THREADS,
            lambda: (
                f"[raw_kernel] a block of {self.__name__} must have at most {_MAX_THREADS} "
                f"threads; got {count}. Fix: more blocks of fewer threads."
            ),
            ValueError,
        )
        shared = int(grid[2]) if len(grid) == 3 else 0
        check(
            shared >= 0,
            lambda: (
                f"[raw_kernel] shared memory of {self.__name__} must not be negative; got {shared} "
                "bytes. Fix: a number of bytes for each block."
            ),
            ValueError,
        )
        return blocks, threads, shared

    def _three(
        self, name: str, sizes: Any, limits: Sequence[int], minimum: int
    ) -> tuple[int, int, int]:
        items = tuple(sizes) if isinstance(sizes, tuple | list) else (sizes,)
        check(
            0 < len(items) <= 3
            and all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in items),
            lambda: (
                f"[raw_kernel] {name} of {self.__name__} must be one to three ints, which follow "
                f"from shapes; got {sizes!r}. Fix: -(-x.size // 128), or (4, 8)."
            ),
        )
        x, y, z = (*map(int, items), 1, 1)[:3]
        check(
            all(minimum <= n <= limit for n, limit in zip((x, y, z), limits, strict=True)),
            lambda: (
                f"[raw_kernel] {name} of {self.__name__} must be {minimum} or more, and at most "
                f"{tuple(limits)}; got {(x, y, z)}. Fix: a loop in the kernel, or another block."
            ),
            ValueError,
        )
        return x, y, z

    def _check_count(self, count: int) -> None:
        """Compare with the parameters of the functions, if they have signatures."""
        for function in (self._code, self._on_cpu):
            if function is None or isinstance(function, CudaText):
                continue
            parameters = inspect.signature(
                getattr(function, "py_func", function)
            ).parameters.values()
            if any(parameter.kind == parameter.VAR_POSITIONAL for parameter in parameters):
                continue
            least = sum(parameter.default is parameter.empty for parameter in parameters)
            check(
                least <= count <= len(parameters),
                lambda least=least, function=function: (
                    f"[raw_kernel] {self.__name__} must get the {least} parameters of "
                    f"{name_of(function)}; got {count}: arguments, then outputs. Fix: out= with "
                    "one array for each output, or arguments= with its parameters."
                ),
            )


def raw_kernel(
    code: Function | str | None = None,
    *,
    grid: Any,
    out: Any = None,
    inout: Sequence[int] = (),
    arguments: Function | None = None,
    cpu: Function | None = None,
    name: str | None = None,
) -> Any:
    """Make an operation from a kernel in Numba or CUDA C.

    The kernel gets the arguments of the call in order, followed by its outputs, which are
    uninitialized. Arrays are row-major. They are arrays for Numba, and pointers for CUDA C. Python
    scalars are passed as 64-bit scalars, NumPy scalars with their type; each value is compiled into
    its own program. Arrays have NumPy's dtypes: pass ``x.view(jnp.uint16)`` for bfloat16 to Numba.
    The kernel runs on the stream of the surrounding operations, in order.

    Results are values: an array in ``inout`` is copied first, unless it is not used again, and its
    modified copy is returned.

    Args:
        code: a function of ``numba.cuda.jit`` (or a plain function, which is compiled like that),
            or CUDA C source with an ``extern "C" __global__`` function.
        grid: ``(*args) -> (blocks, threads)``, as in Numba's brackets, each an int or up to three
            ints; or ``(blocks, threads, bytes of dynamic shared memory)``. A constant tuple also
            works.
        out: ``(*args) -> tree of arrays or ShapeDtypeStructs`` with the shapes and dtypes of the
            outputs; or such a tree. None: only the outputs of ``inout``.
        inout: indices of arrays that the kernel reads and modifies.
        arguments: ``(*args, *outputs) -> parameters``, if the kernel takes them in another order or
            needs sizes: ``lambda x, out: (x, out, np.int32(x.size))``. An array in ``inout`` is
            both argument and output.
        cpu: the same kernel for NumPy arrays, such as a ``numba.njit`` function, which runs if
            there is no GPU. It writes into outputs; other arrays are read-only.
        name: the name in messages. For CUDA C with several kernels, also the name of the kernel to
            launch.

    Returns:
        A function of ``(*args)`` that returns ``out``, followed by the modified arrays of
        ``inout``. Its ``defjvp``, ``defvjp``, ``defbatch`` and ``defreference`` add rules, and
        ``check`` compares them.

    Raises:
        TypeError, ValueError: if outputs, grid or parameters are not as described above.
        NotImplementedError: when the kernel is called on the CPU without a CPU version.
        RuntimeError: when the kernel is called, if the code does not compile; the message is the
            compiler's.

    Example:
        >>> def add_on_cpu(x, y, out):
        ...     out[:] = x + y
        >>> @gf.raw_kernel(
        ...     out=lambda x, y: x, grid=lambda x, y: (-(-x.size // 128), 128), cpu=add_on_cpu
        ... )
        ... def add(x, y, out):
        ...     i = cuda.grid(1)
        ...     if i < out.size:
        ...         out[i] = x[i] + y[i]
        >>> add(jnp.arange(3.0), jnp.ones(3))
        Array([1., 2., 3.], dtype=float32)
    """
    if code is None:
        return lambda later: raw_kernel(
            later, grid=grid, out=out, inout=inout, arguments=arguments, cpu=cpu, name=name
        )
    if isinstance(code, str):
        kernel_code: Function | CudaText = _cuda_text(code, name)
        label = name or kernel_code.name
    else:
        function = getattr(code, "py_func", code)
        check_callable(function, "raw_kernel")
        kernel_code, label = code, name or name_of(function)
    if cpu is not None:
        check_callable(cpu, "raw_kernel")
    if arguments is not None:
        check_callable(arguments, "raw_kernel")
    changed = tuple(inout)
    check(
        len(set(changed)) == len(changed),
        lambda: (
            f"[raw_kernel] inout of {label} must name each argument once; got {changed}. Fix: one "
            "position for each array that the kernel changes."
        ),
        ValueError,
    )
    check(
        out is not None or bool(changed),
        lambda: (
            f"[raw_kernel] {label} must have an output; got neither out nor inout. Fix: "
            "out=lambda x: x for a result like x."
        ),
    )
    return RawKernel(kernel_code, label, out, grid, changed, arguments, cpu)


def _cuda_text(text: str, name: str | None) -> CudaText:
    """The text, with the name of its kernel."""
    names = _KERNELS.findall(text)
    check(
        name in names if name is not None else len(names) == 1,
        lambda: (
            "[raw_kernel] the text must have one __global__ function, or name= one of them; got "
            f"{', '.join(names) or 'none'} and name={name!r}. Fix: "
            'extern "C" __global__ void f(...).'
        ),
        ValueError,
    )
    return CudaText(text, name if name is not None else names[0])


def _rule_of(run: Function, reference: Function) -> Function:
    """The derivative of the reference, with the kernel's values."""

    def rule(primals: Any, tangents: Any) -> tuple[Any, Any]:
        return run(*primals), jvp_of(reference, primals, tangents)[1]

    return rule


def _both_rules(rule: Function, forward: Function, backward: Function) -> Function:
    """The rule of custom_jvp whose tangents have ``backward`` as their transpose."""

    def both(primals: Any, tangents: Any) -> tuple[Any, Any]:
        out, residuals = forward(*primals)
        floats = [k for k, x in enumerate(primals) if dtypes.is_inexact(aval_of(x).dtype)]

        def tangent(saved: Any, linear: Any) -> Any:
            whole = list(tangents)
            for k, value in safe_zip(floats, linear):
                whole[k] = value
            return rule(saved[0], tuple(whole))[1]

        def cotangents(saved: Any, cotangent: Any) -> Any:
            results = tuple(backward(saved[1], cotangent))
            pairs = [(saved[0][k], results[k]) for k in floats]
            return tuple(
                zeros_of(aval_of(x).tangent()) if result is None else result for x, result in pairs
            )

        saved = (tuple(primals), residuals)
        return out, linear_call(tangent, cotangents, saved, tuple(tangents[k] for k in floats))

    return both


def _static_scalar(value: Any) -> _StaticScalar:
    scalar = np.asarray(value)[()]
    check(
        not np.iscomplexobj(scalar),
        lambda: (
            f"[raw_kernel] numbers must be real; got {value}. Fix: pass its parts, or an array."
        ),
    )
    return _StaticScalar(scalar.dtype.name, scalar.item())


def _scalar(static: _StaticScalar) -> np.generic:
    return np.dtype(static.dtype).type(static.value)


def _handle(aval: ShapedArray) -> ShapeDtypeStruct:
    """An array as ``out``, ``grid`` and ``arguments`` see it; identified by ``id``."""
    return ShapeDtypeStruct(aval.shape, aval.dtype)
