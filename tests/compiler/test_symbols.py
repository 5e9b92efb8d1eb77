"""What lowering computes with: numbers, which decide nothing by accident, and facts."""

from __future__ import annotations

import operator
from types import SimpleNamespace

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.compiler import pipeline
from gpuflow.compiler.fusion.fuse import describe_program
from gpuflow.compiler.lowering.symbols import Facts, Numbers, may_be_equal
from gpuflow.compiler.planning import bind
from gpuflow.compiler.planning.plan import KernelStep
from gpuflow.compiler.planning.template import erase_sizes
from gpuflow.kir.text import kernel_text


@pytest.fixture(autouse=True)
def fresh_templates(monkeypatch):
    """No templates of earlier tests."""
    monkeypatch.setattr(pipeline, "_templates", {})


def described(function, *shapes):
    jaxpr = gf.make_jaxpr(function)(*[gf.ShapeDtypeStruct(s, np.float32) for s in shapes]).jaxpr
    return describe_program(jaxpr, {}), erase_sizes(jaxpr, {})[1]


def numbers_of(*shapes):
    return Numbers(*described(lambda *xs: [x + 1 for x in xs], *shapes))


# --- numbers ------------------------------------------------------------------------------------


def test_there_is_one_number_for_each_source():
    numbers = numbers_of((3, 4), (12,))
    assert numbers.size(3) is numbers.size(3)
    product = numbers.product([numbers.size(4), numbers.size(3)])
    assert product is numbers.product([numbers.size(3), numbers.size(4)])
    assert product.value == numbers.size(12).value and product != numbers.size(12)


def test_0_and_1_are_constants():
    numbers = numbers_of((3, 1, 0))
    assert numbers.size(0) is numbers.zero and numbers.size(1) is numbers.one
    assert numbers.product([]) is numbers.one
    assert numbers.product([numbers.size(3), numbers.zero]) is numbers.zero
    assert numbers.product([numbers.size(3), numbers.one]) is numbers.size(3)


def test_factors_are_kept_apart_from_sizes():
    numbers = numbers_of((2, 3))
    two = numbers.constant(2)
    assert numbers.product([two, numbers.size(3)]) != numbers.product(
        [numbers.size(2), numbers.size(3)]
    )
    once = numbers.product([numbers.constant(-1), numbers.size(3)])
    assert once.value == -3
    assert numbers.product([once, numbers.constant(-1)]) is numbers.size(3)


@pytest.mark.parametrize(
    "ask",
    [
        bool, operator.index, int, operator.not_, lambda n: n < n, lambda n: n >= 1,
        lambda n: max(n, 1), lambda n: n == 3, lambda n: n != 3, lambda n: n * 2, lambda n: n + n,
    ],
)  # fmt: skip
def test_nothing_is_decided_by_accident(ask):
    with pytest.raises(TypeError):
        ask(numbers_of((3,)).size(3))


def test_facts_keep_what_was_asked_but_of_constants():
    numbers, facts = numbers_of((3, 40)), Facts()
    short, long = numbers.size(3), numbers.size(40)
    assert facts.if_short(short) == 3 and facts.if_short(long) is None
    assert facts.if_short(numbers.one) == 1 and facts.write(numbers.constant(5)) == 5
    assert facts.write(long) == 40
    assert facts.short == {short: 3, long: None} and facts.written == {long: 40}


def test_only_multiples_of_different_steps_are_worth_a_question():
    numbers, facts = numbers_of((3, 4), (12,)), Facts()
    rows, twelve = numbers.product([numbers.size(3), numbers.size(4)]), numbers.size(12)
    assert not may_be_equal(rows, twelve)  # for other sizes of this key they are not
    thirds = numbers.product([numbers.constant(3), numbers.size(4)])
    assert may_be_equal(thirds, twelve) and facts.are_equal(thirds, twelve)
    assert may_be_equal(thirds, numbers.size(3)) and not facts.are_equal(thirds, numbers.size(3))
    assert [*facts.equal.values()] == [True, False]


# --- places -------------------------------------------------------------------------------------


def layouts(x):
    """Views of views."""
    cut = x[1:, ::2]
    turned = x.T[::-1]
    joined = x.reshape(x.shape[0] * x.shape[1])
    yield from (cut, cut.T, cut[:, None, 1:], turned, turned[1:], joined[3::2])
    yield from (x[None].T[::-2], x[2:].reshape(-1)[1:], jnp.squeeze(x[:, 2:3], 1))
    yield from (jnp.flip(cut), x.reshape(x.shape[0], 1, -1)[::3, 0], x[1:][::-1][2:])


@pytest.mark.parametrize("shape", [(7, 8), (5, 5), (40, 30)])
def test_strides_of_views_are_multiples_of_sizes(shape):
    """And only a place from which elements are taken is a number of its own."""
    program, symbols = described(lambda x: list(layouts(x)), shape)
    numbers = Numbers(program, symbols)
    assert len(program.views) >= 12
    for var, (buffer, view) in program.views.items():
        place = numbers.layout(var)
        assert place.buffer is buffer and place.broadcast == view.broadcast
        assert [stride.value for stride in place.strides] == [*view.strides]
        assert place.offset.value == view.offset
        kinds = {stride.source[0] for stride in place.strides}
        assert kinds <= {"constant", "product", "multiple"}
        assert place.offset.source[0] in ("constant", "offset")


def texts(function, *shapes):
    jitted = gf.jit(function)
    arrays = [np.ones(shape, np.float32) for shape in shapes]
    steps = jitted.lower(*arrays).compile().steps
    return [kernel_text(step.kernel) for step in steps if isinstance(step, KernelStep)]


def test_steps_join_axes_where_rows_are_whole_numbers_of_them():
    def thirds(x):
        return x[:, ::3] * 2

    joined, apart = texts(thirds, (5, 60)), texts(thirds, (5, 61))
    assert joined != apart
    assert texts(thirds, (9, 90)) == joined and texts(thirds, (9, 100)) == apart
    (template,) = pipeline._templates.values()
    assert [len(recipes) for recipes in template.recipes.values()] == [2]


# --- every group has a recipe -------------------------------------------------------------------


def update(x):
    return x.at[0].set(1.0), (x + 1).at[:, -1].add(x[:, 0])


def empty_parts(x):
    return jnp.concatenate([x, x[:0]], 0)[1:] * 2, x[:, :0].sum(1) + 1, jnp.pad(x[:0], 1)


def donated(x):
    return x * 2 + x[::1], x.T.sum(0)


@pytest.mark.parametrize(
    ("function", "rows"),
    [
        (update, (20, 33, 50)), (donated, (20, 33, 50)), (donated, (0, 0, 0)),
        (empty_parts, (20, 33, 50)), (empty_parts, (0, 0, 0)),
    ],
)  # fmt: skip
def test_a_new_size_lowers_nothing(function, rows, monkeypatch):
    # Checks would lower each group to compare.
    monkeypatch.setattr(bind, "config", SimpleNamespace(environment=SimpleNamespace(check=False)))
    jitted = gf.jit(function, donate_argnums=(0,) if function is donated else ())
    for number, (n, m) in enumerate(zip(rows, (40, 50, 60), strict=True)):
        if number:
            monkeypatch.setattr(bind, "lower_group", None)
        jitted.lower(np.ones((n, m), np.float32)).compile()
    kernels = sum(g.space is not None for t in pipeline._templates.values() for g in t.groups)
    assert kernels == sum(len(t.recipes) for t in pipeline._templates.values())
