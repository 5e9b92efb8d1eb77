"""LLVM for this processor: text to object code, in several threads at once.

llvmlite guards all of LLVM with one lock. LLVM itself needs none between threads that share no
context, so the two calls that take long, the passes and the code generation, go around the lock,
where llvmlite is built as it is today; elsewhere they wait for one another.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi


def host_machine() -> Any:
    """LLVM's description of this processor, to emit or link code for it."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), jit=True
    )


def optimized(
    text: str, machine: Any, level: int = 3, finish: Callable[[Any, Any], None] | None = None
) -> Any:
    """A module after LLVM's passes.

    Args:
        text: LLVM instructions.
        machine: from ``host_machine``; used by one thread at a time.
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


def object_code(module: Any, machine: Any) -> bytes:
    """The object file of an optimized module.

    Raises:
        RuntimeError: LLVM cannot emit it.
    """
    with ffi.OutputString() as complaint:
        buffer = _unlocked("LLVMPY_TargetMachineEmitToMemory")(machine, module, 1, complaint)
        if not buffer:
            raise RuntimeError(str(complaint))
    try:
        start = ffi.lib.LLVMPY_GetBufferStart(buffer)
        return ctypes.string_at(start, ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def imports(module: Any) -> tuple[str, ...]:
    """Declared functions that a linker may have to find; LLVM's intrinsics are not."""
    declared = (function.name for function in module.functions if function.is_declaration)
    return tuple(sorted(name for name in declared if not name.startswith("llvm.")))


def _unlocked(name: str) -> Callable[..., Any]:
    """A function of llvmlite's library, without the lock around it where that can be had."""
    function = getattr(ffi.lib, name)
    return getattr(function, "_cfn", function)
