"""Writing native programs: instructions that the native runtime follows without Python.

``targets/cpu/runtime/native/execute.ll`` defines the instructions; this module writes them. A
program works on registers, which hold addresses of arrays; a Location is a register and an
offset in bytes, or an address that no call changes.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from gpuflow.base.caches import cache
from gpuflow.base.errors import OutOfMemoryError
from gpuflow.base.records import record
from gpuflow.runtime.memory import address, has_known_layout
from gpuflow.targets.cpu.runtime.native.object_code import NativeRuntime, native_function

_END, _SET, _RUN, _NEST, _LOOK = range(5)
_NESTS = {
    "scan": "scan",
    "while": "while",
    "branch": "branch",
    "parallel_loop": "scan on several threads",
}
_LONGEST = 5  # slots of an instruction
_FASTCALL = 0x80  # METH_FASTCALL: (self, arguments, their number)
_SLOT_BYTES = 8
_HEAVY = 1 << 17  # points between two looks at signals, at least: some milliseconds
_LIGHT_ITERATIONS = 1024

Location = tuple[int, int]


def fixed(at: int) -> Location:
    """The memory location of an address."""
    return -1, at


class Code:
    """A program under construction.

    Argument blocks are stored one after the other in its data. Instructions refer to them by
    offsets in the data, which become addresses when the program is finished.

    Attributes:
        instructions: 64-bit integers, up to five for each.
        data: the argument blocks.
        points: about how many elements it computes, to judge its time.
    """

    def __init__(self) -> None:
        self.instructions: list[int] = []
        self.data: list[int] = []
        self.points = 0
        self.keepalive: list[object] = []
        self._block_operands: list[int] = []  # instruction operands that are offsets in the data
        self._offset_slots: list[int] = []  # and such slots of the data
        self._nests: list[str] = []  # names of the instructions for loops and branches

    def block(self, arguments: Iterable[int]) -> int:
        """Add an argument block to the data; returns the offset of its first slot."""
        start = len(self.data)
        self.data += arguments
        return start

    def fill(self, k: int, location: Location, offset: int = 0) -> None:
        """Set a slot of the data to an address, which an instruction writes if calls change it."""
        register, start = location
        if register < 0:
            self.data[k] = start + offset
        else:
            self._block_operands.append(len(self.instructions) + 1)
            self.instructions += (_SET, k, register, start + offset)

    def refer(self, k: int) -> None:
        """A slot of the data with an offset into the data becomes an address as well."""
        self._offset_slots.append(k)

    def run(
        self, function: int, block: int, extent: int, chunk: int, points: int, is_long: bool = False
    ) -> None:
        """Call ``function(block, lo, hi)`` over ``0..extent``, ``chunk`` at a time.

        One that ``is_long`` may take any time, and checks for interrupts.
        """
        self._block_operands.append(len(self.instructions) + 2)
        self.instructions += (_RUN, function, block, extent, chunk)
        self.points += max(points, _HEAVY) if is_long else points
        if is_long or points >= _HEAVY:
            self.instructions.append(_LOOK)

    def keep(self, *values: object) -> None:
        """Keep objects that instructions point to alive as long as the program."""
        self.keepalive += values

    def array(self, values: Sequence[int]) -> np.ndarray:
        """Integers in memory that lives as long as the program."""
        try:
            array = np.array(values, np.int64)
        except OverflowError as error:
            raise OutOfMemoryError(
                f"[memory] arrays must fit into memory; got a size of {max(values).bit_length()} "
                "bits. Fix: use a smaller shape."
            ) from error
        self.keepalive.append(array)
        return array

    def scan(self, length: int, reverse: bool, body: Code, table: Sequence[LoopRegister]) -> None:
        """Run ``body`` ``length`` times; ``table`` gives its registers."""
        arguments = self._scan(length, reverse, body, table)
        self._nested("scan", arguments, body.points * length)

    def parallel_loop(
        self, length: int, bodies: Sequence[Code], table: Sequence[LoopRegister]
    ) -> None:
        """The same with several threads, for independent iterations.

        Each of ``bodies`` is the same program with separate memory, and takes every n-th iteration.
        """
        count, scans = len(bodies), []
        for k, body in enumerate(bodies):
            rows = [
                always((row.first[0], row.first[1] + k * row.stride), count * row.stride)
                for row in table
            ]
            arguments = self._scan(-(-(length - k) // count), False, body, rows)
            scans.append(address(self.array(arguments)))
        self._nested("parallel_loop", [count, 0, 0, *scans], bodies[0].points * length)

    def _scan(
        self, length: int, reverse: bool, body: Code, table: Sequence[LoopRegister]
    ) -> list[int]:
        return [length, int(reverse), *self._body(body, table), _mask(body)]

    def while_loop(
        self,
        condition: Program,
        body: Code,
        table: Sequence[LoopRegister],
        flag: Location,
        copies: Sequence[Copy],
    ) -> None:
        """Run ``body`` as long as ``flag``, which ``condition`` sets first, is not 0."""
        rows = [w for copy in copies for w in (*copy.target, *copy.first, *copy.even, copy.count)]
        arguments = [
            *self._program(condition),
            *self._body(body, table),
            *flag,
            len(copies),
            address(self.array(rows)),
            _mask(body),
        ]
        self._nested("while", arguments, _HEAVY)

    def branch(self, index: Location, programs: Sequence[Program]) -> None:
        """Run one of ``programs``: the int32 at ``index``, which is brought into range."""
        rows = [argument for program in programs for argument in self._program(program)]
        arguments = [*index, len(programs) - 1, address(self.array(rows))]
        self._nested("branch", arguments, max(program.code.points for program in programs))

    def _nested(self, kind: str, arguments: Sequence[int], points: int) -> None:
        self._nests.append(_NESTS[kind])
        self.instructions += [_NEST, native_function(f"gf_{kind}"), address(self.array(arguments))]
        self.points += points

    def _body(self, body: Code, table: Sequence[LoopRegister]) -> tuple[int, int, int, int]:
        rows = [argument for row in table for argument in row.slots()]
        registers = self.array([0] * len(table))
        return body.finish(self), address(registers), len(table), address(self.array(rows))

    def _program(self, program: Program) -> tuple[int, int, int, int]:
        rows = [argument for location in program.registers for argument in location]
        registers = self.array([0] * len(program.registers))
        code = program.code.finish(self)
        return code, address(registers), len(program.registers), address(self.array(rows))

    def listing(self, names: Mapping[int, str]) -> list[str]:
        """The instructions in readable form, one a line.

        Args:
            names: of functions, by their addresses.
        """
        texts, k = [], 0
        nests = iter(self._nests)
        while k < len(self.instructions):
            operation, *rest = self.instructions[k : k + _LONGEST]
            if operation == _SET:
                slot, register, offset = rest[:3]
                texts.append(f"word {slot} = array {register} + {offset} bytes")
                k += 4
            elif operation == _RUN:
                function, block, extent, chunk = rest
                name = names.get(function, "a function of the runtime")
                texts.append(
                    f"run {name} with the words from {block}, {extent} indices, {chunk} at a time"
                )
                k += _LONGEST
            elif operation == _LOOK:
                k += 1
            else:
                texts.append(next(nests))
                k += 3
        return texts

    def finish(self, owner: Code) -> int:
        """The address of the finished program, which lives as long as ``owner``."""
        if owner is not self:
            owner.keepalive.append(self)
        data, instructions = self.array(self.data), [*self.instructions, _END]
        start = address(data)
        for k in self._block_operands:
            instructions[k] = instructions[k] * _SLOT_BYTES + start
        for k in self._offset_slots:
            data[k] = self.data[k] * _SLOT_BYTES + start
        return address(self.array(instructions))


def _mask(body: Code) -> int:
    """Iterations between two looks at signals, a power of 2, less 1."""
    iterations = min(_HEAVY // max(body.points, 1), _LIGHT_ITERATIONS)
    return (1 << max(iterations.bit_length() - 1, 0)) - 1


@record
class Program:
    """A program inside another one, and the locations in its registers."""

    code: Code
    registers: tuple[Location, ...]


@record
class LoopRegister:
    """A register of a loop's body: its location in the first, in odd and in even later iterations.

    ``stride`` is how many bytes it moves with each element.
    """

    first: Location
    odd: Location
    even: Location
    stride: int = 0

    def slots(self) -> tuple[int, ...]:
        """The row of the loop's table."""
        return (*self.first, *self.odd, *self.even, self.stride)


def always(location: Location, stride: int = 0) -> LoopRegister:
    """A register that does not alternate."""
    return LoopRegister(location, location, location, stride)


@record
class Copy:
    """A carry of a while loop that is not in its output after an even number of iterations."""

    target: Location
    first: Location
    even: Location
    count: int


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("method", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@record(frozen=False)
class _Call:
    """Objects that a callable program needs while it lives."""

    code: Code
    block: np.ndarray
    registers: np.ndarray


# Below this many points a call is too short to release the GIL.
_SHORT = 1 << 15


def callable_program(
    code: Code, registers: int, runtime: NativeRuntime
) -> tuple[Callable[..., None], object]:
    """A finished program as a Python function of the arrays in its registers.

    Args:
        code: the program.
        registers: how many arrays it takes.
        runtime: runs it.

    Returns:
        The function, which does not check its arguments, and the objects that must outlive it.
    """
    addresses = np.zeros(max(registers, 1), np.int64)
    start = code.finish(code)
    block = np.array([start, address(addresses), int(code.points > _SHORT)], np.int64)
    call = _Call(code, block, addresses)
    if not has_known_layout():
        return _plain_call(start, addresses, runtime), call
    definition = _definition(runtime.addresses["gf_call"])
    return _new_function()(ctypes.addressof(definition), block, None), call


@cache
def _definition(method: int) -> _MethodDef:
    """The definition that the functions of all programs share, and that lives for ever.

    Python reads it when such a function dies, which may be after everything else of its program.
    """
    return _MethodDef(b"program", method, _FASTCALL, None)


@cache
def _new_function() -> Callable[[int, object, None], Callable[..., None]]:
    """Return the constructor of a Python function from a method definition and bound object."""
    create = ctypes.pythonapi.PyCFunction_NewEx
    create.restype = ctypes.py_object
    create.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    return create


def _plain_call(start: int, addresses: np.ndarray, runtime: NativeRuntime) -> Callable[..., None]:
    """The same through ctypes, if NumPy's arrays have an unexpected layout."""
    prototype = ctypes.PYFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3)
    execute = prototype(runtime.addresses["gf_execute"])
    state = np.zeros(4, np.int64)

    def call(*arrays: np.ndarray) -> None:
        for k, data in enumerate(arrays):
            addresses[k] = address(data)
        state[2:] = 0, threading.get_ident()
        execute(start, address(addresses), address(state))

    return call
