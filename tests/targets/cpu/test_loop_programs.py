"""Loop programs: their text is read again as the same program, and expressions are records."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuflow.targets.cpu.codegen.loops.nodes import (
    ARITHMETIC,
    COMPARISONS,
    Accessor,
    Assign,
    BinaryOperation,
    BoolLiteral,
    Branch,
    Break,
    Call,
    CallStatement,
    Convert,
    InfiniteLoop,
    IntLiteral,
    InvalidProgram,
    Loop,
    Name,
    Program,
    Return,
    TypedLiteral,
    UnaryOperation,
    call,
    expressions_in,
    names_called,
)
from gpuflow.targets.cpu.codegen.loops.parser import program_of
from gpuflow.targets.cpu.codegen.loops.text import expression_text, program_text

NAMES = st.sampled_from(["x", "y", "t1", "n_i0"])
DTYPES = st.sampled_from(["int8", "uint64", "float32", "float64"])
LEAVES = st.one_of(
    NAMES.map(Name),
    st.integers(-(2**63), 2**63 - 1).map(IntLiteral),
    st.booleans().map(BoolLiteral),
    st.builds(TypedLiteral, st.integers(-9, 9), DTYPES),
    st.builds(TypedLiteral, st.floats(), st.sampled_from(["float32", "float64"])),
)


def compound(parts):
    return st.one_of(
        st.builds(BinaryOperation, st.sampled_from((*ARITHMETIC, *COMPARISONS)), parts, parts),
        # A minus before a number is a part of the number.
        st.builds(UnaryOperation, st.sampled_from(["not", "~", "-"]), NAMES.map(Name)),
        st.builds(UnaryOperation, st.sampled_from(["not", "~"]), parts),
        st.builds(Convert, DTYPES, NAMES.map(Name)),
        st.lists(parts, max_size=3).map(lambda those: call("f_int32", *those)),
    )


EXPRESSIONS = st.recursive(LEAVES, compound, max_leaves=8)
CALLS = st.lists(EXPRESSIONS, max_size=2).map(lambda those: call("g", *those))
SIMPLE = st.one_of(
    st.builds(Assign, st.tuples(NAMES), EXPRESSIONS),
    st.builds(Assign, st.tuples(NAMES, NAMES), CALLS),
    CALLS.map(CallStatement),
    st.just(Break()),
    st.just(Return()),
)


def blocks(statements):
    return st.lists(statements, max_size=3).map(tuple)


STATEMENTS = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        st.builds(Loop, NAMES, EXPRESSIONS, EXPRESSIONS, st.booleans(), blocks(inner)),
        blocks(inner).map(InfiniteLoop),
        st.builds(Branch, EXPRESSIONS, blocks(inner), blocks(inner)),
    ),
    max_leaves=6,
)


@settings(derandomize=True, database=None, deadline=None)
@given(blocks(STATEMENTS))
def test_a_text_is_read_as_the_program_that_wrote_it(body):
    accessors = (Accessor("load_x", "reader", "float32", 0, 2),)
    program = Program("kernel_f", accessors, body, ("A comment.", "and another"))
    assert program_of(program_text(program), "kernel_f") == program


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ((Name("a") + 1) * 2, "(a + 1) * 2"),
        (Name("a") + (Name("b") + 1), "a + (b + 1)"),
        (Name("a") - 1 - Name("b"), "a - 1 - b"),
        ((Name("a") + 1) >> 2, "a + 1 >> 2"),
        (Name("a").equals(0) & (Name("b") > 1), "(a == 0) & (b > 1)"),
        (UnaryOperation("not", Name("a") < 3), "not a < 3"),
        (UnaryOperation("-", Name("a") * 2), "-(a * 2)"),
        (Name("a") * IntLiteral(-2), "a * -2"),
        (TypedLiteral(float("-inf"), "float32"), "np.float32(-np.inf)"),
        (Convert("int32", Name("a") + Name("b")), "np.int32(a + b)"),
    ],
)
def test_parentheses_stand_where_python_needs_them(expression, text):
    assert expression_text(expression) == text


def test_numbers_are_equal_if_their_bits_are():
    assert TypedLiteral(0.0, "float32") != TypedLiteral(-0.0, "float32")
    assert TypedLiteral(0, "int32") != TypedLiteral(0.0, "float32")
    nan = TypedLiteral(float("nan"), "float64")
    assert nan == TypedLiteral(np.nan, "float64") and hash(nan) == hash(
        TypedLiteral(np.nan, "float64")
    )
    assert IntLiteral(1) != BoolLiteral(True)


def test_names():
    value = call("f", Name("x") + 1, call("g", Name("x"), Name("y")))
    names = [one.name for one in expressions_in(value) if isinstance(one, Name)]
    assert sorted(names) == ["x", "x", "y"]
    body = [Loop("i", IntLiteral(0), call("h"), False, [CallStatement(Call("f", (value,)))])]
    assert sorted(names_called(body)) == ["f", "f", "g", "h"]


@pytest.mark.parametrize("text", ["x = lambda: 1", "x = [1]", "y = f(*x)", "x = a.b", "import os"])
def test_other_texts_are_refused(text):
    with pytest.raises(InvalidProgram):
        program_of(f"def kernel(words, lo, hi):\n    {text}\n", "kernel")
