"""Axes, integers, sequences and choices: what is allowed, and the errors about the rest."""

import enum

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base import arguments


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def test_axes():
    assert arguments.canonicalize_axis(-1, 3) == 2
    assert arguments.canonicalize_axis(np.int8(1), 3) == 1
    assert arguments.canonicalize_axes(None, 2) == (0, 1)
    assert arguments.canonicalize_axes(np.array([1, -2]), 2) == (0, 1)
    assert arguments.are_dimensions((1, 0), 2) and arguments.are_dimensions((), 0)
    for wrong in ((0, 0), (2,), (-1,), (0.0,), ("a",), ([0],), (int,), (1.5,)):
        assert not arguments.are_dimensions(wrong, 2)


@pytest.mark.parametrize("wrong", [1.5, "a", None, int, np.ones(2), [1], 1e30, object()])
def test_what_is_no_integer(wrong):
    for call in (
        lambda: arguments.canonicalize_axis(wrong, 3, "f"),
        lambda: arguments.as_integer("f", "axis", wrong),
        lambda: arguments.as_integers("f", "axis", [0, wrong]),
    ):
        with pytest.raises(TypeError, match=r"^\[f\] .*must be an integer; got .*Fix: pass"):
            call()


def test_sequences():
    assert arguments.as_items("f", "dims", [1, "a"]) == (1, "a")
    assert arguments.as_integers("f", "dims", np.array([3, 4])) == (3, 4)
    with pytest.raises(TypeError, match=r"\[f\] dims must be a sequence; got 3 of type int"):
        arguments.as_items("f", "dims", 3)


def test_choices():
    assert arguments.as_member("f", "color", 2, Color) is Color.BLUE
    for wrong in (3, [1], "RED"):
        with pytest.raises(ValueError, match=r"\[f\] color must be one of RED, BLUE; got .*RED\."):
            arguments.as_member("f", "color", wrong, Color)
    with pytest.raises(ValueError, match=r"\[f\] mode must be 'a' or 'b'; got 3. Fix: mode='a'"):
        arguments.check_choice("f", "mode", 3, ["a", "b"])


def test_an_axis_may_be_traced_nowhere():
    with pytest.raises(gf.errors.TracerIntegerConversionError, match="traced"):
        gf.jit(lambda axis: arguments.as_integer("f", "axis", axis))(1)
    with pytest.raises(gf.errors.TracerIntegerConversionError, match="traced"):
        gf.jit(lambda axis: jnp.sum(jnp.ones(3), axis=axis))(0)
