"""Assembler for native programs: instructions that the native runtime interprets without Python.

``execute.ll`` defines the instructions, and the ``*.ll`` file of each loop or branch its arguments.
Nothing checks the integers, so a change here needs the same change there. A program has registers,
which hold the addresses of arrays that differ between calls. Registers and argument blocks exist
once, so only one thread may run a program at a time.

Tests: tests/targets/cpu/test_native_functions.py, tests/targets/cpu/test_cpu_parallel_loops.py.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpuflow.base.caches import cache
from gpuflow.base.errors import OutOfMemoryError
from gpuflow.base.records import record
from gpuflow.runtime.memory import address, has_known_layout
from gpuflow.targets.cpu.runtime.native.object_code import LoadedModule, native_function

_END, _SET, _RUN, _NEST, _POLL = range(5)
_NEST_DESCRIPTIONS = {
    "scan": "scan",
    "while": "while",
    "branch": "branch",
    "parallel_loop": "scan on several threads",
}
_SLOT_COUNTS = (1, 4, 5, 3, 1)  # slots of each instruction, with its number
_FASTCALL = 0x80  # METH_FASTCALL: (self, arguments, number of arguments)
_SLOT_BYTES = 8
_POLL_POINTS = 1 << 17  # fewest points between two polls for signals: some milliseconds
_MAX_ITERATIONS = 1024  # most iterations between two polls
_NO_REGISTER = -1


class Location(NamedTuple):
    """An address in a program: a register's value plus an offset, as ``execute.ll`` reads it.

    Attributes:
        register: index of the register; -1 for an address that is the same in all calls.
        offset: bytes after the register's address, or the address.
    """

    register: int
    offset: int

    def shifted(self, byte_count: int) -> Location:
        """The location ``byte_count`` bytes after this one."""
        return Location(self.register, self.offset + byte_count)


def fixed(at: int) -> Location:
    """The location of an address that is the same in all calls."""
    return Location(_NO_REGISTER, at)


class Code:
    """A native program under construction.

    Argument blocks are contiguous in ``data``. Instructions refer to them by slot offsets in the
    data, which ``finish`` converts to addresses.

    Addresses in instructions and in argument blocks do not keep memory alive. Code that adds one
    passes the owner of the memory to ``keep_alive``, unless another object keeps it alive as long
    as the program, such as the arena of its temporaries.

    Attributes:
        instructions: 64-bit integers, up to five per instruction.
        data: the argument blocks, in 64-bit slots.
        points: about how many elements it computes, as an estimate of its time.
        owners: objects that must live as long as the program.
    """

    def __init__(self) -> None:
        self.instructions: list[int] = []
        self.data: list[int] = []
        self.points = 0
        self.owners: list[object] = []
        # Relocations: what ``finish`` converts from an offset in the data to an address.
        self._relocated_operands: list[int] = []  # indices in ``instructions``
        self._relocated_slots: list[int] = []  # indices in ``data``
        self._nest_descriptions: list[str] = []  # of loops and branches, for ``listing``

    def add_argument_block(self, arguments: Iterable[int]) -> int:
        """Append an argument block to the data; returns the offset of its first slot."""
        start = len(self.data)
        self.data += arguments
        return start

    def set_address(self, slot: int, location: Location, offset: int = 0) -> None:
        """Set a slot of the data to an address plus ``offset`` bytes.

        If the location has a register, a SET instruction writes the slot in each call. So it must
        be emitted before the instruction that reads the slot.
        """
        register, start = location
        if register == _NO_REGISTER:
            self.data[slot] = start + offset
        else:
            self._relocated_operands.append(len(self.instructions) + 1)
            self.instructions += (_SET, slot, register, start + offset)

    def relocate_slot(self, slot: int) -> None:
        """Mark a slot of the data as an offset in the data, which ``finish`` makes an address."""
        self._relocated_slots.append(slot)

    def run(
        self, function: int, block: int, extent: int, chunk: int, points: int, is_long: bool = False
    ) -> None:
        """Emit the call of ``function(block, lo, hi)`` for the range ``0..extent``.

        Args:
            function: address of the function, which must outlive the program.
            block: offset of its argument block.
            extent: end of the range.
            chunk: indices that a thread takes at a time, at least 1; if not less than the extent,
                the calling thread takes all.
            points: number of elements that it computes.
            is_long: the function may run for any time, and polls for interrupts itself.
        """
        self._relocated_operands.append(len(self.instructions) + 2)
        self.instructions += (_RUN, function, block, extent, chunk)
        self.points += max(points, _POLL_POINTS) if is_long else points
        if is_long or points >= _POLL_POINTS:
            self.instructions.append(_POLL)

    def keep_alive(self, *owners: object) -> None:
        """Keep owners of memory that the program points to alive for as long as the program."""
        self.owners += owners

    def constant_array(self, values: Sequence[int]) -> np.ndarray:
        """Store integers in memory that lives as long as the program.

        Raises:
            OutOfMemoryError: if an integer, such as a size in bytes, does not fit into 64 bits.
        """
        try:
            array = np.array(values, np.int64)
        except OverflowError as error:
            raise OutOfMemoryError(
                f"[memory] arrays must fit into memory; got a size of {max(values).bit_length()} "
                "bits. Fix: use a smaller shape."
            ) from error
        self.owners.append(array)
        return array

    def scan(self, length: int, reverse: bool, body: Code, table: Sequence[LoopRegister]) -> None:
        """Emit a loop of ``length`` iterations of ``body``; ``table`` has a row per register."""
        arguments = self._scan_slots(length, reverse, body, table)
        self._emit_nested("scan", arguments, body.points * length)

    def parallel_loop(
        self, length: int, bodies: Sequence[Code], table: Sequence[LoopRegister]
    ) -> None:
        """Emit a loop of independent iterations, which threads share.

        No register may alternate. All ``bodies`` are the same program with separate memory for
        temporaries. The k-th of n bodies runs iterations k, k + n, and so on.
        """
        count, scans = len(bodies), []
        for k, body in enumerate(bodies):
            registers = [
                always(row.first.shifted(k * row.stride), count * row.stride) for row in table
            ]
            arguments = self._scan_slots(-(-(length - k) // count), False, body, registers)
            scans.append(address(self.constant_array(arguments)))
        # gf_parallel_loop writes the registers and the state of the call to slots 1 and 2.
        self._emit_nested("parallel_loop", [count, 0, 0, *scans], bodies[0].points * length)

    def _scan_slots(
        self, length: int, reverse: bool, body: Code, table: Sequence[LoopRegister]
    ) -> list[int]:
        return [length, int(reverse), *self._body_slots(body, table), _poll_mask(body)]

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
        copy_slots = [slot for copy in copies for slot in copy.slots()]
        arguments = [
            *self._program_slots(condition),
            *self._body_slots(body, table),
            *flag,
            len(copies),
            address(self.constant_array(copy_slots)),
            _poll_mask(body),
        ]
        self._emit_nested("while", arguments, _POLL_POINTS)

    def branch(self, index: Location, programs: Sequence[Program]) -> None:
        """Emit a branch: it runs the program with the number at ``index``, an int32, clamped."""
        table = [slot for program in programs for slot in self._program_slots(program)]
        arguments = [*index, len(programs) - 1, address(self.constant_array(table))]
        self._emit_nested("branch", arguments, max(program.code.points for program in programs))

    def _emit_nested(self, kind: str, arguments: Sequence[int], points: int) -> None:
        """Emit a NEST instruction of ``gf_<kind>``, whose argument block is constant."""
        self._nest_descriptions.append(_NEST_DESCRIPTIONS[kind])
        block = address(self.constant_array(arguments))
        self.instructions += [_NEST, native_function(f"gf_{kind}"), block]
        self.points += points

    def _body_slots(self, body: Code, table: Sequence[LoopRegister]) -> tuple[int, int, int, int]:
        """Finish a loop's body; returns the addresses of its code, registers and table."""
        slots = [slot for row in table for slot in row.slots()]
        registers = self.constant_array([0] * len(table))
        code = body.finish(self)
        return code, address(registers), len(table), address(self.constant_array(slots))

    def _program_slots(self, program: Program) -> tuple[int, int, int, int]:
        """Finish a nested program; returns the addresses of code, registers and locations."""
        slots = [slot for location in program.registers for slot in location]
        registers = self.constant_array([0] * len(program.registers))
        code = program.code.finish(self)
        return code, address(registers), len(program.registers), address(self.constant_array(slots))

    def listing(self, names: Mapping[int, str]) -> list[str]:
        """Disassemble the program, one instruction a line.

        Args:
            names: names of functions by address.
        """
        texts, k = [], 0
        descriptions = iter(self._nest_descriptions)
        while k < len(self.instructions):
            operation = self.instructions[k]
            operands = self.instructions[k + 1 : k + _SLOT_COUNTS[operation]]
            if operation == _SET:
                slot, register, offset = operands
                texts.append(f"word {slot} = array {register} + {offset} bytes")
            elif operation == _RUN:
                function, block, extent, chunk = operands
                name = names.get(function, "a function of the runtime")
                texts.append(
                    f"run {name} with the words from {block}, {extent} indices, {chunk} at a time"
                )
            elif operation == _NEST:
                texts.append(next(descriptions))
            k += _SLOT_COUNTS[operation]
        return texts

    def finish(self, owner: Code) -> int:
        """Finish the program; returns its address, valid as long as ``owner`` lives.

        The finished program is a copy: instructions that are added later are not part of it.
        """
        if owner is not self:
            owner.owners.append(self)
        data, instructions = self.constant_array(self.data), [*self.instructions, _END]
        start = address(data)
        for k in self._relocated_operands:
            instructions[k] = instructions[k] * _SLOT_BYTES + start
        for k in self._relocated_slots:
            data[k] = self.data[k] * _SLOT_BYTES + start
        return address(self.constant_array(instructions))


def _poll_mask(body: Code) -> int:
    """The bit mask of iterations that poll for signals: a power of 2, less 1."""
    iterations = min(_POLL_POINTS // max(body.points, 1), _MAX_ITERATIONS)
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
        first: location of the carry after no iteration.
        even: location of the carry after an even number of iterations.
        byte_count: size of the carry.
    """

    target: Location
    first: Location
    even: Location
    byte_count: int

    def slots(self) -> tuple[int, ...]:
        """The copy's row in the table of the loop's instruction."""
        return (*self.target, *self.first, *self.even, self.byte_count)


class _MethodDef(ctypes.Structure):
    """CPython's ``PyMethodDef``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("method", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@record(frozen=False)
class _CallableOwners:
    """Objects that a callable program points to, so that they must outlive it."""

    code: Code
    bound_object: np.ndarray
    registers: np.ndarray


# With fewer points than this, releasing the GIL costs too much for the length of the call.
_MIN_BYTES_WITHOUT_GIL = 1 << 15


def callable_program(
    code: Code, registers: int, runtime: LoadedModule
) -> tuple[Callable[..., None], object]:
    """Finish a program, and wrap it as a Python function of the arrays in its registers.

    The function releases the GIL during long programs. The caller makes sure that no two threads
    call it at once, since the program's registers and argument blocks exist once.

    Args:
        code: the program.
        registers: number of registers, and so of arguments.
        runtime: the native runtime.

    Returns:
        The function, and an object that must outlive it. The function does not check its
        arguments: they must be NumPy arrays, as many as registers, and outlive the call.
    """
    addresses = np.zeros(max(registers, 1), np.int64)
    start = code.finish(code)
    releases_gil = int(code.points > _MIN_BYTES_WITHOUT_GIL)
    bound_object = np.array([start, address(addresses), releases_gil], np.int64)  # gf_call's self
    owners = _CallableOwners(code, bound_object, addresses)
    if not has_known_layout():
        return _ctypes_call(start, addresses, runtime), owners
    definition = _method_definition(runtime.addresses["gf_call"])
    return _function_constructor()(ctypes.addressof(definition), bound_object, None), owners


@cache
def _method_definition(method: int) -> _MethodDef:
    """The method definition that the functions of all programs share. It is never freed.

    Python reads it when such a function is freed, which may be after the rest of its program.
    """
    return _MethodDef(b"program", method, _FASTCALL, None)


@cache
def _function_constructor() -> Callable[[int, object, None], Callable[..., None]]:
    """Return the constructor of a Python function from a method definition and bound object."""
    create = ctypes.pythonapi.PyCFunction_NewEx
    create.restype = ctypes.py_object
    create.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    return create


def _ctypes_call(start: int, addresses: np.ndarray, runtime: LoadedModule) -> Callable[..., None]:
    """Wrap a program through ctypes, for a NumPy whose array objects have an unknown layout."""
    prototype = ctypes.PYFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3)
    execute = prototype(runtime.addresses["gf_execute"])
    state = np.zeros(4, np.int64)  # the state of a call, see execute.ll

    def call(*arrays: np.ndarray) -> None:
        for k, data in enumerate(arrays):
            addresses[k] = address(data)
        state[2:] = 0, threading.get_ident()
        execute(start, address(addresses), address(state))

    return call
