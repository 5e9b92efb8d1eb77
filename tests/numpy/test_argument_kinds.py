"""Arguments that are not of the documented kind, and that JAX takes."""

import enum

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.scipy.special import multigammaln

M = np.arange(6, dtype=np.float32).reshape(2, 3)


class Index:
    """An integer of another class."""

    def __index__(self):
        return 1


def test_axes_may_be_sets():
    np.testing.assert_array_equal(jnp.sum(M, axis={0}), M.sum(0))
    np.testing.assert_array_equal(jnp.max(M, axis=frozenset({0, 1})), M.max())
    np.testing.assert_array_equal(jnp.flip(M, axis={1}), M[:, ::-1])


def test_integers_of_other_classes():
    np.testing.assert_array_equal(jnp.tri(3, k=Index()), np.tri(3, k=1))
    np.testing.assert_array_equal(jnp.tril(M, k=Index()), np.tril(M, k=1))
    out = jnp.linspace(M[0], M[1], 4, axis=Index())
    np.testing.assert_allclose(out, np.linspace(M[0], M[1], 4, axis=1), rtol=1e-6)


@pytest.mark.parametrize("axis", [2, -3, 7])
def test_the_axis_of_linspace_must_exist(axis):
    with pytest.raises(ValueError, match=r"\[linspace\] axis must be in"):
        jnp.linspace(M[0], M[1], 4, axis=axis)


def test_a_range_is_a_sequence_of_arrays():
    np.testing.assert_array_equal(jnp.stack(range(3)), [0, 1, 2])
    np.testing.assert_array_equal(jnp.hstack(range(3)), [0, 1, 2])


def test_a_dtype_that_is_given_is_not_weak():
    weak = jnp.asarray(1)
    assert weak.weak_type and jnp.stack([weak, 2]).weak_type
    for out in (jnp.stack([weak, 2], dtype=int), jnp.concatenate([weak[None]], dtype="int32")):
        assert out.dtype == np.int32 and not out.weak_type


def test_bounds_of_slices_and_bits_are_integers():
    np.testing.assert_array_equal(lax.slice_in_dim(M, Index(), -1, axis=1), M[:, 1:-1])
    np.testing.assert_array_equal(lax.slice_in_dim(M, 0, np.int64(3), Index(), 1), M)
    for wrong in ("1", 0.5, np.float32(1)):
        with pytest.raises(TypeError, match=r"\[slice_in_dim\] each bound must be an integer"):
            lax.slice_in_dim(M, wrong, 2)
        with pytest.raises(TypeError, match=r"\[slice_in_dim\] stride must be an integer"):
            lax.slice_in_dim(M, 0, 2, wrong)
        with pytest.raises(TypeError, match=r"\[reduce_precision\] exponent_bits must be an int"):
            lax.reduce_precision(M, wrong, 3)
        with pytest.raises(TypeError, match=r"\[vander\] N must be an integer"):
            jnp.vander(M[0], wrong)
        with pytest.raises(TypeError, match=r"\[reduce_precision\] mantissa_bits must be an int"):
            lax.reduce_precision(M, 5, wrong)


def test_multigammaln_of_dimension_0_has_a_shape():
    out = multigammaln(M + 3, 0)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, np.zeros((2, 3)))


@pytest.mark.parametrize("repeats", [2, np.array([1, 2, 3]), jnp.array([0, 2, 1]), np.array([2])])
@pytest.mark.parametrize("total", [0, 2, 5, np.int64(9)])
def test_totals_of_known_repeats_count(repeats, total):
    """Elements beyond are dropped, missing ones repeat the last element, as under jit."""
    x = np.arange(1, 4, dtype=np.float32)
    whole = np.repeat(x, np.asarray(repeats))
    expected = np.concatenate([whole, np.full(9, x[-1])])[:total]
    out = jnp.repeat(x, repeats, total_repeat_length=total)
    np.testing.assert_array_equal(out, expected)
    traced = gf.jit(lambda x, n: jnp.repeat(x, n, total_repeat_length=int(total)))
    np.testing.assert_array_equal(traced(x, repeats), expected)


def test_weak_fill_values_are_not_seen():
    out = jnp.full_like(M, jnp.asarray(2.5))
    assert out.dtype == np.float32 and not out.weak_type
    assert jnp.full_like(jnp.asarray(1.5), jnp.asarray(2.5)).weak_type


def test_flags_and_indices_of_other_classes():
    path = gf.tree_util.tree_flatten_with_path({"a": 1})[0][0][0]
    for flag in (0, np.bool_(False), None, jnp.array(False)):
        assert gf.tree_util.keystr(path, simple=flag) == "['a']"
    assert gf.tree_util.keystr(path, simple=np.bool_(True)) == "a"
    np.testing.assert_array_equal(lax.index_in_dim(M, Index()), M[1:2])
    with pytest.raises(TypeError, match=r"\[index_in_dim\] the index must be an integer; got 0.5"):
        lax.index_in_dim(M, 0.5)
    raw = np.array([1, 2], np.uint32)
    assert isinstance(gf.random.key_data(raw), gf.Array)


def test_shapes_axes_and_names_of_other_kinds():
    for shape in (2, np.int64(2), [np.int32(2)], np.array([2]), jnp.array(2)):
        np.testing.assert_array_equal(lax.full(shape, 1.5), np.full(2, 1.5))
    with pytest.raises(TypeError, match=r"\[full\] each of shape must be an integer; got 0.5"):
        lax.full((0.5,), 1.5)
    for axes in (1, [1], np.array([1]), jnp.array([1]), Index()):
        np.testing.assert_array_equal(jnp.fft.fftshift(M, axes), np.fft.fftshift(M, 1))
    out = gf.checkpoint(jnp.sin, static_argnames=None)(M)  # compiled: another rounding
    np.testing.assert_allclose(out, np.sin(M), rtol=1e-6)


def test_lists_may_be_compared_with_arrays():
    assert jnp.array_equal([1, 2], (1, 2)) and jnp.array_equal(range(3), jnp.arange(3))
    assert not jnp.array_equal([1, 2], M) and jnp.array_equiv([2, 2], np.float32(2))
    for function in (jnp.array_equal, jnp.array_equiv):
        with pytest.raises(TypeError, match=rf"\[{function.__name__}\] operands must be arrays"):
            function(M, "a")


def test_counts_are_cut_as_int_does_where_jax_calls_it():
    """Programs pass quotients such as ``rate / 2``."""
    signal = np.sin(np.arange(32.0))
    for count in (8.0, np.float32(8), np.int64(8)):
        for function in (gf.scipy.signal.welch, gf.scipy.signal.stft):
            found, wanted = function(signal, nperseg=count), function(signal, nperseg=8)
            np.testing.assert_array_equal(found[-1], wanted[-1])
        found = gf.scipy.signal.welch(signal, nperseg=count, noverlap=count / 2, nfft=2 * count)
        assert found[1].shape == (9,)
    for count in (3.0, jnp.float32(3), np.array(3.0)):
        for parts in (jnp.split(M[0], count), jnp.array_split(M[0], count)):
            np.testing.assert_array_equal(jnp.stack(parts), M[0][:, None])
    for wrong in (None, [2.0], (1.5,), "a"):
        with pytest.raises((TypeError, ValueError), match=r"\[array_split\].*Fix:"):
            jnp.split(M[0], wrong)
    with pytest.raises(TypeError, match=r"\[welch\] nperseg must be an integer; got \[8\]"):
        gf.scipy.signal.welch(signal, nperseg=[8])


def test_fill_values_of_positions_are_numbers():
    for size in (None, 8):
        for wrong in (int, "a", (1, "a"), (1, 2, 3), [1, 2]):
            with pytest.raises(ValueError, match=r"\[argwhere\] fill_value must be a number, or a"):
                jnp.argwhere(M, size=size, fill_value=wrong)
    assert jnp.nonzero(M, size=6, fill_value=(-1, -2))[1].tolist() == [1, 2, 0, 1, 2, -2]


def test_flags_of_dynamic_slices_along_an_axis():
    for flag in (1, np.bool_(True), "a", [1]):
        out = lax.dynamic_slice_in_dim(M, -1, 1, allow_negative_indices=flag)
        np.testing.assert_array_equal(out, M[1:])
        out = lax.dynamic_update_index_in_dim(M, M[0], -1, 0, allow_negative_indices=flag)
        np.testing.assert_array_equal(out, M[[0, 0]])
    with pytest.raises(ValueError, match=r"\[dynamic_slice\] starts must not be negative"):
        lax.dynamic_index_in_dim(M, -1, allow_negative_indices=0)
    np.testing.assert_array_equal(lax.dynamic_slice(M, range(2), (1, 1)), M[:1, 1:2])


def test_integers_and_sequences_that_are_read_once():
    np.testing.assert_array_equal(jnp.linalg.diagonal(M, offset=Index()), np.diagonal(M, 1))
    assert gf.random.orthogonal(gf.random.key(0), Index(), m=Index()).shape == (1, 1)
    for name in ("n", "m"):
        with pytest.raises(TypeError, match=rf"\[orthogonal\] {name} must be an integer; got 1.5"):
            gf.random.orthogonal(gf.random.key(0), **{"n": 2, name: 1.5})
    parts = lax.split(M, (k for k in (1, 2)), 1)
    np.testing.assert_array_equal(jnp.concatenate(parts, 1), M)
    with pytest.raises(ValueError, match=r"\[split\] sizes must sum to that of the axis; got \(1,"):
        lax.split(M, (k for k in (1, 1)), 1)


def test_names_may_be_strings_of_other_classes():
    padding = enum.Enum("Padding", {"VALID": "VALID"}, type=str)
    window = (jnp.ones((4, 4)), 0.0, lax.add, (2, 2), (1, 1))
    assert lax.reduce_window(*window, padding.VALID).shape == (3, 3)
    assert jnp.result_type(M, np.str_("complex64")) == np.complex64


def test_dimensions_are_integers_of_any_class():
    class Zero:
        def __index__(self):
            return 0

    for order in (jnp.array([1, 0]), [np.array(1), jnp.array(0)], (Index(), Zero())):
        np.testing.assert_array_equal(lax.transpose(M, order), M.T)
    for dims in (jnp.array([0]), (np.array(-2),), [Zero()]):
        assert lax.squeeze(M[:1], dims).shape == (3,)
    with pytest.raises(TypeError, match=r"\[transpose\] each of permutation must be an integer"):
        lax.transpose(M, (1.0, 0.0))
    np.testing.assert_array_equal(jnp.roll(M, (Zero(), Index()), (0, 1)), np.roll(M, 1, 1))
    assert jnp.fromfunction(jnp.add, np.array([2, 3])).shape == (2, 3)
    assert lax.full_like(M, 2.5, shape=np.int64(4)).tolist() == [2.5] * 4


def test_bounds_of_matrix_rank_broadcast():
    values = np.diag([1.0, 0.3, 0.01])
    for bound in (0.1, [0.1], np.array([[0.5], [0.001]])):
        wanted = np.linalg.matrix_rank(values, tol=np.asarray(bound))
        found = jnp.linalg.matrix_rank(values, tol=jnp.array(bound))
        np.testing.assert_array_equal(found, wanted)


def test_arguments_become_arrays():
    assert isinstance(jnp.lexsort((1, 2)), gf.Array)
    rows = [[1.0, 2.0], [3.0, 4.0]]
    found = gf.scipy.ndimage.map_coordinates(rows, [[0.0, 1.0], [0.5, 1.0]], 1)
    np.testing.assert_allclose(found, [1.5, 4.0])
    assert all(isinstance(gf.random.clone(x), gf.Array) for x in (0, np.zeros(2)))
    assert jnp.fft.rfftfreq(4, 0.5, dtype=int).tolist() == [0.0, 0.5, 1.0]
    with pytest.raises(gf.errors.TypePromotionError, match=r"\[generalized_normal\] parameters"):
        gf.random.generalized_normal(gf.random.key(0), 2j)
