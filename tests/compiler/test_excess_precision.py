"""Roundings to 16 bits that CUDA kernels leave out, and those that they must not."""

import ml_dtypes
import numpy as np
import pytest
from cuda_tools import requires_cuda_tools

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.config import config
from gpuflow.compiler.lowering.excess_precision import unrounded_values
from gpuflow.compiler.passes.program import inline
from gpuflow.targets.cuda.runtime.driver import launch

RNG = np.random.default_rng(0)
HALVES = [jnp.bfloat16, jnp.float16]
ROUNDING = {jnp.bfloat16: 2.0**-8, jnp.float16: 2.0**-11}  # at most, relative to the value


def numbers(dtype, *shape):
    return RNG.normal(size=shape).astype(np.dtype(dtype))


def on_gpu(function, *args, excess):
    """Results of the jitted function on the simulated GPU, as NumPy arrays."""
    (device,) = gf.devices("cuda_sim")
    with gf.default_device(device), config.override("excess_precision", excess):
        found = gf.jit(function)(*args)
        return [np.asarray(leaf) for leaf in gf.tree.leaves(found)]


def eagerly(function, *args):
    return [np.asarray(leaf) for leaf in gf.tree.leaves(function(*map(jnp.asarray, args)))]


def bits(arrays):
    return [array.tobytes() for array in arrays]


def chain(x, y):
    for _ in range(4):
        x = jnp.tanh(x * y + x * 0.5) * 1.5 - y * 0.25
    return x


def small(dtype, count):
    """Numbers with which a turn of the chain makes an error at most 1.2 times as large."""
    return RNG.uniform(-0.3, 0.3, count).astype(np.dtype(dtype))


# --- which values ---


def names_of_unrounded(function, *avals):
    """The ops whose results may stay unrounded, in order."""
    jaxpr = inline(gf.make_jaxpr(function)(*avals).jaxpr)
    free = unrounded_values(jaxpr)
    return [eqn.primitive.name for eqn in jaxpr.eqns if not free.isdisjoint(eqn.outputs)]


X = gf.ShapeDtypeStruct((4, 5), jnp.bfloat16)
CASES = {
    "a chain": (lambda x: jnp.exp(x * x) + x, ["mul", "exp", "add"]),
    "a comparison, and all before it": (lambda x: jnp.exp(x * x + x) > 1, []),
    "what is beside a comparison": (
        lambda x: lax.select(x * x > 1, jnp.sin(x) * x, x),
        ["sin", "mul", "select_n"],
    ),
    "a floor": (lambda x: jnp.cos(lax.floor(x * 3) * x), ["mul", "cos"]),
    "an integer": (lambda x: (x * 3).astype(jnp.int32), []),
    "the places of maxima": (lambda x: lax.argmax(x * 3, 1, jnp.int32), []),
    "a maximum over an axis": (lambda x: lax.reduce_max(x * 3, (1,)), []),
    "behind a maximum": (lambda x: x * 3 - lax.reduce_max(x, (1,))[:, None], ["mul", "sub"]),
    "a sum": (lambda x: lax.reduce_sum(x * 3, (1,)) * 2, ["mul", "reduce_sum", "mul"]),
    "a cast from": (lambda x: (jnp.sin(x) * x).astype(jnp.float32), ["sin"]),
    "a cast to": (lambda x: x.astype(jnp.float32).astype(jnp.bfloat16) * x, ["mul"]),
    "a comparison behind a cast": (lambda x: (x * x).astype(jnp.float32) + 1 > 2, []),
    "a product of matrices between": (
        lambda x: jnp.sin((x * 2) @ jnp.ones((5, 3), x.dtype)) > 0,
        ["mul"],
    ),
    "bits": (lambda x: lax.bitcast_convert_type(x * x, jnp.uint16), []),
    "what a library reads from memory": (lambda x: lax.betainc(x * x, x, x), ["mul"]),
    "precision that was asked for": (lambda x: lax.reduce_precision(x * x, 5, 3) * x, ["mul"]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_may_stay_unrounded(name):
    function, wanted = CASES[name]
    layout = ("broadcast_in_dim", "reshape", "squeeze", "expand_dims")
    assert [op for op in names_of_unrounded(function, X) if op not in layout] == wanted


def test_wider_and_narrower_floats_are_as_they_were():
    for dtype in (jnp.float32, jnp.float8_e4m3fn):
        assert names_of_unrounded(lambda x: x + x, gf.ShapeDtypeStruct((3,), dtype)) == []


# --- what kernels compute ---


@requires_cuda_tools
@pytest.mark.parametrize("dtype", HALVES)
def test_a_chain_is_nearer_to_the_truth(dtype, monkeypatch):
    x, y = numbers(dtype, 500), small(dtype, 500)
    built, real = [], launch.compile_cuda
    monkeypatch.setattr(
        launch, "compile_cuda", lambda *given: built.append(real(*given)) or built[-1]
    )
    (strict,) = on_gpu(chain, x, y, excess=False)
    (loose,) = on_gpu(chain, x, y, excess=True)
    kind = "bf16x2" if dtype == jnp.bfloat16 else "f16x2"
    counts = [one.built.ptx.count(f"cvt.rn.{kind}.f32") for one in (built[0], built[-1])]
    assert counts[1] * 10 <= counts[0]  # those of stores are left
    with gf.enable_x64(True):
        (exact,) = eagerly(chain, x.astype(np.float64), y.astype(np.float64))
    (one_by_one,) = eagerly(chain, x, y)
    assert bits([strict]) == bits([one_by_one])
    errors = [np.abs(value.astype(np.float64) - exact) for value in (strict, loose)]
    # One rounding at the end; the constants are numbers of both dtypes. float32 and
    # the approximations of tanh are far below.
    assert (errors[1] <= ROUNDING[dtype] * np.abs(exact) * 1.01 + 1e-6).all()
    assert errors[0].max() > errors[1].max() * 1.5
    # Six roundings in each of four turns, of values about 1, and 1.2^4 is 2.
    between = np.abs(strict.astype(np.float64) - loose.astype(np.float64))
    assert (between <= 48 * ROUNDING[dtype] * (1 + np.abs(exact))).all()


@requires_cuda_tools
@pytest.mark.parametrize("dtype", HALVES)
def test_softmax_and_layernorm_hold_to_a_tolerance(dtype):
    def norm(x, scale):
        centered = x - x.mean(-1, keepdims=True)
        return centered * lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-3) * scale

    def both(x, scale):
        return gf.nn.softmax(x * 3), norm(jax_gelu(x), scale)

    def jax_gelu(x):
        return gf.nn.gelu(x)

    x, scale = numbers(dtype, 6, 40), numbers(dtype, 40)
    for strict, loose in zip(
        eagerly(both, x, scale), on_gpu(both, x, scale, excess=True), strict=True
    ):
        # About ten operations, each with a rounding; results are of size 1.
        most = 10 * ROUNDING[dtype]
        np.testing.assert_allclose(
            loose.astype(np.float64), strict.astype(np.float64), rtol=most, atol=most
        )


MAXIMA = {
    "of squares": lambda x: jnp.max(x * x, axis=1),
    "of a chain that something else reads": lambda x: (
        jnp.max(jnp.tanh(x * 3), axis=1) + (x * 3).sum(1)
    ),
    "behind a product": lambda x: jnp.max(jnp.sin(x @ (jnp.ones((24, 24), x.dtype) / 8)) * x, 1),
    "a logsumexp": lambda x: gf.scipy.special.logsumexp(x * 1.7, axis=1),
    "of two": lambda x: jnp.maximum(x * 1.3, jnp.sin(x) * 1.1).sum(1),
}


@requires_cuda_tools
@pytest.mark.parametrize(
    ("name", "dtype"), [*[(name, jnp.bfloat16) for name in MAXIMA], ("of squares", jnp.float16)]
)
def test_the_gradient_of_a_maximum_finds_it(name, dtype):
    """A stored, rounded maximum equalled none of the unrounded values: 0 / 0, nan."""
    x = numbers(dtype, 30, 24)

    def both(x):
        return gf.value_and_grad(lambda v: MAXIMA[name](v).astype(jnp.float32).sum())(x)

    strict, loose = (on_gpu(both, x, excess=excess) for excess in (False, True))
    assert all(np.isfinite(leaf.astype(np.float32)).all() for leaf in loose)
    if name != "a logsumexp":  # which is no choice: small terms are 0 with some roundings
        np.testing.assert_array_equal(loose[1] == 0, strict[1] == 0)
    for a, b in zip(loose, strict, strict=True):
        # Some ten roundings, of sums of thirty values of size 1.
        most = 20 * ROUNDING[dtype]
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=most, atol=most)


@requires_cuda_tools
@pytest.mark.parametrize("dtype", HALVES)
def test_decisions_are_those_of_strict_rounding(dtype):
    def decisions(x, y):
        z = jnp.exp(x * y) * x - y
        smooth = (z * 0.3 + 1) * z  # what z is read by besides
        return (
            z > 0.25,
            jnp.floor(z * 8),
            jnp.sign(z),
            (z * 100).astype(jnp.int32),
            jnp.argmax(z, axis=1),
            z.max(1),
            jnp.round(z * 4),
            z == z[:, :1],
            smooth,
        )

    x, y = numbers(dtype, 40, 20), numbers(dtype, 40, 20)
    strict, loose = (on_gpu(decisions, x, y, excess=excess) for excess in (False, True))
    assert bits(strict[:-1]) == bits(loose[:-1])
    assert bits(strict[-1:]) != bits(loose[-1:])  # so that it is the setting that was tested


@requires_cuda_tools
def test_casts_of_the_program_round():
    def quantized(x):
        return (x * 1.001).astype(jnp.bfloat16).astype(jnp.float32) * 3, (
            x.astype(jnp.bfloat16) * x.astype(jnp.bfloat16)
        ).astype(jnp.float32)

    x = numbers(np.float32, 300)
    (first, second) = on_gpu(quantized, x, excess=True)
    assert bits([first, second]) == bits(eagerly(quantized, x))
    narrow = (x * np.float32(1.001)).astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(first, narrow * 3)


@requires_cuda_tools
def test_a_reduction_over_one_element_is_rounded_before_a_conversion():
    """Nothing reads memory along the axis of size 1, so that it has no loop."""

    def product(x):
        steps = lax.broadcasted_iota(x.dtype, (64, 1), 0) * x.dtype.type(0.3)
        return lax.reduce_prod(x[:, None] * steps, (1,)).astype(jnp.float32)

    (found,) = on_gpu(product, numbers(jnp.bfloat16, 64), excess=True)
    np.testing.assert_array_equal(found, found.astype(ml_dtypes.bfloat16).astype(np.float32))


@requires_cuda_tools
def test_loops_carry_rounded_values():
    def walk(x, y):
        return lax.scan(lambda c, _: (c * y + x, c.sum()), x, None, length=5)

    x, y = numbers(jnp.bfloat16, 30), numbers(jnp.bfloat16, 30) * ml_dtypes.bfloat16(0.5)

    def unrolled(x, y):
        c, sums = x.astype(np.float32), []
        for _ in range(5):
            sums.append(c.sum().astype(ml_dtypes.bfloat16))
            c = (c * y.astype(np.float32) + x.astype(np.float32)).astype(ml_dtypes.bfloat16)
            c = c.astype(np.float32)
        return c.astype(ml_dtypes.bfloat16), np.array(sums)

    carry, _ = on_gpu(walk, x, y, excess=True)
    want, _ = unrolled(x, y)
    # The product and the sum may be one operation (fma): half a unit of float32 decides rarely.
    assert (carry == want).mean() > 0.95


@pytest.mark.parametrize("dtype", HALVES)
def test_the_cpu_rounds_each_result(dtype):
    x, y = numbers(dtype, 200), numbers(dtype, 200)
    (want,) = eagerly(chain, x, y)
    for excess in (False, True):
        with config.override("excess_precision", excess):
            np.testing.assert_array_equal(gf.jit(chain)(x, y), want)


@requires_cuda_tools
def test_programs_of_both_kinds_live_side_by_side():
    """The setting is a part of jit's key, of the target and of the template's key."""
    x, y = numbers(jnp.bfloat16, 200), numbers(jnp.bfloat16, 200)
    (device,) = gf.devices("cuda_sim")
    step, found = gf.jit(chain), []
    with gf.default_device(device):
        for excess in (True, False, True, False):
            with config.override("excess_precision", excess):
                found.append(np.asarray(step(x, y)).tobytes())
    assert found[0] == found[2] != found[1] == found[3]


def test_a_wrong_value_of_the_setting():
    with pytest.raises(ValueError, match=r"excess_precision must be one of \(True, False\)"):
        config.update("excess_precision", "yes")
