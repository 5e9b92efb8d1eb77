"""Error messages of jnp: what must hold, what was given, what to write."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from together import together

import gpuflow
import gpuflow.numpy as jnp
from gpuflow import lax, nn, tree, tree_util
from gpuflow.base.errors import ConcretizationTypeError, NonConcreteBooleanIndexError

X = np.ones((3, 4), np.float32)


def x():
    return jnp.asarray(X)


def i():
    return jnp.arange(3)


CASES = [
    (
        lambda: gpuflow.print_environment_info(return_string=np.array([None, 1])),
        ValueError,
        r"\[print_environment_info\] return_string must be true or false; got",
    ),
    (
        lambda: lax.conv_general_dilated_patches(jnp.ones((1, 1, 4)), (10**12,), (1,), "VALID"),
        ValueError,
        r"\[conv_general_dilated_patches\] .* must have at most .*; got .*Fix:",
    ),
    (lambda: x()[1.5:], TypeError, r"\[index\] a bound of a slice must be an integer; got 1.5"),
    (lambda: x()[:"a"], TypeError, r"\[index\] a bound of a slice must be an integer; got 'a'"),
    (
        lambda: gpuflow.ops.segment_sum(i(), i(), "a"),
        TypeError,
        r"\[segment_sum\] num_segments must be an integer; got 'a'",
    ),
    (
        lambda: lax.concatenate(gpuflow.ShapeDtypeStruct((2,), "f"), 0),
        TypeError,
        r"\[concatenate\] operands must be .*; got ShapeDtypeStruct.*Fix:",
    ),
    (
        lambda: gpuflow.image.resize(x(), (2, 2), "linear", antialias=np.ones((0, 3))),
        ValueError,
        r"\[resize\] antialias must be true or false; got",
    ),
    (
        lambda: gpuflow.image.scale_and_translate(
            x(), (2, 2), (0,), jnp.ones(1), jnp.ones(1), "linear", antialias=np.ones((0, 3))
        ),
        ValueError,
        r"\[scale_and_translate\] antialias must be true or false; got",
    ),
    (
        lambda: gpuflow.scipy.special.bessel_jn(x(), v=2**70),
        ValueError,
        r"\[bessel_jn\] v must be from 0 to 1000.*got v=.*Fix:",
    ),
    (
        lambda: gpuflow.scipy.special.lpmn_values(2**70, 2**70, x()[0], True),
        ValueError,
        r"\[lpmn_values\] n must be from 0 to 10000; got .*Fix:",
    ),
    (
        lambda: gpuflow.scipy.special.lpmn_values(-7, -7, x()[0], True),
        ValueError,
        r"\[lpmn_values\] n must be from 0 to 10000; got -7",
    ),
    (lambda: jnp.add(x(), [1, 2]), TypeError, r"\[add\].*got list at position 1.*jnp\.asarray"),
    (lambda: x() - [1, 2], TypeError, "operands must be arrays or numbers; got a list"),
    (lambda: jnp.sum([1, 2]), TypeError, "arrays or numbers"),
    (lambda: x() + jnp.ones(3), TypeError, r"\[add\] shapes must broadcast.*\(3, 4\), \(3,\)"),
    (lambda: i() + 2**40, OverflowError, "must fit int32.*enable_x64"),
    (lambda: jnp.array(2**40), OverflowError, "must fit int32"),
    (lambda: jnp.sin(2**31), OverflowError, "must fit int32; got 2147483648"),
    (lambda: jnp.logaddexp(-(2**31) - 1, 1), OverflowError, "must fit int32; got -2147483649"),
    (lambda: jnp.array(None), ValueError, r"\[array\] the data must be numbers; got None"),
    (lambda: jnp.roots(np.ones(3), strip_zeros=np.ones(2)), ValueError, "strip_zeros must be"),
    (lambda: jnp.iscomplexobj([[1], [1, 2]]), ValueError, r"\[iscomplexobj\] x must be"),
    (lambda: jnp.empty_like(x(), shape=int), TypeError, "shape must be an int or a sequence"),
    (lambda: jnp.broadcast_shapes(int, (3,)), TypeError, r"\[broadcast_shapes\] shape must be"),
    (
        lambda: gpuflow.lax.conv_transpose_shape_tuple(
            (8, 5, 3), (3, 3, 16), (2,), (), ("NHC", "HIO", "NHC")
        ),
        ValueError,
        "for each of 1 dim",
    ),
    (lambda: jnp.linalg.pinv(2.0), TypeError, r"\[svd\]"),
    (lambda: jnp.array_repr(x(), precision=2**63), ValueError, "precision must fit into 32 bits"),
    (lambda: jnp.eye(-1), ValueError, r"\[eye\] N and M must not be negative; got -1, -1. Fix: "),
    (lambda: jnp.identity(-1), ValueError, r"\[eye\] N and M must not be negative; got -1, -1"),
    (lambda: jnp.concatenate(3), TypeError, r"\[concatenate\] a sequence of arrays is needed"),
    (lambda: jnp.hstack(3), TypeError, r"\[hstack\] a sequence of arrays is needed"),
    (lambda: jnp.split(x(), "a"), ValueError, "indices_or_sections must be integers; got 'a'"),
    (lambda: jnp.sum(x(), axis="a"), NameError, r"\[sum\] the axis name 'a' must be bound"),
    (lambda: jnp.max(x(), (0, "a")), NameError, r"\[max\] the axis name 'a' must be bound"),
    (lambda: jnp.sum(x(), axis=1.5), TypeError, r"\[sum\] axis must be an integer; got 1.5"),
    (lambda: jnp.sort(x(), axis="a"), TypeError, r"\[sort\] axis must be an integer; got 'a'"),
    (lambda: jnp.array([2**40]), OverflowError, "must fit int32"),
    (lambda: jnp.array(300, jnp.int8), OverflowError, r"\[array\].*must fit int8; got 300"),
    (lambda: jnp.array([1, -1], jnp.uint8), OverflowError, "must fit uint8; got -1"),
    (lambda: jnp.array([300.0], jnp.int8), OverflowError, "must fit int8; got 300"),
    (lambda: jnp.uint32(-1), OverflowError, "must fit uint32; got -1"),
    (lambda: jnp.transpose(x(), (0,)), TypeError, "each dimension of .* once"),
    (lambda: lax.expand_dims(x(), (0, 0)), ValueError, "dimensions must differ"),
    (
        lambda: gpuflow.jit(lambda n: X[0] + jnp.asarray(X)[n:])(1),
        IndexError,
        r"\[index\] the bounds of a slice must be known.*dynamic_slice_in_dim",
    ),
    (lambda: jnp.array([1, None]), TypeError, "must be numbers; got None"),
    (lambda: jnp.array("text"), TypeError, "numbers"),
    (lambda: jnp.zeros(3, "text"), TypeError, "dtype"),
    (lambda: jnp.zeros(3.5), TypeError, "shape must be an int"),
    (lambda: jnp.zeros((2, -1)), TypeError, "negative"),
    (lambda: jnp.array([True]) - True, TypeError, r"\[sub\]"),
    (lambda: -jnp.array([True]), TypeError, r"\[neg\]"),
    (lambda: ~x(), TypeError, r"\[not\]"),
    (lambda: i() ** -1, TypeError, "negative powers"),
    (lambda: jnp.sum(x(), axis=2), ValueError, r"\[sum\] axis must be in \[-2, 2\)"),
    (lambda: jnp.sum(x(), axis=(0, 0)), ValueError, "axes must differ"),
    (lambda: jnp.sum(x(), axis=0.5), TypeError, "axis must be an integer"),
    (lambda: jnp.sum(x(), out=x()), NotImplementedError, "out must be None.*jnp.sum"),
    (lambda: jnp.stack([x()], out=x()), NotImplementedError, "out must be None.*jnp.stack"),
    (lambda: jnp.outer(x(), x(), out=x()), NotImplementedError, "out must be None.*jnp.outer"),
    (
        lambda: jnp.repeat(x(), np.array([1, 2, 3]), axis=0, total_repeat_length=-5),
        ValueError,
        r"\[repeat\] total_repeat_length must not be negative; got -5",
    ),
    (
        lambda: jnp.repeat(x(), 2, axis=0, total_repeat_length=5.0),
        TypeError,
        r"\[repeat\] total_repeat_length must be an integer; got 5.0",
    ),
    (lambda: jnp.ravel_multi_index((x()[0],), (4,)), TypeError, "positions must be integers"),
    (lambda: jnp.max(jnp.zeros(0)), ValueError, "empty array has no max.*initial"),
    (lambda: jnp.max(x(), where=x() > 0), ValueError, "needs initial="),
    (lambda: jnp.argmax(jnp.zeros((2, 0)), 1), ValueError, "must not be empty"),
    (lambda: x().reshape(5, 2), TypeError, r"12 elements.*\(5, 2\)"),
    (lambda: x().reshape(5, -1), TypeError, "12 elements"),
    (lambda: jnp.reshape(x(), (2, 6), order="A"), ValueError, "order must be 'C' or 'F'"),
    (lambda: jnp.reshape(x(), (2, 6), None), ValueError, "order must be 'C' or 'F'; got None"),
    (lambda: jnp.reshape(x(), 3, 4), TypeError, r"one tuple.*Fix: jnp\.reshape\(x, \(3, 4\)\)"),
    (lambda: jnp.reshape(x(), [3, 2], 2), TypeError, r"Fix: jnp\.reshape\(x, \(3, 2, 2\)\)"),
    (lambda: jnp.squeeze(x(), 0), ValueError, r"\[squeeze\].*size 1"),
    (lambda: jnp.broadcast_to(x(), (3, 5)), ValueError, "must broadcast to the shape"),
    (lambda: jnp.moveaxis(x(), (0, 1), 0), ValueError, "equally many distinct axes"),
    (lambda: jnp.stack([]), ValueError, "at least one array"),
    (lambda: jnp.stack([x(), i()]), ValueError, "one shape"),
    (lambda: jnp.concatenate([x(), i()]), TypeError, r"\[concatenate\] shapes must agree"),
    (lambda: jnp.concatenate([1, 2]), ValueError, "scalars have no axis.*jnp.stack"),
    (lambda: jnp.split(x(), 3, 1), ValueError, "divide the axis evenly.*array_split"),
    (lambda: jnp.array_split(x(), 0), ValueError, "must be positive"),
    (lambda: jnp.pad(x(), 1, mode="round"), NotImplementedError, "mode must be one of 'constant'"),
    (lambda: jnp.pad(x(), 1, "edge", stat_length=2), ValueError, r"takes the options \(\); got"),
    (lambda: jnp.repeat(i(), -1), TypeError, "none negative"),
    (lambda: x()[0, 0, 0], IndexError, "at most one index for each axis; got 3"),
    (lambda: x()[..., ...], IndexError, "one ellipsis"),
    (lambda: x()[::0], ValueError, "step of a slice must not be 0"),
    (lambda: x()[1.5], TypeError, "integers or bools|ints, slices"),
    (lambda: x()["a"], TypeError, "ints, slices, None"),
    (lambda: x()[[0, 1]], TypeError, r"a sequence cannot be the whole index.*jnp\.array"),
    (lambda: x()[jnp.ones(2)], TypeError, "integers or bools"),
    (lambda: x().at[i()].set(jnp.ones((7, 7))), ValueError, r"shape of x\[index\]"),
    (lambda: x().at[jnp.arange(2) > 0].set(1), IndexError, r"mask shape \(2,\)"),
    (lambda: x()[jnp.arange(2) > 0], IndexError, r"mask.*\(2,\)"),
    (lambda: jnp.take(x(), i(), mode="raise"), NotImplementedError, "mode must be"),
    (lambda: jnp.take(x(), i(), mode="near"), ValueError, "mode must be"),
    (lambda: jnp.take_along_axis(x(), i(), 1), TypeError, "array's rank"),
    (lambda: x() @ x(), TypeError, r"\[matmul\].*4 and 3.*x @ w\.T"),
    (lambda: jnp.matmul(x(), 2), ValueError, "at least one axis.*use \\* for scalars"),
    (lambda: jnp.tensordot(x(), x(), 3), TypeError, "must not exceed the ranks"),
    (lambda: jnp.einsum("ij,jk", x()), ValueError, "one term for each operand"),
    (lambda: jnp.sum(x(), initial=i()), ValueError, r"\[sum\] initial must be a number; got i32"),
    (lambda: jnp.max(x(), 0, initial=i()), ValueError, r"\[max\] initial must be a number"),
    (lambda: jnp.einsum("ijk->i", x()), ValueError, "one letter for each axis"),
    (lambda: jnp.einsum("ij->k", x()), ValueError, "labels of the result"),
    (lambda: jnp.einsum("ij,kj->ik", x(), x()[:, :2]), ValueError, "one size; got 4 and 2"),
    (lambda: jnp.einsum(x(), "ij"), TypeError, "must be a string"),
    (lambda: jnp.where(x(), x(), x(), size=3), ValueError, "three arguments, or one with size"),
    (lambda: jnp.where(x(), 1), TypeError, "three arguments.*got two"),
    (
        lambda: gpuflow.jit(jnp.where)(x()),
        ConcretizationTypeError,
        r"\[where\] the array must be known while tracing.*got a traced.*jnp\.where\(x, size=",
    ),
    (lambda: gpuflow.jit(jnp.unique)(x()), ConcretizationTypeError, r"jnp\.unique\(x, size="),
    (lambda: gpuflow.jit(jnp.argwhere)(x()), ConcretizationTypeError, r"jnp\.argwhere\(x, size="),
    (lambda: gpuflow.jit(jnp.compress)(i(), x()), ConcretizationTypeError, r"jnp\.compress.*size="),
    (lambda: gpuflow.jit(jnp.bincount)(i()), ConcretizationTypeError, r"jnp\.bincount\(x, length="),
    (lambda: gpuflow.jit(jnp.repeat)(x(), 2), ConcretizationTypeError, "total_repeat_length="),
    (lambda: gpuflow.jit(lambda n: jnp.hanning(n))(3), ConcretizationTypeError, "M must be known"),
    (lambda: jnp.put(x(), 0, 1), ValueError, r"immutable.*inplace=False"),
    (lambda: jnp.add(x(), 1, out=x()), NotImplementedError, r"\[add\] out and where must be None"),
    (lambda: jnp.add.at(x(), 0, 1), NotImplementedError, r"\[add\.at\].*inplace=False"),
    (lambda: jnp.int1(1), TypeError, r"arrays cannot hold int1"),
    (lambda: jnp.eye(3, k=1.0), ValueError, r"\[eye\] k must be an integer; got 1\.0"),
    (lambda: jnp.tril(x(), 1.5), TypeError, r"\[tril\] k must be an integer; got 1\.5"),
    (lambda: jnp.sum(x(), where=i()[:1]), ValueError, r"\[sum\] where must hold bools; got i32"),
    (lambda: jnp.std(x(), where=x()), ValueError, r"where must hold bools; got f32"),
    (lambda: x()[2**40], OverflowError, r"\[index\] an index must fit into int32"),
    (lambda: x()[0, 0].view("int8"), ValueError, r"\[view\] an array without axes keeps"),
    (lambda: x()[:, :3].view("complex64"), ValueError, r"\[view\] the last axis must hold whole"),
    (lambda: x().view(type=np.ndarray), NotImplementedError, r"\[view\] type must be None"),
    (lambda: gpuflow.random.key(0).view("uint32"), TypeError, r"\[view\] random keys have no bits"),
    (lambda: gpuflow.random.key(0).byteswap(), TypeError, r"\[byteswap\] random keys have no"),
    (lambda: gpuflow.ShapeDtypeStruct((2,), None), ValueError, r"a dtype must be given; got None"),
    (lambda: tree.leaves({1: 2, "a": 3}), ValueError, r"\[tree\] the keys of a dict must be sort"),
    (lambda: gpuflow.jit(lambda d: d)({1: 2, "a": 3}), ValueError, r"must be sortable"),
    (lambda: jnp.take_along_axis(i(), i(), 0, "wrap"), ValueError, r"'clip' or 'one_hot'; got"),
    (lambda: jnp.ones(3, device="gpu"), ValueError, "device must be a Device or None"),
    (lambda: jnp.from_dlpack(X[::2], copy=False), ValueError, "memory cannot be shared"),
    (lambda: jnp.zeros(2, jnp.int4).__dlpack__(), BufferError, "one of NumPy.s own"),
    (lambda: x().__array_namespace__(api_version="2021.12"), ValueError, "must be '2024.12'"),
    (lambda: jnp.interp(x(), i(), i(), left="mean"), ValueError, "a number or 'extrapolate'"),
    (lambda: jnp.vectorize(jnp.add, signature="n,n->n"), ValueError, "must have the form"),
    (lambda: jnp.arange(i()), ValueError, "must be scalars"),
    (lambda: jnp.asarray(np.ma.array([1.0, 2.0], mask=[0, 1])), ValueError, "masked arrays"),
    (lambda: jnp.arange(0, 1, 0), ZeroDivisionError, "step must not be 0"),
    (lambda: jnp.linspace(0, 1, -1), ValueError, "num must not be negative"),
    (lambda: jnp.tril(i()), ValueError, "two axes"),
    (lambda: jnp.round(i(), -1), NotImplementedError, "decimals >= 0"),
    (lambda: jnp.clip(1j, 0, 1), ValueError, "must be real"),
    (lambda: list(jnp.float32(1)), TypeError, "must have an axis"),
    (lambda: jnp.isdtype(int, "whole"), ValueError, "kind must be"),
    (lambda: nn.one_hot(jnp.ones(2, bool), 3), TypeError, "must be numbers"),
    (lambda: jnp.arrange, AttributeError, r"'arrange'. Fix: use jnp\.arange"),
    (lambda: jnp.qqqqq, AttributeError, r"dir\(jnp\) lists all names"),
    (lambda: nn.rellu, AttributeError, r"nn\.relu"),
    (lambda: lax.convv, AttributeError, "lax"),
    (lambda: nn.qqqqq, AttributeError, r"dir\(nn\) lists all names"),
    (lambda: gpuflow.value_and_gard, AttributeError, r"Fix: use gpuflow\.value_and_grad"),
    (lambda: gpuflow.qqqqq, AttributeError, r"dir\(gpuflow\) lists all names"),
    (lambda: tree.mapp, AttributeError, r"tree\.map"),
    (lambda: tree_util.tree_mapp, AttributeError, r"tree_util\.tree_map"),
]


@together(size=75)
@pytest.mark.parametrize(("wrong", "error", "text"), CASES)
def test_message(wrong, error, text):
    with pytest.raises(error, match=f"(?s){text}"):
        wrong()


def test_mask_of_unknown_values_is_refused_under_jit():
    with pytest.raises(NonConcreteBooleanIndexError, match=r"jnp\.where"):
        gpuflow.jit(lambda v: v[v > 0])(x())


def test_hasattr_of_dunder_names_is_plain():
    assert not hasattr(jnp, "__wrapped__")


def test_dtypes_that_are_narrowed_are_told_of():
    makers = [
        lambda: jnp.zeros(2, jnp.float64),
        lambda: jnp.zeros(2, "int64"),
        lambda: jnp.arange(3, dtype=np.int64),
        lambda: jnp.array([1], np.float64),
        lambda: x().astype(np.float64),
    ]
    for make in makers:
        with pytest.warns(UserWarning, match=r"must be enabled; got (float|int)64.*Fix:"):
            assert make().dtype.itemsize == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jnp.ones(2, float), jnp.zeros(2, complex), jnp.asarray(np.ones(2)), jnp.zeros(2, "f")
        with gpuflow.enable_x64(True):
            assert jnp.zeros(2, np.float64).dtype == np.float64


def test_large_ints_become_floats():
    got = [float(jnp.asarray(2**n, jnp.float32)) for n in (40, 63, 70)]
    assert got == [2.0**40, 2.0**63, 2.0**70]


@pytest.mark.parametrize("k", [2**70, 2**31 - 1, 5, -5, -(2**31), -(2**70)])
def test_diagonals_beside_a_matrix(k):
    """A known diagonal may be any int: what is beyond the matrix is empty or whole."""
    sign = 1 if k > 0 else -1
    np.testing.assert_array_equal(jnp.eye(3, 4, k=k), np.eye(3, 4, k=5 * sign))
    np.testing.assert_array_equal(jnp.tri(3, 4, k=k), np.tri(3, 4, k=5 * sign))
    np.testing.assert_array_equal(jnp.tril(x(), k), np.tril(X, 5 * sign))
    np.testing.assert_array_equal(jnp.triu(x(), k), np.triu(X, 5 * sign))
    assert jnp.diag(x(), k).shape == (0,)


def test_decimals_beyond_the_range():
    """10 to that power overflowed, or the result was nan: inf / inf and 0 / 0."""
    values = np.array([1.5, -2.25, 0.0, np.inf, np.nan], np.float32)
    for decimals in (39, 400, 2**70):
        np.testing.assert_array_equal(jnp.round(values, decimals), values)
        np.testing.assert_array_equal(jnp.round(values, -decimals), [0.0, 0.0, 0.0, np.inf, np.nan])


def test_bernoulli_numbers_far_out():
    """Beyond the 258th they are infinite with alternating signs, and cost nothing to know."""
    got = np.asarray(gpuflow.scipy.special.bernoulli(2_000_000))
    assert got.shape == (2_000_001,) and (got[3::2] == 0).all()
    assert (got[300::4] == -np.inf).all() and (got[302::4] == np.inf).all()
    np.testing.assert_array_equal(gpuflow.scipy.special.bernoulli(301), got[:302])
