"""Writing native programs: instructions that the native runtime follows without Python.

``targets/cpu/runtime/native/execute.ll`` defines the instructions; this module writes them. A
program works on registers, which hold addresses of arrays; a Place is a memory location by a
register and an offset in bytes, or by an address that no call changes.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

import numpy as np

from gpuflow.base.errors import OutOfMemoryError
from gpuflow.base.records import record
from gpuflow.runtime.memory import address, has_known_layout
from gpuflow.targets.cpu.runtime.native.object_code import NativeRuntime, native_function

_END, _SET, _RUN, _NEST, _LOOK = range(5)
_NESTS = {"scan": "scan", "while": "while", "branch": "branch", "apart": "scan on several threads"}
_LONGEST = 5  # words of an instruction
_FASTCALL = 0x80  # METH_FASTCALL: (self, arguments, their number)
_WORD = 8  # bytes
_HEAVY = 1 << 17  # points between two looks at signals, at least: some milliseconds
_LIGHT_TURNS = 1024

Place = tuple[int, int]


def fixed(at: int) -> Place:
    """The memory location of an address."""
    return -1, at


class Code:
    """A program under construction.

    Argument blocks are stored one after the other in its data. Instructions refer to them by
    offsets in the data, which become addresses when the program is finished.

    Attributes:
        words: the instructions.
        data: the argument blocks.
        points: about how many elements it computes, to judge its time.
    """

    def __init__(self) -> None:
        self.words: list[int] = []
        self.data: list[int] = []
        self.points = 0
        self.kept: list[object] = []
        self._named: list[int] = []  # the instructions' words that name a place in the data
        self._tabled: list[int] = []  # and those of the data
        self._nests: list[str] = []  # what the instructions for loops and branches are

    def block(self, words: Iterable[int]) -> int:
        """Add an argument block to the data; returns the offset of its first slot."""
        start = len(self.data)
        self.data += words
        return start

    def fill(self, k: int, place: Place, offset: int = 0) -> None:
        """Let a word of the data be an address, which an instruction writes if calls change it."""
        register, start = place
        if register < 0:
            self.data[k] = start + offset
        else:
            self._named.append(len(self.words) + 1)
            self.words += (_SET, k, register, start + offset)

    def refer(self, k: int) -> None:
        """A slot of the data with an offset into the data becomes an address as well."""
        self._tabled.append(k)

    def run(
        self, function: int, block: int, extent: int, chunk: int, points: int, is_long: bool = False
    ) -> None:
        """Call ``function(words, lo, hi)`` over ``0..extent``, ``chunk`` at a time.

        One that ``is_long`` may take any time, and asks whether it is interrupted.
        """
        self._named.append(len(self.words) + 2)
        self.words += (_RUN, function, block, extent, chunk)
        self.points += max(points, _HEAVY) if is_long else points
        if is_long or points >= _HEAVY:
            self.words.append(_LOOK)

    def keep(self, *values: object) -> None:
        """Keep objects that instructions point to alive as long as the program."""
        self.kept += values

    def array(self, words: Sequence[int]) -> np.ndarray:
        """Integers in memory that lives as long as the program."""
        try:
            array = np.array(words, np.int64)
        except OverflowError as error:
            raise OutOfMemoryError(
                f"[memory] arrays must fit into memory; got a size of {max(words).bit_length()} "
                "bits. Fix: use a smaller shape."
            ) from error
        self.kept.append(array)
        return array

    def scan(self, length: int, reverse: bool, body: Code, table: Sequence[Turns]) -> None:
        """Run ``body`` ``length`` times; ``table`` gives its registers."""
        words = self._scan(length, reverse, body, table)
        self._nested("scan", words, body.points * length)

    def apart(self, length: int, bodies: Sequence[Code], table: Sequence[Turns]) -> None:
        """The same with several threads, for independent iterations.

        Each of ``bodies`` is the same program with separate memory, and takes every n-th iteration.
        """
        count, parts = len(bodies), []
        for k, body in enumerate(bodies):
            rows = [
                always((row.first[0], row.first[1] + k * row.stride), count * row.stride)
                for row in table
            ]
            words = self._scan(-(-(length - k) // count), False, body, rows)
            parts.append(address(self.array(words)))
        self._nested("apart", [count, 0, 0, *parts], bodies[0].points * length)

    def _scan(
        self, length: int, reverse: bool, body: Code, table: Sequence[Turns]
    ) -> list[int]:
        return [length, int(reverse), *self._body(body, table), _mask(body)]

    def while_loop(
        self, condition: Program, body: Code, table: Sequence[Turns], flag: Place,
        copies: Sequence[Copy],
    ) -> None:  # fmt: skip
        """Run ``body`` as long as ``flag``, which ``condition`` sets first, is not 0."""
        rows = [w for copy in copies for w in (*copy.target, *copy.first, *copy.even, copy.count)]
        words = [
            *self._program(condition), *self._body(body, table), *flag,
            len(copies), address(self.array(rows)), _mask(body),
        ]  # fmt: skip
        self._nested("while", words, _HEAVY)

    def branch(self, number: Place, programs: Sequence[Program]) -> None:
        """Run one of ``programs``: the int32 at ``number``, which is brought into range."""
        rows = [word for program in programs for word in self._program(program)]
        words = [*number, len(programs) - 1, address(self.array(rows))]
        self._nested("branch", words, max(program.code.points for program in programs))

    def _nested(self, kind: str, words: Sequence[int], points: int) -> None:
        self._nests.append(_NESTS[kind])
        self.words += [_NEST, native_function(f"gf_{kind}"), address(self.array(words))]
        self.points += points

    def _body(self, body: Code, table: Sequence[Turns]) -> tuple[int, int, int, int]:
        rows = [word for row in table for word in row.words()]
        registers = self.array([0] * len(table))
        return body.finish(self), address(registers), len(table), address(self.array(rows))

    def _program(self, program: Program) -> tuple[int, int, int, int]:
        rows = [word for place in program.registers for word in place]
        registers = self.array([0] * len(program.registers))
        code = program.code.finish(self)
        return code, address(registers), len(program.registers), address(self.array(rows))

    def listing(self, names: Mapping[int, str]) -> list[str]:
        """The instructions for people, a line each.

        Args:
            names: of functions, by their addresses.
        """
        lines, k = [], 0
        nests = iter(self._nests)
        while k < len(self.words):
            operation, *rest = self.words[k : k + _LONGEST]
            if operation == _SET:
                place, register, offset = rest[:3]
                lines.append(f"word {place} = array {register} + {offset} bytes")
                k += 4
            elif operation == _RUN:
                function, block, extent, chunk = rest
                name = names.get(function, "a function of the runtime")
                lines.append(f"run {name} with the words from {block}, {extent} indices, "
                             f"{chunk} at a time")  # fmt: skip
                k += _LONGEST
            elif operation == _LOOK:
                k += 1
            else:
                lines.append(next(nests))
                k += 3
        return lines

    def finish(self, owner: Code) -> int:
        """The address of the finished program, which lives as long as ``owner``."""
        if owner is not self:
            owner.kept.append(self)
        data, words = self.array(self.data), [*self.words, _END]
        start = address(data)
        for k in self._named:
            words[k] = words[k] * _WORD + start
        for k in self._tabled:
            data[k] = self.data[k] * _WORD + start
        return address(self.array(words))


def _mask(body: Code) -> int:
    """Iterations between two looks at signals, a power of 2, less 1."""
    turns = min(_HEAVY // max(body.points, 1), _LIGHT_TURNS)
    return (1 << max(turns.bit_length() - 1, 0)) - 1


@record
class Program:
    """A program inside another one, and where its registers point."""

    code: Code
    registers: tuple[Place, ...]


@record
class Turns:
    """A register of a loop's body: its location in the first, in odd and in even later iterations.

    ``stride`` is how many bytes it moves with each element.
    """

    first: Place
    odd: Place
    even: Place
    stride: int = 0

    def words(self) -> tuple[int, ...]:
        """The row of the loop's table."""
        return (*self.first, *self.odd, *self.even, self.stride)


def always(place: Place, stride: int = 0) -> Turns:
    """A register that does not alternate."""
    return Turns(place, place, place, stride)


@record
class Copy:
    """A carry of a while loop that is not in its output after an even number of iterations."""

    target: Place
    first: Place
    even: Place
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


# Below this many points a call is too short to give other threads the GIL.
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
        The function, which trusts its arguments, and the objects that must be kept alive with it.
    """
    places = np.zeros(max(registers, 1), np.int64)
    start = code.finish(code)
    block = np.array([start, address(places), int(code.points > _SHORT)], np.int64)
    call = _Call(code, block, places)
    if not has_known_layout():
        return _plain_call(start, places, runtime), call
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


def _plain_call(start: int, places: np.ndarray, runtime: NativeRuntime) -> Callable[..., None]:
    """The same through ctypes, where the layout of NumPy's arrays is not the known one."""
    prototype = ctypes.PYFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3)
    execute = prototype(runtime.addresses["gf_execute"])
    state = np.zeros(4, np.int64)

    def call(*arrays: np.ndarray) -> None:
        for k, data in enumerate(arrays):
            places[k] = address(data)
        state[2:] = 0, threading.get_ident()
        execute(start, address(places), address(state))

    return call
