"""Assembler for native programs: instructions that the native runtime interprets without Python.

``execute.ll`` defines the instructions. A program has registers, which hold the addresses of
arrays that differ between calls. A Location is a register and an offset in bytes, or an address
that is the same in all calls.
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

_END, _SET, _RUN, _NEST, _POLL = range(5)
_NEST_DESCRIPTIONS = {
    "scan": "scan",
    "while": "while",
    "branch": "branch",
    "parallel_loop": "scan on several threads",
}
_LONGEST = 5  # slots of the longest instruction
_FASTCALL = 0x80  # METH_FASTCALL: (self, arguments, number of arguments)
_SLOT_BYTES = 8
_POLL_POINTS = 1 << 17  # fewest points between two polls for signals: some milliseconds
_MOST_ITERATIONS = 1024  # most iterations between two polls

Location = tuple[int, int]


def fixed(at: int) -> Location:
    """The location of an address that is the same in all calls."""
    return -1, at


class Code:
    """A native program under construction.

    Argument blocks are contiguous in ``data``. Instructions refer to them by slot offsets in the
    data, which ``finish`` converts to addresses.

    Attributes:
        instructions: 64-bit integers, up to five per instruction.
        data: the argument blocks, in 64-bit slots.
        points: about how many elements it computes, as an estimate of its time.
        keepalive: objects that must live as long as the program.
    """

    def __init__(self) -> None:
        self.instructions: list[int] = []
        self.data: list[int] = []
        self.points = 0
        self.keepalive: list[object] = []
        self._block_operands: list[int] = []  # instruction operands that are offsets in the data
        self._offset_slots: list[int] = []  # slots of the data that are offsets in the data
        self._nests: list[str] = []  # descriptions of loops and branches, for ``listing``

    def block(self, arguments: Iterable[int]) -> int:
        """Append an argument block to the data; returns the offset of its first slot."""
        start = len(self.data)
        self.data += arguments
        return start

    def fill(self, k: int, location: Location, offset: int = 0) -> None:
        """Set a slot of the data to an address plus ``offset`` bytes.

        If the location has a register, a SET instruction writes the slot in each call.
        """
        register, start = location
        if register < 0:
            self.data[k] = start + offset
        else:
            self._block_operands.append(len(self.instructions) + 1)
            self.instructions += (_SET, k, register, start + offset)

    def refer(self, k: int) -> None:
        """Mark a slot of the data as an offset in the data, which ``finish`` makes an address."""
        self._offset_slots.append(k)

    def run(
        self, function: int, block: int, extent: int, chunk: int, points: int, is_long: bool = False
    ) -> None:
        """Emit the call of ``function(block, lo, hi)`` for the range ``0..extent``.

        Args:
            function: address of the function.
            block: offset of its argument block.
            extent: end of the range.
            chunk: indices that a thread takes at a time; if not less than the extent, the calling
                thread takes all.
            points: number of elements that it computes.
            is_long: the function may run for any time, and polls for interrupts itself.
        """
        self._block_operands.append(len(self.instructions) + 2)
        self.instructions += (_RUN, function, block, extent, chunk)
        self.points += max(points, _POLL_POINTS) if is_long else points
        if is_long or points >= _POLL_POINTS:
            self.instructions.append(_POLL)

    def keep(self, *values: object) -> None:
        """Keep objects that instructions point to alive for as long as the program."""
        self.keepalive += values

    def array(self, values: Sequence[int]) -> np.ndarray:
        """Store integers in memory that lives as long as the program."""
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
        """Emit a loop of ``length`` iterations of ``body``; ``table`` has a row per register."""
        arguments = self._scan(length, reverse, body, table)
        self._nested("scan", arguments, body.points * length)

    def parallel_loop(
        self, length: int, bodies: Sequence[Code], table: Sequence[LoopRegister]
    ) -> None:
        """Emit a loop of independent iterations, which threads share.

        All ``bodies`` are the same program with separate memory for temporaries. The k-th of n
        bodies runs iterations k, k + n, and so on.
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
        return [length, int(reverse), *self._body(body, table), _poll_mask(body)]

    def while_loop(
        self,
        condition: Program,
        body: Code,
        table: Sequence[LoopRegister],
        flag: Location,
        copies: Sequence[Copy],
    ) -> None:
        """Emit a loop that runs ``body`` while the bool at ``flag`` is not 0.

        Args:
            condition: sets the flag before the first iteration.
            body: sets the flag for the next iteration.
            table: registers of the body.
            flag: location of the flag.
            copies: results that the loop copies to their outputs after it.
        """
        rows = [w for copy in copies for w in (*copy.target, *copy.first, *copy.even, copy.count)]
        arguments = [
            *self._program(condition),
            *self._body(body, table),
            *flag,
            len(copies),
            address(self.array(rows)),
            _poll_mask(body),
        ]
        self._nested("while", arguments, _POLL_POINTS)

    def branch(self, index: Location, programs: Sequence[Program]) -> None:
        """Emit a branch: it runs the program with the number at ``index``, an int32, clamped."""
        rows = [argument for program in programs for argument in self._program(program)]
        arguments = [*index, len(programs) - 1, address(self.array(rows))]
        self._nested("branch", arguments, max(program.code.points for program in programs))

    def _nested(self, kind: str, arguments: Sequence[int], points: int) -> None:
        self._nests.append(_NEST_DESCRIPTIONS[kind])
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
        """Disassemble the program, one instruction a line.

        Args:
            names: names of functions by address.
        """
        texts, k = [], 0
        nests = iter(self._nests)
        while k < len(self.instructions):
            operation, *operands = self.instructions[k : k + _LONGEST]
            if operation == _SET:
                slot, register, offset = operands[:3]
                texts.append(f"word {slot} = array {register} + {offset} bytes")
                k += 4
            elif operation == _RUN:
                function, block, extent, chunk = operands
                name = names.get(function, "a function of the runtime")
                texts.append(
                    f"run {name} with the words from {block}, {extent} indices, {chunk} at a time"
                )
                k += _LONGEST
            elif operation == _POLL:
                k += 1
            else:
                texts.append(next(nests))
                k += 3
        return texts

    def finish(self, owner: Code) -> int:
        """Finish the program; returns its address, valid as long as ``owner`` lives."""
        if owner is not self:
            owner.keepalive.append(self)
        data, instructions = self.array(self.data), [*self.instructions, _END]
        start = address(data)
        for k in self._block_operands:
            instructions[k] = instructions[k] * _SLOT_BYTES + start
        for k in self._offset_slots:
            data[k] = self.data[k] * _SLOT_BYTES + start
        return address(self.array(instructions))


def _poll_mask(body: Code) -> int:
    """The bit mask of iterations that poll for signals: a power of 2, less 1."""
    iterations = min(_POLL_POINTS // max(body.points, 1), _MOST_ITERATIONS)
    return (1 << max(iterations.bit_length() - 1, 0)) - 1


@record
class Program:
    """A nested program, and the initial values of its registers, as the outer one's locations."""

    code: Code
    registers: tuple[Location, ...]


@record
class LoopRegister:
    """A register of a loop's body, whose location may alternate between two buffers.

    Attributes:
        first: its location in iteration 0.
        odd, even: its locations in odd, and in later even iterations.
        stride: bytes that are added for each iteration, to step through stacked elements.
    """

    first: Location
    odd: Location
    even: Location
    stride: int = 0

    def slots(self) -> tuple[int, ...]:
        """The register's row in the table of the loop's instruction."""
        return (*self.first, *self.odd, *self.even, self.stride)


def always(location: Location, stride: int = 0) -> LoopRegister:
    """A register with the same location in all iterations, but for ``stride``."""
    return LoopRegister(location, location, location, stride)


@record
class Copy:
    """A carry that a while loop must copy to its output after an even number of iterations.

    Attributes:
        target: location of the output, which has the carry after an odd number of iterations.
        first: its location after no iteration.
        even: its location after an even number of iterations.
        count: its bytes.
    """

    target: Location
    first: Location
    even: Location
    count: int


class _MethodDef(ctypes.Structure):
    """CPython's ``PyMethodDef``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("method", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@record(frozen=False)
class _Call:
    """Objects that a callable program points to, so that they must outlive it."""

    code: Code
    block: np.ndarray
    registers: np.ndarray


# With fewer points than this, releasing the GIL costs too much for the length of the call.
_SHORT = 1 << 15


def callable_program(
    code: Code, registers: int, runtime: NativeRuntime
) -> tuple[Callable[..., None], object]:
    """Finish a program, and wrap it as a Python function of the arrays in its registers.

    Args:
        code: the program.
        registers: number of registers, and so of arguments.
        runtime: the native runtime.

    Returns:
        The function, and an object that must outlive it. The function does not check its
        arguments: they must be NumPy arrays, as many as registers.
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
    """The method definition that the functions of all programs share. It is never freed.

    Python reads it when such a function is freed, which may be after the rest of its program.
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
    """Wrap a program through ctypes, for a NumPy whose array objects have an unknown layout."""
    prototype = ctypes.PYFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3)
    execute = prototype(runtime.addresses["gf_execute"])
    state = np.zeros(4, np.int64)

    def call(*arrays: np.ndarray) -> None:
        for k, data in enumerate(arrays):
            addresses[k] = address(data)
        state[2:] = 0, threading.get_ident()
        execute(start, address(addresses), address(state))

    return call
