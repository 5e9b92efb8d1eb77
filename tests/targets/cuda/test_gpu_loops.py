"""while_loops on GPUs: the next turn is launched before the host knows whether there is one."""

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from late_gpu import LateApi, gpu_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler import pipeline
from gpuflow.compiler.planning import speculation
from gpuflow.targets.cuda.library.target import gpu_target
from gpuflow.targets.cuda_sim.driver import SimApi

# These loops could all be statements of kernels.
pytestmark = [requires_cuda_tools, pytest.mark.usefixtures("loops_of_steps")]
N = 24
ARRAY = np.linspace(-1, 1, N).astype(np.float32)
MATRIX = np.random.default_rng(0).normal(size=(N, N)).astype(np.float32) / N


@pytest.fixture(scope="module")
def late():
    return gpu_devices("cuda_late_loops", LateApi())[0]


@pytest.fixture(scope="module")
def early():
    return gpu_devices("cuda_early_loops", SimApi())[0]


def is_ahead(function, *args):
    """Whether the loop of a function is run a turn ahead on GPUs."""
    jaxpr = gf.jit(function).lower(*args).jaxpr
    plan = pipeline.compile_plan(jaxpr, target=gpu_target())[0]
    (step,) = [step for step in plan.steps if step.kind == "program"]
    return step.programs[-1].is_speculative


def _alternating(x, n):
    return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, x))


def _products(x, n):
    return lax.fori_loop(0, n, lambda i, x: jnp.tanh(MATRIX @ x + i), x)


def _element(x, n):
    def body(s):
        i, x, y = s
        return i + 1, x.at[i].set(y), 0.5 * y + x[i + 1] + x[i]

    return lax.while_loop(lambda s: s[0] < n, body, (0, x, jnp.float32(1)))


def _several(x, n):
    """Updates in a row, of several elements, some outside, in two carries."""
    places = np.array([0, 3, 3, 70, -1])

    def body(i, s):
        x, y = s
        z = x.at[places + i].add(y[places]).at[i].mul(2)
        z = lax.dynamic_update_slice(z, y[:3] * z[i], (2 * i,))
        return z, y.at[places].set(x[i] + i, mode="drop")

    return lax.fori_loop(0, n, body, (x, x[::-1]))


def _whole(x, n):
    """An update of what is computed from the carry, which is not in place."""
    return lax.fori_loop(0, n, lambda i, x: (2 * x).at[i].add(x[0]) * 0.5, x)


def _until(x, n):
    """The condition reads the array that is updated, also behind the last turn."""

    def goes_on(s):
        return (s[0].sum() < 1) & (s[1] < n)

    return lax.while_loop(goes_on, lambda s: (s[0].at[s[1]].add(0.3), s[1] + 1), (x, 0))


LOOPS = [_alternating, _products, _element, _several, _whole, _until]


@pytest.mark.parametrize("where", ["late", "early"])
@pytest.mark.parametrize("function", LOOPS, ids=lambda f: f.__name__.strip("_"))
def test_values_after_any_number_of_turns(function, where, request):
    device = request.getfixturevalue(where)
    assert is_ahead(function, ARRAY, 3)
    compiled = gf.jit(function)
    with gf.default_device(device):
        x = jnp.asarray(ARRAY)
        for turns in (0, 1, 2, 5, 6):
            # The third call records the launches of a turn, the fourth replays them.
            results = [compiled(x, turns) for _ in range(4)]
            with gf.default_device(gf.devices("cpu")[0]):
                wanted = gf.tree.leaves(gf.jit(function)(ARRAY, turns))
            for result in results:
                for one, other in zip(gf.tree.leaves(result), wanted, strict=True):
                    np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-5)  # TF32 products
        np.testing.assert_array_equal(x, ARRAY)


@pytest.mark.parametrize("function", [_alternating, _element])
def test_the_device_has_a_turn_to_do_while_the_host_waits(function, late):
    api, compiled = late.driver.api, gf.jit(function)
    x = gf.device_put(ARRAY, late)
    gf.block_until_ready(compiled(x, 20))
    before = dict(api.log)
    results = compiled(x, 20)
    assert api.log["wait"] - before["wait"] == 21  # a flag for each turn, and the first one
    assert api.log["idle"] == before.get("idle", 0)
    assert api.log["synchronize"] == before["synchronize"]
    assert np.asarray(results[0]) == 20


def test_a_loop_that_is_not_ahead_lets_the_device_wait(late, monkeypatch):
    """The counters of the test before do count."""
    monkeypatch.setattr(speculation, "_MAX_ELEMENTS", 0)
    api, x = late.driver.api, gf.device_put(ARRAY, late)
    before = api.log["idle"]
    result = gf.jit(lambda x: lax.while_loop(lambda s: s.sum() < 9, lambda s: s + 0.1, x))(x)
    turns = round((float(np.asarray(result)[0]) + 1) / 0.1)
    assert api.log["idle"] - before == turns + 1


def test_a_carry_is_updated_in_place_and_others_alternate():
    jaxpr = gf.jit(_element).lower(ARRAY, 3).jaxpr
    plan = pipeline.compile_plan(jaxpr, target=gpu_target())[0]
    (step,) = [step for step in plan.steps if step.kind == "program"]
    body = step.programs[-1].plan
    kept = [out in body.in_place for out in body.outputs]
    assert kept == [body.aval(out).shape == (N,) for out in body.outputs]
    assert not any(step.kind == "copy" and step.source.aval.size > 1 for step in body.steps)


def _on_host(x):
    return gf.pure_callback(lambda v: v + 1, gf.ShapeDtypeStruct(x.shape, x.dtype), x)


NOT_AHEAD = {
    "a callback": lambda x, n: lax.fori_loop(0, n, lambda i, x: _on_host(x), x),
    "an effect": lambda x, n: lax.fori_loop(
        0, n, lambda i, x: (gf.debug.callback(lambda v: None, x[0]), x + 1)[1], x
    ),
    "a loop inside, which might not end": lambda x, n: lax.fori_loop(
        0, n, lambda i, x: lax.while_loop(lambda y: y.sum() < i, lambda y: y + 1, x), x
    ),
    "a branch": lambda x, n: lax.fori_loop(
        0, n, lambda i, x: lax.cond(i > 2, jnp.sin, lambda x: x.at[i].set(1.0), x), x
    ),
}


@pytest.mark.parametrize("case", NOT_AHEAD)
def test_what_may_not_run_once_too_often(case, late):
    function = NOT_AHEAD[case]
    assert not is_ahead(function, ARRAY, 4)
    made = gf.jit(function)(gf.device_put(ARRAY, late), 4)
    with gf.default_device(gf.devices("cpu")[0]):
        np.testing.assert_allclose(made, gf.jit(function)(ARRAY, 4), rtol=1e-5)


def test_callbacks_are_made_for_turns_that_there_are(late):
    seen = []
    gf.jit(
        lambda x: lax.while_loop(
            lambda s: s < 3, lambda s: (gf.debug.callback(seen.append, s), s + 1)[1], x
        )
    )(gf.device_put(np.float32(0), late)).block_until_ready()
    gf.effects_barrier()
    assert [float(value) for value in seen] == [0, 1, 2]


def test_long_turns_are_not_begun_ahead():
    big = gf.ShapeDtypeStruct((1 << 25,), np.float32)
    assert not is_ahead(_alternating, big, 3)
    # An update in place takes as long as its windows, however large the array is.
    assert is_ahead(lambda x, n: lax.fori_loop(0, n, lambda i, x: x.at[i].set(x[i + 1]), x), big, 3)
    wide = gf.ShapeDtypeStruct((4096, 4096), np.float32)
    assert not is_ahead(lambda x, n: lax.fori_loop(0, n, lambda i, y: x @ y, x), wide, 3)


def test_loops_of_loops_and_of_lanes(late):
    def nested(x):
        return lax.scan(lambda c, n: (_element(c, n)[1], c[0]), x, jnp.arange(4))

    def mapped(x):
        return gf.vmap(lambda n: _element(x, n)[1])(jnp.arange(4))

    for function in (nested, mapped):
        made = gf.jit(function)(gf.device_put(ARRAY, late))
        with gf.default_device(gf.devices("cpu")[0]):
            wanted = gf.jit(function)(ARRAY)
        for one, other in zip(gf.tree.leaves(made), gf.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)


def test_places_for_flags_are_used_again():
    api = LateApi()
    device = gpu_devices("cuda_late_flags", api)[0]
    driver = device.driver
    with gf.default_device(device):
        data = jnp.asarray(True).block_until_ready()._data
    first = driver.flag_reader()
    assert first(data)() is True
    first(data)  # nobody waits for it
    pinned = len(api._pinned)
    del first
    second = driver.flag_reader()
    assert len(api._pinned) == pinned
    with gf.default_device(device):
        other = jnp.asarray(False).block_until_ready()._data
    assert second(other)() is False
