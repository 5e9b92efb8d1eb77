"""Tensor cores: mma, ldmatrix, stmatrix and movmatrix.

A product of matrices is modeled as exact products, summed in float64 and rounded once to the type
of the accumulator; a GPU keeps fewer bits in between, so that its results differ in the last
digits. The layouts are those of the PTX manual, "Matrix fragments for mma".

Tests: tests/ptxsim/test_ptx_memory.py.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ptxsim import rounding
from ptxsim.frame import Frame, Step
from ptxsim.geometry import WARP
from ptxsim.instruction_table import WHOLE_WARP, instruction
from ptxsim.memory_access import Access
from ptxsim.shared import READ, WRITE
from ptxsim.site import Site
from ptxsim.types import BF16, F16, F32, F64, U16, U32, Array

_LANE = np.arange(WARP)
_ROW, _COLUMN = _LANE // 4, _LANE % 4  # "group" and "thread in group"
_INPUTS = {"bf16": BF16, "f16": F16, "tf32": F32}


def _whole_warps(frame: Frame) -> None:
    """Require all 32 lanes of every warp of the frame."""
    lanes = frame.lane_ids()
    whole = frame.run.geometry.whole_warps and frame.count % WARP == 0
    if whole:
        warps = lanes.reshape(-1, WARP)
        whole = np.array_equal(warps, warps[:, :1] + _LANE)
    if not whole:
        frame.fail(
            "a matrix instruction must be executed by all 32 lanes of a warp",
            "let all lanes reach it, and launch whole warps",
        )


def _fragment(frame: Frame, slots: list[int], element: np.dtype) -> Array:
    """Registers as elements: warps x lanes x elements."""
    columns = [frame.per_lane(frame.registers[slot].view(U32)) for slot in slots]
    elements = np.ascontiguousarray(np.stack(columns, axis=1)).view(element)
    return elements.reshape(frame.count // WARP, WARP, -1)


@cache
def _fragment_positions(shape: str, operand: str, itemsize: int) -> tuple[Array, Array]:
    """The row and the column of each lane's elements."""
    k = int(shape.partition("k")[2])
    rows, columns = [], []
    if operand == "c":
        for element in range(4):
            rows.append(_ROW + 8 * (element // 2))
            columns.append(2 * _COLUMN + element % 2)
        return np.stack(rows, axis=1), np.stack(columns, axis=1)
    each = 4 // itemsize  # elements of a register
    for element in range(16 * k // WARP if operand == "a" else 8 * k // WARP):
        register, offset = divmod(element, each)
        along = each * _COLUMN + offset  # index in the reduced dimension
        if operand == "a":
            rows.append(_ROW + 8 * (register % 2))
            columns.append(along + 4 * each * (register // 2))
        else:
            rows.append(along + 4 * each * register)
            columns.append(_ROW)
    return np.stack(rows, axis=1), np.stack(columns, axis=1)


@instruction("mma", member=WHOLE_WARP)
def _multiply(site: Site) -> Step:
    """``mma.sync.aligned.m16n8k16.row.col.d.a.b.c d, a, b, c``."""
    shape = site.one_of(("m16n8k16", "m16n8k8", "m16n8k4"))
    names = site.instruction.types()
    is_supported = len(names) == 4 and names[1] in _INPUTS and names[1] == names[2]
    if not shape or not is_supported or names[0] not in ("f32", "f16") or site.has("sp"):
        site.refuse("must be of m16n8k16, k8 or k4 with bf16, f16 or tf32 operands")
    element, result, added = _INPUTS[names[1]], site.dtype(0), site.dtype(3)
    if shape == ("m16n8k16" if element == F32 else "m16n8k4"):
        site.refuse("must be of a shape that the type has")
    size = element.itemsize
    k = int(shape.partition("k")[2])
    d = site.targets(0, U32)
    a, b, c = (site.sources(position, U32) for position in (1, 2, 3))

    def step(frame: Frame) -> None:
        _whole_warps(frame)
        warps = frame.count // WARP
        left, right = np.zeros((warps, 16, k)), np.zeros((warps, k, 8))
        total = np.zeros((warps, 16, 8))
        for matrix, slots, operand, dtype in (
            (left, a, "a", element),
            (right, b, "b", element),
            (total, c, "c", added),
        ):
            rows, columns = _fragment_positions(shape, operand, size)
            values = _fragment(frame, slots, dtype)
            if element == F32 and operand != "c":  # tf32: the lower 13 bits do not count
                values = (values.view(U32) & U32.type(0xFFFFE000)).view(F32)
            matrix[:, rows, columns] = values.astype(F64)
        product = rounding.narrow(left @ right + total, result)
        rows, columns = _fragment_positions(shape, "c", size)
        values = np.ascontiguousarray(product[:, rows, columns]).view(U32)
        values = values.reshape(frame.count, len(d))
        for position, slot in enumerate(d):
            frame.registers[slot] = np.ascontiguousarray(values[:, position])

    return step


# --- matrices in shared memory -----------------------------------------------------------


@instruction("ldmatrix", member=WHOLE_WARP)
def _load_matrix(site: Site) -> Step:
    """``ldmatrix.x4.trans {d...}, [a]``: lanes 8i to 8i + 7 give the rows of matrix i."""
    if not site.has("m8n8") or not site.has("b16"):
        site.refuse("must be of m8n8 and b16")
    targets = site.targets(0, U32)
    count, transposed = len(targets), site.has("trans")
    # Each lane's row is 16 bytes; only the first 8 * count lanes' addresses count.
    rows = Access(site, 1, U32, 4, READ, "shared")
    slots = [site.temporary() for _ in range(4)]

    def gather(frame: Frame, elements: Array, index: Array) -> None:
        loaded = elements[index]
        for position, slot in enumerate(slots):
            frame.registers[slot] = np.ascontiguousarray(loaded[:, position])

    def load(frame: Frame) -> None:
        rows.run(frame, load, gather)

    def step(frame: Frame) -> None:
        _whole_warps(frame)
        for slot in slots:
            frame.registers[slot] = np.zeros(1, U32)
        lanes = np.flatnonzero(frame.lane_ids() % WARP < 8 * count)
        _run_rows(frame, lanes, load, rows.base, slots)
        data = np.stack([frame.per_lane(frame.registers[slot]) for slot in slots], axis=1)
        matrices = np.ascontiguousarray(data).view(U16).reshape(-1, 4, 8, 8)
        if transposed:
            matrices = matrices.swapaxes(2, 3)
        for position, target in enumerate(targets):
            mine = matrices[:, position][:, _ROW[:, None], 2 * _COLUMN[:, None] + np.arange(2)]
            frame.registers[target] = np.ascontiguousarray(mine).view(U32).reshape(-1)

    return step


@instruction("stmatrix", member=WHOLE_WARP)
def _store_matrix(site: Site) -> Step:
    """``stmatrix.x4.trans [a], {b...}``: the inverse of ldmatrix."""
    if not site.has("m8n8") or not site.has("b16"):
        site.refuse("must be of m8n8 and b16")
    sources = site.sources(1, U32)
    count, transposed = len(sources), site.has("trans")
    rows = Access(site, 0, U32, 4, WRITE, "shared")
    slots = [site.temporary() for _ in range(4)]

    def values(frame: Frame) -> Array:
        data = [frame.per_lane(frame.registers[slot]) for slot in slots]
        return np.stack(data, axis=1)

    def put(frame: Frame, elements: Array, index: Array) -> None:
        elements[index] = values(frame)

    def store(frame: Frame) -> None:
        rows.run(frame, store, put)

    rows.stored = values

    def step(frame: Frame) -> None:
        _whole_warps(frame)
        matrices = np.zeros((frame.count // WARP, 4, 8, 8), U16)
        for position, source in enumerate(sources):
            data = frame.per_lane(frame.registers[source].view(U32))
            pairs = np.ascontiguousarray(data).view(U16).reshape(-1, WARP, 2)
            matrices[:, position][:, _ROW[:, None], 2 * _COLUMN[:, None] + np.arange(2)] = pairs
        if transposed:
            matrices = np.ascontiguousarray(matrices.swapaxes(2, 3))
        data = matrices.view(U32).reshape(-1, 4)
        for position, slot in enumerate(slots):
            frame.registers[slot] = np.ascontiguousarray(data[:, position])
        lanes = np.flatnonzero(frame.lane_ids() % WARP < 8 * count)
        _run_rows(frame, lanes, store, rows.base, slots)

    return step


def _run_rows(frame: Frame, lanes: Array, step: Step, base: int, slots: list[int]) -> None:
    """Access the rows of the matrices that are there."""
    if len(lanes) == frame.count:
        step(frame)
    else:
        frame.run_lanes(lanes, [step], (base, *slots), slots)


@instruction("movmatrix", member=WHOLE_WARP)
def _transpose(site: Site) -> Step:
    """``movmatrix.sync.aligned.m8n8.trans.b16 d, a``."""
    source, target = site.source(1, U32), site.target(0, U32)

    def step(frame: Frame) -> None:
        _whole_warps(frame)
        data = np.ascontiguousarray(frame.per_lane(frame.registers[source].view(U32)))
        matrices = np.zeros((frame.count // WARP, 8, 8), U16)
        spots = _ROW[:, None], 2 * _COLUMN[:, None] + np.arange(2)
        matrices[:, spots[0], spots[1]] = data.view(U16).reshape(-1, WARP, 2)
        mine = matrices.swapaxes(1, 2)[:, spots[0], spots[1]]
        frame.registers[target] = np.ascontiguousarray(mine).view(U32).reshape(-1)

    return step
