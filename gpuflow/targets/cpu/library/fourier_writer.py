"""Emits Fourier transforms of rows as instructions of native programs.

A single row, or one too long for the cache, is split into a matrix of A rows and B columns
(Gentleman and Sande, Fast Fourier Transforms for Fun and Profit, 1966):

    x as [A][B]  --columns-->  [k][B], times e^(-2 pi i b k / (A B))  --rows, across-->  [j][k]

A length with a large prime factor is a convolution with a chirp. It takes two transforms of a
longer length, the second of them inverse (Bluestein, A Linear Filtering Approach to the Computation
of Discrete Fourier Transform, 1970).
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
_SMALLEST_SLOT = 1 << 16  # bytes
_CHUNK = 1 << 10  # elements of a chunk of a long row


@record
class Side:
    """Layout of operand or result: location, and byte strides of elements, rows and groups."""

    location: Location
    element: int
    row: int
    group: int = 0


@record
class RowTransforms:
    """Parameters of the transforms of groups of rows.

    Attributes:
        length: length of the complex transform.
        rows, groups: number of rows of a group, and of groups.
        kind: COMPLEX, FROM_REAL, TO_REAL, FROM_ODD or TO_ODD.
        exchange: whether components are exchanged when rows are read, and when written; both for
            an inverse transform.
        factor: factor of all results.
        order: length of the real transform; 0 if there is none of even length.
        twiddles: (rows, columns) of a split row, whose results are multiplied by
            ``lengths.twiddles``; None: no multiplication.
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
    """Number of elements of a row that are read, and number that are written."""
    length, short = transforms.length, transforms.length // 2 + 1
    return (
        {TO_REAL: length + 1, TO_ODD: short}.get(transforms.kind, length),
        {FROM_REAL: length + 1, FROM_ODD: short}.get(transforms.kind, length),
    )


class Writer:
    """Emits the instructions of one call into a program.

    Args:
        dtype: dtype of a component.
        services: services of the program.
        code: the program.
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
            transforms.kind == alone  # reads (or writes) real numbers by a separate function
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
        """The table of passes for a length: rows of ROW slots, see ``fourier_passes``."""
        total = lengths.padded(length)
        if total is None:
            return self._passes(length)
        chirp = self._constant(lengths.chirp(length, self.dtype))
        # Exchanged components are i conj(x), so this product needs the conjugate of the chirp.
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
        """Emit the transforms of rows in blocks."""
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
        """Emit the transforms of rows that are split into matrices.

        Args:
            shape: rows and columns of the matrix of a row.
            transforms: the transforms; there must be one group.
            source, target: layouts of operand and result, whose elements must be contiguous.
            work: location of memory for all complex rows.
        """
        (rows, columns), length, unit = shape, transforms.length, self.unit
        inner = Side(work, columns * unit, unit, length * unit)
        begin = Side(source.location, columns * unit, unit, source.row)
        if transforms.kind == TO_REAL:
            self._mirrored(transforms, source, Side(work, unit, length * unit))
            begin = inner
        across = inner
        if transforms.kind == FROM_REAL:
            # The target serves as scratch memory: its final contents are written last.
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
        """Emit the conversion between half spectra and transforms of pairs of real numbers."""
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
    """A ``Writer`` that emits nothing, and lists the functions of a call in ``builds``."""

    def __init__(self, dtype: str, services: NativeServices, code: Code) -> None:
        super().__init__(dtype, services, code)
        self.builds: list[Build] = []

    def transform(self, transforms: RowTransforms, source: Side, target: Side) -> None:
        arguments = self._function(transforms, source, target)
        self.builds.append(Build(rows_code.rows_function, arguments))
        total = lengths.padded(transforms.length)
        if total is not None:
            self.builds.append(Build(product_function, (self.dtype,)))
        # ``pass_function`` returns the pass of pairs for a radix without an unrolled pass.
        radices = lengths.radices(total or transforms.length) or ()
        self.builds += [Build(pass_function, (self.dtype, radix)) for radix in radices]

    def _mirrored(self, transforms: RowTransforms, source: Side, target: Side) -> None:
        self.builds.append(Build(rows_code.long_function, (self.dtype, transforms.kind)))
