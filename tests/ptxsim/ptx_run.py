"""Run a few lines of PTX on every lane of a small block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ptxsim.checks import Checks, Statistics
from ptxsim.kernel import PtxModule
from ptxsim.memory import DeviceMemory

BF16 = ml_dtypes.bfloat16

_REGISTERS = """
    .reg .pred %p<8>;
    .reg .b16 %h<16>;
    .reg .b32 %r<40>;
    .reg .f32 %f<40>;
    .reg .f64 %d<16>;
    .reg .b64 %x<40>;
"""
_LETTERS = {1: "h", 2: "h", 4: "r", 8: "x"}


def text(body: str, parameters: int = 1, module: str = "", attributes: str = "") -> str:
    """A module with the kernel ``k``; its parameters are words named p0, p1, ..."""
    listed = ", ".join(f".param .u64 p{number}" for number in range(parameters))
    return (
        f".version 9.0\n.target sm_90\n.address_size 64\n{module}\n"
        f".visible .entry k({listed})\n{attributes}\n{{\n{_REGISTERS}\n{body}\n    ret;\n}}\n"
    )


def start(parameters: int) -> str:
    """Sets %r0 to the thread, %x0 to 8 times it, and %x1, %x2, ... to the parameters."""
    lines = ["mov.u32 %r0, %tid.x;", "mul.wide.u32 %x0, %r0, 8;"]
    lines += [f"ld.param.u64 %x{number + 1}, [p{number}];" for number in range(parameters)]
    return "\n".join(lines)


def run(
    body: str,
    arrays: Sequence[np.ndarray],
    threads: int = 32,
    module: str = "",
    attributes: str = "",
    grid: Sequence[int] = (1,),
    block: Sequence[int] | None = None,
    read_only: Sequence[int] = (),
    **options: Any,
) -> tuple[list[np.ndarray], Statistics]:
    """What is in copies of the arrays after a body that follows ``start``."""
    memory = options.pop("memory", None) or DeviceMemory()
    addresses = []
    for number, array in enumerate(arrays):
        addresses.append(memory.allocate(array.nbytes))
        memory.copy_in(addresses[-1], array)
        memory.lock(addresses[-1], number in read_only)
    ptx = text(start(len(arrays)) + "\n" + body, len(arrays), module, attributes)
    done = PtxModule(ptx).entry("k").launch(grid, block or (threads,), addresses, memory, **options)
    outs = [np.empty_like(array) for array in arrays]
    for address, array in zip(addresses, outs, strict=True):
        memory.copy_out(address, array)
        memory.free(address)
    return outs, done


def lanes(
    instruction: str,
    *inputs: np.ndarray,
    result: Any = np.uint32,
    before: str = "",
    after: str = "",
    checks: Checks | None = None,
) -> np.ndarray:
    """What an instruction computes, one lane for each element of the inputs.

    In the instruction, ``$0`` is the register of the result and ``$1``, ``$2``, ... are those of
    the inputs; they are of the width of the arrays' elements.
    """
    count = len(inputs[0]) if inputs else 32
    arrays = [np.ascontiguousarray(x) for x in inputs]
    result = np.dtype(result)
    body, names = [], {}
    for number, array in enumerate([np.empty(0, result), *arrays]):
        size = array.dtype.itemsize
        letter = _LETTERS[size]
        names[f"${number}"] = register = f"%{letter}{number + 10 if letter == 'x' else number + 5}"
        if number:
            body += [
                f"mul.wide.u32 %x9, %r0, {size};",
                f"add.s64 %x9, %x{number}, %x9;",
                f"ld.global.b{8 * size} {register}, [%x9];",
            ]
    filled = instruction
    for name, register in sorted(names.items(), reverse=True):
        filled = filled.replace(name, register)
        before, after = before.replace(name, register), after.replace(name, register)
    size = result.itemsize
    body += [before, filled, after]
    body += [
        f"mul.wide.u32 %x9, %r0, {size};",
        f"add.s64 %x9, %x{len(arrays) + 1}, %x9;",
        f"st.global.b{8 * size} [%x9], {names['$0']};",
    ]
    options = {} if checks is None else {"checks": checks}
    outs, _ = run("\n".join(body), [*arrays, np.zeros(count, result)], count, **options)
    return outs[-1]
