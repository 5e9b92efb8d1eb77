"""Kernels do not know sizes: new batch sizes of a training step build nothing."""

import itertools
import warnings

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.compiler.planning import symbolic_program
from gpuflow.compiler.planning.key import erase_sizes
from gpuflow.compiler.planning.plan import KernelStep
from gpuflow.kir.text import kernel_text

LAYERS = (24, 32, 20, 10)
RATE = 1e-3
PRIMES = (3, 5, 7, 11, 13, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)
SIZES = (
    1, 2, 16, 17, 4, 8, 10, 12, 15, 18, 20, 24, 25, 32, 33, 50, 64, 65, 99, 100, 101, 127, 128, 129,
    256, 257, 512, *PRIMES,
)  # fmt: skip


def initial_state():
    random = np.random.default_rng(0)
    params = []
    for fan_in, fan_out in itertools.pairwise(LAYERS):
        weights = random.standard_normal((fan_in, fan_out)) / fan_in**0.5
        params.append([weights.astype(np.float32), np.zeros(fan_out, np.float32)])
    zeros = [[np.zeros_like(x) for x in layer] for layer in params]
    return {"params": params, "m": zeros, "v": zeros, "left": np.float32(1), "left2": np.float32(1)}


def batch(size):
    random = np.random.default_rng(size)
    images = random.random((size, LAYERS[0]), dtype=np.float32)
    return images, np.eye(LAYERS[-1], dtype=np.float32)[random.integers(0, LAYERS[-1], size)]


def loss_function(params, images, labels):
    hidden = images
    for weights, offset in params[:-1]:
        hidden = gf.nn.relu(hidden @ weights + offset)
    scores = hidden @ params[-1][0] + params[-1][1]
    return -jnp.mean(jnp.sum(gf.nn.log_softmax(scores) * labels, axis=-1))


def update(p, m, v, left, left2):
    return p - RATE * (m / (1 - left)) / (jnp.sqrt(v / (1 - left2)) + 1e-8)


def train_step(state, images, labels):
    """One step of Adam (Kingma and Ba 2015, algorithm 1)."""
    loss, grads = gf.value_and_grad(loss_function)(state["params"], images, labels)
    tree_map = gf.tree_util.tree_map
    m = tree_map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
    v = tree_map(lambda v, g: 0.999 * v + 0.001 * g * g, state["v"], grads)
    left, left2 = state["left"] * 0.9, state["left2"] * 0.999
    params = tree_map(lambda p, m, v: update(p, m, v, left, left2), state["params"], m, v)
    return {"params": params, "m": m, "v": v, "left": left, "left2": left2}, loss


def reference_step(state, images, labels):
    """The same step in float64 NumPy, with the backward pass by hand."""
    params = [[np.asarray(x, np.float64) for x in layer] for layer in state["params"]]
    inputs = [images.astype(np.float64)]
    for weights, offset in params[:-1]:
        inputs.append(np.maximum(inputs[-1] @ weights + offset, 0))
    scores = inputs[-1] @ params[-1][0] + params[-1][1]
    logs = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    loss = -(logs * labels).sum(-1).mean()
    delta = (np.exp(logs) - labels) / len(images)
    grads = []
    for number in reversed(range(len(params))):
        grads.insert(0, [inputs[number].T @ delta, delta.sum(0)])
        delta = (delta @ params[number][0].T) * (inputs[number] > 0)
    new = [
        [p - RATE * g / (np.abs(g) + 1e-8) for p, g in zip(*pair, strict=True)]
        for pair in zip(params, grads, strict=True)
    ]
    return new, grads, loss


def kernel_texts(step, state, size):
    """Texts of the kernels of one batch size, in order; nothing is built or run."""
    steps = step.lower(state, *batch(size)).compile().steps
    return [kernel_text(s.kernel) for s in steps if isinstance(s, KernelStep)]


ORDERS = {
    "growing": sorted(SIZES),
    "shrinking": sorted(SIZES, reverse=True),
    "one last": [*(s for s in SIZES if s != 1), 1],
    "two last": [*(s for s in SIZES if s != 2), 2],
    "small last": [*sorted(SIZES, reverse=True)[:4], *sorted(SIZES)[:20]],
    "random": [int(n) for n in np.random.default_rng(1).permutation(SIZES)],
}


@pytest.fixture
def fresh_programs(monkeypatch):
    """No symbolic programs of earlier tests."""
    monkeypatch.setattr(symbolic_program, "_programs", {})


def test_there_are_fifty_sizes():
    assert len(SIZES) == len(set(SIZES)) == 50


@pytest.mark.parametrize("order", ORDERS)
def test_fifty_batch_sizes_need_no_kernel_after_the_fourth(order, fresh_programs):
    step, state = gf.jit(train_step), initial_state()
    sizes = ORDERS[order]
    texts = [kernel_texts(step, state, size) for size in sizes]
    known = {text for own in texts[:4] for text in own}
    late = {
        (size, text)
        for size, own in zip(sizes[4:], texts[4:], strict=True)
        for text in own
        if text not in known
    }
    assert not late, "\n".join(f"batch size {size}:\n{text}" for size, text in late)


def test_sizes_share_texts_and_programs(fresh_programs, monkeypatch):
    """One symbolic program serves all sizes that do not coincide with a layer's or with 1."""
    made = []
    fuse = symbolic_program.fuse
    monkeypatch.setattr(symbolic_program, "fuse", lambda given: made.append(1) or fuse(given))
    step, state = gf.jit(train_step), initial_state()
    first = kernel_texts(step, state, 17)
    assert len(made) == 1
    for size in (2, 16, 31, 257, 5):
        assert kernel_texts(step, state, size) == first
    assert len(made) == 1


@pytest.mark.parametrize("size", [1, 2, 3, 10, 16, 17, 20, 24, 32, 97, 257])
def test_results_are_right_at_each_size(size):
    state, (images, labels) = initial_state(), batch(size)
    new, loss = gf.jit(train_step)(state, images, labels)
    want, grads, want_loss = reference_step(state, images, labels)
    np.testing.assert_allclose(loss, want_loss, rtol=1e-5)
    moments = gf.tree_util.tree_leaves(new["m"])
    for got, grad in zip(moments, [g for layer in grads for g in layer], strict=True):
        # Gradients are sums of up to 257 terms of order 1.
        np.testing.assert_allclose(got, 0.1 * grad, rtol=1e-4, atol=1e-6)
    pairs = zip(gf.tree_util.tree_leaves(new["params"]), [p for w in want for p in w], strict=True)
    for (got, wanted), grad in zip(pairs, [g for layer in grads for g in layer], strict=True):
        # The first step of Adam has the sign of the gradient: compare where that is sure.
        sure = np.abs(grad) > 1e-6
        np.testing.assert_allclose(np.asarray(got)[sure], wanted[sure], rtol=1e-5, atol=1e-5)


# --- keys ----------------------------------------------------------------------------------


def key_of(function, *shapes):
    avals = [gf.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    return erase_sizes(gf.jit(function).lower(*avals).jaxpr.jaxpr, {})[0]


def test_key_forgets_sizes_but_not_which_of_them_are_equal():
    def function(x, y):
        return x @ y

    assert key_of(function, (5, 6), (6, 7)) == key_of(function, (8, 9), (9, 3))
    assert key_of(function, (5, 6), (6, 7)) != key_of(function, (6, 6), (6, 7))
    assert key_of(function, (5, 6), (6, 1)) != key_of(function, (5, 6), (6, 7))


def test_key_keeps_what_is_written_in_kernels():
    """0 stands in the text, 2 and 3 are operands; a mean divides by its size."""
    zero, two, three = (key_of(lambda x, c=c: x + c, (5,)) for c in (0.0, 2.0, 3.0))
    assert two == three != zero
    assert key_of(jnp.mean, (5,)) == key_of(jnp.mean, (7,))
    assert key_of(lambda x: x > 0, (5,)) != key_of(lambda x: x >= 0, (5,))


def test_key_of_size_params_forgets_only_sizes():
    def shifted(start):
        return lambda x: x[start:]

    assert key_of(shifted(1), (9,)) == key_of(shifted(1), (11,))
    assert key_of(lambda x: x.T, (4, 5)) != key_of(lambda x: x + 0, (4, 5))


@pytest.mark.parametrize("sizes", [(3, 5), (5, 3), (4, 4), (1, 5), (5, 1), (0, 3), (17, 16)])
def test_programs_of_other_sizes_give_right_results(sizes, fresh_programs):
    """Whichever sizes come first are fused; the others must not suffer from it."""

    def function(x):
        y = jnp.concatenate([x, x * 2], 0)[1:]
        return y - jnp.sum(y, 1, keepdims=True), jnp.max(y, 0, initial=-9.0), y.T.reshape(-1) + 1

    compiled = gf.jit(function)
    for shape in (sizes, sizes[::-1], (2, 7), (7, 2), (7, 7), (1, 1), sizes):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        if shape[0] == 0:
            continue
        y = np.concatenate([x, 2 * x])[1:]
        wants = y - y.sum(1, keepdims=True), y.max(0, initial=-9.0), y.T.reshape(-1) + 1
        for got, want in zip(compiled(x), wants, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_complex_literals_warn_of_nothing(fresh_programs):
    """The key took the real part of a complex literal, with NumPy's ComplexWarning for the user."""
    z = np.array([1 + 2j, 3j], np.complex64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(gf.jit(lambda z: z * 2j + 1)(z), z * 2j + 1)


def test_copies_of_an_equation_share_their_constants():
    """Two readers of a clamped input have a copy each, which a kernel of both computes once."""
    x = np.linspace(-60, 60, 1000, dtype=np.float32)

    def text(f):
        return "".join(
            kernel_text(s.kernel)
            for s in gf.jit(f).lower(x).compile().steps
            if isinstance(s, KernelStep)
        )

    def same(x):
        return jnp.clip(x, -30.5, 30.5) * jnp.sin(jnp.clip(x, -30.5, 30.5))

    assert text(same).count(" max ") == 1
    assert text(gf.grad(lambda x: gf.nn.gelu(x).sum())).count(" max ") == 1


def test_programs_with_and_without_shared_constants_differ():
    """They have the same equations; only in one of them are constants those of a copy."""
    x = np.linspace(-60, 60, 1000, dtype=np.float32)

    def bounded(low, high):
        return lambda x: jnp.clip(x, -low, low) * jnp.sin(jnp.clip(x, -high, high))

    for low, high in ((30.5, 30.5), (30.5, 12.5), (12.5, 12.5), (7.5, 50.5)):
        want = np.clip(x, -low, low) * np.sin(np.clip(x, -high, high))
        np.testing.assert_allclose(gf.jit(bounded(low, high))(x), want, rtol=1e-5, atol=1e-5)
