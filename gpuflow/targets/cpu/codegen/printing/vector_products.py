"""Loop program of matrix-vector products for dtypes that BLAS does not have.

Each element of the matrix is used once, so nothing is packed: loads convert elements. If the matrix
is contiguous along the depth, each result is a dot product; else a row of results is accumulated.

``library/packed_products`` passes the arguments.

Tests: tests/targets/cpu/test_packed_products.py.
"""

from __future__ import annotations

from gpuflow.base.caches import cache
from gpuflow.kir.scalar import compute_dtype
from gpuflow.targets.cpu.codegen.loops.parser import parsed_source
from gpuflow.targets.cpu.codegen.loops.text import LoopSource
from gpuflow.targets.cpu.codegen.printing.packed_products import result_text
from gpuflow.targets.cpu.codegen.product_tiles import PANEL_FORMATS

# The argument block of the kernel, in order: pointers of matrix, vector and contiguous result;
# sizes; strides in elements, of any sign, along the matrix's rows and along the depth; blocks of
# rows per product, and rows of a block; size of the inner batch axis, and strides along the outer
# and the inner one. The launch runs over the blocks of all products.
VECTOR_PRODUCT_ARGUMENTS = (
    "matrix",
    "vector",
    "out",
    "rows",
    "depth",
    "matrix_row",
    "matrix_step",
    "vector_step",
    "blocks",
    "block_rows",
    "inner",
    "matrix_outer",
    "matrix_inner",
    "vector_outer",
    "vector_inner",
)
_POINTER_COUNT = 3
_SUMS_PER_BLOCK = 512  # sums that are accumulated at a time, so that they stay in L1

_TEMPLATE = """\
# Products of stacks of matrices and vectors; targets/cpu/codegen/printing/vector_products.py.
import numpy as np

load_matrix = reader("{matrix}", 0, 3)
load_vector = reader("{vector}", 0, 3)
store_out = writer("{out}", 1, 3)
load_sums = reader("{summed}", 2, 3)
store_sums = writer("{summed}", 2, 3)


def {name}(words, lo, hi):
    use_wide_registers()
{unpack}
    sums = local_{summed}({most_sums})
    for block in range(lo, hi):
        product = div_int64(block, blocks)
        outer = div_int64(product, inner)
        place = product - outer * inner
        r0 = (block - product * blocks) * block_rows
        count = min_int64(block_rows, rows - r0)
        first = outer * matrix_outer + place * matrix_inner + r0 * matrix_row
        start = outer * vector_outer + place * vector_inner
        out_at = product * rows + r0
        if matrix_step == 1:
            for r in range(0, count):
                row_at = first + r * matrix_row
                total = np.{summed}(0)
                if vector_step == 1:
                    for k in range(0, depth):
                        x = {load_row}
                        y = {load_next}
                        total = {total}
                else:
                    for k in range(0, depth):
                        x = {load_row}
                        y = {load_apart}
                        total = {total}
                store_out(out, out_at + r, {result_total})
        else:
            for some in range(0, div_int64(count + {most_sums_less_1}, {most_sums})):
                s0 = some * {most_sums}
                width = min_int64({most_sums}, count - s0)
                column_at = first + s0 * matrix_row
                for c in range(0, width):
                    store_sums(sums, c, np.{summed}(0))
                for k in range(0, depth):
                    v = {load_apart}
                    step_at = column_at + k * matrix_step
                    if matrix_row == 1:
                        for c in range(0, width):
                            store_sums(sums, c, load_sums(sums, c) + v * {load_column})
                    else:
                        for c in range(0, width):
                            store_sums(sums, c, load_sums(sums, c) + v * {load_strided})
                for c in range(0, width):
                    s = load_sums(sums, c)
                    store_out(out, out_at + s0 + c, {result})
"""


@cache
def vector_product_text(matrix: str, vector: str, result: str, kind: str) -> LoopSource:
    """Return the kernel for a matrix, a vector and a result.

    Args:
        matrix, vector, result: storage dtypes.
        kind: a key of ``PANEL_FORMATS``; sums have its ``summed`` dtype.
    """
    summed = PANEL_FORMATS[kind].summed
    name = f"vector_product_{matrix}_{vector}_{result}"
    unpack = "\n".join(
        f"    {argument} = word_{'pointer' if slot < _POINTER_COUNT else 'int64'}(words, {slot})"
        for slot, argument in enumerate(VECTOR_PRODUCT_ARGUMENTS)
    )

    def load_element(operand: str, storage: str, index: str) -> str:
        loaded = f"load_{operand}({operand}, {index})"
        return loaded if compute_dtype(storage) == summed else f"np.{summed}({loaded})"

    is_float = summed == "float32"
    program_text = _TEMPLATE.format(
        matrix=matrix,
        vector=vector,
        out=result,
        summed=summed,
        name=name,
        unpack=unpack,
        most_sums=_SUMS_PER_BLOCK,
        most_sums_less_1=_SUMS_PER_BLOCK - 1,
        load_row=load_element("matrix", matrix, "row_at + k"),
        load_next=load_element("vector", vector, "start + k"),
        load_apart=load_element("vector", vector, "start + k * vector_step"),
        load_column=load_element("matrix", matrix, "step_at + c"),
        load_strided=load_element("matrix", matrix, "step_at + c * matrix_row"),
        total=f"accumulate_add_{summed}(total, x * y)" if is_float else "total + x * y",
        result_total=result_text("total", summed, result),
        result=result_text("s", summed, result),
    )
    return parsed_source(program_text, name)
