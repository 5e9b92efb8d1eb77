"""``python -m ptxsim kernel.ptx``: list the kernels of a file, or launch one of them.

    python -m ptxsim kernel.ptx
    python -m ptxsim kernel.ptx --grid 4 --block 128 --run axpy "f32[512]=ramp" "f32[512]" 512

Without ``--run`` it lists the kernels: parameters, instructions, shared memory, and the first
instruction that the interpreter does not have. With it, the kernel's arguments follow: arrays as
``TYPE[SIZE]=FILLING``, and a number for each other parameter. A filling is zeros (the default),
ones, ramp, random, or the name of a .npy file. Arrays are printed after the launch.

Tests: tests/ptxsim/test_command.py.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ptxsim.checks import THOROUGH, Checks
from ptxsim.faults import PtxError
from ptxsim.kernel import PtxModule
from ptxsim.memory import DeviceMemory, DeviceMemoryError
from ptxsim.syntax import Instruction, Variable
from ptxsim.types import TYPES

_ARRAY = re.compile(r"(\w+)\[(\d+)\](?:=(.+))?")
_RANDOM = np.random.default_rng(0)
FILLINGS: dict[str, Callable[[int], Any]] = {
    "zeros": np.zeros,
    "ones": np.ones,
    "ramp": np.arange,
    "random": _RANDOM.random,
}


class ArgumentError(ValueError):
    """An argument of the command line cannot be used."""


def described(module: PtxModule, name: str) -> str:
    """Describe a kernel in one paragraph."""
    function = module.function(name)
    parameters = ", ".join(
        f"{one.name}: {one.dtype}" + (f"[{one.count}]" if one.count > 1 else "")
        for one in function.parameters
    )
    count = sum(isinstance(one, Instruction) for one in function.body)
    paragraph = [f"{name}({parameters})", f"    {count} instructions"]
    if function.max_threads:
        paragraph[-1] += f", blocks of at most {function.max_threads} threads"
    try:
        program = module.entry(name).program
    except PtxError as error:
        return "\n".join([*paragraph, f"    cannot be run: {error}"])
    paragraph[-1] += (
        f", {program.shared_bytes} bytes of static shared memory, {program.local_bytes} bytes of "
        "local memory for each thread"
    )
    return "\n".join(paragraph)


def array_of(text: str) -> np.ndarray | None:
    """The array of an argument; None: it is a number.

    Raises:
        ArgumentError: the type or the filling is unknown, or a file has another size.
    """
    match = _ARRAY.fullmatch(text)
    if match is None:
        return None
    kind, size, filling = match[1], int(match[2]), match[3] or "zeros"
    if kind not in TYPES:
        raise ArgumentError(f"an array must have one of the types {sorted(TYPES)}; got {kind!r}")
    if filling in FILLINGS:
        return np.asarray(FILLINGS[filling](size)).astype(TYPES[kind])
    if not filling.endswith(".npy"):
        raise ArgumentError(
            f"a filling must be one of {', '.join(FILLINGS)}, or a .npy file; got {filling!r}"
        )
    array = np.load(filling, allow_pickle=False).ravel().astype(TYPES[kind])
    if array.size != size:
        raise ArgumentError(f"{filling} must have {size} elements; got {array.size}")
    return array


def bits_of(text: str, parameter: Variable) -> int:
    """The bits of a scalar argument.

    Raises:
        ArgumentError: if it is not a scalar of the parameter's type.
    """
    dtype = TYPES[parameter.dtype]
    with suppress(ValueError):
        if dtype.kind == "f":
            return int.from_bytes(np.array([float(text)]).astype(dtype).tobytes(), "little")
        value, bits = int(text, 0), 8 * dtype.itemsize
        # Compilers declare signed integers as unsigned ones.
        if -(1 << (bits - 1)) <= value < 1 << bits:
            return value & ((1 << bits) - 1)
    raise ArgumentError(
        f"{parameter.name} must be a number of type {parameter.dtype}, or an array as "
        f"f32[256]=ramp; got {text!r}"
    )


def launch(module: PtxModule, options: argparse.Namespace) -> list[str]:
    """Run a kernel; returns the text to print, as rows.

    Raises:
        ArgumentError: there are more or fewer arguments than parameters, or one cannot be used.
        PtxError: the kernel did an operation that a GPU forbids.
    """
    entry, *arguments = options.run
    kernel, parameters = module.entry(entry), module.function(entry).parameters
    if len(arguments) != len(parameters):
        names = ", ".join(f"{one.name}: {one.dtype}" for one in parameters)
        raise ArgumentError(
            f"{entry} must have {len(parameters)} arguments ({names}); got {len(arguments)}"
        )
    memory = DeviceMemory()
    if options.thorough:
        memory.track_writes()
    values, arrays = [], {}
    for text, parameter in zip(arguments, parameters, strict=True):
        array = array_of(text)
        if array is None:
            values.append(bits_of(text, parameter))
            continue
        address = memory.allocate(array.nbytes)
        memory.copy_in(address, array)
        arrays[parameter.name] = address, array
        values.append(address)
    checks = THOROUGH if options.thorough else Checks()
    done = kernel.launch(options.grid, options.block, values, memory, options.shared, checks)
    report = [
        f"{done.instructions} instructions for groups of threads, {done.loads} loads and "
        f"{done.stores} stores of threads in global memory, {done.bytes} bytes"
    ]
    for name, (address, array) in arrays.items():
        memory.copy_out(address, array)
        report.append(f"{name} = {np.array2string(array, threshold=16, edgeitems=4)}")
        if options.out is not None:
            np.save(options.out / f"{name}.npy", array)
    return report


def _extents(text: str) -> tuple[int, ...]:
    return tuple([int(extent) for extent in text.split(",")])


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    arguments = argparse.ArgumentParser(
        "python -m ptxsim", description=(__doc__ or "").split("\n\n")[0]
    )
    arguments.add_argument("file", type=Path, help="PTX")
    arguments.add_argument(
        "--run",
        nargs="+",
        metavar=("NAME", "ARGUMENT"),
        help="the kernel to launch, and its arguments, as f32[256]=ramp or 256",
    )
    arguments.add_argument("--grid", type=_extents, default=(1,), help="blocks in x,y,z (1)")
    arguments.add_argument("--block", type=_extents, default=(32,), help="threads in x,y,z (32)")
    arguments.add_argument(
        "--shared", type=int, default=0, help="bytes of dynamic shared memory (0)"
    )
    arguments.add_argument("--thorough", action="store_true", help="look for all that can be found")
    arguments.add_argument(
        "--out", type=Path, help="folder for arrays after the launch, as .npy files"
    )
    return arguments


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, 1 for a kernel that fails, or 2 for unusable arguments."""
    options = parser().parse_args(arguments)
    try:
        text = options.file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        print(f"ptxsim: {options.file} must be a file of PTX; got {error}", file=sys.stderr)
        return 2
    try:
        module = PtxModule(text)
        if options.run is None:
            print("\n".join(described(module, name) for name in module.entries()))
        else:
            print("\n".join(launch(module, options)))
    except PtxError as error:
        print(f"ptxsim: {error}", file=sys.stderr)
        return 1
    except (ArgumentError, DeviceMemoryError, OSError) as error:
        print(f"ptxsim: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
