"""LLVM for this processor: text to object code, in several threads at once.

llvmlite guards all of LLVM with one lock. LLVM itself needs none between threads that share no
context, so the two long calls, the passes and the code generation, bypass the lock, if the version
of llvmlite is supported; otherwise they wait for one another. llvmlite's lock is acquired and
released in Python, so all of this runs undisturbed.
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
from gpuflow.targets.cpu.codegen.host import ensure_room
from gpuflow.targets.cpu.codegen.image.loader import HAS_IMAGES
from gpuflow.targets.cpu.codegen.processor import cpu_target

if TYPE_CHECKING:
    import llvmlite.binding as llvm
else:
    llvm = LazyModule("llvmlite.binding")

Result = TypeVar("Result")
# The level of a text that is already vectorized: functions are inlined, values are simplified, and
# loops are not transformed.
AS_WRITTEN = 0
Finish = Callable[["llvm.ModuleRef", "llvm.PassBuilder"], None]
_idle_machines: list[llvm.TargetMachine] = []


@record
class Compiled:
    """An object file, and the functions that a linker may have to find for it."""

    code: bytes
    imports: tuple[str, ...]


def compiled(text: str, level: int = 3, finish: Finish | None = None) -> Compiled:
    """The object code of a module for this processor.

    Args:
        text: LLVM instructions.
        level: 1 to 3, as of compilers' ``-O``; or ``AS_WRITTEN``.
        finish: more passes, ``finish(module, pass_builder)``.

    Raises:
        RuntimeError: the text is wrong, or LLVM cannot emit it.
    """

    return _with_module(
        text,
        level,
        finish,
        lambda module, machine: Compiled(_object_code(module, machine), _imports(module)),
    )


def assembly_of(text: str, level: int = 3, finish: Finish | None = None) -> str:
    """The assembly text of a module; arguments and errors as for ``compiled``."""
    return _with_module(text, level, finish, lambda module, machine: machine.emit_assembly(module))


def optimized_text(text: str, level: int = 3, finish: Finish | None = None) -> str:
    """A module after LLVM's passes; arguments and errors as for ``compiled``."""
    return _with_module(text, level, finish, lambda module, machine: str(module))


def host_machine() -> llvm.TargetMachine:
    """LLVM's description of the processor to emit or link code for; see ``processor``.

    Images require position-independent code (``linker``); LLVM's linker requires LLVM's default.
    """
    _let_forks_wait()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = cpu_target()
    reloc, model = ("pic", "small") if HAS_IMAGES else ("default", "jitdefault")
    # Level 2 schedules x86's instructions once more, for a fifth of the time to emit them, and
    # processors reorder them anyway; for Arm it emits the same.
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=target.cpu, features=target.flags, opt=1, reloc=reloc, codemodel=model, jit=True
    )


def _with_module(
    text: str,
    level: int,
    finish: Finish | None,
    use: Callable[[llvm.ModuleRef, llvm.TargetMachine], Result],
) -> Result:
    """The result of ``use`` on an optimized module."""

    def build() -> Result:
        ensure_room()
        with _machine() as machine:
            return use(_optimized(text, machine, level, finish), machine)

    return undisturbed(build)


@contextmanager
def _machine() -> Iterator[llvm.TargetMachine]:
    """A ``host_machine`` for exclusive use.

    LLVM makes its tables of a processor for each machine, which takes 1 to 2 ms: they are cached.
    """
    try:
        machine = _idle_machines.pop()
    except IndexError:
        machine = host_machine()
    yield machine
    _idle_machines.append(machine)


def _optimized(
    text: str, machine: llvm.TargetMachine, level: int, finish: Finish | None
) -> llvm.ModuleRef:
    """The module after LLVM's passes."""
    module = llvm.parse_assembly(text, llvm.create_context())
    module.verify()
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    options = llvm.PipelineTuningOptions(speed_level=level)
    options.loop_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    passes = _tidying() if level == AS_WRITTEN else builder.getModulePassManager()
    _unlocked("LLVMPY_RunNewModulePassManager")(passes, module, builder)
    if finish is not None:
        finish(module, builder)
    return module


def _tidying() -> llvm.ModulePassManager:
    """The passes of ``AS_WRITTEN``: they take a tenth of the time of those of level 2."""
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
    with llvm.ffi.OutputString() as complaint:
        buffer = _unlocked("LLVMPY_TargetMachineEmitToMemory")(machine, module, 1, complaint)
        if not buffer:
            raise RuntimeError(str(complaint))
    try:
        start = llvm.ffi.lib.LLVMPY_GetBufferStart(buffer)
        return ctypes.string_at(start, llvm.ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        llvm.ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _imports(module: llvm.ModuleRef) -> tuple[str, ...]:
    """Declared functions that a linker may have to find, without LLVM's intrinsics."""
    declared = (function.name for function in module.functions if function.is_declaration)
    return tuple(sorted(name for name in declared if not name.startswith("llvm.")))


@cache
def _let_forks_wait() -> None:
    """Make later forks wait for llvmlite's lock.

    A child has the forking thread alone: a lock that another one held would stay locked in it, and
    LLVM's own state might be half changed.
    """
    lock = getattr(getattr(llvm.ffi.lib, "_lock", None), "_lock", None)
    if lock is not None and hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )


def _unlocked(name: str) -> Callable[..., Any]:
    """A function of llvmlite's library, without the lock around it if that is possible."""
    function = getattr(llvm.ffi.lib, name)
    return getattr(function, "_cfn", function)
