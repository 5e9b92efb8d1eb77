"""Fourier transforms of lines as instructions of native programs.

A line that is alone, or too long for the cache, is a matrix of A rows and B columns (Gentleman and
Sande, Fast Fourier Transforms for Fun and Profit, 1966):

    x as [A][B]  --columns-->  [k][B], turned by e^(-2 pi i b k / (A B))  --rows, across-->  [j][k]

A length with a large factor is a convolution with a chirp, by transforms of another length, the
second of which is an inverse one (Bluestein, A Linear Filtering Approach to the Computation of
Discrete Fourier Transform, 1970).
"""

from __future__ import annotations

import numpy as np

from gpuflow.base.records import record
from gpuflow.runtime.memory import address
from gpuflow.targets.cpu.library import fourier_lengths as lengths
from gpuflow.targets.cpu.library import fourier_lines as lines_code
from gpuflow.targets.cpu.library.fourier_lines import (
    COMPLEX,
    FROM_ODD,
    FROM_REAL,
    TO_ODD,
    TO_REAL,
)
from gpuflow.targets.cpu.library.fourier_passes import (
    RADICES,
    VECTOR_BYTES,
    lanes_of,
    pass_function,
    product_function,
)
from gpuflow.targets.cpu.runtime.native.program_writer import Code, Place
from gpuflow.targets.cpu.runtime.native.services import Build, NativeServices

_ELEMENT = 2 * VECTOR_BYTES
_SMALLEST_SLOT = 1 << 16
_PART = 1 << 10  # elements of a part of a long line


@record
class Side:
    """Layout of elements: the first address, and the byte strides of elements, rows and groups."""

    place: Place
    element: int
    line: int
    group: int = 0


@record
class Lines:
    """Transforms of groups of lines.

    Attributes:
        length: of the complex transform.
        lines, groups: how many lines a group has, and how many groups there are.
        kind: of ``fourier_lines``.
        exchange: whether parts are exchanged when lines are read, and when they are written.
        factor: of all results.
        order: length of the real transform.
        turned: rows and columns of the matrix by whose ``lengths.turns`` results are multiplied.
    """

    length: int
    lines: int
    groups: int = 1
    kind: int = COMPLEX
    exchange: tuple[bool, bool] = (False, False)
    factor: float = 1.0
    order: int = 0
    turned: tuple[int, int] | None = None


def _elements(what: Lines) -> tuple[int, int]:
    """How many elements of a line are read, and how many are written."""
    length, short = what.length, what.length // 2 + 1
    return (
        {TO_REAL: length + 1, TO_ODD: short}.get(what.kind, length),
        {FROM_REAL: length + 1, FROM_ODD: short}.get(what.kind, length),
    )


class Writer:
    """Writes the instructions of one call into a program.

    Args:
        dtype: of real numbers.
    """

    def __init__(self, dtype: str, services: NativeServices, code: Code) -> None:
        self.dtype, self.services, self.code = dtype, services, code
        self.size = np.dtype(dtype).itemsize
        self.unit = 2 * self.size

    def _function(self, what: Lines, source: Side, target: Side) -> tuple[str, int, bool]:
        """Which of ``lines_function`` transforms lines."""
        read, written = _elements(what)
        ends = (source, read, FROM_ODD), (target, written, TO_ODD)
        anywhere = not all(
            what.kind == alone  # has moves of its own
            or lines_code.are_columns_or_rows(
                self.dtype, side.element, side.line, what.lines, count
            )
            for side, count, alone in ends
        )
        return self.dtype, what.kind, anywhere

    def _kept(self, array: np.ndarray) -> int:
        self.code.keep(array)
        return address(array)

    def _rows(self, length: int) -> list[int]:
        """The table of passes."""
        total = lengths.padded(length)
        if total is None:
            return self._passes(length)
        chirp = self._kept(lengths.chirp(length, self.dtype))
        # With parts exchanged, which is i conj(x), a product with the conjugate is one with it.
        back = self._kept(lengths.chirp(length, self.dtype) * np.array([1, -1], self.dtype))
        spectrum = self._kept(lengths.chirp_transform(length, self.dtype))
        passes, product = self._passes(total), product_function(self.dtype)
        return [
            product, length, total, chirp, 0, 0, *passes,
            product, total, total, spectrum, 1, 0, *passes,
            product, length, length, back, 1, 0,
        ]  # fmt: skip

    def _passes(self, length: int) -> list[int]:
        words, done = [], 1
        for radix in lengths.radices(length) or ():
            rest = length // done // radix
            turns = self._kept(lengths.pass_turns(radix, rest, self.dtype))
            pairs = 0 if radix in RADICES else self._kept(lengths.pairs(radix, self.dtype))
            words += [pass_function(self.dtype, radix), done, rest, turns, radix, pairs]
            done *= radix
        return words

    def lines(self, what: Lines, source: Side, target: Side) -> None:
        """Transform lines in blocks."""
        length, lanes = what.length, lanes_of(self.dtype)
        rows = self._rows(length)
        half = -(-(lengths.memory_length(length) + 1) * _ELEMENT // 4096) * 4096 + 17 * _ELEMENT
        slot = max(_SMALLEST_SLOT, 1 << (2 * half - 1).bit_length())
        blocks = -(-what.lines // lanes)
        mirror = self._kept(lengths.mirror(what.order, self.dtype)) if what.order else 0
        scale = self._kept(np.array([what.factor], self.dtype))
        turns = 0
        if what.turned is not None:
            turns = self._kept(lengths.turns(*what.turned, self.dtype))
        code, (read, written) = self.code, _elements(what)
        block = code.block(
            [
                *self.services.slots(slot), half, read, written, length,
                *map(int, what.exchange), scale, len(rows) // lines_code.ROW,
                address(code.array(rows or [0])), mirror, what.lines, blocks,
                0, source.element, source.line, source.group,
                0, target.element, target.line, target.group, turns,
            ]
        )  # fmt: skip
        code.fill(block + lines_code.SOURCE, source.place)
        code.fill(block + lines_code.TARGET, target.place)
        extent, points = what.groups * blocks, what.groups * what.lines * length
        chunk = self.services.chunk(extent, points * max(length.bit_length(), 1))
        function = lines_code.lines_function(*self._function(what, source, target))
        code.run(function, block, extent, chunk, points)

    def long_lines(
        self, shape: tuple[int, int], what: Lines, source: Side, target: Side, work: Place
    ) -> None:
        """Transform each row as a matrix of ``shape``; elements of rows are contiguous.

        Args:
            shape: rows and columns of a line.
            what: the batch rows, all of one group.
            source, target: where they are.
            work: memory for complex lines without gaps.
        """
        (rows, columns), length, unit = shape, what.length, self.unit
        inner = Side(work, columns * unit, unit, length * unit)
        begin = Side(source.place, columns * unit, unit, source.line)
        if what.kind == TO_REAL:
            self._mirrored(what, source, Side(work, unit, length * unit))
            begin = inner
        across = inner
        if what.kind == FROM_REAL:
            # The target has room for them; the lines of real numbers come to it at last.
            across = Side(target.place, columns * unit, unit, target.line)
        first = Lines(
            rows, columns, what.lines, COMPLEX, (what.exchange[0], False), what.factor, 0, shape
        )  # fmt: skip
        self.lines(first, begin, across)
        second = Lines(columns, rows, what.lines, COMPLEX, (False, what.exchange[1]))
        into = inner if what.kind == FROM_REAL else target
        group = length * unit if what.kind == FROM_REAL else target.line
        self.lines(
            second, Side(across.place, unit, columns * unit, across.group),
            Side(into.place, rows * unit, unit, group),
        )  # fmt: skip
        if what.kind == FROM_REAL:
            self._mirrored(what, Side(work, unit, length * unit), target)

    def _mirrored(self, what: Lines, source: Side, target: Side) -> None:
        """Between half spectra and transforms of real numbers in pairs."""
        length, code = what.length, self.code
        parts = -(-(length // 2) // _PART)
        mirror = self._kept(lengths.mirror(what.order, self.dtype))
        block = code.block([0, 0, source.line, target.line, length, mirror, parts, _PART])
        code.fill(block, source.place)
        code.fill(block + 1, target.place)
        extent, points = what.lines * parts, what.lines * length
        function = lines_code.long_function(self.dtype, what.kind)
        code.run(function, block, extent, self.services.chunk(extent, 4 * points), points)


class Recorder(Writer):
    """Writes nothing, and records in ``builds`` the calls of the instructions."""

    def __init__(self, dtype: str, services: NativeServices, code: Code) -> None:
        super().__init__(dtype, services, code)
        self.builds: list[Build] = []

    def lines(self, what: Lines, source: Side, target: Side) -> None:
        self.builds.append(Build(lines_code.lines_function, self._function(what, source, target)))
        total = lengths.padded(what.length)
        if total is not None:
            self.builds.append(Build(product_function, (self.dtype,)))
        # Of radices without a pass of their own any is the pass of pairs.
        radices = lengths.radices(total or what.length) or ()
        self.builds += [Build(pass_function, (self.dtype, radix)) for radix in radices]

    def _mirrored(self, what: Lines, source: Side, target: Side) -> None:
        self.builds.append(Build(lines_code.long_function, (self.dtype, what.kind)))
