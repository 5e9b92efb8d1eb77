"""The hypothesis strategies that draw random programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from fuzzing import draw_control, draw_elementwise, draw_indexing, draw_layout
from fuzzing.maker import MAX_ELEMENTS, Maker, Options, Type
from fuzzing.programs import FLOATS, INTEGERS, SPECIAL_SEEDS, Program
from hypothesis import strategies as st

SIMPLE = (*draw_elementwise.DRAWS, *draw_layout.DRAWS, *draw_indexing.SHORT_DRAWS)
INDEXED = (*draw_elementwise.DRAWS, *draw_layout.DRAWS, *draw_indexing.DRAWS)
NAMES = (*("float32",) * 8, *FLOATS, *INTEGERS, "bool", "complex64")


def draws_for(control: int) -> tuple[Callable[[Maker], None], ...]:
    """What a program may contain in which control flow is nested so deep."""
    if control == 0:
        return INDEXED
    inner = draws_for(control - 1)
    nested = [partial(draw, draws=inner) for draw in draw_control.DRAWS]
    return (*INDEXED, *nested * 2)


def _inputs(
    draw: Any, sizes: Sequence[int], names: Sequence[str], most: int, options: Options
) -> list[Type]:
    inputs = []
    for _ in range(draw(st.integers(1, most))):
        rank = draw(st.sampled_from([0, 1, 2, 2, 2, 3]))
        shape = tuple(draw(st.sampled_from([*sizes, *sizes, 1])) for _ in range(rank))
        while prod(shape) > options.most_elements:
            shape = shape[1:]
        dtype = draw(st.sampled_from(names))
        # What nothing exact may be made of has no jumps.
        inputs.append(Type(shape, dtype, not options.smooth or "float" not in dtype, 9.0))
    return inputs


def _finished(draw: Any, maker: Maker) -> Program:
    """The program with outputs for all that is not used, and part of it under a jit of its own."""
    inputs, count = maker.inputs, len(maker.types)
    used = {k for step in maker.steps for k in step.args}
    last = [k for k in range(len(inputs), count) if k not in used]
    extra = draw(st.lists(st.integers(0, count - 1), max_size=2))
    outputs = tuple([*last, *extra] or [count - 1])
    nested = (0, 0)
    if len(maker.steps) > 3 and draw(st.integers(0, 3)) == 0:
        first = draw(st.integers(0, len(maker.steps) - 2))
        nested = (first, draw(st.integers(first + 1, len(maker.steps))))
    types = tuple((t.shape, t.dtype) for t in inputs)
    # Beside an infinity nothing is smooth: loops give unused carries cotangents of 0, and 0 * inf
    # is nan where ops one by one have no cotangent at all.
    seed = draw(st.integers(0, SPECIAL_SEEDS - 1 if maker.options.smooth else 99))
    return Program(types, tuple(maker.steps), outputs, nested, seed)


SIZES = (0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33, 2, 3, 4, 5)
# Enough for vectors, cache tiles and several threads.
LARGE_SIZES = (31, 64, 65, 127, 257, 600, 1021, 2, 3, 1)
MAX_LARGE = 300_000


@st.composite
def programs(
    draw: Any, most_steps: int = 14, dtypes: Sequence[str] = (), large: bool = False
) -> Program:
    """Programs of up to ``most_steps`` draws without control flow; most values are float32."""
    some = st.sampled_from(LARGE_SIZES if large else SIZES)
    sizes = draw(st.lists(some, min_size=2, max_size=3))
    options = Options(most_elements=MAX_LARGE if large else MAX_ELEMENTS)
    maker = Maker(draw, sizes, _inputs(draw, sizes, dtypes or NAMES, 4, options), options)
    for _ in range(draw(st.integers(4, most_steps))):
        draw(st.sampled_from(SIMPLE))(maker)
    return _finished(draw, maker)


@st.composite
def control_programs(
    draw: Any,
    most_steps: int = 5,
    dtypes: Sequence[str] = (),
    reverse: bool = False,
    forward: bool = False,
    smooth: bool = False,
    nested: bool = False,
    depth: int = 2,
) -> Program:
    """Programs with loops, branches and mapped functions, ``depth`` in each other.

    Args:
        most_steps: how many draws at most, each of which may add a few steps.
        dtypes: of inputs; an int32 is always among those.
        reverse: only what has a reverse-mode derivative.
        forward: only what has a forward-mode derivative.
        smooth: only what is smooth in its float inputs.
        nested: with derivatives as steps.
        depth: 0 for programs that index, sort and contract, without control flow.
    """
    some = st.sampled_from([0, 1, 2, 3, 4, 5, 7, 2, 3, 4, 5, 13])
    sizes = draw(st.lists(some, min_size=2, max_size=3))
    options = Options(depth, reverse, forward, smooth, nested)
    inputs = _inputs(draw, sizes, dtypes or NAMES, 3, options)
    shape = draw(st.sampled_from([(), (sizes[0],), (sizes[-1],), (sizes[0], sizes[-1])]))
    inputs.append(Type(shape, "int32", True, 9.0))
    maker = Maker(draw, sizes, inputs, options)
    draws = draws_for(depth)
    if depth:
        inner = draws_for(depth - 1)
        draw(st.sampled_from(draw_control.DRAWS))(maker, inner)
    for _ in range(draw(st.integers(1, most_steps))):
        draw(st.sampled_from(draws))(maker)
    return _finished(draw, maker)


REDUCING = (
    *(draw_elementwise.reduce,) * 4,
    *(draw_elementwise.unary, draw_elementwise.binary) * 2,
    draw_elementwise.number,
    draw_elementwise.compare,
    draw_elementwise.select,
    draw_elementwise.position,
    draw_layout.rev,
    draw_layout.transpose,
)
# Short, turned and long rows; rows for a thread each and for all; sums that are split.
REDUCED_SHAPES = (
    (4, 7),
    (7, 4, 5),
    (40, 50),
    (1300, 7),
    (33, 600),
    (9, 9000),
    (2, 66_000),
    (5000, 24),
    (300, 300),
    (300, 6, 31),
    (100_000,),
)


@st.composite
def reducing_programs(draw: Any, most_steps: int = 9) -> Program:
    """Programs over arrays of one shape and values for its rows or columns, mostly reductions."""
    shape = draw(st.sampled_from(REDUCED_SHAPES))
    dtypes = st.sampled_from(("float32",) * 8 + ("float16", "int32"))
    inputs = [Type(shape, draw(dtypes), True, 9.0) for _ in range(draw(st.integers(1, 2)))]
    for _ in range(draw(st.integers(0, 2))):
        axis = draw(st.integers(0, len(shape) - 1))
        inputs.append(Type(shape[:axis] + shape[axis + 1 :], "float32", True, 9.0))
    maker = Maker(draw, shape, inputs, Options(most_elements=MAX_LARGE))
    for _ in range(draw(st.integers(3, most_steps))):
        draw(st.sampled_from(REDUCING))(maker)
    return _finished(draw, maker)
