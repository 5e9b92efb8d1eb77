"""Fourier transforms of rows as instructions of native programs.

A single row, or one too long for the cache, is a matrix of A rows and B columns (Gentleman and
Sande, Fast Fourier Transforms for Fun and Profit, 1966):

    x as [A][B]  --columns-->  [k][B], times e^(-2 pi i b k / (A B))  --rows, across-->  [j][k]

A length with a large factor is a convolution with a chirp, by transforms of another length, the
second of which is an inverse one (Bluestein, A Linear Filtering Approach to the Computation of
Discrete Fourier Transform, 1970).
"""

from __future__ import annotations

import numpy as np

from gpuflow.base.records import record
from gpuflow.runtime.memory import address
from gpuflow.targets.cpu.library import fourier_lengths as lengths
from gpuflow.targets.cpu.library import fourier_rows as rows_code
from gpuflow.targets.cpu.library.fourier_passes import (
    RADICES,
    VECTOR_BYTES,
    lanes_of,
    pass_function,
    product_function,
)
from gpuflow.targets.cpu.library.fourier_rows import (
    COMPLEX,
    FROM_ODD,
    FROM_REAL,
    TO_ODD,
    TO_REAL,
)
from gpuflow.targets.cpu.runtime.native.program_writer import Code, Location
from gpuflow.targets.cpu.runtime.native.services import Build, NativeServices

_ELEMENT = 2 * VECTOR_BYTES
_SMALLEST_SLOT = 1 << 16
_CHUNK = 1 << 10  # elements of a chunk of a long row


@record
class Side:
    """Layout of elements: the first address, and the byte strides of elements, rows and groups."""

    location: Location
    element: int
    row: int
    group: int = 0


@record
class RowTransforms:
    """Transforms of groups of rows.

    Attributes:
        length: of the complex transform.
        rows, groups: number of rows of a group, and of groups.
        kind: of ``fourier_rows``.
        exchange: whether components are exchanged when rows are read, and when written.
        factor: of all results.
        order: length of the real transform.
        twiddles: rows and columns of a matrix; results are multiplied by ``lengths.twiddles``.
    """

    length: int
    rows: int
    groups: int = 1
    kind: int = COMPLEX
    exchange: tuple[bool, bool] = (False, False)
    factor: float = 1.0
    order: int = 0
    twiddles: tuple[int, int] | None = None


def _elements(transforms: RowTransforms) -> tuple[int, int]:
    """The number of elements of a row that are read, and that are written."""
    length, short = transforms.length, transforms.length // 2 + 1
    return (
        {TO_REAL: length + 1, TO_ODD: short}.get(transforms.kind, length),
        {FROM_REAL: length + 1, FROM_ODD: short}.get(transforms.kind, length),
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

    def _function(
        self, transforms: RowTransforms, source: Side, target: Side
    ) -> tuple[str, int, bool]:
        """Arguments of ``rows_function`` for the transforms."""
        read, written = _elements(transforms)
        ends = (source, read, FROM_ODD), (target, written, TO_ODD)
        anywhere = not all(
            transforms.kind == alone  # has separate functions
            or rows_code.are_columns_or_rows(
                self.dtype, side.element, side.row, transforms.rows, count
            )
            for side, count, alone in ends
        )
        return self.dtype, transforms.kind, anywhere

    def _constant(self, array: np.ndarray) -> int:
        self.code.keep(array)
        return address(array)

    def _pass_table(self, length: int) -> list[int]:
        """The table of passes."""
        total = lengths.padded(length)
        if total is None:
            return self._passes(length)
        chirp = self._constant(lengths.chirp(length, self.dtype))
        # With components exchanged, i conj(x), a product with the conjugate is one with it.
        back = self._constant(lengths.chirp(length, self.dtype) * np.array([1, -1], self.dtype))
        spectrum = self._constant(lengths.chirp_transform(length, self.dtype))
        passes, product = self._passes(total), product_function(self.dtype)
        return [
            product, length, total, chirp, 0, 0, *passes,
            product, total, total, spectrum, 1, 0, *passes,
            product, length, length, back, 1, 0,
        ]  # fmt: skip

    def _passes(self, length: int) -> list[int]:
        table, done = [], 1
        for radix in lengths.radices(length) or ():
            remaining = length // done // radix
            twiddles = self._constant(lengths.pass_twiddles(radix, remaining, self.dtype))
            pairs = 0 if radix in RADICES else self._constant(lengths.pairs(radix, self.dtype))
            table += [pass_function(self.dtype, radix), done, remaining, twiddles, radix, pairs]
            done *= radix
        return table

    def transform(self, transforms: RowTransforms, source: Side, target: Side) -> None:
        """Transform rows in blocks."""
        length, lanes = transforms.length, lanes_of(self.dtype)
        passes = self._pass_table(length)
        half = -(-(lengths.memory_length(length) + 1) * _ELEMENT // 4096) * 4096 + 17 * _ELEMENT
        slot = max(_SMALLEST_SLOT, 1 << (2 * half - 1).bit_length())
        blocks = -(-transforms.rows // lanes)
        mirror = 0
        if transforms.order:
            mirror = self._constant(lengths.mirror(transforms.order, self.dtype))
        scale = self._constant(np.array([transforms.factor], self.dtype))
        twiddles = 0
        if transforms.twiddles is not None:
            twiddles = self._constant(lengths.twiddles(*transforms.twiddles, self.dtype))
        code, (read, written) = self.code, _elements(transforms)
        block = code.block(
            [
                *self.services.slots(slot), half, read, written, length,
                *map(int, transforms.exchange), scale, len(passes) // rows_code.ROW,
                address(code.array(passes or [0])), mirror, transforms.rows, blocks,
                0, source.element, source.row, source.group,
                0, target.element, target.row, target.group, twiddles,
            ]
        )  # fmt: skip
        code.fill(block + rows_code.SOURCE, source.location)
        code.fill(block + rows_code.TARGET, target.location)
        extent, points = transforms.groups * blocks, transforms.groups * transforms.rows * length
        chunk = self.services.chunk(extent, points * max(length.bit_length(), 1))
        function = rows_code.rows_function(*self._function(transforms, source, target))
        code.run(function, block, extent, chunk, points)

    def transform_long(
        self,
        shape: tuple[int, int],
        transforms: RowTransforms,
        source: Side,
        target: Side,
        work: Location,
    ) -> None:
        """Transform each row as a matrix of ``shape``; elements of rows are contiguous.

        Args:
            shape: of the matrix.
            transforms: the rows, all of one group.
            source, target: layouts of operand and result.
            work: memory for contiguous complex rows.
        """
        (rows, columns), length, unit = shape, transforms.length, self.unit
        inner = Side(work, columns * unit, unit, length * unit)
        begin = Side(source.location, columns * unit, unit, source.row)
        if transforms.kind == TO_REAL:
            self._mirrored(transforms, source, Side(work, unit, length * unit))
            begin = inner
        across = inner
        if transforms.kind == FROM_REAL:
            # The target has room for them; the real results are written to it last.
            across = Side(target.location, columns * unit, unit, target.row)
        first = RowTransforms(
            rows,
            columns,
            transforms.rows,
            COMPLEX,
            (transforms.exchange[0], False),
            transforms.factor,
            0,
            shape,
        )
        self.transform(first, begin, across)
        exchange = False, transforms.exchange[1]
        second = RowTransforms(columns, rows, transforms.rows, COMPLEX, exchange)
        into = inner if transforms.kind == FROM_REAL else target
        group = length * unit if transforms.kind == FROM_REAL else target.row
        self.transform(
            second,
            Side(across.location, unit, columns * unit, across.group),
            Side(into.location, rows * unit, unit, group),
        )
        if transforms.kind == FROM_REAL:
            self._mirrored(transforms, Side(work, unit, length * unit), target)

    def _mirrored(self, transforms: RowTransforms, source: Side, target: Side) -> None:
        """Convert between half spectra and transforms of real numbers in pairs."""
        length, code = transforms.length, self.code
        chunks = -(-(length // 2) // _CHUNK)
        mirror = self._constant(lengths.mirror(transforms.order, self.dtype))
        block = code.block([0, 0, source.row, target.row, length, mirror, chunks, _CHUNK])
        code.fill(block, source.location)
        code.fill(block + 1, target.location)
        extent, points = transforms.rows * chunks, transforms.rows * length
        function = rows_code.long_function(self.dtype, transforms.kind)
        code.run(function, block, extent, self.services.chunk(extent, 4 * points), points)


class Recorder(Writer):
    """Writes nothing, and records the code of the instructions in ``builds``."""

    def __init__(self, dtype: str, services: NativeServices, code: Code) -> None:
        super().__init__(dtype, services, code)
        self.builds: list[Build] = []

    def transform(self, transforms: RowTransforms, source: Side, target: Side) -> None:
        arguments = self._function(transforms, source, target)
        self.builds.append(Build(rows_code.rows_function, arguments))
        total = lengths.padded(transforms.length)
        if total is not None:
            self.builds.append(Build(product_function, (self.dtype,)))
        # Radices without a separate pass use the pass of pairs.
        radices = lengths.radices(total or transforms.length) or ()
        self.builds += [Build(pass_function, (self.dtype, radix)) for radix in radices]

    def _mirrored(self, transforms: RowTransforms, source: Side, target: Side) -> None:
        self.builds.append(Build(rows_code.long_function, (self.dtype, transforms.kind)))
