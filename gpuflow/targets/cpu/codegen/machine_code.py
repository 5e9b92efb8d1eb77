"""LLVM for this processor: text to object code, in several threads at once.

llvmlite guards all of LLVM with one lock. LLVM itself needs none between threads that share no
context, so the two calls that take long, the passes and the code generation, go around the lock,
where llvmlite is built as it is today; elsewhere they wait for one another.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from gpuflow.base.lazy import LazyModule
from gpuflow.targets.cpu.codegen.processor import cpu_target
from gpuflow.targets.cpu.image.loader import HAS_IMAGES

if TYPE_CHECKING:
    import llvmlite.binding as llvm
else:
    llvm = LazyModule("llvmlite.binding")


_of_thread = threading.local()


def host_machine() -> llvm.TargetMachine:
    """LLVM's description of the processor to emit or link code for; see ``processor``.

    Whoever links starts here; builders take ``machine_of_thread``. Images want code that does not
    know where it is (``linker``); LLVM's linker wants what LLVM makes for it.
    """
    _let_forks_wait()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = cpu_target()
    reloc, model = ("pic", "small") if HAS_IMAGES else ("default", "jitdefault")
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=target.cpu, features=target.flags, reloc=reloc, codemodel=model, jit=True
    )


def machine_of_thread() -> llvm.TargetMachine:
    """``host_machine`` for code that this thread builds, made once.

    LLVM makes its tables of a processor for each machine, which takes 1 to 2 ms.
    """
    machine = getattr(_of_thread, "machine", None)
    if machine is None:
        machine = _of_thread.machine = host_machine()
    return machine


def optimized(
    text: str, machine: llvm.TargetMachine, level: int = 3,
    finish: Callable[[llvm.ModuleRef, llvm.PassBuilder], None] | None = None,
) -> llvm.ModuleRef:  # fmt: skip
    """A module after LLVM's passes.

    Args:
        text: LLVM instructions.
        machine: from ``machine_of_thread``; used by one thread at a time.
        level: 1 to 3, as of compilers' ``-O``.
        finish: more passes, ``finish(module, pass_builder)``.

    Raises:
        RuntimeError: the text is wrong.
    """
    module = llvm.parse_assembly(text, llvm.create_context())
    module.verify()
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    options = llvm.PipelineTuningOptions(speed_level=level)
    options.loop_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    passes = builder.getModulePassManager()
    _unlocked("LLVMPY_RunNewModulePassManager")(passes, module, builder)
    if finish is not None:
        finish(module, builder)
    return module


def object_code(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> bytes:
    """The object file of an optimized module.

    Raises:
        RuntimeError: LLVM cannot emit it.
    """
    with llvm.ffi.OutputString() as complaint:
        buffer = _unlocked("LLVMPY_TargetMachineEmitToMemory")(machine, module, 1, complaint)
        if not buffer:
            raise RuntimeError(str(complaint))
    try:
        start = llvm.ffi.lib.LLVMPY_GetBufferStart(buffer)
        return ctypes.string_at(start, llvm.ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        llvm.ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def imports(module: llvm.ModuleRef) -> tuple[str, ...]:
    """Declared functions that a linker may have to find; LLVM's intrinsics are not."""
    declared = (function.name for function in module.functions if function.is_declaration)
    return tuple(sorted(name for name in declared if not name.startswith("llvm.")))


@cache
def _let_forks_wait() -> None:
    """From now on, fork only while no other thread holds llvmlite's lock.

    A child has the forking thread alone: a lock that another one held would stay locked in it, and
    LLVM's own state might be half changed.
    """
    lock = getattr(getattr(llvm.ffi.lib, "_lock", None), "_lock", None)
    if lock is not None and hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )


def _unlocked(name: str) -> Callable[..., Any]:
    """A function of llvmlite's library, without the lock around it where that can be had."""
    function = getattr(llvm.ffi.lib, name)
    return getattr(function, "_cfn", function)
