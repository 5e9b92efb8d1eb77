"""Functions of lax take operands of one dtype: a Python number of another one is refused.

`lax.add(0, 0.0)` was 0.0, and `lax.add(int32, 2.5)` dropped the half.
"""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.lax import one_dtype

BOTH = ["add", "sub", "mul", "div", "rem", "max", "min", "eq", "ne", "lt", "le", "gt", "ge"]
FLOATS = [
    *BOTH,
    "atan2",
    "nextafter",
    "igamma",
    "igammac",
    "igamma_grad_a",
    "random_gamma_grad",
    "zeta",
    "polygamma",
    "complex",
    "pow",
]
INTEGERS = [
    *BOTH,
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "shift_left",
    "shift_right_logical",
    "shift_right_arithmetic",
    "mulhi",
]
STRICT = {*FLOATS, *INTEGERS, "clamp", "select", "pad"}


def test_every_strict_function_is_tested():
    functions = {n: v for n, v in vars(one_dtype).items() if callable(v) and n in dir(lax)}
    published = {n: getattr(lax, n) for n in functions}  # itself, or as a program

    def is_it(n):
        return functions[n] in (published[n], getattr(published[n], "__wrapped__", None))

    assert {n for n in functions if is_it(n)} == STRICT


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("mode", [lambda f: f, gpuflow.jit], ids=["eager", "jit"])
def test_floats(name, mode):
    function, x = getattr(lax, name), jnp.array([2.0, 3.0])
    assert function(x, 2.5).shape == function(2.5, x).shape == (2,)
    wrong = [(1, x), (1, 2.5), (x.astype(jnp.bfloat16), 2.5), (2.5, x.astype(jnp.float16))]
    if name != "pow":  # whose exponent may be an integer
        wrong += [(x, 1), (2.5, 1), (x, np.int32(1))]
    for operands in wrong:
        with pytest.raises(TypeError, match=r"operands must have one dtype|must be a|must be an"):
            mode(lambda operands=operands: function(*operands))()


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name):
    function, x = getattr(lax, name), jnp.array([2, 3])
    assert function(x, 2).shape == function(2, x).shape == (2,)
    for wrong in (2.5, True, np.int8(1)):
        for operands in ((x, wrong), (wrong, x), (2, wrong)):
            with pytest.raises(TypeError, match=r"operands? must"):
                function(*operands)
    with pytest.raises(TypeError, match=r"Fix: convert one of them, or use the function of gpuf"):
        function(x.astype(jnp.int8), 2)


def test_the_others():
    x = jnp.array([2.0, 3.0])
    for call in (
        lambda: lax.clamp(0, x, 1.0),
        lambda: lax.clamp(0.0, x, 1),
        lambda: lax.clamp(0, 1.0, 2),
        lambda: lax.select(True, 1, 2.0),
        lambda: lax.pad(x, 0, [(1, 1, 0)]),
    ):
        with pytest.raises(TypeError, match="operands must have one dtype"):
            call()
    assert lax.clamp(0.0, x, 2.5).tolist() == [2.0, 2.5]
    assert lax.pad(x, 0.0, [(1, 0, 0)]).tolist() == [0, 2, 3]
    assert float(lax.select(True, 1.0, 2.0)) == 1


def test_rules_are_for_operands_only():
    """What is made of strict functions differentiates and compiles, in any float dtype."""
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        x = jnp.array([0.5, 2.0], dtype)
        for name in ("mul", "div", "max", "rem", "atan2", "pow"):
            function = getattr(lax, name)
            got = gpuflow.jit(gpuflow.grad(lambda x, f=function: f(x, x).sum()))(x)
            assert got.dtype == dtype


def _has_number(node: ast.AST) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _has_number(node.operand)
    if isinstance(node, ast.BinOp):
        return _has_number(node.left) and _has_number(node.right)
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float, complex))


def test_our_own_functions_convert_their_numbers():
    """A literal among the operands would be refused where arrays have another dtype."""
    root = Path(gpuflow.__file__).parent
    strict = []
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if not is_call or ast.unparse(node.func.value) != "lax":
                continue
            operands = {"pow": node.args[:1], "pad": node.args[1:2]}.get(node.func.attr, node.args)
            if node.func.attr in STRICT and any(map(_has_number, operands)):
                strict.append(f"{path.relative_to(root)}:{node.lineno}: {ast.unparse(node)}")
    assert strict == []
