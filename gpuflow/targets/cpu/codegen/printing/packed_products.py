"""Loop program of blocked matrix products for narrow floats, integers and bools.

Blocks of operands with any strides are converted and packed into panels, in the order in which the
microkernel ``multiply_<kind>`` reads them (codegen/product_tiles.py). A block of the product sums
slices of the depth. Between slices, its sums are in the result if that has their dtype, else in
the workspace. So each result is rounded once. The order of sums must depend on shapes only.

``library/packed_products`` chooses the sizes of blocks, and passes the arguments.

Source: K. Goto, R. van de Geijn, "Anatomy of high-performance matrix multiplication", 2008.

Tests: tests/targets/cpu/test_packed_products.py.
"""

from __future__ import annotations

from textwrap import indent

from gpuflow.base.caches import cache
from gpuflow.kir.scalar import compute_dtype
from gpuflow.targets.cpu.codegen.loops.parser import parsed_source
from gpuflow.targets.cpu.codegen.loops.text import LoopSource
from gpuflow.targets.cpu.codegen.product_tiles import PANEL_FORMATS, PanelFormat, tile_shape

# The argument block of the kernel, in order; strides count elements, and may have any sign. The
# launch runs over chunks of blocks (``part`` in the text).
PRODUCT_ARGUMENTS = (
    # Pointers: operands, the row-major result, partial sums with the layout of the result (used if
    # there are several slices; the result itself if its elements have their size), packed panels.
    "a", "b", "out", "sums", "memory",
    # Sizes of one product, and the operands' strides along rows or columns, and along the depth.
    "rows", "columns", "depth", "a_row", "a_step", "b_column", "b_step",
    # Size of the inner batch axis, and the operands' strides along the outer and the inner one.
    "inner", "a_outer", "a_inner", "b_outer", "b_inner",
    # Rows and columns of a block, rows that are packed at once, and blocks of one product.
    "row_block", "row_group", "column_block", "row_blocks", "column_blocks",
    # Depth of a slice, number of slices (at least 1), blocks in all, and of one chunk: blocks, and
    # elements of its packed panels. ``row_group`` and ``column_block`` are multiples of the tile.
    "slice_depth", "slices", "blocks", "part_blocks", "part_memory",
)  # fmt: skip
_POINTER_COUNT = 5

_TEMPLATE = """\
# Products of stacks of matrices; targets/cpu/codegen/printing/packed_products.py.
import numpy as np

load_a = reader("{left}", 0, 4)
load_b = reader("{right}", 0, 4)
store_memory = writer("{packed}", 1, 4)
load_tile = reader("{summed}", 2, 4)
store_tile = writer("{summed}", 2, 4)
load_sums = reader("{summed}", 3, 4)
store_sums = writer("{summed}", 3, 4)
store_out = writer("{out}", 3, 4)


def {name}(words, lo, hi):
    use_wide_registers()
{unpack}
    tile = local_{summed}({tile})
    for part in range(lo, hi):
        b_packed = part * part_memory
        first_block = part * part_blocks
        for block in range(first_block, min_int64(first_block + part_blocks, blocks)):
            strip = div_int64(block, column_blocks)
            product = div_int64(strip, row_blocks)
            outer = div_int64(product, inner)
            place = product - outer * inner
            i0 = (strip - product * row_blocks) * row_block
            j0 = (block - strip * column_blocks) * column_block
            m = min_int64(row_block, rows - i0)
            n = min_int64(column_block, columns - j0)
            a_first = outer * a_outer + place * a_inner + i0 * a_row
            b_first = outer * b_outer + place * b_inner + j0 * b_column
            out_first = (product * rows + i0) * columns + j0
            b_panels = div_int64(n + {columns_less_1}, {columns})
            for slice in range(0, slices):
                d0 = slice * slice_depth
                d = min_int64(slice_depth, depth - d0)
                steps = {steps}
                b_start = b_first + d0 * b_step
{pack_b}
                a_packed = b_packed + b_panels * steps * {column_width}
                for group in range(0, div_int64(m + row_group - 1, row_group)):
                    i1 = group * row_group
                    g = min_int64(row_group, m - i1)
                    a_panels = div_int64(g + {rows_less_1}, {rows})
                    a_start = a_first + i1 * a_row + d0 * a_step
{pack_a}
                    for b_tile in range(0, b_panels):
                        j = b_tile * {columns}
                        width = min_int64({columns}, n - j)
                        added = select_int64(slice > 0, width, 0)
                        kept = select_int64(slice + 1 < slices, width, 0)
                        ended = width - kept
                        b_at = b_packed + b_tile * steps * {column_width}
                        for a_tile in range(0, a_panels):
                            i = a_tile * {rows}
                            height = min_int64({rows}, g - i)
                            a_at = a_packed + a_tile * steps * {row_width}
                            multiply_{kind}(memory, a_at, b_at, steps, tile)
                            for row in range(0, height):
                                t0 = row * {columns}
                                out_at = out_first + (i1 + i + row) * columns + j
                                for c in short_range(0, added):
                                    s = load_tile(tile, t0 + c) + load_sums(sums, out_at + c)
                                    store_tile(tile, t0 + c, s)
                                for c in short_range(0, kept):
                                    store_sums(sums, out_at + c, load_tile(tile, t0 + c))
                                for c in short_range(0, ended):
                                    r = load_tile(tile, t0 + c)
                                    store_out(out, out_at + c, {result})
"""

# Packs one operand. If its lanes are contiguous in memory, full panels are packed as vectors: a run
# of steps of each panel in succession, while the cache has the lines of a step. The rest is scalar.
# Panels are padded with zeros to full steps and lanes.
_PACK_TEMPLATE = """\
{x}_rest = 0
{x}_whole = 0
if {x}_{lane} == 1:
    {x}_rest = {whole}
    {x}_whole = div_int64({size}, {lanes})
for {x}_some in range(0, div_int64({x}_rest + {run_depth_less_1}, {run_depth})):
    {x}_k0 = {x}_some * {run_depth}
    for {x}_panel in range(0, {x}_whole):
        {x}_to = {x}_packed + {x}_panel * steps * {row}
        {x}_from = {x}_start + {x}_panel * {lanes}
        for {x}_s in range({x}_k0{shift}, min_int64({x}_k0 + {run_depth}, {x}_rest){shift}):
            {x}_row_to = {x}_to + {x}_s * {row}
            {x}_row_from = {x}_from + {x}_s * {step_depth} * {x}_step
            for {x}_l in short_range(0, {lanes}):
{step_loads}
for {x}_panel in range(0, {x}_panels):
    {x}_to = {x}_packed + {x}_panel * steps * {row}
    {x}_from = {x}_start + {x}_panel * {lanes} * {x}_{lane}
    {x}_begin = 0
    if {x}_panel < {x}_whole:
        {x}_begin = {x}_rest
    {x}_lanes = min_int64({lanes}, {size} - {x}_panel * {lanes})
    for {x}_l in range(0, {x}_lanes):
        {x}_lane_from = {x}_from + {x}_l * {x}_{lane}
        {x}_lane_to = {x}_to + {x}_l * {step_depth}
        for {x}_k in range({x}_begin, d):
            {x}_v = load_{x}({x}, {x}_lane_from + {x}_k * {x}_step)
            store_memory(memory, {x}_lane_to + {at_k}, {value})
        for {x}_k in range(d, steps * {step_depth}):
            store_memory(memory, {x}_lane_to + {at_k}, np.{packed}(0))
    for {x}_l in range({x}_lanes, {lanes}):
        for {x}_k in range(0, steps * {step_depth}):
            store_memory(memory, {x}_to + {x}_l * {step_depth} + {at_k}, np.{packed}(0))
"""
_LOAD_TEMPLATE = """\
                {x}_v{t} = load_{x}({x}, {x}_row_from + {t} * {x}_step + {x}_l)
                store_memory(memory, {x}_row_to + {x}_l * {step_depth} + {t}, {value})"""
# Elements of the depth that are packed of each panel in succession: a multiple of ``step_depth``.
_DEPTH_PER_RUN = 16


@cache
def product_text(left: str, right: str, result: str, kind: str) -> LoopSource:
    """Return the kernel for two operands and a result. Its tile depends on the processor.

    Args:
        left, right, result: storage dtypes.
        kind: a key of ``PANEL_FORMATS``; its dtypes are those of panels and sums.
    """
    panel_format, (rows, columns) = PANEL_FORMATS[kind], tile_shape(kind)
    step_depth = panel_format.step_depth
    name = f"product_{left}_{right}_{result}"
    unpack = "\n".join(
        f"    {argument} = word_{'pointer' if slot < _POINTER_COUNT else 'int64'}(words, {slot})"
        for slot, argument in enumerate(PRODUCT_ARGUMENTS)
    )

    program_text = _TEMPLATE.format(
        left=left,
        right=right,
        out=result,
        packed=panel_format.packed,
        summed=panel_format.summed,
        name=name,
        unpack=unpack,
        tile=rows * columns,
        rows=rows,
        columns=columns,
        rows_less_1=rows - 1,
        columns_less_1=columns - 1,
        steps="d" if step_depth == 1 else "(d + 1) >> 1",
        row_width=rows * step_depth,
        column_width=columns * step_depth,
        kind=kind,
        pack_a=_pack("a", left, panel_format, "row", rows, "g", 5),
        pack_b=_pack("b", right, panel_format, "column", columns, "n", 4),
        result=result_text("r", panel_format.summed, result),
    )
    return parsed_source(program_text, name)


def _pack(
    operand: str,
    storage: str,
    panel_format: PanelFormat,
    axis: str,
    lanes: int,
    size_variable: str,
    indent_level: int,
) -> str:
    """Return the code that packs an operand.

    Args:
        operand: name of the operand.
        storage: its storage dtype.
        panel_format: format of the panels.
        axis: name of the axis along which panels are cut: "row" or "column".
        lanes: size of a panel along that axis.
        size_variable: variable with the size of the block along that axis.
        indent_level: indentation level of the code.
    """
    step_depth = panel_format.step_depth
    panel_row = lanes * step_depth

    def value(name: str) -> str:
        return (
            name
            if compute_dtype(storage) == panel_format.packed
            else f"np.{panel_format.packed}({name})"
        )

    loads = [
        _LOAD_TEMPLATE.format(
            x=operand, row=panel_row, step_depth=step_depth, t=t, value=value(f"{operand}_v{t}")
        )
        for t in range(step_depth)
    ]
    is_single = step_depth == 1
    body = _PACK_TEMPLATE.format(
        x=operand,
        row=panel_row,
        step_depth=step_depth,
        run_depth=_DEPTH_PER_RUN,
        run_depth_less_1=_DEPTH_PER_RUN - 1,
        lanes=lanes,
        lane=axis,
        size=size_variable,
        shift="" if is_single else " >> 1",
        value=value(f"{operand}_v"),
        at_k=f"{operand}_k * {panel_row}"
        if is_single
        else f"({operand}_k >> 1) * {panel_row} + ({operand}_k & 1)",
        whole="d" if is_single else "(d >> 1) << 1",
        packed=panel_format.packed,
        step_loads="\n".join(loads),
    )
    return indent(body.rstrip(), 4 * indent_level * " ")


def result_text(value: str, sum_dtype: str, result: str) -> str:
    """The expression that converts a sum to the result's compute dtype."""
    if result == "bool":
        return f"{value} != np.{sum_dtype}(0)"
    return value if compute_dtype(result) == sum_dtype else f"np.{compute_dtype(result)}({value})"
