"""Keywords of JAX that say how something is done: what they do, or why they are refused."""

import logging

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax, random

X = np.arange(10, dtype=np.float32)


FUNCTIONS = "exp exp2 expm1 log log1p sin cos tan tanh sqrt rsqrt cbrt logistic"


@pytest.mark.parametrize("name", FUNCTIONS.split())
def test_accuracy(name):
    f = getattr(lax, name)
    for accuracy in (None, lax.AccuracyMode.HIGHEST, lax.AccuracyMode.DEFAULT, lax.Tolerance(1e-3)):
        assert float(f(np.float32(0.5), accuracy=accuracy)) == float(f(np.float32(0.5)))
    with pytest.raises(NotImplementedError, match=rf"\[{name}\] accuracy must be .* got 'highest'"):
        f(np.float32(0.5), accuracy="highest")


def test_tolerances():
    assert repr(lax.Tolerance(1e-3, ulps=2)) == "Tolerance(atol=0.001, rtol=0.0, ulps=2)"
    for wrong in ({"atol": -1.0}, {}):
        with pytest.raises(ValueError, match=r"\[Tolerance\] tolerances must not be negative"):
            lax.Tolerance(**wrong)


def test_products_in_another_dtype():
    out = lax.mul(np.int8(100), np.int8(100), out_dtype=np.int32)
    assert int(out) == 10000 and out.dtype == np.int32
    # Operands are converted first, as in JAX.
    assert int(lax.mul(np.float32(0.7), np.float32(9), out_dtype=np.int32)) == 0
    x = jnp.asarray(3, jnp.bfloat16)
    slope = gf.grad(lambda x: lax.mul(x, x, out_dtype=np.float32))(x)
    assert float(slope) == 6 and slope.dtype == jnp.bfloat16


def test_negative_indices_of_slices():
    for allowed in (True, [True], (True,)):
        out = lax.dynamic_slice(X, [-3], [2], allow_negative_indices=allowed)
        np.testing.assert_array_equal(out, [7, 8])
    # What is not known before is moved to lie inside.
    start = np.int32(-3)
    clamped = {"allow_negative_indices": False}
    ones = np.ones(2, np.float32)
    np.testing.assert_array_equal(lax.dynamic_slice_in_dim(X, start, 2, **clamped), [0, 1])
    assert lax.dynamic_index_in_dim(X, start, **clamped)[0] == 0
    assert lax.dynamic_update_slice(X, ones, [start], **clamped)[1] == 1
    assert lax.dynamic_update_slice_in_dim(X, ones, start, 0, **clamped)[1] == 1
    assert lax.dynamic_update_index_in_dim(X, np.float32(5), start, 0, **clamped)[0] == 5
    two = X.reshape(2, 5)
    out = lax.dynamic_slice(two, [-1, start], [1, 2], allow_negative_indices=[True, False])
    np.testing.assert_array_equal(out, [[5, 6]])


def test_sums_over_mapped_axes():
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    summed = gf.vmap(lambda x: (x, x[0], 1.0), out_axes=(None, 0, None), sum_match=True)
    total, first, same = summed(x)
    np.testing.assert_array_equal(total, x.sum(0))
    np.testing.assert_array_equal(first, x[:, 0])
    assert float(same) == 1
    count = gf.vmap(lambda x: x, out_axes=None, sum_match=True)(np.array([True, True, False]))
    assert int(count) == 2 and count.dtype == np.int32
    slope = gf.grad(lambda x: gf.vmap(lambda v: v**2, 0, None, sum_match=True)(x))(X)
    np.testing.assert_array_equal(slope, 2 * X)


def test_names_of_arguments():
    np.testing.assert_array_equal(lax.iota(np.int32, size=3), [0, 1, 2])
    table = lax.broadcasted_iota(np.int32, shape=(2, 2), dimension=1)
    np.testing.assert_array_equal(table, [[0, 1], [0, 1]])
    assert gf.dtypes.issubdtype(a=jnp.bfloat16, b=jnp.floating)
    assert gf.custom_derivatives.custom_vjp_primal_tree_values(tree=(1, 2)) == (1, 2)


def test_keys_of_a_dtype():
    dtype = random.key_dtype(impl_spec="threefry2x32")
    assert random.key(0, dtype=dtype).dtype == random.key(0, dtype="threefry2x32").dtype == dtype
    assert random.wrap_key_data(random.PRNGKey(0), dtype=dtype).dtype == dtype


def test_printing_with_options_first(capfd, caplog):
    gf.debug.print(ordered=True)("x = {x}", x=jnp.ones(()))
    gf.jit(lambda x: gf.debug.print("y = {}", x, partitioned=True))(np.float32(2))
    seen = []
    gf.debug.callback(ordered=True)(seen.append, np.float32(3))
    gf.effects_barrier()
    assert capfd.readouterr().out == "x = 1.0\ny = 2.0\n" and len(seen) == 1
    with caplog.at_level(logging.INFO, "gpuflow.debug"):
        gf.jit(lambda x: gf.debug.log("z = {}", x))(np.float32(4))
        gf.effects_barrier()
    assert [record.getMessage() for record in caplog.records] == ["z = 4.0"]


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (
            lambda: lax.dynamic_slice(X, [-3], [2], allow_negative_indices=False),
            ValueError,
            r"\[dynamic_slice\] starts must not be negative.*got -3",
        ),
        (
            lambda: lax.dynamic_update_slice_in_dim(X, X[:2], -3, 0, allow_negative_indices=False),
            ValueError,
            r"\[dynamic_update_slice\] starts must not be negative",
        ),
        (
            lambda: lax.dynamic_slice(X, [-3], [2], allow_negative_indices=[True, False]),
            ValueError,
            "must be a bool or have one for each dimension",
        ),
        (
            lambda: gf.vmap(lambda k: k, 0, None, sum_match=True)(random.split(random.key(0))),
            TypeError,
            r"\[vmap\] outputs that are summed must be numbers; got key",
        ),
        (lambda: random.key(0, dtype=jnp.float32), TypeError, r"\[key\] the generator must be"),
        (
            lambda: random.key(0, impl="threefry2x32", dtype=random.key_dtype()),
            ValueError,
            r"\[key\] only one of impl and dtype",
        ),
        (lambda: random.normal(0, (3,)), TypeError, r"\[normal\] the key must be .* got i32\[\]"),
        (lambda: random.split(X), TypeError, r"\[split\] the key must be .* got f32\[10\]"),
        (lambda: random.wrap_key_data(X), TypeError, r"\[wrap_key_data\] the key must be"),
        (lambda: gf.debug.print(x=1), TypeError, r"\[debug.print\] values must be.*got \['x'\]"),
        (lambda: gf.debug.log(x=1), TypeError, r"\[debug.log\] values must be passed to"),
        (lambda: gf.debug.callback(x=1), TypeError, r"\[debug.callback\] values must be passed to"),
        (
            lambda: gf.debug.breakpoint(backend="web"),
            NotImplementedError,
            r"\[debug.breakpoint\] the debugger must be that of the terminal",
        ),
        (lambda: gf.debug.prnt, AttributeError, r"got 'prnt'. Fix: use debug\.print"),
        (lambda: gf.debug.nosuch, AttributeError, r"dir\(debug\) lists"),
        (lambda: gf.distributed.nosuch, AttributeError, r"use distributed\.initialize or"),
        (lambda: gf.custom_batching.nosuch, AttributeError, r"use custom_batching\.custom_vmap or"),
        (lambda: gf.flatten_util.ravel_pytre, AttributeError, r"use flatten_util\.ravel_pytree"),
        (lambda: gf.ad_checkpoint.nosuch, AttributeError, r"dir\(ad_checkpoint\) lists"),
        (lambda: jnp.ones(3).view(type=int), NotImplementedError, r"\[view\] type must be None"),
        (
            lambda: lax.linalg.qr(jnp.eye(2), use_magma=True),
            ValueError,
            r"\[qr\] use_magma must be None or False",
        ),
        (lambda: lax.linalg.eig(jnp.eye(2), use_magma=True), ValueError, r"\[eig\] use_magma"),
        (
            lambda: gf.vmap(lambda x: lax.all_gather(x, "i", to="reduced"), axis_name="i")(X),
            NotImplementedError,
            r"\[all_gather\] to must be 'varying', or 'invarying' .* got 'reduced'",
        ),
        (
            lambda: gf.vmap(lambda x: lax.all_gather(x, "i", to="no"), axis_name="i")(X),
            ValueError,
            r"\[all_gather\] to must be 'varying' or 'invarying'; got 'no'",
        ),
        (
            lambda: gf.distributed.initialize(slice_index=1),
            ValueError,
            r"slice_index and partition_index must be None",
        ),
    ],
)
def test_errors(wrong, error, text):
    with pytest.raises(error, match=text):
        wrong()


def test_warnings_are_of_the_callers_line(recwarn):
    """However deep inside they arise: a user looks for the line that is to be changed."""
    jnp.ones(3, np.float64)
    jnp.asarray([1.0], dtype="float64")
    random.normal(random.key(0), dtype=np.float64)
    gf.jit(lambda: jnp.zeros(3, np.int64))()
    jnp.ones(3, jnp.int32).at[0].set(2.5)
    assert [warning.filename for warning in recwarn] == [__file__] * 5
    assert len({warning.lineno for warning in recwarn}) == 5
    names = [str(warning.message).partition("]")[0] for warning in recwarn]
    assert names == ["[ones", "[asarray", "[normal", "[zeros", "[at.set"]


def test_complex_logarithms_of_infinities():
    """The quotient by a complex number has nan beside infinity."""
    x = np.array([0, np.inf, complex(np.inf, 1), 1j], np.complex64)
    for f, base in ((jnp.log2, 2), (jnp.log10, 10)):
        out = np.asarray(f(x))
        np.testing.assert_array_equal(out.real, [-np.inf, np.inf, np.inf, 0])
        angles = np.array([0, 0, 0, np.pi / 2])
        np.testing.assert_allclose(out.imag, angles / np.log(base), rtol=1e-6)
