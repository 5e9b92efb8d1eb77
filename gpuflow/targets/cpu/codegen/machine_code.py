"""LLVM IR text to object code for this processor, in several threads at once.

llvmlite guards all of LLVM with one lock. LLVM needs no lock between threads with separate
contexts. So the two long calls, optimization passes and code generation, bypass it if llvmlite's
internals are as expected; otherwise they run one at a time. llvmlite acquires and releases its lock
in Python, so an exception in between would leave it locked: all of this runs ``undisturbed``.

Tests: tests/targets/cpu/test_builds.py.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from gpuflow.base.caches import cache
from gpuflow.base.lazy import LazyModule
from gpuflow.base.records import record
from gpuflow.base.undisturbed import undisturbed
from gpuflow.targets.cpu.codegen.host import require_llvm_memory
from gpuflow.targets.cpu.codegen.image.loader import HAS_IMAGES
from gpuflow.targets.cpu.codegen.processor import cpu_target

if TYPE_CHECKING:
    import llvmlite.binding as llvm
else:
    llvm = LazyModule("llvmlite.binding")

Result = TypeVar("Result")
# The level for a text that is already vectorized: LLVM inlines and simplifies, but does not
# transform loops.
SIMPLIFY_ONLY = 0
LatePasses = Callable[["llvm.ModuleRef", "llvm.PassBuilder"], None]
# Target machines that no thread uses. A list's append and pop are atomic.
_idle_machines: list[llvm.TargetMachine] = []


@record
class ObjectFile:
    """An object file, and its imports: the functions that a linker must resolve."""

    code: bytes
    imports: tuple[str, ...]


def compile_ir(text: str, level: int = 3, late_passes: LatePasses | None = None) -> ObjectFile:
    """Compile a module to object code for this processor.

    Args:
        text: LLVM IR.
        level: optimization level, 1 to 3; or ``SIMPLIFY_ONLY``.
        late_passes: runs further passes after those of the level, ``(module, pass builder)``.

    Raises:
        RuntimeError: if the text is invalid, or LLVM cannot emit code for it.
        MemoryError: if a limit on address space leaves too little for LLVM.
    """
    return _with_module(
        text,
        level,
        late_passes,
        lambda module, machine: ObjectFile(_object_code(module, machine), _imports(module)),
    )


def assembly_of(text: str, level: int = 3, late_passes: LatePasses | None = None) -> str:
    """The assembly text of a module; arguments and errors as for ``compile_ir``."""
    return _with_module(
        text, level, late_passes, lambda module, machine: machine.emit_assembly(module)
    )


def optimized_text(text: str, level: int = 3, late_passes: LatePasses | None = None) -> str:
    """A module after LLVM's passes; arguments and errors as for ``compile_ir``."""
    return _with_module(text, level, late_passes, lambda module, machine: str(module))


def host_machine() -> llvm.TargetMachine:
    """Create LLVM's target machine for ``cpu_target``, to emit or link code.

    Images require position-independent code (``linker``). LLVM's JIT linker requires its default.
    """
    _lock_llvm_around_forks()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = cpu_target()
    reloc, model = ("pic", "small") if HAS_IMAGES else ("default", "jitdefault")
    # Level 2 would schedule instructions for x86 once more, for a fifth of the time to emit them.
    # Processors reorder instructions anyway. For Arm it emits the same code.
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=target.cpu, features=target.flags, opt=1, reloc=reloc, codemodel=model, jit=True
    )


def _with_module(
    text: str,
    level: int,
    late_passes: LatePasses | None,
    extract: Callable[[llvm.ModuleRef, llvm.TargetMachine], Result],
) -> Result:
    """Optimize a module, and return ``extract(module, machine)``, which must not keep either."""

    def build() -> Result:
        require_llvm_memory()
        with _machine() as machine:
            return extract(_optimized(text, machine, level, late_passes), machine)

    return undisturbed(build)


@contextmanager
def _machine() -> Iterator[llvm.TargetMachine]:
    """A ``host_machine`` for exclusive use by this thread.

    Creating one takes 1 to 2 ms for LLVM's tables of the processor, so idle ones are reused.
    """
    try:
        machine = _idle_machines.pop()
    except IndexError:
        machine = host_machine()
    yield machine
    _idle_machines.append(machine)


def _optimized(
    text: str, machine: llvm.TargetMachine, level: int, late_passes: LatePasses | None
) -> llvm.ModuleRef:
    """Parse a module, and run LLVM's passes on it."""
    module = llvm.parse_assembly(text, llvm.create_context())
    module.verify()
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    options = llvm.PipelineTuningOptions(speed_level=level)
    options.loop_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    passes = _simplification_passes() if level == SIMPLIFY_ONLY else builder.getModulePassManager()
    _without_lock("LLVMPY_RunNewModulePassManager")(passes, module, builder)
    if late_passes is not None:
        late_passes(module, builder)
    return module


def _simplification_passes() -> llvm.ModulePassManager:
    """The passes of ``SIMPLIFY_ONLY``, which take a tenth of the time of level 2."""
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.add_dead_code_elimination_pass()
    passes.add_global_dead_code_eliminate_pass()
    return passes


def _object_code(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> bytes:
    """The object file of an optimized module."""
    with llvm.ffi.OutputString() as error_text:
        buffer = _without_lock("LLVMPY_TargetMachineEmitToMemory")(machine, module, 1, error_text)
        if not buffer:
            raise RuntimeError(str(error_text))
    try:
        start = llvm.ffi.lib.LLVMPY_GetBufferStart(buffer)
        return ctypes.string_at(start, llvm.ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        llvm.ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _imports(module: llvm.ModuleRef) -> tuple[str, ...]:
    """Functions that are declared and not defined, without LLVM's intrinsics."""
    declared = (function.name for function in module.functions if function.is_declaration)
    return tuple(sorted(name for name in declared if not name.startswith("llvm.")))


@cache
def _lock_llvm_around_forks() -> None:
    """Let later forks acquire llvmlite's lock first.

    A child has only the thread that forked. A lock that another thread held would stay locked in
    it, and LLVM's state might be inconsistent.
    """
    lock = getattr(getattr(llvm.ffi.lib, "_lock", None), "_lock", None)
    if lock is not None and hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )


def _without_lock(name: str) -> Callable[..., Any]:
    """Return a function of llvmlite's library, without the lock around it if possible.

    The caller must pass it only objects of an LLVM context that no other thread uses.
    """
    function = getattr(llvm.ffi.lib, name)
    return getattr(function, "_cfn", function)
