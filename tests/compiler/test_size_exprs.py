"""Size expressions, which decide nothing by accident, and queries of their values."""

from __future__ import annotations

import operator
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.compiler.fusion.fuse import describe_program
from gpuflow.compiler.lowering.size_exprs import SizeExprs, SizeQueries, may_be_equal_products
from gpuflow.compiler.lowering.size_table import ConcreteProgram, ErasedSizes, SizeTable
from gpuflow.compiler.planning import specialize, symbolic_program
from gpuflow.compiler.planning.key import erase_sizes
from gpuflow.compiler.planning.plan import KernelStep
from gpuflow.kir.interpret import scalar_to_slot
from gpuflow.kir.text import kernel_text


@pytest.fixture(autouse=True)
def fresh_programs(monkeypatch):
    """No symbolic programs of earlier tests."""
    monkeypatch.setattr(symbolic_program, "_programs", {})


def described(function, *shapes):
    jaxpr = gf.make_jaxpr(function)(*[gf.ShapeDtypeStruct(s, np.float32) for s in shapes]).jaxpr
    return describe_program(jaxpr, {}), erase_sizes(jaxpr, {})[1]


def exprs_of(*shapes):
    return SizeExprs(*described(lambda *xs: [x + 1 for x in xs], *shapes))


# --- expressions --------------------------------------------------------------------------------


def test_there_is_one_expression_for_each_source():
    exprs = exprs_of((3, 4), (12,))
    assert exprs.size(3) is exprs.size(3)
    product = exprs.product([exprs.size(4), exprs.size(3)])
    assert product is exprs.product([exprs.size(3), exprs.size(4)])
    assert product.value == exprs.size(12).value and product != exprs.size(12)


def test_0_and_1_are_constants():
    exprs = exprs_of((3, 1, 0))
    assert exprs.size(0) is exprs.zero and exprs.size(1) is exprs.one
    assert exprs.product([]) is exprs.one
    assert exprs.product([exprs.size(3), exprs.zero]) is exprs.zero
    assert exprs.product([exprs.size(3), exprs.one]) is exprs.size(3)


def test_factors_are_kept_apart_from_sizes():
    exprs = exprs_of((2, 3))
    two = exprs.constant(2)
    assert exprs.product([two, exprs.size(3)]) != exprs.product([exprs.size(2), exprs.size(3)])
    once = exprs.product([exprs.constant(-1), exprs.size(3)])
    assert once.value == -3
    assert exprs.product([once, exprs.constant(-1)]) is exprs.size(3)


@pytest.mark.parametrize(
    "ask",
    [
        bool,
        operator.index,
        int,
        operator.not_,
        lambda n: n < n,
        lambda n: n >= 1,
        lambda n: max(n, 1),
        lambda n: n == 3,
        lambda n: n != 3,
        lambda n: n * 2,
        lambda n: n + n,
    ],
)
def test_nothing_is_decided_by_accident(ask):
    with pytest.raises(TypeError):
        ask(exprs_of((3,)).size(3))


def test_queries_of_constants_are_not_recorded():
    exprs, queries = exprs_of((3, 40)), SizeQueries()
    short, long = exprs.size(3), exprs.size(40)
    assert queries.value_if_short(short) == 3 and queries.value_if_short(long) is None
    assert queries.value_if_short(exprs.one) == 1 and queries.value_in_text(exprs.constant(5)) == 5
    assert queries.value_in_text(long) == 40
    assert queries.short == {short: 3, long: None} and queries.in_text == {long: 40}


def test_only_multiples_of_different_steps_are_worth_a_question():
    exprs, queries = exprs_of((3, 4), (12,)), SizeQueries()
    rows, twelve = exprs.product([exprs.size(3), exprs.size(4)]), exprs.size(12)
    assert not may_be_equal_products(rows, twelve)  # for other sizes of this key they are not
    thirds = exprs.product([exprs.constant(3), exprs.size(4)])
    assert may_be_equal_products(thirds, twelve) and queries.are_equal(thirds, twelve)
    assert may_be_equal_products(thirds, exprs.size(3)) and not queries.are_equal(
        thirds, exprs.size(3)
    )
    assert [*queries.equal.values()] == [True, False]


# --- tables -------------------------------------------------------------------------------------


def test_literals_have_the_bits_of_their_values():
    """Zeros are equal and nans are not; a 0-d array, which some programs have, has no hash."""
    values = (
        2.5, 0.0, -0.0, np.nan, np.inf, 1, True, np.float32(2.5), np.float64(2.5),
        np.asarray(2.5, np.float32), np.asarray(-0.0), np.int64(-3), np.bool_(False),
    )  # fmt: skip
    for dtype in ("float32", "float64", "int64"):
        for value in values:
            if dtype == "int64" and not np.isfinite(value):
                continue
            table = SizeTable()
            ordinal = table.ordinal(("literal", 0, dtype))
            program = ConcreteProgram(None, ErasedSizes((), (), (value,)), {})
            assert table.evaluate(program)[ordinal] == scalar_to_slot(dtype, value)
            assert table.evaluate(program) == table.evaluate(program)


@pytest.mark.parametrize("value", [1 + 2j, -0.0j, np.complex64(3 - 0j), np.asarray(2j)])
def test_components_of_literals(value):
    table = SizeTable()
    ordinals = [table.ordinal(("part", 0, "float32", k)) for k in (0, 1)]
    assert ordinals == [0, 1] == [table.ordinal(("part", 0, "float32", k)) for k in (0, 1)]
    values = table.evaluate(ConcreteProgram(None, ErasedSizes((), (), (value,)), {}))
    expected = [np.asarray(value).real, np.asarray(value).imag]
    assert [values[k] for k in ordinals] == [scalar_to_slot("float32", x) for x in expected]


# --- layouts ------------------------------------------------------------------------------------


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
    program, erased = described(lambda x: list(layouts(x)), shape)
    exprs = SizeExprs(program, erased)
    assert len(program.views) >= 12
    for var, (buffer, view) in program.views.items():
        place = exprs.layout(var)
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
    (program,) = symbolic_program._programs.values()
    assert len(program.plans) == 2


# --- one plan for many sizes ---------------------------------------------------------------------


def update(x):
    return x.at[0].set(1.0), (x + 1).at[:, -1].add(x[:, 0])


def empty_parts(x):
    return jnp.concatenate([x, x[:0]], 0)[1:] * 2, x[:, :0].sum(1) + 1, jnp.pad(x[:0], 1)


def donated(x):
    return x * 2 + x[::1], x.T.sum(0)


@pytest.mark.parametrize(
    ("function", "rows"),
    [
        (update, (20, 33, 50)),
        (donated, (20, 33, 50)),
        (donated, (0, 0, 0)),
        (empty_parts, (20, 33, 50)),
        (empty_parts, (0, 0, 0)),
    ],
)
def test_a_new_size_lowers_nothing(function, rows, monkeypatch):
    # Checks would lower each group to compare.
    check_off = SimpleNamespace(environment=SimpleNamespace(check=False))
    monkeypatch.setattr(symbolic_program, "config", check_off)
    jitted = gf.jit(function, donate_argnums=(0,) if function is donated else ())
    for number, (n, m) in enumerate(zip(rows, (40, 50, 60), strict=True)):
        if number:
            monkeypatch.setattr(specialize, "lower_group", None)
        jitted.lower(np.ones((n, m), np.float32)).compile()
    assert [len(program.plans) for program in symbolic_program._programs.values()] == [1]


# --- threads ------------------------------------------------------------------------------------


def test_threads_add_expressions_at_once():
    table, found = SizeTable(), {}
    sources = [("multiple", factor, 0) for factor in range(2, 400)]

    def work(number):
        order = np.random.default_rng(number).permutation(len(sources))
        found[number] = {sources[k]: table.ordinal(sources[k]) for k in order}

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(own == found[0] for own in found.values())
    values = table.evaluate(ConcreteProgram(None, ErasedSizes((7,), (), ()), {}))
    assert all(values[ordinal] == 7 * source[1] for source, ordinal in found[0].items())
