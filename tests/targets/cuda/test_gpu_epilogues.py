"""Products with bias, activation and gradients: which kernels they replace, and numbers."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from late_gpu import LateApi, gpu_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.config import config
from gpuflow.compiler.passes.epilogues import EquationMatcher
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.core.epilogues import Epilogue, aux_type, with_epilogue
from gpuflow.targets.cuda.library.target import GpuTarget

RNG = np.random.default_rng(0)
X, W, B = (RNG.normal(size=shape).astype(np.float32) for shape in ((16, 24), (24, 40), (40,)))


class _All:
    """A library with all epilogues but some."""

    def __init__(self, refused):
        self.refused = refused

    def supports(self, epilogue, dtype, reduced):
        return epilogue not in self.refused


def _found(function, *args, refuse=()):
    """The epilogues of a program, and the names of its other steps."""
    target = GpuTarget(epilogues=_All(refuse))
    plan, _ = compile_plan(gf.make_jaxpr(function)(*args), target=target)
    made, left = [], []
    for step in plan.steps:
        if isinstance(step, CallStep) and "epilogue" in step.eqn.params:
            made.append(step.eqn.params["epilogue"])
            assert step.implementation is not None
        else:
            left.append(step.name)
    return made, left


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "name, function",
    [
        ("", lambda v: v),
        ("relu", gf.nn.relu),
        ("gelu", gf.nn.gelu),
        ("relu", lambda v: jnp.maximum(0, v)),
    ],
)
def test_bias_and_activation_join_the_product(name, function, dtype):
    x, w, b = (jnp.asarray(value, dtype) for value in (X, W, B))
    got, left = _found(lambda x, w, b: function(x @ w + b), x, w, b)
    assert got == [Epilogue(name, bias=True)] and left == []
    got, left = _found(lambda x, w, b: function(b + x[1:] @ w), x, w, b)
    assert got == [Epilogue(name, bias=True)] and left == []
    if name:
        got, left = _found(lambda x, w: function(x @ w), x, w)
        assert got == [Epilogue(name)] and left == []


def test_a_product_that_is_needed_besides_stays():
    """What lies where the kernel writes is a result of its own, if the program gives it."""
    got, left = _found(lambda x, w, b: ((y := x @ w), gf.nn.relu(y + b)), X, W, B)
    assert got == [] and len(left) == 2
    got, left = _found(lambda x, w, b: ((y := x @ w).T, gf.nn.relu(y + b)), X, W, B)
    assert got == [] and len(left) == 3


def test_operands_that_are_the_product_itself():
    """Of one row, a bias and the product have one shape."""
    assert not _found(lambda x, w: gf.nn.relu((y := x[:1] @ w) + y), X, W)[0]
    pair = lambda x, w: (jnp.maximum(y := x @ w, 0), jnp.where(y > 0, y, 0))  # noqa: E731
    assert not _found(pair, X, W)[0]
    got, left = _found(lambda x, w, a, b: gf.nn.relu(x @ w + a @ b), X[:1], W, X[:1], W)
    assert got == [Epilogue("relu", bias=True)] and left == ["dot_general"]


def test_bodies_of_loops_have_none():
    """One block may run such a loop, with products of its own."""
    body = lambda c, _: (gf.nn.relu(c @ W[:, :24] + B[:24]), None)  # noqa: E731
    for function in (
        lambda x: gf.lax.scan(body, x, None, length=5)[0],
        lambda x: gf.lax.while_loop(lambda c: c.sum() < 0, lambda c: body(c, None)[0], x),
        lambda x: gf.lax.cond(x[0, 0] > 0, lambda c: gf.nn.relu(c @ W[:, :24]), lambda c: c, x),
    ):
        target = GpuTarget(epilogues=_All(()))
        plan, _ = compile_plan(gf.make_jaxpr(function)(X), target=target)
        assert "dot_general_epilogue" not in str(plan)
        assert "dot_general" in str(plan)


def test_stacked_rows_are_one_matrix():
    x = np.ones((2, 8, 24), np.float32)
    got, left = _found(lambda x, w, b: gf.nn.gelu(x @ w + b), x, W, B)
    assert got == [Epilogue("gelu", bias=True)] and left == []


@pytest.mark.parametrize(
    "function",
    [
        gf.nn.silu,
        gf.nn.relu6,
        gf.nn.leaky_relu,
        gf.nn.elu,
        jnp.tanh,
        lambda v: gf.nn.gelu(v, approximate=False),
        lambda v: v * gf.nn.sigmoid(1.702 * v),
        lambda v: jnp.maximum(v, 0.001),
        lambda v: jnp.where(v >= 0.5, v, 0),
        lambda v: v * 2,
        lambda v: jnp.where(v > 0, v, 0),  # 0 at nan, where relu is nan
        lambda v: jnp.maximum(v, -v),
        lambda v: jnp.maximum(v, 0) ** 2,
        lambda v: 0.5 * v * (1 + jnp.tanh(0.8 * (v + 0.0447 * v**3))),
        lambda v: gf.nn.gelu(jnp.minimum(v, 20.0)),
        lambda v: gf.nn.gelu(jnp.clip(v, -9, 1e9)),
    ],
)
def test_what_is_only_like_an_activation_stays_a_kernel(function):
    got, left = _found(lambda x, w, b: function(x @ w + b), X, W, B)
    assert not got or (got == [Epilogue("", bias=True)] and left)
    assert _found(lambda x, w: function(x @ w), X, W)[0] == []


def test_biases_of_other_shapes_stay():
    relu = gf.nn.relu
    assert not _found(lambda x, w, b: relu(x @ w + b), X, W, B[:1])[0]
    assert not _found(lambda x, w, b: relu(x @ w + b), X, W, X[:, :1])[0]
    # A residual is a matrix; the bias may join, but here everything is one kernel.
    assert not _found(lambda x, w, r: relu(x @ w + r), X, W, X @ W)[0]


def test_a_product_that_others_read_stays():
    def function(x, w, b):
        y = x @ w
        return gf.nn.relu(y + b), y

    assert not _found(function, X, W, B)[0]
    assert not _found(lambda x, w, b: [gf.nn.relu(x @ w + b), (x @ w).sum()], X, W, B)[0]


def _loss(act):
    def loss(params, x):
        for w, b in params[:-1]:
            x = act(x @ w + b)
        w, b = params[-1]
        return jnp.mean((x @ w + b) ** 2)

    return loss


def _params(sizes, dtype=np.float32):
    return [
        ((RNG.normal(size=(a, b)) / a**0.5).astype(dtype), RNG.normal(size=b).astype(dtype))
        for a, b in itertools.pairwise(sizes)
    ]


@pytest.mark.parametrize("act", ["relu", "gelu"])
def test_gradients_join_as_well(act):
    function = gf.grad(_loss(getattr(gf.nn, act)))
    there, back = Epilogue(act, True, keeps=True), Epilogue(act, True, gradient=True)
    got, left = _found(function, _params((24, 40, 40, 8)), X)
    assert got == [there, there, back, back]
    assert [name for name in left if not name.startswith("column")] == ["dot_general"] * 4
    for refused in (there, back):  # the way there is useless without the way back
        got, again = _found(function, _params((24, 40, 40, 8)), X, refuse=[refused])
        assert got == [] and len(again) > len(left) + 2


@pytest.mark.parametrize("act", ["relu", "gelu"])
def test_gradients_without_those_of_biases(act):
    def loss(weights, biases, x):
        params = list(zip(weights, biases, strict=True))
        return _loss(getattr(gf.nn, act))(params, x)

    weights, biases = zip(*_params((24, 40, 8)), strict=True)
    got, _ = _found(gf.grad(loss), weights, biases, X)
    assert got == [Epilogue(act, True, keeps=True), Epilogue(act, gradient=True)]


def test_what_is_rounded_by_wish_stays_rounded():
    def function(x, w, b):
        return gf.nn.relu(lax.reduce_precision(x @ w + b, 8, 7))

    got, left = _found(function, X, W, B)
    assert not got and any("reduce_precision" in name for name in left)
    rounded = lambda x, w, b: (x @ w + b).astype("bfloat16").astype("float32")  # noqa: E731
    assert not _found(rounded, X, W, B)[0]


@pytest.fixture(scope="module")
def late():
    return gpu_devices("cuda_late_epilogues", LateApi())[0]


@pytest.fixture(params=["late", "sim"])
def device(request):
    return request.getfixturevalue("late") if request.param == "late" else gf.devices("cuda_sim")[0]


def _on(device, function, *args):
    with gf.default_device(device):
        step = gf.jit(function)
        results = [gf.tree.leaves(step(*args)) for _ in range(4)]
    first = [np.asarray(leaf).astype(np.float64) for leaf in results[0]]
    for result in results[1:]:
        for a, b in zip(first, result, strict=True):
            np.testing.assert_array_equal(a, np.asarray(b).astype(np.float64))
    return first


@requires_cuda_tools
@pytest.mark.parametrize("sizes", [(24, 40, 8), (24, 32, 32, 32, 32), (8, 16, 8, 16, 8, 8)])
@pytest.mark.parametrize("act", ["relu", "gelu"])
def test_training_steps_give_the_same_numbers(act, sizes, device, monkeypatch):
    params = _params(sizes)
    x = RNG.normal(size=(12, sizes[0])).astype(np.float32)
    x[::3] = 0  # with biases of 0, what goes into the activation is 0
    params[0][1][::2] = 0

    def step(params, x):
        loss, grads = gf.value_and_grad(_loss(getattr(gf.nn, act)))(params, x)
        return loss, gf.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    fused = _on(device, step, params, x)
    monkeypatch.setattr(config, "environment", replace(config.environment, cuda_epilogues=False))
    gf.clear_caches()
    plain = _on(device, step, params, x)
    for a, b in zip(fused, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)  # roundings of float32


@requires_cuda_tools
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("act", ["relu", "gelu", "identity"])
def test_halves(act, dtype, device):
    function = getattr(gf.nn, act)
    x, w, b = (jnp.asarray(value / 2, dtype) for value in (X, W, B))
    (got,) = _on(device, lambda x, w, b: function(x @ w + b), x, w, b)
    wide = [np.asarray(value).astype(np.float64) for value in (x, w, b)]
    want, _ = with_epilogue(
        np, Epilogue(act.replace("identity", ""), bias=True), wide[0] @ wide[1], wide[2]
    )
    # One rounding of the result, where two steps have two.
    eps = 2**-8 if dtype == "bfloat16" else 2**-11
    np.testing.assert_allclose(got, want, rtol=2 * eps, atol=2 * eps)


@requires_cuda_tools
def test_loops_that_one_block_runs(device):
    w = (-np.eye(24) * 0.999).astype(np.float32)
    x = X[:4] / 4

    def loop(x, w):
        return lax.scan(lambda c, _: (gf.nn.relu(c @ w + 1e-3), None), x, None, length=401)[0]

    (got,) = _on(device, loop, x, w)
    want = x
    for _ in range(401):
        want = np.maximum(want @ w + np.float32(1e-3), 0)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


@requires_cuda_tools
def test_nan_stays_nan(device):
    x = X.copy()
    x[3, 0] = np.nan
    for name in ("relu", "gelu"):
        (got,) = _on(device, lambda x, w, n=name: getattr(gf.nn, n)(x @ w), x, W)
        assert np.isnan(got[3]).all() and not np.isnan(np.delete(got, 3, 0)).any()


@requires_cuda_tools
def test_biases_of_any_stride(device):
    x, w, b = X, W, np.tile(B, 2)
    (got,) = _on(device, lambda x, w, b: gf.nn.relu(x @ w + b[::2]), x, w, b)
    np.testing.assert_allclose(got, np.maximum(x @ w + b[::2], 0), rtol=1e-5, atol=1e-5)
    (got,) = _on(device, lambda x, w, b: gf.nn.relu(x @ w + b[::-2]), x, w, b)
    np.testing.assert_allclose(got, np.maximum(x @ w + b[::-2], 0), rtol=1e-5, atol=1e-5)


@requires_cuda_tools
def test_a_product_that_no_library_has_is_computed_all_the_same(device, monkeypatch):
    """Offered by the model of the device, and then without an algorithm for its sizes."""
    monkeypatch.setattr(type(device.driver.api), "gemm_with", lambda *arguments: None)
    gf.clear_caches()
    for act in ("relu", "gelu"):
        step = gf.value_and_grad(_loss(getattr(gf.nn, act)))
        params = _params((24, 40, 8))
        got = _on(device, step, params, X)
        for a, b in zip(got, gf.tree.leaves(step(params, X)), strict=True):
            np.testing.assert_allclose(a, np.asarray(b), rtol=1e-4, atol=1e-5)


@requires_cuda_tools
def test_a_donated_operand_is_not_overwritten_before_it_is_read(device):
    params = _params((24, 24, 24))

    def chain(x, params):
        for w, b in params:
            x = gf.nn.relu(x @ w + b)
        return x

    want = X
    for w, b in params:
        want = np.maximum(want @ w + b, 0)
    step = gf.jit(chain, donate_argnums=0)
    got = step(gf.device_put(X, device), params)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_activations_are_those_of_nn():
    z = np.linspace(-6, 6, 97).reshape(1, -1)
    with gf.enable_x64(True):
        for name in ("relu", "gelu"):
            function = getattr(gf.nn, name)
            value, kept = with_epilogue(np, Epilogue(name, keeps=True), z)
            np.testing.assert_allclose(value, function(z), rtol=1e-12, atol=1e-12)
            slopes = gf.vmap(gf.grad(function))(z[0])
            back = Epilogue(name, bias=True, gradient=True)
            got, sums = with_epilogue(np, back, np.full(z.shape, 2.0), aux=kept)
            np.testing.assert_allclose(got[0], 2 * slopes, rtol=1e-12, atol=1e-12)
            np.testing.assert_array_equal(sums, got[0])


def test_a_gradient_at_large_operands_is_finite():
    z = np.array([[-1e30, -40, 40, 1e30]], np.float32)
    with np.errstate(all="ignore"):
        got, _ = with_epilogue(np, Epilogue("gelu", gradient=True), np.ones_like(z), aux=z)
    np.testing.assert_array_equal(got, [[0, 0, 1, 1]])


def test_masks_are_bits_in_rows_of_128():
    z = np.full((2, 130), -1.0)
    z[0, [0, 9]] = z[1, 129] = 1
    epilogue = Epilogue("relu", keeps=True)
    _, bits = with_epilogue(np, epilogue, z)
    assert (bits.shape, bits.dtype) == aux_type(epilogue, 2, 130, None) == ((2, 32), np.uint8)
    assert bits[0, :2].tolist() == [1, 2] and bits[1, 16] == 2 and bits.sum() == 5


def _matches(pattern, program):
    """Whether a program of three arrays holds a pattern, which begins at the second one."""
    x = gf.ShapeDtypeStruct((3,), np.float32)
    jaxpr = gf.make_jaxpr(program)(x, x, x).jaxpr
    pattern = gf.make_jaxpr(pattern)(x, x).jaxpr
    return EquationMatcher(jaxpr).match(pattern, jaxpr.invars[1:2]) is not None


def test_a_variable_of_a_pattern_has_one_value():
    bounded = lambda x, bound: lax.clamp(bound, x, bound)  # noqa: E731
    assert _matches(bounded, lambda a, x, b: lax.clamp(a, x, a))
    assert not _matches(bounded, lambda a, x, b: lax.clamp(a, x, b))


def test_a_pattern_that_reads_none_of_its_inputs_matches_nothing():
    assert not _matches(lambda x, y: lax.sin(y), lambda a, x, b: lax.sin(x))
