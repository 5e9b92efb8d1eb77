"""Emits Fourier transforms of rows as instructions of native programs.

A single row, or one too long for the cache, is split into a matrix of A rows and B columns
(Gentleman and Sande, Fast Fourier Transforms for Fun and Profit, 1966):

    x as [A][B]  --columns-->  [k][B], times e^(-2 pi i b k / (A B))  --rows, across-->  [j][k]

A length with a large prime factor is a convolution with a chirp. It takes two transforms of a
longer length, the second of them inverse (Bluestein, A Linear Filtering Approach to the Computation
of Discrete Fourier Transform, 1970).

Tests: tests/targets/cpu/test_fourier_rows.py.
"""

from __future__ import annotations

import numpy as np

from gpuflow.base.records import record
from gpuflow.runtime.memory import address
from gpuflow.targets.cpu.library import fourier_lengths as lengths
from gpuflow.targets.cpu.library import fourier_long_rows as long_rows
from gpuflow.targets.cpu.library import fourier_rows as rows_code
from gpuflow.targets.cpu.library.fourier_passes import (
    ELEMENT_BYTES,
    PASS_ROW_SLOTS,
    RADICES,
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

_MIN_SLOT_BYTES = 1 << 16
_PAGE_BYTES = 4096
# The second half of a slot starts these bytes after a multiple of the page size.
_HALF_OFFSET_BYTES = 17 * ELEMENT_BYTES
_CHUNK_ELEMENTS = 1 << 10  # elements of a chunk of a long row


@record
class RowLayout:
    """Layout of operand or result: location, and byte strides of elements, rows and groups.

    An element is a complex number, or a pair of real numbers; in FROM_ODD and TO_ODD, on the real
    side, a real number. All strides are multiples of the component's size.
    """

    location: Location
    element_stride: int
    row_stride: int
    group_stride: int = 0


@record
class RowTransforms:
    """Parameters of the transforms of groups of rows.

    Attributes:
        length: length of the complex transform.
        rows, groups: number of rows of a group, and of groups.
        kind: COMPLEX, FROM_REAL, TO_REAL, FROM_ODD or TO_ODD.
        exchanges: whether components are exchanged when rows are read, and when written; both for
            an inverse transform.
        scale: factor of all results.
        real_length: length of the real transform, twice ``length``; 0 if the kind is neither
            FROM_REAL nor TO_REAL.
        twiddle_shape: (rows, columns) of a split row, whose results are multiplied by
            ``lengths.split_row_twiddles``; None: no multiplication.
    """

    length: int
    rows: int
    groups: int = 1
    kind: int = COMPLEX
    exchanges: tuple[bool, bool] = (False, False)
    scale: float = 1.0
    real_length: int = 0
    twiddle_shape: tuple[int, int] | None = None


def _elements(transforms: RowTransforms) -> tuple[int, int]:
    """Number of elements of a row that are read, and number that are written."""
    length, short = transforms.length, transforms.length // 2 + 1
    return (
        {TO_REAL: length + 1, TO_ODD: short}.get(transforms.kind, length),
        {FROM_REAL: length + 1, FROM_ODD: short}.get(transforms.kind, length),
    )


class FourierWriter:
    """Emits the instructions of one call into a program.

    ``source`` and ``target`` of its methods may be the same array if their layouts are equal.

    Args:
        dtype: dtype of a component: "float32" or "float64".
        services: services of the program.
        code: the program.
    """

    def __init__(self, dtype: str, services: NativeServices, code: Code) -> None:
        self.dtype, self.services, self.code = dtype, services, code
        self.scalar_bytes = np.dtype(dtype).itemsize
        self.complex_bytes = 2 * self.scalar_bytes

    def _function(
        self, transforms: RowTransforms, source: RowLayout, target: RowLayout
    ) -> tuple[str, int, bool]:
        """Arguments of ``rows_function`` for the transforms."""
        read, written = _elements(transforms)
        sides = (source, read, FROM_ODD), (target, written, TO_ODD)
        allows_any_layout = not all(
            transforms.kind == real_kind  # reads (or writes) real numbers by a separate function
            or rows_code.are_columns_or_rows(
                self.dtype, layout.element_stride, layout.row_stride, transforms.rows, count
            )
            for layout, count, real_kind in sides
        )
        return self.dtype, transforms.kind, allows_any_layout

    def _constant(self, array: np.ndarray) -> int:
        """The address of a constant array, which the program then owns."""
        self.code.keep_alive(array)
        return address(array)

    def _pass_table(self, length: int) -> list[int]:
        """The table of passes for a length: PASS_ROW_SLOTS slots a row, see ``fourier_passes``."""
        total = lengths.bluestein_length(length)
        if total is None:
            return self._passes(length)
        chirp = self._constant(lengths.chirp(length, self.dtype))
        # Exchanged components are i conj(x), so this product needs the conjugate of the chirp.
        conjugate_chirp = self._constant(
            lengths.chirp(length, self.dtype) * np.array([1, -1], self.dtype)
        )
        spectrum = self._constant(lengths.chirp_transform(length, self.dtype))
        passes, product = self._passes(total), product_function(self.dtype)
        return [
            product, length, total, chirp, 0, 0, *passes,
            product, total, total, spectrum, 1, 0, *passes,
            product, length, length, conjugate_chirp, 1, 0,
        ]  # fmt: skip

    def _passes(self, length: int) -> list[int]:
        """Rows of the table of passes for a length without a large prime factor."""
        table, done = [], 1  # done is the product of the previous radices
        for radix in lengths.radices(length) or ():
            remaining = length // done // radix
            twiddles = self._constant(lengths.pass_twiddles(radix, remaining, self.dtype))
            pairs = 0 if radix in RADICES else self._constant(lengths.pair_roots(radix, self.dtype))
            table += [pass_function(self.dtype, radix), done, remaining, twiddles, radix, pairs]
            done *= radix
        return table

    def transform(self, transforms: RowTransforms, source: RowLayout, target: RowLayout) -> None:
        """Emit the transforms of rows in blocks; rows are at most ``lengths.MAX_LENGTH`` long."""
        length, lanes = transforms.length, lanes_of(self.dtype)
        passes = self._pass_table(length)
        # Half a spectrum has one element more than the transform.
        row_bytes = (lengths.memory_length(length) + 1) * ELEMENT_BYTES
        half = -(-row_bytes // _PAGE_BYTES) * _PAGE_BYTES + _HALF_OFFSET_BYTES
        slot = max(_MIN_SLOT_BYTES, 1 << (2 * half - 1).bit_length())
        blocks = -(-transforms.rows // lanes)
        mirror = 0
        if transforms.real_length:
            mirror = self._constant(lengths.mirror_roots(transforms.real_length, self.dtype))
        scale = self._constant(np.array([transforms.scale], self.dtype))
        twiddles = 0
        if transforms.twiddle_shape is not None:
            twiddles = self._constant(
                lengths.split_row_twiddles(*transforms.twiddle_shape, self.dtype)
            )
        code, (read, written) = self.code, _elements(transforms)
        block = code.add_argument_block(
            [
                *self.services.slots(slot), half, read, written, length,
                *map(int, transforms.exchanges), scale, len(passes) // PASS_ROW_SLOTS,
                address(code.constant_array(passes or [0])), mirror, transforms.rows, blocks,
                0, source.element_stride, source.row_stride, source.group_stride,
                0, target.element_stride, target.row_stride, target.group_stride, twiddles,
            ]
        )  # fmt: skip
        code.set_address(block + rows_code.SOURCE, source.location)
        code.set_address(block + rows_code.TARGET, target.location)
        extent, points = transforms.groups * blocks, transforms.groups * transforms.rows * length
        chunk = self.services.chunk(extent, points * max(length.bit_length(), 1))
        function = rows_code.rows_function(*self._function(transforms, source, target))
        code.run(function, block, extent, chunk, points)

    def transform_long(
        self,
        shape: tuple[int, int],
        transforms: RowTransforms,
        source: RowLayout,
        target: RowLayout,
        work: Location,
    ) -> None:
        """Emit the transforms of rows that are split into matrices.

        Args:
            shape: rows and columns of the matrix of a row, see ``lengths.split_shape``.
            transforms: the transforms of one group; kind COMPLEX, FROM_REAL or TO_REAL.
            source, target: layouts of operand and result, whose elements must be contiguous. They
                must not overlap.
            work: location of memory for all complex rows, which neither of them overlaps.
        """
        (rows, columns), length, unit = shape, transforms.length, self.complex_bytes
        work_layout = RowLayout(work, columns * unit, unit, length * unit)
        first_layout = RowLayout(source.location, columns * unit, unit, source.row_stride)
        if transforms.kind == TO_REAL:
            self._emit_mirror(transforms, source, RowLayout(work, unit, length * unit))
            first_layout = work_layout
        middle = work_layout
        if transforms.kind == FROM_REAL:
            # The target serves as scratch memory: its final contents are written last.
            middle = RowLayout(target.location, columns * unit, unit, target.row_stride)
        of_columns = RowTransforms(
            rows,
            columns,
            transforms.rows,
            exchanges=(transforms.exchanges[0], False),
            scale=transforms.scale,
            twiddle_shape=shape,
        )
        self.transform(of_columns, first_layout, middle)
        of_rows = RowTransforms(
            columns, rows, transforms.rows, exchanges=(False, transforms.exchanges[1])
        )
        last = work_layout if transforms.kind == FROM_REAL else target
        group_stride = length * unit if transforms.kind == FROM_REAL else target.row_stride
        self.transform(
            of_rows,
            RowLayout(middle.location, unit, columns * unit, middle.group_stride),
            RowLayout(last.location, rows * unit, unit, group_stride),
        )
        if transforms.kind == FROM_REAL:
            self._emit_mirror(transforms, RowLayout(work, unit, length * unit), target)

    def _emit_mirror(self, transforms: RowTransforms, source: RowLayout, target: RowLayout) -> None:
        """Emit the conversion between half spectra and transforms of pairs of real numbers."""
        length, code = transforms.length, self.code
        chunks = -(-(length // 2) // _CHUNK_ELEMENTS)
        mirror = self._constant(lengths.mirror_roots(transforms.real_length, self.dtype))
        block = code.add_argument_block(
            [0, 0, source.row_stride, target.row_stride, length, mirror, chunks, _CHUNK_ELEMENTS]
        )
        code.set_address(block, source.location)
        code.set_address(block + 1, target.location)
        extent, points = transforms.rows * chunks, transforms.rows * length
        function = long_rows.long_function(self.dtype, transforms.kind)
        code.run(function, block, extent, self.services.chunk(extent, 4 * points), points)


class BuildRecorder(FourierWriter):
    """A ``FourierWriter`` that emits nothing, and lists the functions of a call in ``builds``."""

    def __init__(self, dtype: str, services: NativeServices, code: Code) -> None:
        super().__init__(dtype, services, code)
        self.builds: list[Build] = []

    def transform(self, transforms: RowTransforms, source: RowLayout, target: RowLayout) -> None:
        arguments = self._function(transforms, source, target)
        self.builds.append(Build(rows_code.rows_function, arguments))
        total = lengths.bluestein_length(transforms.length)
        if total is not None:
            self.builds.append(Build(product_function, (self.dtype,)))
        # ``pass_function`` returns the pass of pairs for a radix without an unrolled pass.
        radices = lengths.radices(total or transforms.length) or ()
        self.builds += [Build(pass_function, (self.dtype, radix)) for radix in radices]

    def _emit_mirror(self, transforms: RowTransforms, source: RowLayout, target: RowLayout) -> None:
        self.builds.append(Build(long_rows.long_function, (self.dtype, transforms.kind)))
