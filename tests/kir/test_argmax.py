"""The reduction to the first place of the largest key: what it finds, and that it is recognized."""

from dataclasses import replace

import numpy as np
import pytest

from gpuflow.kir.argmax import combine_argmax, is_argmax
from gpuflow.kir.builder import Builder
from gpuflow.kir.interpret import run
from gpuflow.kir.nodes import Axis, Kernel, Mode, Operand, Reduce, Role, Stride
from gpuflow.kir.verify import verify
from gpuflow.kir.walk import statements


def search_kernel(combine=combine_argmax):
    operands = {
        "at": Operand("at", "int64", Mode.INDEX, (Stride.UNIT,)),
        "x": Operand("x", "int32", Mode.IN, (Stride.UNIT,)),
        "o": Operand("o", "int64", Mode.OUT, (Stride.ZERO,)),
    }
    build = Builder(operands, ("i0",))
    starts = [build.const("int32", -(2**31)), build.const("int64", 2**63 - 1)]
    best = build.reduce(
        "i0",
        starts,
        lambda *sides: combine(build, *sides),
        lambda: (build.load("x"), build.load("at")),
    )
    build.store("o", best[1])
    axes = (Axis("i0", Role.REDUCE),)
    return Kernel("search", axes, tuple(operands.values()), build.finish(), kind="full")


def reduce_of(kernel):
    (reduction,) = [s for s in statements(kernel.body) if isinstance(s, Reduce)]
    return reduction


@pytest.mark.parametrize("x", [[3, 7, 7, 1], [-(2**31)] * 3, [5]])
def test_it_finds_the_first_place(x):
    kernel, o = search_kernel(), np.zeros(1, np.int64)
    verify(kernel)
    run(kernel, {"x": np.array(x, np.int32), "at": 0, "o": o}, {"i0": len(x)})
    assert o[0] == np.argmax(x)


def last_largest(build, key, place, new_key, new_place):
    is_taken = build.apply("ge", new_key, key)
    return build.select(is_taken, new_key, key), build.select(is_taken, new_place, place)


def smallest(build, key, place, new_key, new_place):
    return combine_argmax(build, new_key, new_place, key, place)


def test_only_this_reduction_is_recognized():
    reduce = reduce_of(search_kernel())
    assert is_argmax(reduce)
    assert not is_argmax(reduce_of(search_kernel(last_largest)))
    assert not is_argmax(reduce_of(search_kernel(smallest)))
    combine = reduce.combine
    swapped = replace(combine, results=combine.results[::-1])
    assert not is_argmax(replace(reduce, combine=swapped))
    for place, statement in enumerate(combine.body):
        if not hasattr(statement, "fn"):
            continue
        other = replace(statement, fn="or" if statement.fn == "and" else "le")
        body = (*combine.body[:place], other, *combine.body[place + 1 :])
        assert not is_argmax(replace(reduce, combine=replace(combine, body=body)))
