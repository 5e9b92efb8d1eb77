"""Compile kernels of users: Numba functions with numba-cuda, CUDA C with NVRTC.

PTX is cached in the process by code and parameter types. Machine code is cached on disk by its PTX.
Source text would not be a sufficient key, as a Numba function may use any global of its module.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.base.caches import lru_cache
from gpuflow.base.records import record
from gpuflow.compiler.cache.kernel_cache import Entry, KernelCache, cache_key
from gpuflow.compiler.debugging import show
from gpuflow.core.blocks import CudaText
from gpuflow.targets.cuda.codegen.build import (
    CudaObject,
    check_self_contained,
    function_ptx,
    linked,
    normalise_ptx,
)
from gpuflow.targets.cuda.codegen.cached import cache_key_inputs, entry_of, object_of
from gpuflow.targets.cuda.codegen.toolchain import (
    CudaBuildError,
    header_folders,
    load_numba_cuda,
    load_nvrtc,
)

# Supported options of numba.cuda.jit; others must have their defaults.
_OPTIONS = ("fastmath", "launch_bounds", "lineinfo", "opt", "device", "lto")
_NVRTC_OPTIONS = ("--std=c++17", "--generate-line-info")


class UserKernelError(RuntimeError):
    """The kernel of a user does not compile, or its parameters do not match the arguments."""


@record
class ArrayType:
    """An array parameter: the name of its dtype, and its rank."""

    dtype: str
    ndim: int


@record
class NumberType:
    """A scalar parameter: the name of its dtype."""

    dtype: str


ParameterType = ArrayType | NumberType


@record
class BuiltUserKernel:
    """The kernel of a user, built for one architecture."""

    built: CudaObject


def build_user_kernel(
    name: str,
    code: Callable[..., None] | CudaText,
    types: tuple[ParameterType, ...],
    threads: int,
    cache: KernelCache,
    compute_capability: tuple[int, int],
) -> BuiltUserKernel:
    """Return the built kernel: from memory, from the cache's folder, or compiled now.

    Args:
        name: name in messages.
        code: a Numba function, or the text of CUDA C.
        types: types of the arguments, in the order of its parameters.
        threads: threads per block: launch bounds of a Numba function that sets none.
        cache, compute_capability: as for ``cached.compile_cuda``.

    Raises:
        UserKernelError: if the compiler rejects it, or its parameters do not match ``types``.
        CudaToolchainError: if packages are missing.
    """
    ptx, entry = _ptx(name, code, types, threads, compute_capability)
    key_inputs = (*cache_key_inputs(compute_capability), "user kernel", entry)

    def build() -> Entry:
        show(4, f"PTX {name}", lambda: ptx)
        try:
            return entry_of(linked(ptx, entry, compute_capability), ptx)
        except CudaBuildError as error:
            raise _refused(name, types, str(error)) from error

    key = cache_key(ptx, key_inputs)
    return cache.once(key, lambda: BuiltUserKernel(object_of(cache.get(key, build))))


@lru_cache(512)
def _ptx(
    name: str,
    code: Callable[..., None] | CudaText,
    types: tuple[ParameterType, ...],
    threads: int,
    compute_capability: tuple[int, int],
) -> tuple[str, str]:
    """The PTX of a kernel, and the name of its entry; checks its number of parameters."""
    if isinstance(code, CudaText):
        entry, expected = code.name, len(types)
        ptx = _ptx_of_text(name, code, types, compute_capability)
    else:
        entry = re.sub(r"\W", "_", getattr(code, "__name__", name))
        ptx = _ptx_of_function(name, code, types, threads, compute_capability)
        expected = sum(5 + 2 * t.ndim if isinstance(t, ArrayType) else 1 for t in types)
    try:
        if isinstance(code, CudaText):
            check_self_contained(ptx)
        else:
            ptx = normalise_ptx(ptx, entry, keep_file=True)
    except CudaBuildError as error:
        raise _refused(name, types, str(error)) from error
    declared = re.search(rf"\.entry\s+{re.escape(entry)}\s*\(([^)]*)\)", ptx)
    if declared is None:
        raise UserKernelError(
            f'[raw_kernel] the text of {name} must declare extern "C" __global__ void {entry}; '
            'got no such symbol. Fix: extern "C" in front of it.'
        )
    count = declared[1].count(".param")
    if count != expected:
        raise UserKernelError(
            f"[raw_kernel] the kernel of {name} must have one parameter for each argument and "
            f"output; got {count} for {len(types)}. Fix: arguments=lambda x, out: (...), with its "
            "parameters in order."
        )
    if isinstance(code, CudaText):
        _check_types(name, declared[1], types)
    return ptx, entry


def _check_types(name: str, declared: str, types: Sequence[ParameterType]) -> None:
    """Check that scalars have the types of their parameters: a launch does not convert them."""
    kinds = re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.([a-z])(\d+)", declared)
    for position, ((letter, bits), parameter) in enumerate(zip(kinds, types, strict=True)):
        expected = ("float" if letter == "f" else "integer", int(bits))
        is_array = isinstance(parameter, ArrayType)
        dtype = np.dtype(np.uint64 if is_array else parameter.dtype)
        got = ("float" if dtype.kind == "f" else "integer", 8 * dtype.itemsize)
        if got != expected:
            what = "an array" if is_array else parameter.dtype
            raise UserKernelError(
                f"[raw_kernel] parameter {position} of the kernel of {name} is of {expected[1]} "
                f"bits ({expected[0]}); got {what}. Fix: arguments=lambda x, out: (x, out, "
                "np.int32(x.size)), with numbers of the kernel's types."
            )


def _ptx_of_function(
    name: str,
    code: Any,
    types: Sequence[ParameterType],
    threads: int,
    compute_capability: tuple[int, int],
) -> str:
    numba_cuda = load_numba_cuda()
    function = getattr(code, "py_func", code)
    options = dict(getattr(code, "targetoptions", {}))
    for option, value in options.items():
        if option not in _OPTIONS and value not in (None, False, 0, (), [], "never"):
            raise UserKernelError(
                f"[raw_kernel] options of cuda.jit for {name} must be among "
                f"{', '.join(_OPTIONS)}; got {option}={value!r}. Fix: leave it out."
            )
    bounds = options.get("launch_bounds") or threads
    arguments = [_numba_type(numba_cuda.types, name, t) for t in types]
    try:
        return function_ptx(
            numba_cuda,
            function,
            arguments,
            compute_capability,
            bounds,
            bool(options.get("fastmath", False)),
        )
    except CudaBuildError as error:
        raise _refused(name, types, str(error)) from error
    except Exception as error:
        where = inspect.getsourcefile(function) or "?"
        message = f"{str(error).strip()} ({where})" if "File " not in str(error) else str(error)
        raise _refused(name, types, message.strip()) from error


def _numba_type(types: Any, name: str, parameter: ParameterType) -> Any:
    kind = {"bool": "boolean"}.get(parameter.dtype, parameter.dtype)
    scalar = getattr(types, kind, None)
    if scalar is None or not isinstance(scalar, types.Type) or not _is_numpys(parameter.dtype):
        raise UserKernelError(
            f"[raw_kernel] Numba's arrays have NumPy's dtypes; got {parameter.dtype} for {name}. "
            "Fix: pass x.view(jnp.uint16), or x.astype(jnp.float32)."
        )
    return types.Array(scalar, parameter.ndim, "C") if isinstance(parameter, ArrayType) else scalar


def _is_numpys(name: str) -> bool:
    try:
        return np.dtype(name).isbuiltin == 1
    except TypeError:
        return False


def _ptx_of_text(
    name: str, code: CudaText, types: Sequence[ParameterType], compute_capability: tuple[int, int]
) -> str:
    """Compile CUDA C to PTX with NVRTC."""
    nvrtc = load_nvrtc()
    file = f"{code.name}.cu"
    _, program = nvrtc.nvrtcCreateProgram(code.text.encode(), file.encode(), 0, [], [])
    architecture = f"--gpu-architecture=compute_{compute_capability[0]}{compute_capability[1]}"
    headers = [f"--include-path={folder}" for folder in header_folders()]
    options = [option.encode() for option in (architecture, *_NVRTC_OPTIONS, *headers)]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    try:
        if int(status) != 0:
            log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
            raise _refused(name, types, log.strip() or str(status))
        return _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _text(size: Callable[..., Any], get: Callable[..., Any], program: Any) -> str:
    _, count = size(program)
    data = b" " * count
    get(program, data)
    return data.rstrip(b"\0 ").decode()


def _refused(name: str, types: Sequence[ParameterType], message: str) -> UserKernelError:
    taken = ", ".join(
        f"{t.dtype}[{', '.join([':'] * t.ndim)}]" if isinstance(t, ArrayType) else t.dtype
        for t in types
    )
    return UserKernelError(
        f"[raw_kernel] the kernel of {name} must compile for ({taken}); got:\n{message}\n"
        "Fix: the line that it names."
    )
