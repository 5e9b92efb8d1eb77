"""Compile printed CUDA source to PTX and a cubin, on any machine, with or without a GPU.

    source text -> numba.cuda.compile -> PTX -> normalise -> nvJitLink -> cubin and its report

The result is bytes that are cached on disk and loaded without importing Numba. The CUDA driver
never receives PTX, and Numba's dispatcher never launches anything.

Tests: tests/targets/cuda/test_cuda_build.py.
"""

from __future__ import annotations

import linecache
import re
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from gpuflow.base.records import record
from gpuflow.targets.cuda.codegen.source_kernel import kernel_function
from gpuflow.targets.cuda.codegen.toolchain import (
    CudaBuildError,
    NumbaCuda,
    load_linker,
    load_numba_cuda,
)

# Ampere: printed kernels use bf16 conversion, max.NaN and ld.global.nc with 128 bits.
OLDEST_COMPUTE_CAPABILITY = (8, 0)


@record
class KernelArrayAccess:
    """An array that a user's kernel accesses, for checks of memory accesses.

    Attributes:
        slot: index of its address in the argument block.
        byte_count: size of the array in bytes.
        label: name of the array in messages, such as "output 0".
        is_read: whether it is initialized when the kernel starts.
        is_written: whether the kernel writes all of its elements; if False, it writes none.
    """

    slot: int
    byte_count: int
    label: str
    is_read: bool
    is_written: bool


@record
class CudaObject:
    """One built kernel.

    Attributes:
        ptx: normalized PTX; two builds of one source give equal text. Its ``.loc`` lines map
            instructions to lines of the source.
        cubin: machine code for exactly one architecture.
        entry: name of the kernel in ``ptx`` and ``cubin``.
        registers: registers per thread.
        spill_bytes: bytes stored and loaded by register spills; should be 0.
        shared_bytes: static shared memory per block.
    """

    ptx: str
    cubin: bytes
    entry: str
    registers: int
    spill_bytes: int
    shared_bytes: int


def build_cuda(
    source: str,
    entry: str,
    signature: Sequence[str],
    compute_capability: tuple[int, int],
    launch_bounds: int | tuple[int, int] | None = None,
    newest_ptx: tuple[int, int] | None = None,
    lineinfo: bool = True,
) -> CudaObject:
    """Compile printed source to PTX and link it for one architecture.

    Args:
        source: module text, with the functions ``entry`` and its device functions.
        entry: name of the kernel function, and of the kernel in the result.
        signature: one type per parameter: ``"int64"``, or ``"*float32"`` for a pointer.
        compute_capability: architecture of the cubin; (9, 0) for sm_90.
        launch_bounds: most threads per block, or (threads, blocks per multiprocessor).
        newest_ptx: newest architecture to generate PTX for; None: that of the cubin.
        lineinfo: whether to map instructions to lines of the source.

    Raises:
        CudaBuildError: if NVVM, ``normalize_ptx`` or nvJitLink rejects the kernel, or the GPU is
            older than ``OLDEST_COMPUTE_CAPABILITY``.
        CudaToolchainError: if packages are missing.
    """
    if compute_capability < OLDEST_COMPUTE_CAPABILITY:
        raise CudaBuildError(
            f"[cuda build] the compute capability must be at least 8.0; got "
            f"{compute_capability[0]}.{compute_capability[1]}. "
            "Fix: use a newer GPU, or GPUFLOW_PLATFORM=cpu."
        )
    ptx_capability = min(compute_capability, newest_ptx or compute_capability)
    raw_ptx = compile_ptx(source, entry, signature, ptx_capability, launch_bounds, lineinfo)
    return link_kernel(normalize_ptx(raw_ptx, entry), entry, compute_capability)


def link_kernel(ptx: str, entry: str, compute_capability: tuple[int, int]) -> CudaObject:
    """Assemble the kernel ``entry`` of a self-contained PTX text for one architecture.

    Raises:
        CudaBuildError: if nvJitLink rejects it.
    """
    linked = link_ptx(ptx, f"sm_{compute_capability[0]}{compute_capability[1]}")
    return CudaObject(linked.ptx, linked.cubin, entry, *read_link_report(linked.log))


# Text of NVVM's error about a symbol name, see ``_ptx_with_lineinfo``.
_INVALID_SYMBOL_MESSAGE = "Symbol name with unsupported characters"
_LABEL = re.compile(r"\$L__BB\w+")
# Serializes compilations, because ``_without_device`` patches a module of numba-cuda.
_COMPILE_LOCK = threading.Lock()


def compile_ptx(
    source: str,
    entry: str,
    signature: Sequence[str],
    compute_capability: tuple[int, int],
    launch_bounds: int | tuple[int, int] | None = None,
    lineinfo: bool = True,
) -> str:
    """Compile printed source to PTX, not normalized; arguments are those of ``build_cuda``."""
    numba_cuda = load_numba_cuda()
    types = tuple(_numba_type(numba_cuda.types, name) for name in signature)
    with _readable_source(f"<gpuflow {entry}>", source) as filename:
        function = kernel_function(numba_cuda, source, entry, filename)
        return function_ptx(
            numba_cuda, function, types, compute_capability, launch_bounds, lineinfo=lineinfo
        )


def function_ptx(
    numba_cuda: NumbaCuda,
    function: Callable[..., None],
    types: Sequence[Any],
    compute_capability: tuple[int, int],
    launch_bounds: int | tuple[int, int] | None = None,
    fastmath: bool = False,
    lineinfo: bool = True,
) -> str:
    """Compile a Python function to PTX with numba-cuda; a lock serializes threads.

    Args:
        numba_cuda: modules of numba-cuda.
        function: the kernel.
        types: Numba types of its parameters.
        compute_capability, launch_bounds, lineinfo: as for ``build_cuda``.
        fastmath: whether LLVM may reassociate and approximate float arithmetic.
    """
    with _COMPILE_LOCK, _without_device(numba_cuda.dispatcher, compute_capability):
        build = partial(
            numba_cuda.cuda.compile,
            function,
            tuple(types),
            device=False,
            abi="numba",
            cc=compute_capability,
            output="ptx",
            fastmath=fastmath,
            launch_bounds=launch_bounds,
        )
        ptx = _ptx_with_lineinfo(build) if lineinfo else _ptx_without_lineinfo(build)
    _check_target(ptx, compute_capability)
    return ptx


def _ptx_with_lineinfo(build: Callable[..., Any]) -> str:
    """The PTX with line information, or without if NVVM fails to build that.

    With line information, NVVM 13.4 rejects some kernels with launch bounds because of a symbol
    name, and 13.5 omits labels that branches need.
    """
    try:
        ptx = build(lineinfo=True)[0]
    except Exception as error:
        if _INVALID_SYMBOL_MESSAGE not in f"{error} {_log_of_nvvm(error)}":
            raise
    else:
        if not _missing_labels(ptx):
            return ptx
    return _ptx_without_lineinfo(build)


def _ptx_without_lineinfo(build: Callable[..., Any]) -> str:
    """The PTX without line information; raises CudaBuildError if labels are missing."""
    ptx = build(lineinfo=False)[0]
    missing = _missing_labels(ptx)
    if missing:
        raise CudaBuildError(
            "[cuda build] every branch in PTX must have a label to go to; NVVM left out "
            f"{', '.join(missing)}. Fix: use another version of the nvidia-nvvm wheel, and report "
            "the printed source."
        )
    return ptx


def _missing_labels(ptx: str) -> list[str]:
    """Labels of basic blocks that the PTX branches to but does not define."""
    defined = {row.partition(":")[0] for row in ptx.splitlines() if row.startswith("$L__BB")}
    return sorted(set(_LABEL.findall(ptx)) - defined)


def _log_of_nvvm(error: BaseException) -> str:
    """NVVM's log of a failed build, which numba-cuda's error does not carry."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        get_log = getattr(frame.f_locals.get("self"), "get_log", None)
        if get_log is not None:
            return str(get_log())
    return ""


@contextmanager
def _readable_source(filename: str, source: str) -> Iterator[str]:
    """Let numba-cuda read the source by a file name, for its line information."""
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    try:
        yield filename
    finally:
        linecache.cache.pop(filename, None)


def _numba_type(types: ModuleType, name: str) -> Any:
    """The Numba type of a parameter, from the notation of ``build_cuda``."""
    if name.startswith("*"):
        return types.CPointer(getattr(types, name[1:]))
    return getattr(types, name)


@contextmanager
def _without_device(dispatcher: Any, compute_capability: tuple[int, int]) -> Iterator[None]:
    """Replace numba-cuda's current device while device functions are compiled.

    Numba queries it for its architecture. That fails without a GPU, and with one gives the
    architecture of that GPU instead of the target's. Callers must hold ``_COMPILE_LOCK``.
    """
    original = getattr(dispatcher, "get_current_device", None)
    if original is None:
        raise CudaBuildError(
            "[cuda build] numba.cuda.dispatcher must have get_current_device; this version of "
            "numba-cuda has not. Fix: install the version that gpuflow's cuda13 extra pins."
        )
    target = SimpleNamespace(compute_capability=compute_capability)
    dispatcher.get_current_device = lambda: target
    try:
        yield
    finally:
        dispatcher.get_current_device = original


def _check_target(ptx: str, compute_capability: tuple[int, int]) -> None:
    """Raise CudaBuildError if Numba silently clamped the architecture to an older one."""
    expected = f"sm_{compute_capability[0]}{compute_capability[1]}"
    match = re.search(r"^\.target\s+(\w+)", ptx, re.MULTILINE)
    if match is None or match[1] != expected:
        raise CudaBuildError(
            f"[cuda build] PTX must be for {expected}; got {match and match[1]}. "
            "Fix: use a compute capability that the installed nvidia-nvvm knows."
        )


def normalize_ptx(ptx: str, entry: str, keep_file: bool = False) -> str:
    """Normalize PTX so that it depends on the source alone: equal kernels have equal text.

    Numba's mangled names contain a count of the process's compilations, and Numba declares an
    environment pointer that our kernels do not use.

    Args:
        ptx: the output of a compiler.
        entry: the new name of its kernel.
        keep_file: whether line information names a real file, which stays.

    Raises:
        CudaBuildError: if the kernel calls a function that the text does not define, or there is
            no kernel.
    """
    check_self_contained(ptx)
    match = re.search(r"\.entry\s+([\w$]+)", ptx)
    if match is None:
        raise CudaBuildError(
            "[cuda build] PTX must have an entry; got none. Fix: report the printed source."
        )
    ptx = re.sub(r"^[ \t]*//[^\n]*\n", "", ptx, flags=re.MULTILINE)
    ptx = re.sub(r"^\.common \.global[^\n]*NumbaEnv[^\n]*\n", "", ptx, flags=re.MULTILINE)
    ptx = ptx.replace(match[1], entry)
    if not keep_file:
        # Without a real file, this line contains the working folder.
        ptx = re.sub(r'(\.file\s+1\s+)"[^"\n]*"\n*\Z', rf'\1"{entry}.py"\n', ptx)
    for number, name in enumerate(re.findall(r"\.shared [^;]*?([\w$]+)(?:\[\d+\])?;", ptx)):
        ptx = re.sub(rf"(?<![\w$]){re.escape(name)}(?![\w$])", f"shared_memory_{number}", ptx)
    return re.sub(r"\n{3,}", "\n\n", ptx)


def check_self_contained(ptx: str) -> None:
    """Raise CudaBuildError if PTX calls a function that it does not define."""
    external = re.search(r"\.extern\s+\.func[^;]*;", ptx)
    if external:
        raise CudaBuildError(
            "[cuda build] a kernel must be self-contained; got a call of "
            f"{' '.join(external[0].split())}. Fix: spell the function without it."
        )


class LinkedPtx(NamedTuple):
    """The result of the linker.

    Attributes:
        ptx: the PTX that was linked; its version may differ from that of the input.
        cubin: machine code.
        log: nvJitLink's log, which ``read_link_report`` parses.
    """

    ptx: str
    cubin: bytes
    log: str


def link_ptx(ptx: str, architecture: str) -> LinkedPtx:
    """Assemble PTX into a cubin with nvJitLink, for an architecture such as "sm_90".

    NVVM may be newer than nvJitLink, and then declare a PTX version that the linker rejects. The
    kernels use no new feature, so a second try declares the version that the error names.

    Raises:
        CudaBuildError: if the linker rejects the PTX.
    """
    try:
        return LinkedPtx(ptx, *_link_once(ptx, architecture))
    except Exception as error:
        match = re.search(
            r"Unsupported \.version [\d.]+; current version is '([\d.]+)'", str(error)
        )
        if match is None:
            raise CudaBuildError(
                f"[cuda build] nvJitLink must accept the kernel for {architecture}; got {error}. "
                "Fix: check that the nvidia-nvvm and nvidia-nvjitlink wheels match."
            ) from error
        older_ptx = re.sub(r"\.version [\d.]+", f".version {match[1]}", ptx, count=1)
        return LinkedPtx(older_ptx, *_link_once(older_ptx, architecture))


def _link_once(ptx: str, architecture: str) -> tuple[bytes, str]:
    """The cubin of a PTX text, and nvJitLink's log; raises the linker's own errors."""
    core = load_linker()
    # Line information is for readers of the PTX; it would make the machine code larger.
    ptx = re.sub(r"^[ \t]*\.(loc|file)\b[^\n]*$", "", ptx, flags=re.MULTILINE)
    options = core.LinkerOptions(arch=architecture, verbose=True)
    linker = core.Linker(core.ObjectCode.from_ptx(ptx.encode()), options=options)
    cubin = bytes(linker.link("cubin").code)
    return cubin, linker.get_info_log()


class LinkReport(NamedTuple):
    """Resource usage of a kernel, by nvJitLink's log.

    Attributes:
        registers: registers per thread.
        spill_bytes: bytes stored and loaded by register spills.
        shared_bytes: static shared memory per block.
    """

    registers: int
    spill_bytes: int
    shared_bytes: int


def read_link_report(log: str) -> LinkReport:
    """Parse nvJitLink's log.

    The first entry has the kernel's own shared memory. Later ones may count 1024 bytes more, which
    CUDA reserves in each block from sm_90 on. They do not count towards a block's limit.

    Raises:
        CudaBuildError: if the log has another format.
    """
    registers = re.search(r"Used (\d+) registers", log)
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    shared = re.search(r"Used \d+ registers[^\n]*?(\d+) bytes smem", log)
    if registers is None or not spills:
        raise CudaBuildError(
            f"[cuda build] nvJitLink's log must report registers and spills; got {log!r}. "
            "Fix: install the nvidia-nvjitlink that gpuflow's cuda13 extra pins."
        )
    spill_bytes = sum(int(stores) + int(loads) for stores, loads in spills)
    return LinkReport(int(registers[1]), spill_bytes, int(shared[1]) if shared else 0)
