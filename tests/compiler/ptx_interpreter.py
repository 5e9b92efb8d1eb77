"""Run PTX on NumPy arrays: a test aid that shows what a kernel's PTX computes, without a GPU.

    Interpreter(ptx).launch(grid=(2, 1), block=(256, 1), arguments=[x, out, np.int64(x.size)])

All threads of the grid are the lanes of NumPy arrays. Each lane has a program counter; of the lanes
that can run, those with the lowest one execute the next instruction, which brings structured code
back together after a branch. Pointers are the addresses of the arrays that are passed.

What is checked: bounds and alignment of every access; that no store hits an argument marked
read-only (``array.flags.writeable``); that a shuffle has all 32 lanes; that all threads of a block
wait at the same barrier; and that no thread touches shared memory that another one has written, or
writes what another one has read, since the last barrier. Not modeled: timing, the rounding of
approximate instructions, the order of global memory accesses.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray

DTYPES = {
    "pred": np.dtype(np.bool_),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
for _bits in (8, 16, 32, 64):
    DTYPES[f"u{_bits}"] = DTYPES[f"b{_bits}"] = np.dtype(f"u{_bits // 8}")
    DTYPES[f"s{_bits}"] = np.dtype(f"i{_bits // 8}")

SHARED_WINDOW = 1 << 60
LOCAL_WINDOW = 1 << 61
WARP = 32


class PtxError(RuntimeError):
    """The kernel did something that a GPU forbids, or that this interpreter does not know."""


@dataclass(frozen=True)
class Instruction:
    """One instruction: ``@guard name.modifiers operands``."""

    name: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]
    guard: str
    text: str

    def dtype(self, place: int = -1) -> np.dtype:
        """The type that the modifiers name, by default the last one."""
        return [DTYPES[m] for m in self.modifiers if m in DTYPES][place]


@dataclass
class Program:
    """A parsed kernel."""

    parameters: list[tuple[str, np.dtype]]
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    registers: dict[str, np.dtype] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    local: dict[str, int] = field(default_factory=dict)
    tables: dict[str, Array] = field(default_factory=dict)
    shared_bytes: int = 0
    local_bytes: int = 0


def parse(ptx: str) -> Program:
    """Read the only kernel of a PTX module."""
    ptx = re.sub(r"//[^\n]*|/\*.*?\*/", "", ptx, flags=re.DOTALL)
    found = re.search(r"\.entry\s+[\w$]+\s*\(([^)]*)\)[^{]*\{(.*)\}", ptx, re.DOTALL)
    if found is None:
        raise PtxError("there is no .entry")
    program = Program(_parse_parameters(found[1]))
    for module_part in (ptx[: found.start()], found[2]):
        _parse_memory(module_part, program)
    body = re.sub(r"([\w$]+):", r" @@\1 ; ", found[2])
    for statement in re.split(r";", body):
        _parse_statement(" ".join(re.sub(r"^[\s{}]+", "", statement).split()), program)
    return program


def _parse_parameters(text: str) -> list[tuple[str, np.dtype]]:
    parameters = []
    for declaration in filter(None, (part.strip() for part in text.split(","))):
        dtype = re.match(r"\.param\s+\.(\w+)", declaration)
        assert dtype is not None, declaration
        parameters.append((declaration.split()[-1], DTYPES[dtype[1]]))
    return parameters


def _parse_memory(text: str, program: Program) -> None:
    """Shared and local arrays get places in their windows; constant tables become arrays."""
    declared = r"\.(shared|local|global|const)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)"
    for space, align, dtype, name, count, values in re.findall(
        declared + r"(?:\[(\d*)\])?(?:\s*=\s*\{([^}]*)\})?\s*;", text
    ):
        size = int(count or 1) * DTYPES[dtype].itemsize
        if space in ("global", "const"):
            numbers = [int(value, 0) for value in values.split(",")] if values else []
            program.tables[name] = np.array(numbers).astype(DTYPES[dtype])
            continue
        used = program.shared_bytes if space == "shared" else program.local_bytes
        place = -(-used // int(align or 1)) * int(align or 1)
        getattr(program, space)[name] = place
        setattr(program, f"{space}_bytes", place + size)


def _parse_statement(statement: str, program: Program) -> None:
    if statement.startswith("@@"):
        program.labels[statement[2:].strip()] = len(program.instructions)
        return
    if statement.startswith(".reg"):
        _, dtype, names = statement.split(None, 2)
        for name in names.split(","):
            program.registers[name.strip().partition("<")[0]] = DTYPES[dtype[1:]]
        return
    if not statement or statement.startswith("."):
        return
    guard, rest = re.fullmatch(r"(?:@(!?[%\w]+)\s+)?(.*)", statement).groups()
    name, _, operands = rest.partition(" ")
    parts = name.split(".")
    split = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", operands)
    program.instructions.append(
        Instruction(parts[0], tuple(parts[1:]), tuple(split), guard or "", statement)
    )


class Interpreter:
    """A kernel that can be launched on NumPy arrays."""

    def __init__(self, ptx: str) -> None:
        self.program = parse(ptx)

    def launch(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Any],
        memory: Sequence[Array] = (),
    ) -> int:
        """Run the whole grid; returns the number of instructions that were issued.

        Args:
            grid: blocks in x and y.
            block: threads in x and y.
            arguments: for every pointer an array, or a pair of one and the position that is
                pointed to; a number for every other parameter.
            memory: further arrays that the kernel may reach through addresses in memory.
        """
        run = _Run(self.program, (*grid, 1)[:2], (*block, 1)[:2])
        for array in memory:
            run.add_buffer(array, array.flags.writeable)
        for (name, dtype), argument in zip(self.program.parameters, arguments, strict=True):
            run.parameters[name] = np.array([run.argument(argument)]).astype(dtype)
        return run.run()


class _Run:
    """The state of one launch."""

    def __init__(self, program: Program, grid: Sequence[int], block: Sequence[int]) -> None:
        self.program = program
        threads = block[0] * block[1]
        self.count = threads * grid[0] * grid[1]
        lane = np.arange(self.count)
        thread, self.block = lane % threads, lane // threads
        # Unused lanes of a last, partial warp do not exist here; kernels use whole warps.
        self.special = {
            "%tid.x": thread % block[0], "%tid.y": thread // block[0],
            "%ctaid.x": self.block % grid[0], "%ctaid.y": self.block // grid[0],
            "%ntid.x": lane * 0 + block[0], "%ntid.y": lane * 0 + block[1],
            "%nctaid.x": lane * 0 + grid[0], "%nctaid.y": lane * 0 + grid[1],
            "%laneid": thread % WARP,
        }  # fmt: skip
        self.registers: dict[str, Array] = {}
        self.parameters: dict[str, Array] = {}
        self.buffers: list[tuple[int, int, bool]] = []  # address, bytes, writable
        self.kept: list[Array] = []
        self.tables = {name: self.add_buffer(t, False) for name, t in program.tables.items()}
        blocks = grid[0] * grid[1]
        self.shared = np.zeros((blocks, program.shared_bytes + 16), np.uint8)
        self.local = np.zeros((self.count, program.local_bytes + 16), np.uint8)
        self.races = _Races(self.shared.shape)
        self.active = lane

    def add_buffer(self, array: Array, writable: bool) -> int:
        """Make a contiguous array's memory addressable; gives its address."""
        self.buffers.append((array.ctypes.data, array.nbytes, writable))
        self.buffers.sort(key=lambda buffer: buffer[0])
        self.kept.append(array)
        return array.ctypes.data

    def argument(self, given: Any) -> Any:
        """The number that a parameter holds."""
        if isinstance(given, tuple):
            array, position = given
            return self.add_buffer(array, array.flags.writeable) + position * array.itemsize
        if isinstance(given, np.ndarray) and given.ndim:
            return self.add_buffer(given, given.flags.writeable)
        return given

    # Control

    def run(self) -> int:
        """Execute until every lane has returned."""
        instructions = self.program.instructions
        end = len(instructions)
        counter = np.zeros(self.count, np.int64)
        waiting = np.zeros(self.count, bool)  # at a barrier of the block
        held = np.zeros(self.count, bool)  # at a shuffle, for the rest of the warp
        issued = 0
        while True:
            runnable = ~waiting & ~held & (counter < end)
            if not runnable.any():
                if held.any():
                    raise PtxError("a shuffle must have all lanes of its warp")
                if not waiting.any():
                    return issued
                self._release(counter, waiting)
                continue
            place = int(counter[runnable].min())
            here = ~waiting & (counter == place)
            if instructions[place].name == "shfl":
                complete = here.reshape(-1, WARP).all(axis=1).repeat(WARP)
                held = (held | here) & ~(here & complete)
                here &= complete
            self.active = np.flatnonzero(here)
            if len(self.active):
                after = self._step(instructions[place], place, waiting, end)
                counter[self.active] = after
                issued += 1

    def _release(self, counter: Array, waiting: Array) -> None:
        """All lanes that have not returned wait: let them pass the barrier."""
        for block in np.unique(self.block[waiting]):
            places = np.unique(counter[waiting & (self.block == block)])
            if len(places) > 1:
                raise PtxError("threads of one block wait at different barriers")
            self.races.next_epoch(block)
        waiting[:] = False

    def _step(self, i: Instruction, place: int, waiting: Array, end: int) -> Any:
        """Execute one instruction on the active lanes; gives where they go next."""
        taken = self.guard(i)
        if i.name == "bra":
            return np.where(taken, self.program.labels[i.operands[-1]], place + 1)
        if i.name in ("ret", "exit"):
            return np.where(taken, end, place + 1)
        lanes = self.active
        if i.name in ("bar", "barrier") and "warp" not in i.modifiers:
            waiting[lanes] = True
            return place + 1
        self.active = lanes[taken]
        if len(self.active):
            handler = HANDLERS.get(i.name)
            if handler is None:
                raise PtxError(f"unknown instruction: {i.text}")
            try:
                with np.errstate(all="ignore"):
                    handler(self, i)
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise PtxError(f"{i.text}: {type(error).__name__} {error}") from error
        self.active = lanes
        return place + 1

    def guard(self, i: Instruction) -> Array:
        """Whether each active lane executes the instruction."""
        if not i.guard:
            return np.ones(len(self.active), bool)
        value = self.read(i.guard.lstrip("!"), DTYPES["pred"])
        return ~value if i.guard.startswith("!") else value

    # Registers

    def register_dtype(self, name: str) -> np.dtype:
        """The declared type of a register, as unsigned bits."""
        declared = self.program.registers.get(name)
        if declared is None:
            declared = self.program.registers[name.rstrip("0123456789")]
        return declared if declared == np.bool_ else np.dtype(f"u{declared.itemsize}")

    def read(self, operand: str, dtype: np.dtype) -> Array:
        """The value of an operand on the active lanes, as ``dtype``."""
        if operand.startswith("0f") or operand.startswith("0d"):
            bits = np.array(int(operand[2:], 16)).astype("u4" if operand[1] == "f" else "u8")
            if dtype.kind == "f":
                bits = bits.view("f4" if operand[1] == "f" else "f8")
            return np.full(len(self.active), bits).astype(dtype)
        if operand in self.special:
            return self.special[operand][self.active].astype(dtype)
        if operand in self.program.shared:
            return np.full(len(self.active), self.program.shared[operand]).astype(dtype)
        if operand in self.program.local:
            return np.full(len(self.active), self.program.local[operand]).astype(dtype)
        if operand in self.tables:
            return np.full(len(self.active), self.tables[operand]).astype(dtype)
        if re.fullmatch(r"-?(0x)?[0-9A-Fa-f]+U?", operand):
            number = int(operand.rstrip("U"), 0)
            if dtype.kind == "f":
                return np.full(len(self.active), number, dtype)
            wrapped = number & ((1 << (8 * dtype.itemsize)) - 1)
            return np.full(len(self.active), wrapped, f"u{dtype.itemsize}").view(dtype)
        return self._from_bits(self._all_lanes(operand)[self.active], dtype)

    @staticmethod
    def _from_bits(bits: Array, dtype: np.dtype) -> Array:
        """A register's bits as a type; a narrower type takes the low bits."""
        if bits.dtype == np.bool_ or dtype == np.bool_:
            return bits.astype(dtype)
        return bits.astype(f"u{dtype.itemsize}").view(dtype)

    def _all_lanes(self, name: str) -> Array:
        if name not in self.registers:
            self.registers[name] = np.zeros(self.count, self.register_dtype(name))
        return self.registers[name]

    def write(self, name: str, value: Array) -> None:
        """Set a register on the active lanes; a wider register is extended by the value's sign."""
        if name == "_":
            return
        bits = self._all_lanes(name)
        value = np.ascontiguousarray(value)
        if bits.dtype == np.bool_ or value.dtype == np.bool_:
            bits[self.active] = value.astype(bits.dtype)
            return
        if value.dtype.kind not in "iu":
            value = value.view(f"u{value.dtype.itemsize}")
        bits[self.active] = value.astype(bits.dtype)

    # Memory

    def address(self, operand: str) -> tuple[Array, str]:
        """The addresses of ``[register+offset]``, and the base's name."""
        base, offset = re.fullmatch(r"\[([%\w$]+)\+?(-?\d+)?\]", operand).groups()
        step = np.array(int(offset or 0) & (2**64 - 1), np.uint64)
        return self.read(base, DTYPES["u64"]) + step, base

    def memory(
        self, space: str, at: Array, size: int, text: str, write: bool
    ) -> tuple[Array, Array]:
        """The flat bytes that addresses lie in, and their places there."""
        places = at.astype(np.int64)
        if (places % size).any():
            raise PtxError(f"misaligned {size}-byte access: {text}")
        window = places[0] >> 60
        if space == "shared" or (space == "" and window == SHARED_WINDOW >> 60):
            places = places & (SHARED_WINDOW - 1)
            self._check_bounds(places, size, self.program.shared_bytes, text)
            self.races.access(self.block[self.active], places, size, self.active, write, text)
            return self.shared.reshape(-1), self.block[self.active] * self.shared.shape[1] + places
        if space == "local" or (space == "" and window == LOCAL_WINDOW >> 60):
            places = places & (SHARED_WINDOW - 1)
            self._check_bounds(places, size, self.program.local_bytes, text)
            return self.local.reshape(-1), self.active * self.local.shape[1] + places
        return self._global(places, size, text, write)

    def _global(self, places: Array, size: int, text: str, write: bool) -> tuple[Array, Array]:
        """Each lane's access must lie in one of the buffers; the bytes are all of memory."""
        bases = np.array([base for base, _, _ in self.buffers])
        ends = np.array([base + length for base, length, _ in self.buffers])
        which = np.searchsorted(bases, places, side="right") - 1
        outside = (which < 0) | (places + size > ends[which])
        if outside.any():
            lane = int(np.argmax(outside))
            reach = f"byte {places[lane] - bases[which[lane]]} of {(ends - bases)[which[lane]]}"
            raise PtxError(f"out of bounds, {reach}: {text}")
        writable = np.array([flag for _, _, flag in self.buffers])
        if write and not writable[which].all():
            raise PtxError(f"store to a read-only argument: {text}")
        span = (ctypes.c_uint8 * int(ends.max() - bases[0])).from_address(int(bases[0]))
        return np.ctypeslib.as_array(span), places - bases[0]

    @staticmethod
    def _check_bounds(places: Array, size: int, limit: int, text: str) -> None:
        if places.min() < 0 or places.max() + size > limit:
            reach = f"bytes {places.min()} to {places.max() + size} of {limit}"
            raise PtxError(f"out of bounds, {reach}: {text}")


class _Races:
    """Who has touched each byte of shared memory since the last barrier of its block."""

    MANY = -2

    def __init__(self, shape: tuple[int, int]) -> None:
        self.reader = np.full(shape, -1)
        self.writer = np.full(shape, -1)

    def next_epoch(self, block: int) -> None:
        self.reader[block] = -1
        self.writer[block] = -1

    def access(
        self, block: Array, places: Array, size: int, lanes: Array, write: bool, text: str
    ) -> None:
        rows, columns = block[:, None], places[:, None] + np.arange(size)
        who = np.broadcast_to(lanes[:, None], columns.shape)
        written = self.writer[rows, columns]
        clash = (written != -1) & (written != who)
        if write:
            read = self.reader[rows, columns]
            clash |= (read != -1) & (read != who)
            self.writer[rows, columns] = who
            clash |= self.writer[rows, columns] != who
        else:
            read = self.reader[rows, columns]
            self.reader[rows, columns] = np.where((read == -1) | (read == who), who, self.MANY)
            others = self.reader[rows, columns] != who
            self.reader[rows, columns] = np.where(others, self.MANY, who)
        if clash.any():
            raise PtxError(f"race in shared memory: {text}")


Handler = Callable[[_Run, Instruction], None]
HANDLERS: dict[str, Handler] = {}


def handles(*names: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


def _wide(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")


def _flush(value: Array, i: Instruction) -> Array:
    """Subnormal float32 become zero where the instruction says .ftz."""
    if "ftz" not in i.modifiers or value.dtype != np.float32:
        return value
    return np.where(np.abs(value) < np.finfo(np.float32).tiny, np.copysign(0, value), value).astype(
        value.dtype
    )


def _inputs(run: _Run, i: Instruction, dtype: np.dtype) -> list[Array]:
    return [_flush(run.read(operand, dtype), i) for operand in i.operands[1:]]


def _rounded(exact: Array, dtype: np.dtype, i: Instruction) -> Array:
    """Round a wider result as the instruction says; to nearest where it says nothing."""
    result = exact.astype(dtype)
    how = next((m for m in i.modifiers if m in ("rz", "rm", "rp")), "rn")
    if how == "rn":
        return result
    too_high = {"rz": np.abs(result) > np.abs(exact), "rm": result > exact}.get(how)
    if too_high is None:
        raise PtxError(f"rounding up is not known: {i.text}")
    toward = 0 if how == "rz" else -np.inf
    return np.where(too_high, np.nextafter(result, dtype.type(toward)), result)


def _wide_float(dtype: np.dtype) -> type:
    return np.float64 if dtype == np.float32 else np.longdouble


BINARY = {
    "add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "copysign": lambda sign, x: np.copysign(x, sign),
}  # fmt: skip


@handles(*BINARY)
def _binary(run: _Run, i: Instruction) -> None:
    if "cc" in i.modifiers:
        raise PtxError(f"carry chains are not known: {i.text}")
    x, y = _inputs(run, i, i.dtype())
    if x.dtype.kind == "f" and i.name in ("add", "sub"):
        wide = _wide_float(x.dtype)
        result = _rounded(BINARY[i.name](x.astype(wide), y.astype(wide)), x.dtype, i)
    else:
        result = BINARY[i.name](x, y)
    run.write(i.operands[0], _flush(result, i))


def _approximately(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: function(x.astype(np.float64)).astype(x.dtype)


UNARY: dict[str, Callable[[Array], Array]] = {
    "mov": lambda x: x,
    "not": np.invert,
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "rcp": lambda x: (1 / x).astype(x.dtype),
    "rsqrt": _approximately(lambda x: 1 / np.sqrt(x)),
    "ex2": _approximately(np.exp2),
    "lg2": _approximately(np.log2),
    "sin": _approximately(np.sin),
    "cos": _approximately(np.cos),
    "tanh": _approximately(np.tanh),
    "popc": lambda x: np.bitwise_count(x).astype(np.uint32),
    "clz": lambda x: np.array([8 * x.itemsize - int(v).bit_length() for v in x], np.uint32),
    "brev": lambda x: np.array(
        [int(f"{int(v):0{8 * x.itemsize}b}"[::-1], 2) for v in x], x.dtype
    ),
}


@handles(*UNARY)
def _unary(run: _Run, i: Instruction) -> None:
    target, source = i.operands
    if target.startswith("{") or source.startswith("{"):
        _pack(run, target, source, i.dtype())
        return
    run.write(target, _flush(UNARY[i.name](*_inputs(run, i, i.dtype())), i))


def _pack(run: _Run, target: str, source: str, dtype: np.dtype) -> None:
    """Split a register into several, or join several, lowest bits first."""
    braced = target if target.startswith("{") else source
    names = [name.strip() for name in braced.strip("{}").split(",")]
    part = np.dtype(f"u{dtype.itemsize // len(names)}")
    if target.startswith("{"):
        parts = run.read(source, dtype).view(part).reshape(-1, len(names))
        for place, name in enumerate(names):
            run.write(name, parts[:, place])
        return
    joined = np.stack([run.read(name, part) for name in names], axis=1)
    run.write(target, np.ascontiguousarray(joined).view(f"u{dtype.itemsize}").reshape(-1))


def _multiply_floats(x: Array, y: Array, added: Array, i: Instruction) -> Array:
    """x * y + added with one rounding."""
    if x.dtype == np.float64 and i.name == "fma" and "rn" in i.modifiers:
        product = x * y
        total = product + added
        part = total - product
        lost = (product - (total - part)) + (added - part)  # Knuth's exact sum
        lost = lost + _product_error(x, y, product)
        exact = np.isfinite(lost) & (lost != 0)  # adding 0 would lose the sign of zero
        return np.where(exact, total + lost, total)
    wide = _wide_float(x.dtype)
    exact = x.astype(wide) * y.astype(wide)
    # A product alone must keep the sign of zero.
    return _rounded(exact if i.name == "mul" else exact + added.astype(wide), x.dtype, i)


def _product_error(x: Array, y: Array, product: Array) -> Array:
    """What x * y lost in rounding: Dekker's product of halves, exact without overflow."""
    halves = []
    for value in (x, y):
        scaled = value * 134217729.0  # 2**27 + 1
        high = scaled - (scaled - value)
        halves.append((high, value - high))
    (x1, x2), (y1, y2) = halves
    return x2 * y2 - (((product - x1 * y1) - x2 * y1) - x1 * y2)


@handles("mul", "mad", "fma", "mul24")
def _multiply(run: _Run, i: Instruction) -> None:
    dtype = i.dtype()
    x, y = (_flush(run.read(operand, dtype), i) for operand in i.operands[1:3])
    if dtype.kind == "f":
        added = dtype.type(0)
        if i.name != "mul":
            added = _flush(run.read(i.operands[3], dtype), i)
        run.write(i.operands[0], _flush(_multiply_floats(x, y, added, i), i))
        return
    if "wide" in i.modifiers:
        dtype = _wide(dtype)
        result = x.astype(dtype) * y.astype(dtype)
    elif "hi" in i.modifiers:
        bits = 8 * dtype.itemsize
        result = ((x.astype(object) * y.astype(object)) >> bits).astype(dtype)
    else:
        result = x * y
    if len(i.operands) == 4:
        result = result + run.read(i.operands[3], dtype)
    run.write(i.operands[0], result)


@handles("div", "rem")
def _divide(run: _Run, i: Instruction) -> None:
    dtype = i.dtype()
    x, y = _inputs(run, i, dtype)
    if dtype.kind == "f":
        run.write(i.operands[0], _flush(x / y, i))
        return
    if (y == 0).any():
        raise PtxError(f"integer division by zero: {i.text}")
    if dtype.kind == "i" and ((x == np.iinfo(dtype).min) & (y == -1)).any():
        raise PtxError(f"integer division overflows: {i.text}")
    rest = np.fmod(x, y)
    run.write(i.operands[0], rest if i.name == "rem" else (x - rest) // y)


@handles("min", "max")
def _extreme(run: _Run, i: Instruction) -> None:
    x, y = _inputs(run, i, i.dtype())
    result = {"min": np.fmin, "max": np.fmax}[i.name](x, y)
    if x.dtype.kind == "f":
        both_zero = (x == 0) & (y == 0)
        zero = np.where(np.signbit(x) == (i.name == "min"), x, y)
        result = np.where(both_zero, zero, result)
        if "NaN" in i.modifiers:
            result = np.where(np.isnan(x) | np.isnan(y), np.nan, result)
    run.write(i.operands[0], result.astype(x.dtype))


@handles("shl", "shr")
def _shift(run: _Run, i: Instruction) -> None:
    dtype = i.dtype()
    x, distance = run.read(i.operands[1], dtype), run.read(i.operands[2], DTYPES["u32"])
    bits = 8 * dtype.itemsize
    short = np.minimum(distance, bits - 1).astype(dtype)
    shifted = x << short if i.name == "shl" else x >> short
    if i.name == "shl" or dtype.kind == "u":
        shifted = np.where(distance >= bits, 0, shifted).astype(dtype)
    run.write(i.operands[0], shifted)


@handles("shf")
def _funnel_shift(run: _Run, i: Instruction) -> None:
    low, high, distance = (x.astype(np.uint64) for x in _inputs(run, i, DTYPES["u32"]))
    distance = np.minimum(distance, 32) if "clamp" in i.modifiers else distance & 31
    both = high << np.uint64(32) | low
    left = (both << distance) >> np.uint64(32)
    run.write(i.operands[0], left if "l" in i.modifiers else both >> distance)


@handles("bfe")
def _extract(run: _Run, i: Instruction) -> None:
    x, start, length = i.operands[1:]
    if i.dtype().kind != "u":
        raise PtxError(f"only unsigned bit fields are known: {i.text}")
    value = run.read(x, i.dtype()) >> run.read(start, i.dtype())
    ones = (np.uint64(1) << run.read(length, DTYPES["u64"])) - np.uint64(1)
    run.write(i.operands[0], value.astype(np.uint64) & ones)


@handles("bfi")
def _insert(run: _Run, i: Instruction) -> None:
    dtype = i.dtype()
    field_, base = run.read(i.operands[1], dtype), run.read(i.operands[2], dtype)
    start, length = (run.read(operand, dtype) for operand in i.operands[3:])
    mask = ((dtype.type(1) << length) - dtype.type(1)) << start
    run.write(i.operands[0], (base & ~mask) | ((field_ << start) & mask))


@handles("prmt")
def _permute(run: _Run, i: Instruction) -> None:
    low, high, choice = (x.astype(np.uint64) for x in _inputs(run, i, DTYPES["u32"]))
    both = high << np.uint64(32) | low
    result = np.zeros_like(both)
    for place in range(4):
        nibble = choice >> np.uint64(4 * place) & np.uint64(15)
        byte = both >> (nibble & np.uint64(7)) * np.uint64(8) & np.uint64(255)
        sign = np.where(byte >> np.uint64(7), np.uint64(255), np.uint64(0))
        result |= np.where(nibble >> np.uint64(3), sign, byte) << np.uint64(8 * place)
    run.write(i.operands[0], result)


@handles("lop3")
def _logic(run: _Run, i: Instruction) -> None:
    a, b, c = (run.read(operand, DTYPES["u32"]) for operand in i.operands[1:4])
    table = int(i.operands[4], 0)
    result = np.zeros_like(a)
    for case in range(8):
        if table >> case & 1:
            bits = [x if case >> (2 - n) & 1 else ~x for n, x in enumerate((a, b, c))]
            result |= bits[0] & bits[1] & bits[2]
    run.write(i.operands[0], result)


COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
    "hs": np.greater_equal,
}  # fmt: skip


@handles("setp")
def _compare(run: _Run, i: Instruction) -> None:
    x, y = (_flush(run.read(operand, i.dtype()), i) for operand in i.operands[1:3])
    how = i.modifiers[0]
    unordered = np.isnan(x) | np.isnan(y) if x.dtype.kind == "f" else np.zeros(x.shape, bool)
    if how in ("nan", "num"):
        result = unordered if how == "nan" else ~unordered
    elif how in COMPARE:
        result = COMPARE[how](x, y) & ~unordered
    else:
        result = COMPARE[how.removesuffix("u")](x, y) | unordered
    if len(i.operands) == 4:
        third = run.read(i.operands[3].lstrip("!"), DTYPES["pred"])
        third = ~third if i.operands[3].startswith("!") else third
        logic = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
        result = logic[i.modifiers[1]](result, third)
    run.write(i.operands[0], result)


@handles("selp")
def _select(run: _Run, i: Instruction) -> None:
    chosen = run.read(i.operands[3], DTYPES["pred"])
    x, y = (run.read(operand, i.dtype()) for operand in i.operands[1:3])
    run.write(i.operands[0], np.where(chosen, x, y))


@handles("cvta")
def _convert_address(run: _Run, i: Instruction) -> None:
    window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}
    space = next((m for m in i.modifiers if m in window), "")
    base = np.uint64(window.get(space, 0))
    at = run.read(i.operands[1], DTYPES["u64"])
    run.write(i.operands[0], at - base if "to" in i.modifiers else at + base)


ROUND = {"i": {"z": np.trunc, "n": np.rint, "m": np.floor, "p": np.ceil}}


@handles("cvt")
def _convert(run: _Run, i: Instruction) -> None:
    target, source = (DTYPES[m] for m in i.modifiers if m in DTYPES or m == "bf16x2")
    x = _flush(run.read(i.operands[1], source), i)
    to_whole = next((m[1] for m in i.modifiers if re.fullmatch(r"r[znmp]i", m)), "")
    if to_whole and source.kind == "f":
        x = ROUND["i"][to_whole](x)
    if source.kind == "f" and target.kind in "iu":
        x = _saturate(x, target)
    if "sat" in i.modifiers and target.kind == "f":
        x = np.clip(x, 0, 1)
    result = _flush(x.astype(target), i)
    if target.kind in "iu":
        run.write(i.operands[0], result)
        return
    run.write(i.operands[0], result.view(f"u{target.itemsize}"))


def _saturate(x: Array, target: np.dtype) -> Array:
    """Float to int as cvt does it: out of range saturates; nan is 0, or odd for 64 bits."""
    bounds = np.iinfo(target)
    wide = x.astype(np.float64)
    low, high = wide <= float(bounds.min), wide >= float(bounds.max)
    inside = np.where(low | high | np.isnan(wide), 0, wide).astype(target)
    nan = 1 << 63 if target.itemsize == 8 else 0
    nan = np.array(nan, np.uint64).astype(target)
    result = np.where(low, bounds.min, np.where(high, bounds.max, inside)).astype(target)
    return np.where(np.isnan(wide), nan, result)


@handles("ld")
def _load(run: _Run, i: Instruction) -> None:
    dtype, target = i.dtype(), i.operands[0]
    if "param" in i.modifiers:
        value = run.parameters[i.operands[1].strip("[]")]
        run.write(target, np.broadcast_to(value, len(run.active)))
        return
    names = [name.strip() for name in target.strip("{}").split(",")]
    memory, places = _locate(run, i, i.operands[1], dtype.itemsize * len(names), write=False)
    for number, name in enumerate(names):
        at = places[:, None] + number * dtype.itemsize + np.arange(dtype.itemsize)
        run.write(name, np.ascontiguousarray(memory[at]).view(dtype).reshape(-1))


@handles("st")
def _store(run: _Run, i: Instruction) -> None:
    dtype = i.dtype()
    names = [name.strip() for name in i.operands[1].strip("{}").split(",")]
    memory, places = _locate(run, i, i.operands[0], dtype.itemsize * len(names), write=True)
    for number, name in enumerate(names):
        at = places[:, None] + number * dtype.itemsize + np.arange(dtype.itemsize)
        value = np.ascontiguousarray(run.read(name, dtype))
        memory[at] = value.view(np.uint8).reshape(-1, dtype.itemsize)


def _locate(
    run: _Run, i: Instruction, operand: str, size: int, write: bool
) -> tuple[Array, Array]:
    space = next((m for m in i.modifiers if m in ("global", "shared", "local", "const")), "")
    at, _ = run.address(operand)
    return run.memory(space, at, size, i.text, write)


@handles("shfl")
def _shuffle(run: _Run, i: Instruction) -> None:
    target, source, distance = i.operands[0].partition("|")[0], i.operands[1], i.operands[2]
    if "bfly" not in i.modifiers:
        raise PtxError(f"only shfl.bfly is known: {i.text}")
    run.write(target, run._all_lanes(source)[run.active ^ int(distance)])


@handles("atom")
def _atomic(run: _Run, i: Instruction) -> None:
    if "inc" not in i.modifiers:
        raise PtxError(f"only atom.inc is known: {i.text}")
    dtype = i.dtype()
    memory, places = _locate(run, i, i.operands[1], dtype.itemsize, write=True)
    last = run.read(i.operands[2], dtype)
    old = np.empty(len(places), dtype)
    for lane, place in enumerate(places):
        # Memory as a whole has no alignment: it starts at whichever buffer comes first.
        word = memory[place : place + dtype.itemsize].view(dtype)
        old[lane] = word[0]
        word[0] = 0 if old[lane] >= last[lane] else old[lane] + 1
    run.write(i.operands[0], old)


@handles("membar", "fence", "bar", "barrier")
def _nothing(run: _Run, i: Instruction) -> None:
    """Global memory is always in order here; bar.warp.sync has all its lanes."""
    del run, i
