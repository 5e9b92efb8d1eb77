"""Errors about arguments of the wrong kind come from annotations that explain them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.core.argument_kinds import explained, is_formed
from gpuflow.core.aval import KeyDType
from gpuflow.core.types import ArrayLike, Axes, DTypeLike


def failing(error):
    @explained
    def scale(
        x: ArrayLike,
        times: int = 2,
        axes: Axes = None,
        pairs: Sequence[tuple[int, int]] = (),
        mode: str | None = None,
        key: KeyDType | None = None,
        other: Any | int = 0,
        *more: Callable[..., Any],
        flag: bool = False,
        dtype: DTypeLike = float,
        ratio: float | Sequence[int] = 1.0,
    ):
        raise error

    return scale


X = np.ones(3)
WRONG = {
    "x": (lambda f: f([1, 2]), "x must be an array or a number; got [1, 2] of type list"),
    "times": (lambda f: f(X, "3"), "times must be an integer; got '3' of type str. Fix: times=2."),
    "float": (lambda f: f(X, 1.5), "times must be an integer; got 1.5"),
    "class": (lambda f: f(X, int), "times must be an integer; got <class 'int'>"),
    "axes": (lambda f: f(X, 1, "a"), "axes must be an integer or a sequence of integers or None"),
    "items": (lambda f: f(X, 1, (0, 1.5)), "axes must be an integer or a sequence"),
    "pairs": (lambda f: f(X, 1, None, [(1, 2, 3)]), "pairs must be a sequence of tuples of 2 int"),
    "mode": (lambda f: f(X, mode=3), "mode must be a string or None; got 3 of type int"),
    "more": (lambda f: f(X, 1, None, (), None, None, 0, print, 3), "more[1] must be a function"),
    "flag": (lambda f: f(X, flag=np.ones(2)), "flag must be True or False; got"),
    "dtype": (lambda f: f(X, dtype="float99"), "dtype must be a dtype of numbers; got 'float99'"),
    "ratio": (lambda f: f(X, ratio="a"), "ratio must be a number or a sequence of integers"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_argument_that_its_annotation_refuses_is_named(name):
    call, text = WRONG[name]
    with pytest.raises(TypeError, match=r"^\[scale\] .*; got .*\. Fix: ") as caught:
        call(failing(AttributeError("'str' object has no attribute 'ndim'")))
    assert text in str(caught.value)


@pytest.mark.parametrize("error", [ValueError, IndexError, OverflowError])
def test_classes_that_jax_raises_too_stay(error):
    with pytest.raises(error, match="times must be an integer"):
        failing(error("inside"))(X, "3")


@pytest.mark.parametrize(
    "call",
    [
        lambda f: f(X),
        lambda f: f(2.0, np.int32(3), [0, 1], [(1, 2)], "a", None, "anything", print, flag=1),
        lambda f: f(X, axes=np.array([0, 1]), dtype=np.int8, ratio=(1, 2)),
    ],
)
def test_other_errors_stay_as_they_are(call):
    with pytest.raises(TypeError, match=r"^inside$"):
        call(failing(TypeError("inside")))


def test_what_is_explained_already_stays():
    said = "[inner] k must be 1; got 2. Fix: 1."
    assert is_formed(ValueError(said)) and not is_formed(ValueError("Fix: this"))
    with pytest.raises(ValueError, match=r"^\[inner\] k must be 1"):
        failing(ValueError(said))(X, "3")


@pytest.mark.parametrize(
    "call, fix",
    [
        (lambda: jnp.eye((2, 3)), "eye(2, 3)"),
        (lambda: jnp.tri([4]), "tri(4)"),
        (lambda: jnp.eye((2, 3, 4, 5)), "N=2"),  # k takes the third, and nothing the fourth
        (lambda: jnp.eye(()), "N=2"),
        (lambda: jnp.eye((2, 3.0)), "N=2"),
    ],
)
def test_a_shape_where_sizes_are_single_arguments(call, fix):
    with pytest.raises(TypeError, match=re.escape(f"Fix: {fix}.")):
        call()


def test_composites_explain_too():
    with pytest.raises(TypeError, match=r"\[eye\] N must be an integer; got set\(\) of type set"):
        jnp.eye(set())
    with pytest.raises(TypeError, match=r"\[hilbert\] n must be an integer; got 'a' of type str"):
        gf.scipy.linalg.hilbert("a")
    with pytest.raises(TypeError, match=r"\[treedef_children\] treedef must be a PyTreeSpec"):
        gf.tree_util.treedef_children({})
