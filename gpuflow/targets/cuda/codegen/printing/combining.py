"""Text of the device functions that reduce partial results over the threads of a group.

They are printed into each kernel because they call its ``combine`` function, and because a reader
of a kernel should see all of it. Every thread of the group gets the result. The order of
combination is fixed, so results have the same bits in every run. All threads of the block (of the
warp, if a group is one) must call them, as they contain barriers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuflow.targets.cuda.codegen.printing.scalar_text import STORAGE_BITS, narrow, widen

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
        *(f"            {text}" for text in _put(shared, "warp", values, dtypes)),
        "        barrier()",
        *(f"        {text}" for text in _assign(values, neutral)),
        "        if lane < cuda.blockDim.x >> 5:",
        *(f"            {text}" for text in _assign(values, _get(shared, "lane", dtypes))),
        "        barrier()",
        *_butterfly(combine, values, "        "),
        f"    return {', '.join(values)}",
    ]
    return "\n".join(source)


def column_reduction(combine: str, dtypes: Sequence[str], lanes: int = 1) -> str:
    """The tree reduction over ``blockDim.y`` threads of a column, in shared memory.

    ``blockDim.x`` must be 32, and ``blockDim.y`` a power of two.

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

    def put() -> list[str]:
        pairs = zip(lane_values, suffixes, strict=True)
        return [text for own, at in pairs for text in _put(shared, f"place{at}", own, dtypes)]

    def combined(own: Sequence[str], at: str) -> str:
        others = _get(shared, f"place + 32 * half{at}", dtypes)
        return f"{', '.join(own)} = {combine}({', '.join([*own, *others])})"

    results = [
        text
        for own, at in zip(lane_values, suffixes, strict=True)
        for text in _assign(own, _get(shared, f"cuda.threadIdx.x{at}", dtypes))
    ]
    source = [
        "@device_function",
        f"def column_{combine}({', '.join([*values, *shared])}):",
        "    place = 32 * cuda.threadIdx.y + cuda.threadIdx.x",
        *(f"    {text}" for text in put()),
        "    barrier()",
        "    half = cuda.blockDim.y >> 1",
        "    while half > 0:",
        "        if cuda.threadIdx.y < half:",
        *(f"            {combined(*pair)}" for pair in zip(lane_values, suffixes, strict=True)),
        *(f"            {text}" for text in put()),
        "        barrier()",
        "        half = half >> 1",
        *(f"    {text}" for text in results),
        "    barrier()",
        f"    return {', '.join(values)}",
    ]
    return "\n".join(source)


GROUP_REDUCTIONS: dict[str, Callable[[str, Sequence[str]], str]] = {
    "row": row_reduction,
    "column": column_reduction,
}


def _numbered(name: str, dtypes: Sequence[str]) -> list[str]:
    return [f"{name}{number}" for number in range(len(dtypes))]


def _butterfly(combine: str, values: Sequence[str], indent: str) -> list[str]:
    """Butterfly reduction by warp shuffles: each of the 32 lanes gets the total."""
    statements = []
    for distance in (16, 8, 4, 2, 1):
        others = [f"shuffle_xor({value}, {distance})" for value in values]
        arguments = ", ".join([*values, *others])
        statements.append(f"{indent}{', '.join(values)} = {combine}({arguments})")
    return statements


def _put(
    shared: Sequence[str], index: str, values: Sequence[str], dtypes: Sequence[str]
) -> list[str]:
    triples = zip(shared, values, dtypes, strict=True)
    return [f"{array}[{index}] = {narrow(value, dtype)}" for array, value, dtype in triples]


def _get(shared: Sequence[str], index: str, dtypes: Sequence[str]) -> list[str]:
    pairs = zip(shared, dtypes, strict=True)
    return [widen(f"{array}[{index}]", dtype) for array, dtype in pairs]


def _assign(targets: Sequence[str], expressions: Sequence[str]) -> list[str]:
    return [f"{t} = {e}" for t, e in zip(targets, expressions, strict=True)]


def to_bits(value: str, dtype: str) -> str:
    """The bits of a value of a compute dtype as uint64."""
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
