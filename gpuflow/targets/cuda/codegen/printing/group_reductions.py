"""Text of the device functions that reduce partial results over the threads of a group.

They are printed into each kernel because they call its ``combine`` function, and because a reader
of a kernel should see all of it. Every thread of the group gets the result. The order of
combination is fixed, so results have the same bits in every run. All threads of the block (of the
warp, if a group is one) must call them, as they contain barriers.

Tests: tests/targets/cuda/test_cuda_kernels.py, tests/targets/cuda/test_gpu_columns.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuflow.targets.cuda.codegen.printing.scalar_text import STORAGE_BITS, narrow, widen

# All threads of a block must call it; ``last`` is the number of blocks minus 1.
IS_LAST_BLOCK = """
@device_function
def is_last_block(block_counter, last):
    # Thread 0 publishes the block's results and counts; the whole block learns the answer.
    shared_count = shared_array(np.uint32, 1)
    if cuda.threadIdx.x == 0:
        cuda.threadfence()
        shared_count[0] = count_block_done(block_counter, last)
    barrier()
    return shared_count[0] == last
"""

# The barrier of a row's group: a whole block, or one warp.
ROW_BARRIER = """
@device_function
def row_barrier():
    if cuda.blockDim.x > 32:
        barrier()
    else:
        cuda.syncwarp()
"""


def row_reduction(combine: str, dtypes: Sequence[str]) -> str:
    """The reduction over ``blockDim.x`` threads: butterflies in each warp, then over the warps.

    A group must be one warp, or a whole block of at most 32 warps. The second barrier keeps the
    next reduction from overwriting shared memory that a slow warp still reads.

    Args:
        combine: name of the device function that combines two partial results.
        dtypes: compute dtype of each component.
    """
    values = _numbered("a", dtypes)
    neutral = _numbered("neutral", dtypes)
    shared = _numbered("shared", dtypes)
    source = [
        "@device_function",
        f"def row_{combine}({', '.join([*values, *neutral, *shared])}):",
        *_butterfly(combine, values, "    "),
        "    if cuda.blockDim.x > 32:",
        "        lane = cuda.threadIdx.x & 31",
        "        warp = cuda.threadIdx.x >> 5",
        "        if lane == 0:",
        *(f"            {text}" for text in _stores_text(shared, "warp", values, dtypes)),
        "        barrier()",
        *(f"        {text}" for text in _assign(values, neutral)),
        "        if lane < cuda.blockDim.x >> 5:",
        *(f"            {text}" for text in _assign(values, _loads_text(shared, "lane", dtypes))),
        "        barrier()",
        *_butterfly(combine, values, "        "),
        f"    return {', '.join(values)}",
    ]
    return "\n".join(source)


def column_reduction(combine: str, dtypes: Sequence[str], lanes: int = 1) -> str:
    """The tree reduction over ``blockDim.y`` threads of a column, in shared memory.

    ``blockDim.x`` must be 32, and ``blockDim.y`` a power of two, at most 32. All threads of the
    block must call it.

    Args:
        combine, dtypes: as for ``row_reduction``.
        lanes: columns of a thread. Parameters and results are ordered by column, then by component.
            Each column has 32 * 32 elements of the shared arrays, so that all columns use the same
            barriers.
    """
    values = _numbered("a", [*dtypes] * lanes)
    shared = _numbered("shared", dtypes)
    count = len(dtypes)
    lane_values = [values[count * lane :][:count] for lane in range(lanes)]
    suffixes = ["", *(f" + {32 * 32 * lane}" for lane in range(1, lanes))]

    lane_pairs = list(zip(lane_values, suffixes, strict=True))  # variables, offset of their arrays

    def store_lanes() -> list[str]:
        return [
            text
            for variables, suffix in lane_pairs
            for text in _stores_text(shared, f"place{suffix}", variables, dtypes)
        ]

    def combine_lane(variables: Sequence[str], suffix: str) -> str:
        others = _loads_text(shared, f"place + 32 * half{suffix}", dtypes)
        return f"{', '.join(variables)} = {combine}({', '.join([*variables, *others])})"

    results = [
        text
        for variables, suffix in lane_pairs
        for text in _assign(variables, _loads_text(shared, f"cuda.threadIdx.x{suffix}", dtypes))
    ]
    source = [
        "@device_function",
        f"def column_{combine}({', '.join([*values, *shared])}):",
        "    place = 32 * cuda.threadIdx.y + cuda.threadIdx.x",
        *(f"    {text}" for text in store_lanes()),
        "    barrier()",
        "    half = cuda.blockDim.y >> 1",
        "    while half > 0:",
        "        if cuda.threadIdx.y < half:",
        *(f"            {combine_lane(*pair)}" for pair in lane_pairs),
        *(f"            {text}" for text in store_lanes()),
        "        barrier()",
        "        half = half >> 1",
        *(f"    {text}" for text in results),
        "    barrier()",
        f"    return {', '.join(values)}",
    ]
    return "\n".join(source)


# Printers of the device function, by the direction of a group in its block.
GROUP_REDUCTIONS: dict[str, Callable[[str, Sequence[str]], str]] = {
    "row": row_reduction,
    "column": column_reduction,
}


def _numbered(name: str, dtypes: Sequence[str]) -> list[str]:
    """Names of variables, one for each component."""
    return [f"{name}{number}" for number in range(len(dtypes))]


def _butterfly(combine: str, values: Sequence[str], indent: str) -> list[str]:
    """Butterfly reduction by warp shuffles: each of the 32 lanes gets the total."""
    statements = []
    for distance in (16, 8, 4, 2, 1):
        others = [f"shuffle_xor({value}, {distance})" for value in values]
        arguments = ", ".join([*values, *others])
        statements.append(f"{indent}{', '.join(values)} = {combine}({arguments})")
    return statements


def _stores_text(
    shared: Sequence[str], index: str, values: Sequence[str], dtypes: Sequence[str]
) -> list[str]:
    triples = zip(shared, values, dtypes, strict=True)
    return [f"{array}[{index}] = {narrow(value, dtype)}" for array, value, dtype in triples]


def _loads_text(shared: Sequence[str], index: str, dtypes: Sequence[str]) -> list[str]:
    pairs = zip(shared, dtypes, strict=True)
    return [widen(f"{array}[{index}]", dtype) for array, dtype in pairs]


def _assign(targets: Sequence[str], expressions: Sequence[str]) -> list[str]:
    pairs = zip(targets, expressions, strict=True)
    return [f"{target} = {expression}" for target, expression in pairs]


def to_bits(value: str, dtype: str) -> str:
    """The expression of a value's bits as uint64; 32-bit floats are zero-extended."""
    if dtype in ("float32", "float64"):
        value = f"bitcast({value}, np.uint{dtype[5:]})"
    return f"np.uint64({value})"


def from_bits(bits: str, dtype: str) -> str:
    """The value of a compute or storage dtype from the low bits of a 64-bit integer."""
    if dtype == "bool":
        return f"(np.uint8({bits}) != np.uint8(0))"
    if dtype in ("float32", "float64"):
        return f"bitcast(np.uint{dtype[5:]}({bits}), np.{dtype})"
    return f"np.{STORAGE_BITS.get(dtype, dtype)}({bits})"
