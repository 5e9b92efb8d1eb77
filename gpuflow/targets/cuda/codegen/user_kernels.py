"""Compile kernels of users: Numba functions with numba-cuda, CUDA C with NVRTC.

PTX is cached in the process by code and parameter types. Machine code is cached on disk by its PTX.
Source text would not be a sufficient key, as a Numba function may use any global of its module.

Tests: tests/targets/cuda/test_user_kernels.py, tests/targets/cuda/test_cuda_build.py.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpuflow.base.caches import lru_cache
from gpuflow.base.records import record
from gpuflow.compiler.cache.kernel_cache import CacheEntry, KernelCache, cache_key
from gpuflow.compiler.debugging import show
from gpuflow.core.blocks import CudaText
from gpuflow.targets.cuda.codegen.build import (
    CudaObject,
    check_self_contained,
    function_ptx,
    link_kernel,
    normalize_ptx,
)
from gpuflow.targets.cuda.codegen.cached_builds import cache_key_inputs, entry_of, object_of
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
    """A parameter for a row-major array.

    Attributes:
        dtype: name of the dtype of its elements.
        ndim: number of its dimensions.
    """

    dtype: str
    ndim: int


@record
class ScalarType:
    """A scalar parameter.

    Attributes:
        dtype: name of its dtype.
    """

    dtype: str


ParameterType = ArrayType | ScalarType


@record
class BuiltUserKernel:
    """The kernel of a user, built for one architecture.

    Attributes:
        built: PTX, cubin and resource usage.
    """

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
        cache, compute_capability: as for ``cached_builds.compile_cuda``.

    Raises:
        UserKernelError: if the compiler rejects it, or its parameters do not match ``types``.
        CudaToolchainError: if packages are missing.
    """
    ptx, entry = _ptx(name, code, types, threads, compute_capability)
    key_inputs = (*cache_key_inputs(compute_capability), "user kernel", entry)

    def build() -> CacheEntry:
        show(4, f"PTX {name}", lambda: ptx)
        try:
            return entry_of(link_kernel(ptx, entry, compute_capability), ptx)
        except CudaBuildError as error:
            raise _compile_error(name, types, str(error)) from error

    key = cache_key(ptx, key_inputs)
    return cache.load_once(key, lambda: BuiltUserKernel(object_of(cache.get(key, build))))


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
        # Numba's array struct: owner, parent, number of elements, their size, address; then sizes
        # and strides.
        expected = sum(5 + 2 * t.ndim if isinstance(t, ArrayType) else 1 for t in types)
    try:
        if isinstance(code, CudaText):
            check_self_contained(ptx)
        else:
            ptx = normalize_ptx(ptx, entry, keep_file=True)
    except CudaBuildError as error:
        raise _compile_error(name, types, str(error)) from error
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
    """Check that scalars have the types of their parameters: a launch does not convert them.

    ``declared`` is the parameter list of the kernel's PTX, with as many parameters as ``types``.
    Raises UserKernelError.
    """
    declared_types = re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.([a-z])(\d+)", declared)
    pairs = zip(declared_types, types, strict=True)
    for position, ((letter, bits), parameter) in enumerate(pairs):
        expected = ("float" if letter == "f" else "integer", int(bits))
        is_array = isinstance(parameter, ArrayType)
        dtype = np.dtype(np.uint64 if is_array else parameter.dtype)
        got = ("float" if dtype.kind == "f" else "integer", 8 * dtype.itemsize)
        if got != expected:
            got_name = "an array" if is_array else parameter.dtype
            raise UserKernelError(
                f"[raw_kernel] parameter {position} of the kernel of {name} is of {expected[1]} "
                f"bits ({expected[0]}); got {got_name}. Fix: arguments=lambda x, out: (x, out, "
                "np.int32(x.size)), with numbers of the kernel's types."
            )


def _ptx_of_function(
    name: str,
    code: Any,
    types: Sequence[ParameterType],
    threads: int,
    compute_capability: tuple[int, int],
) -> str:
    """Compile a Numba function to PTX; arrays are row-major ones of Numba."""
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
        raise _compile_error(name, types, str(error)) from error
    except Exception as error:
        source_file = inspect.getsourcefile(function) or "?"
        message = str(error).strip()
        if "File " not in str(error):
            message = f"{message} ({source_file})".strip()
        raise _compile_error(name, types, message) from error


def _numba_type(types: Any, name: str, parameter: ParameterType) -> Any:
    """The Numba type of a parameter; raises UserKernelError if its dtype is not NumPy's."""
    numba_name = {"bool": "boolean"}.get(parameter.dtype, parameter.dtype)
    scalar = getattr(types, numba_name, None)
    if scalar is None or not isinstance(scalar, types.Type) or not _is_numpy_dtype(parameter.dtype):
        raise UserKernelError(
            f"[raw_kernel] Numba's arrays have NumPy's dtypes; got {parameter.dtype} for {name}. "
            "Fix: pass x.view(jnp.uint16), or x.astype(jnp.float32)."
        )
    return types.Array(scalar, parameter.ndim, "C") if isinstance(parameter, ArrayType) else scalar


def _is_numpy_dtype(name: str) -> bool:
    """Whether a dtype is NumPy's own, not one of ml_dtypes."""
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
            log = _read_program(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
            raise _compile_error(name, types, log.strip() or str(status))
        return _read_program(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _read_program(size: Callable[..., Any], get: Callable[..., Any], program: Any) -> str:
    """A text of an NVRTC program: its log or PTX, by NVRTC's functions for its size and bytes."""
    _, count = size(program)
    data = b" " * count
    get(program, data)
    return data.rstrip(b"\0 ").decode()


def _compile_error(name: str, types: Sequence[ParameterType], message: str) -> UserKernelError:
    """The error for a kernel that a compiler or linker rejects with ``message``."""
    parameter_types = ", ".join(
        f"{t.dtype}[{', '.join([':'] * t.ndim)}]" if isinstance(t, ArrayType) else t.dtype
        for t in types
    )
    return UserKernelError(
        f"[raw_kernel] the kernel of {name} must compile for ({parameter_types}); got:\n{message}\n"
        "Fix: the line that it names."
    )
