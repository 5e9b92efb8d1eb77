"""example_libraries.optimizers: steps of JAX's, stored; complex parameters; states; errors."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import example_library_cases as cases
import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.example_libraries import optimizers

STORED = json.loads((Path(__file__).parent / "data" / "example_libraries.json").read_text())


@pytest.fixture(scope="module")
def results():
    return cases.optimizer_results(optimizers)


@pytest.mark.parametrize("name", STORED["optimizers"])
def test_steps_are_those_of_jax(name, results):
    # Twelve steps of float32 arithmetic in another order of operations.
    np.testing.assert_allclose(results[name], STORED["optimizers"][name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", STORED["optimizers"])
def test_steps_can_be_compiled(name):
    init, update, get_params = cases.optimizer_makers(optimizers)[name]
    state = init(cases.start())
    grads = cases.gradient(cases.start())
    compiled = get_params(gf.jit(update)(2, grads, state))
    eager = get_params(update(2, grads, state))
    for left, right in zip(gf.tree.leaves(compiled), gf.tree.leaves(eager), strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["sgd", "adagrad", "rmsprop", "adam", "adamax", "sm3"])
def test_complex_parameters_move_along_the_conjugated_gradient(name):
    """|z - w|^2 for complex z: a turn of the problem turns the whole path."""
    init, update, get_params = cases.optimizer_makers(optimizers)[name]
    target = jnp.asarray([1.0 + 2.0j, -0.5 + 0.3j], jnp.complex64)

    def path(turn):
        state = init(jnp.zeros(2, jnp.complex64))
        for step in range(60):
            z = get_params(state)
            grad = gf.grad(lambda z: jnp.sum(jnp.abs(z - turn * target) ** 2))(z)
            state = update(step, jnp.conj(grad), state)
        return np.asarray(get_params(state))

    straight, turned = path(1.0), path(1j)
    np.testing.assert_allclose(turned, 1j * straight, rtol=1e-4, atol=1e-5)
    assert np.all(np.abs(straight - target) < 0.5 * np.abs(target))


def test_scalars_and_empty_trees():
    for init, update, get_params in cases.optimizer_makers(optimizers).values():
        assert get_params(update(0, {}, init({}))) == {}
        moved = get_params(update(0, 1.0, init(jnp.asarray(2.0))))
        assert moved.shape == () and float(moved) < 2.0


def test_norms_and_clipping():
    tree = {"a": jnp.asarray([3.0, 0.0]), "b": jnp.asarray([[4.0]])}
    assert float(optimizers.l2_norm(tree)) == 5.0
    clipped = optimizers.clip_grads(tree, 2.5)
    np.testing.assert_allclose(clipped["a"], [1.5, 0.0])
    same = optimizers.clip_grads(tree, 6.0)
    np.testing.assert_array_equal(same["b"], tree["b"])


def test_states_can_be_taken_apart_and_stored():
    init, update, _ = optimizers.adam(1e-2)
    state = update(0, cases.gradient(cases.start()), init(cases.start()))
    stored = pickle.loads(pickle.dumps(optimizers.unpack_optimizer_state(state)))
    restored = optimizers.pack_optimizer_state(stored)
    assert gf.tree.structure(restored) == gf.tree.structure(state)
    for left, right in zip(gf.tree.leaves(restored), gf.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(left, right)
    (first,) = stored["b"]
    assert [np.shape(leaf) for (part,) in [first] for leaf in part] == [(4,)] * 3
    with pytest.raises(TypeError, match=r"\[pack_optimizer_state\] leaves must be JoinPoints"):
        optimizers.pack_optimizer_state({"a": 1})


def test_gradients_of_another_structure():
    init, update, _ = optimizers.sgd(0.1)
    with pytest.raises(TypeError, match=r"\[optimizer\] gradients must have the structure"):
        update(0, {"b": 1.0}, init({"a": 1.0}))


def test_an_update_that_changes_its_state():
    @optimizers.optimizer
    def growing():
        return lambda x: (x,), lambda i, g, state: (*state, g), lambda state: state[0]

    init, update, _ = growing()
    with pytest.raises(TypeError, match=r"\[optimizer\] update must keep the structure"):
        update(0, 1.0, init(2.0))


def test_schedules():
    assert optimizers.make_schedule(0.1)(7) == 0.1
    assert optimizers.constant(0.2)(3) == 0.2
    with pytest.raises(TypeError, match=r"\[make_schedule\] a step size must be a scalar"):
        optimizers.make_schedule([0.1, 0.2])
    with pytest.raises(ValueError, match=r"\[piecewise_constant\] boundaries and values"):
        optimizers.piecewise_constant([1, 2], [0.1, 0.2])
