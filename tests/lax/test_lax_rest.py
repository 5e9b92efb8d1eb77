"""The rest of gpuflow.lax: tokens, primitives, errors."""

import numpy as np
import pytest

import gpuflow as gf
from gpuflow import lax
from gpuflow.core.primitive import registry
from gpuflow.ops.elementwise.arithmetic import add_p

X = np.arange(12, dtype=np.float32).reshape(3, 4)
ROW = lax.ScatterDimensionNumbers((), (0,), (0,))


# --- tokens, sinks, platforms ---------------------------------------------------------------


def test_tokens():
    token = lax.after_all(lax.create_token(), lax.create_token())
    assert token.shape == (0,) and lax.after_all().shape == (0,)

    @gf.jit
    def wait(x):
        token, y = lax.optimization_barrier((lax.create_token(), x * 2))
        return lax.optimization_barrier((lax.after_all(token), y))[1]

    np.testing.assert_array_equal(wait(X), X * 2)


def test_dce_sink_keeps_what_nobody_reads():
    called = []

    def note(x):
        called.append(1)
        return np.asarray(x)

    def function(x, keeps):
        unread = gf.pure_callback(note, x, x, vmap_method="sequential")
        if keeps:
            lax.dce_sink({"a": unread})
        return x + 1

    for keeps in (False, True):
        np.testing.assert_array_equal(gf.jit(lambda x, k=keeps: function(x, k))(X), X + 1)
        assert len(called) == int(keeps)
    x = np.float32(2)
    assert lax.dce_sink(x) is None
    assert gf.grad(lambda x: (lax.dce_sink(x), x * x)[1])(x) == 4
    assert gf.vmap(lambda x: (lax.dce_sink(x), x * x)[1])(X).shape == X.shape


def test_composite_is_its_decomposition():
    @lambda f: lax.composite(f, name="my.scaled")
    def scaled(x, *, by):
        """Doc."""
        return x * by

    assert scaled.__name__ == "scaled" and scaled.__doc__ == "Doc."
    np.testing.assert_array_equal(gf.jit(lambda x: scaled(x, by=3))(X), X * 3)
    assert gf.grad(lambda x: scaled(x, by=3))(2.0) == 3


# --- primitives under their names ------------------------------------------------------------


def test_primitives_are_looked_up():
    assert lax.add_p is add_p and lax.scan_p.name == "scan" and lax.cond_p.name == "cond"
    assert {f"{name}_p" for name in registry()} <= set(dir(lax)) and "add" in dir(lax)
    with pytest.raises(AttributeError, match=r"\[gpuflow.lax\] .*got 'selct_n_p'.*lax.select_n_p"):
        _ = lax.selct_n_p
    with pytest.raises(AttributeError, match=r"lax.select_n\b"):
        _ = lax.selct_n
    with pytest.raises(AttributeError, match="has no attribute"):
        _ = lax.__wrapped__


# --- errors --------------------------------------------------------------------------------


def _ragged(lhs=(5, 3), rhs=(2, 3, 4), sizes=(2,), ragged=(0,), group=(0,), dtype=np.int32):
    numbers = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), ragged, group)
    arrays = [np.ones(shape, np.float32) for shape in (lhs, rhs)]
    return lax.ragged_dot_general(*arrays, np.ones(sizes, dtype), numbers)


def _dot(precision, dtype=np.float32):
    return lax.dot(X.astype(dtype), X.T.astype(dtype), precision=precision)


STATE = np.zeros(4, np.uint32)
WINDOW = ((2, 2), (1, 1), ((0, 0), (0, 0)))
ERRORS = {
    r"^\[scatter_apply\] func must return a scalar": (
        TypeError, lambda: lax.scatter_apply(X[0], np.array([[0]]), lambda v: v > 0, ROW,
                                             update_shape=(1,)),
    ),
    r"^\[mulhi\] the operand must be an integer": (TypeError, lambda: lax.mulhi(1.0, 2.0)),
    r"^\[conv_general_dilated_local\] operands must have one rank": (
        TypeError, lambda: lax.conv_general_dilated_local(X[None], X, (1,), "SAME", (2,)),
    ),
    r"^\[conv_general_dilated_local\] the kernels": (
        TypeError, lambda: lax.conv_general_dilated_local(X[None], X[None], (1,), "SAME", (2,)),
    ),
    r"^\[conv_general_dilated\] negative padding": (
        ValueError, lambda: lax.conv_general_dilated(X[None], X[None], (1,), ((-9, -9),)),
    ),
    r"^\[reduce_window\] dilations": (
        TypeError,
        lambda: lax.reduce_window_shape_tuple((3,), (2,), (1,), ((0, 0),), base_dilation=(0,)),
    ),
    r"^\[conv_shape_tuple\] there must be 1 pairs": (
        TypeError, lambda: lax.conv_shape_tuple((1, 1, 5), (1, 1, 2), (1,), []),
    ),
    r"^\[conv_shape_tuple\] negative margins": (
        ValueError, lambda: lax.conv_shape_tuple((1, 1, 5), (1, 1, 2), (1,), [(-4, -4)]),
    ),
    r"^\[conv_general_permutations\] a dimension string": (
        TypeError, lambda: lax.conv_general_permutations(("NHC", "HIO", "NWC")),
    ),
    r"^\[select_and_gather_add\] select_prim": (
        TypeError, lambda: lax.select_and_gather_add(X, X, lax.gt_p, *WINDOW),
    ),
    r"^\[select_and_gather_add\] tangents and operand": (
        TypeError, lambda: lax.select_and_gather_add(X[:2], X, lax.ge_p, *WINDOW),
    ),
    r"^\[select_and_gather_add\] window sizes": (
        ValueError, lambda: lax.select_and_gather_add(X, X, lax.ge_p, (0, 1), *WINDOW[1:]),
    ),
    r"^\[select_and_gather_add\] the operand must be a real number": (
        TypeError, lambda: lax.select_and_gather_add(X > 0, X > 0, lax.ge_p, *WINDOW),
    ),
    r"^\[select_and_scatter_add\] the source": (
        TypeError, lambda: lax.select_and_scatter_add(X, X, lax.ge_p, *WINDOW),
    ),
    r"^\[select_and_scatter_add\] operands must have one dtype": (
        TypeError, lambda: lax.select_and_scatter_add(X.astype("i4"), X, lax.ge_p, *WINDOW),
    ),
    r"^\[select_and_scatter\] the source": (
        TypeError, lambda: lax.select_and_scatter(X, lax.ge, *WINDOW, X, 0.0, lax.add),
    ),
    r"^\[select_and_scatter\] select must return bool": (
        TypeError, lambda: lax.select_and_scatter(X, lax.add, *WINDOW, X[1:, 1:], 0.0, lax.add),
    ),
    r"^\[select_and_scatter\] scatter must return f32": (
        TypeError, lambda: lax.select_and_scatter(X, lax.ge, *WINDOW, X[1:, 1:], 0.0, lax.ge),
    ),
    r"^\[rng_bit_generator\] the state must be": (
        TypeError, lambda: lax.rng_bit_generator(STATE[:2], (2,)),
    ),
    r"^\[rng_bit_generator\] the state must be u32\[4\] or u64\[2\]; got u32\[1,4\]": (
        TypeError, lambda: lax.rng_bit_generator(STATE[None], (2,)),
    ),
    r"^\[rng_bit_generator\] dtype": (
        TypeError, lambda: lax.rng_bit_generator(STATE, (2,), np.int32),
    ),
    r"^\[rng_bit_generator\] sizes": (ValueError, lambda: lax.rng_bit_generator(STATE, (-1,))),
    r"^\[rng_bit_generator\] algorithm": (
        ValueError, lambda: lax.rng_bit_generator(STATE, (2,), algorithm=7),
    ),
    r"^\[rng_uniform\] bounds must be scalars of one dtype; got f32\[\], i32\[\]": (
        ValueError, lambda: lax.rng_uniform(np.float32(0), np.int32(1), (2,)),
    ),
    r"^\[rng_uniform\] bounds must be scalars of one dtype; got f32\[4\]": (
        ValueError, lambda: lax.rng_uniform(X[0], X[1], (2,)),
    ),
    r"^\[rng_uniform\] bounds must be real": (
        TypeError, lambda: lax.rng_uniform(1j, 2j, (2,)),
    ),
    r"^\[rng_uniform\] sizes": (ValueError, lambda: lax.rng_uniform(0.0, 1.0, (-2,))),
    r"^\[approx_max_k\] the operand must have": (TypeError, lambda: lax.approx_max_k(1.0, 1)),
    r"^\[approx_min_k\] the operand must be floats": (
        ValueError, lambda: lax.approx_min_k(np.arange(3), 1),
    ),
    r"^\[approx_max_k\] k must be in": (ValueError, lambda: lax.approx_max_k(X, 5)),
    r"^\[approx_min_k\] k must be in": (ValueError, lambda: lax.approx_min_k(X, 0)),
    r"^\[platform_dependent\] branches": (TypeError, lambda: lax.platform_dependent(X, cpu=3)),
    r"^\[platform_dependent\] keywords": (
        ValueError, lambda: lax.platform_dependent(X, gpu=abs, default=abs),
    ),
    r"^\[platform_dependent\] there must be a branch": (
        NotImplementedError, lambda: lax.platform_dependent(X, tpu=abs),
    ),
    r"^\[composite\] there must be": (TypeError, lambda: lax.composite(abs, 3)),
    r"^\[composite\] attributes of my.f": (
        gf.errors.UnexpectedTracerError,
        lambda: gf.jit(lambda x: lax.composite(lambda v, *, by: v * by, "my.f")(X, by=x))(2.0),
    ),
    r"^\[after_all\] operands must be tokens": (TypeError, lambda: lax.after_all(1.0)),
    r"^\[precision\] precision must be one of": (ValueError, lambda: _dot("finest")),
    r"^\[dot_general\] ANY_F8_ANY_F8_F32 needs float8": (
        ValueError, lambda: _dot("ANY_F8_ANY_F8_F32"),
    ),
    r"^\[dot_general\] F32_F32_F32 needs real float": (
        ValueError, lambda: _dot("F32_F32_F32", np.int32),
    ),
    r"^\[dot_general\] an algorithm must have dtypes.*F64": (
        ValueError, lambda: _dot("F64_F64_F64"),
    ),
    r"^\[dot_general\] an algorithm must have dtypes.*int8": (
        ValueError, lambda: _dot(lax.DotAlgorithm("int8", "int8", "int32")),
    ),
    r"^\[dot_general\] a DotAlgorithm must have one component": (
        ValueError, lambda: _dot(lax.DotAlgorithm("f4", "f4", "f4", 2, 2, 3)),
    ),
    r"^\[ragged_dot_general\] there must be one ragged": (TypeError, lambda: _ragged(ragged=(7,))),
    r"^\[ragged_dot_general\] rhs must have 1 group": (TypeError, lambda: _ragged(group=())),
    r"^\[ragged_dot_general\] rhs must have 0 group": (TypeError, lambda: _ragged(ragged=(1,))),
    r"^\[ragged_dot_general\] group_sizes must have shape": (
        TypeError, lambda: _ragged(sizes=(3, 2)),
    ),
    r"^\[ragged_dot_general\] the group dimension": (TypeError, lambda: _ragged(sizes=(3,))),
    r"^\[ragged_dot_general\] contracting dimensions": (TypeError, lambda: _ragged(lhs=(5, 2))),
    r"^\[ragged_dot\] group sizes must be integers": (
        TypeError, lambda: _ragged(dtype=np.float32),
    ),
    r"^\[ragged_dot\] group_offset": (
        NotImplementedError,
        lambda: lax.ragged_dot(X, X.reshape(1, 4, 3), np.array([3]), group_offset=np.array([0])),
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    error, call = ERRORS[message]
    with pytest.raises(error, match=message) as caught:
        call()
    assert "Fix:" in str(caught.value)
