"""checkpoint: equal derivatives, less memory, recomputation that stays apart, and its policies."""

import functools

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import ad_checkpoint, lax
from gpuflow.ad_checkpoint import checkpoint_name
from gpuflow.core.jaxpr import all_eqns

# Kernels that hold whole loops have tests of their own, and take long to build.
pytestmark = pytest.mark.usefixtures("loops_of_steps")

policies = gf.checkpoint_policies


def weights(count, size=8, seed=0):
    random = np.random.default_rng(seed)
    return [(random.normal(size=(size, size)) / size**0.5).astype("f") for _ in range(count)]


def rows(count, size=8, seed=1):
    return np.random.default_rng(seed).normal(size=(count, size)).astype("f")


def network(wrap, group=4):
    """Layers of tanh(x @ w), in checkpointed groups."""

    def layers(ws, x):
        return functools.reduce(lambda x, w: jnp.tanh(x @ w), ws, x)

    wrapped = wrap(layers)

    def loss(ws, x):
        for k in range(0, len(ws), group):
            x = wrapped(ws[k : k + group], x)
        return jnp.sum(x * x)

    return loss


def count_ops(function, *args):
    """How often each op runs in the compiled program."""
    steps = gf.jit(function).lower(*args).compile().steps
    names = []
    for step in steps:
        eqns = getattr(step, "eqns", None) or ([step.eqn] if hasattr(step, "eqn") else [])
        names += [eqn.primitive.name for eqn in eqns]
    return {name: names.count(name) for name in names}


def temporaries(function, *args):
    return gf.jit(function).lower(*args).compile().memory_analysis().temp_size_in_bytes


# --- memory and work -----------------------------------------------------------------------


def test_a_deep_chain_needs_less_memory_and_gives_equal_bits():
    ws, x = weights(36), rows(128)
    plain = gf.grad(network(lambda f: f, 6))
    saving = gf.grad(network(gf.checkpoint, 6))
    for a, b in zip(gf.jit(plain)(ws, x), gf.jit(saving)(ws, x), strict=True):
        np.testing.assert_array_equal(a, b)
    # 36 activations, against 6 between groups and the 6 of one group.
    assert temporaries(saving, ws, x) < 0.45 * temporaries(plain, ws, x)


def test_recomputation_is_not_merged_with_the_first_computation():
    ws, x = weights(8), rows(4)
    plain = count_ops(gf.grad(network(lambda f: f)), ws, x)
    saving = count_ops(gf.grad(network(gf.checkpoint)), ws, x)
    # The last layer of each group need not be computed again, only tanh' needs its tanh.
    assert plain["tanh"] == 8 and saving["tanh"] == 16
    assert saving["dot_general"] == plain["dot_general"] + 8


def test_without_prevent_cse_the_compiler_merges():
    ws, x = weights(8), rows(4)
    plain = count_ops(gf.grad(network(lambda f: f)), ws, x)
    merged = count_ops(gf.grad(network(functools.partial(gf.checkpoint, prevent_cse=False))), ws, x)
    assert merged == plain
    apart = functools.partial(gf.checkpoint, prevent_cse=(True, False))
    assert count_ops(gf.grad(network(apart)), ws, x)["tanh"] == 16


def test_without_differentiation_nothing_is_added():
    ws, x = weights(8), rows(4)
    assert count_ops(network(gf.checkpoint), ws, x) == count_ops(network(lambda f: f), ws, x)


def test_nested_checkpoints_compute_inner_parts_twice_again():
    ws, x = weights(4), rows(4)
    inner = gf.checkpoint(lambda w, x: jnp.tanh(x @ w))

    @gf.checkpoint
    def outer(ws, x):
        return functools.reduce(lambda x, w: inner(w, x), ws, x)

    def loss(ws, x):
        return jnp.sum(outer(ws, x))

    def reference(ws, x):
        return jnp.sum(functools.reduce(lambda x, w: jnp.tanh(x @ w), ws, x))

    # Forward (4), again for the inputs of the inner parts (3), and inside of each of them (4).
    assert count_ops(gf.value_and_grad(loss), ws, x)["tanh"] == 11
    for a, b in zip(gf.grad(loss)(ws, x), gf.grad(reference)(ws, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# --- policies ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "dots", "tanhs"),
    [
        (None, 4, 4),
        (policies.nothing_saveable, 4, 4),
        (policies.everything_saveable, 0, 0),
        (policies.dots_saveable, 0, 4),
        (policies.checkpoint_dots, 0, 4),
        (policies.dots_with_no_batch_dims_saveable, 0, 4),
        (policies.save_only_these_names("dot"), 0, 4),
        (policies.save_only_these_names("other"), 4, 4),
        (policies.save_any_names_but_these("dot"), 4, 4),
        (policies.save_any_names_but_these("other"), 0, 4),
        (policies.save_anything_except_these_names("dot"), 0, 0),
        (
            policies.save_from_both_policies(policies.nothing_saveable, policies.dots_saveable),
            0,
            4,
        ),
        (lambda primitive, *avals, **params: primitive.name == "tanh", 0, 0),
        (
            policies.save_and_offload_only_these_names(
                names_which_can_be_saved=["dot"],
                names_which_can_be_offloaded=[],
                offload_src="device",
                offload_dst="pinned_host",
            ),
            0,
            4,
        ),
    ],
)
def test_policies_choose_what_is_computed_again(policy, dots, tanhs):
    ws, x = weights(4), rows(4)

    def layer(w, x):
        return jnp.tanh(checkpoint_name(gf.jit(jnp.matmul)(x, w), "dot"))

    def chain(ws, x):
        return functools.reduce(lambda x, w: layer(w, x), ws, x)

    def loss(wrap):
        return lambda ws, x: jnp.sum(wrap(chain)(ws, x) ** 2)

    plain = count_ops(gf.grad(loss(lambda f: f)), ws, x)
    wrap = functools.partial(gf.checkpoint, policy=policy)
    counts = count_ops(gf.grad(loss(wrap)), ws, x)
    assert counts["dot_general"] == plain["dot_general"] + dots
    assert counts["tanh"] == plain["tanh"] + tanhs
    for a, b in zip(gf.grad(loss(wrap))(ws, x), gf.grad(loss(lambda f: f))(ws, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_products_with_batch_dimensions_can_be_told_apart():
    x = np.ones((2, 8, 8), "f")  # small ones are written out

    def loss(policy):
        f = gf.checkpoint(lambda x: jnp.sin(jnp.sin(x @ x)), policy=policy)
        return gf.value_and_grad(lambda x: jnp.sum(f(x)))

    unbatched = count_ops(loss(policies.dots_with_no_batch_dims_saveable), x)
    every = count_ops(loss(policies.dots_saveable), x)
    assert unbatched["dot_general"] == every["dot_general"] + 1


def test_a_policy_that_cannot_be_hashed_is_taken():
    class Policy:
        __hash__ = None

        def __call__(self, primitive, *avals, **params):
            return True

    assert gf.grad(gf.checkpoint(jnp.sin, policy=Policy()))(0.0).item() == 1.0


def test_print_saved_residuals(capsys):
    def f(x, y):
        return (
            gf.checkpoint(
                lambda z: jnp.sin(checkpoint_name(jnp.sin(z), "inner")) * 2.0,
                policy=policies.save_only_these_names("inner"),
            )(x)
            * y
        )

    ad_checkpoint.print_saved_residuals(f, 1.0, 2.0)
    text = capsys.readouterr().out
    assert "f32[] named 'inner'" in text
    assert "from the argument x" in text and "from the argument y" in text
    ad_checkpoint.print_saved_residuals(jnp.sin, 1.0)
    assert "output of cos" in capsys.readouterr().out


# --- together with other transformations ---------------------------------------------------


def _f(x):
    return jnp.sin(x) * jnp.exp(-x * x) + jnp.tanh(jnp.sum(x))


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: f,
        gf.jit,
        lambda f: gf.vmap(lambda y: f(y * jnp.ones(3))),
        lambda f: lambda x: gf.jvp(f, (x,), (jnp.cos(x),))[1],
        lambda f: lambda x: gf.linearize(f, x)[1](x),
        lambda f: gf.grad(lambda x: jnp.sum(f(x) ** 2)),
        lambda f: gf.jit(gf.grad(lambda x: jnp.sum(f(x) ** 2))),
        lambda f: gf.hessian(lambda x: jnp.sum(f(x))),
        lambda f: gf.jacrev(gf.jacrev(f)),
        lambda f: gf.jacfwd(gf.jacfwd(f)),
        lambda f: gf.grad(lambda x: jnp.sum(gf.grad(lambda y: jnp.sum(f(y) ** 2))(x) ** 2)),
        lambda f: gf.vmap(gf.grad(lambda y: jnp.sum(f(y * jnp.ones(3))))),
        lambda f: gf.grad(lambda x: jnp.sum(gf.vmap(lambda y: f(y * jnp.ones(2)))(x))),
        lambda f: gf.checkpoint(gf.grad(lambda x: jnp.sum(f(x)))),
        lambda f: gf.jacrev(gf.checkpoint(gf.grad(lambda x: jnp.sum(f(x))))),
    ],
)
@pytest.mark.parametrize("policy", [None, policies.everything_saveable])
def test_transformations_do_not_see_it(x64, transform, policy):
    x = np.array([0.3, -0.7, 1.1])
    expected = transform(_f)(x)
    got = transform(gf.checkpoint(_f, policy=policy))(x)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


def test_in_the_body_of_a_scan_only_carries_are_stacked():
    ws, x = np.stack(weights(12)), rows(64)

    def loss(wrap):
        body = wrap(lambda x, w: (jnp.tanh(jnp.tanh(jnp.sin(x @ w)) * 2.0), None))
        return lambda ws, x: jnp.sum(lax.scan(body, x, ws)[0] ** 2)

    plain, saving = gf.grad(loss(lambda f: f)), gf.grad(loss(gf.checkpoint))
    wanted = plain(ws, x)
    # Gradients are up to 87, and sums of numbers of that size: small ones are as exact as large.
    error = 1e-6 * np.abs(wanted).max()
    np.testing.assert_allclose(saving(ws, x), wanted, rtol=1e-5, atol=error)
    assert temporaries(saving, ws, x) < 0.55 * temporaries(plain, ws, x)


def test_around_loops_and_branches(x64):
    def f(x):
        y, _ = lax.scan(lambda c, _: (jnp.sin(c) * x, None), x, None, length=3)
        return lax.cond(y > 0, lambda: y * x, lambda: jnp.cos(y))

    for x in (0.4, -0.9, 1.3):
        for g in (gf.grad, lambda f: gf.grad(gf.grad(f)), gf.jacfwd):
            np.testing.assert_allclose(g(gf.checkpoint(f))(x), g(f)(x), rtol=1e-12)


def test_custom_rules_inside_keep_their_meaning_at_second_order():
    @gf.custom_jvp
    def f(x):
        return x * x

    @f.defjvp
    def _(primals, tangents):
        return f(*primals), 3.0 * f(primals[0]) * tangents[0]

    g = gf.checkpoint(lambda x: f(x) + 0.0)
    assert gf.grad(g)(2.0).item() == 12.0
    assert gf.grad(gf.grad(g))(2.0).item() == gf.grad(gf.grad(f))(2.0).item() == 36.0


def test_a_callback_runs_again_where_its_operand_is_computed_again():
    # As in JAX: once forward and once backward, unless the policy stores everything.
    def calls(policy):
        seen = []

        def f(x):
            gf.debug.callback(lambda v: seen.append(float(v)), x)
            return jnp.sin(jnp.sin(x))

        gf.grad(gf.checkpoint(f, policy=policy))(1.0)
        return seen

    assert calls(None) == [1.0, 1.0]
    assert calls(policies.everything_saveable) == [1.0]


def test_named_axes_pass():
    def f(x):
        return jnp.sin(x) * lax.psum(jnp.cos(x), "i")

    def mapped(g):
        return gf.grad(lambda x: jnp.sum(gf.vmap(g, axis_name="i")(x)))

    x = np.array([0.1, 0.5, 0.9], "f")
    np.testing.assert_allclose(mapped(gf.checkpoint(f))(x), mapped(f)(x), rtol=1e-6)


# --- calls ---------------------------------------------------------------------------------


def test_trees_keywords_closures_and_integers():
    scale = jnp.asarray(3.0)

    @gf.checkpoint
    def f(p, n, *, power=2):
        return {"out": scale * p["w"] ** 2 * n, "n": n, "k": power}

    out = f({"w": 2.0}, 4)
    assert out["out"].item() == 48.0 and out["n"] == 4 and out["k"] == 2
    grads = gf.grad(lambda p: f(p, 4)["out"])({"w": 2.0})
    assert grads["w"].item() == 48.0
    assert f.__name__ == "f"
    by_scale = gf.grad(lambda s: gf.checkpoint(lambda x: s * x * x)(2.0))(1.0)
    assert by_scale.item() == 4.0


def test_static_arguments_and_tracing_once():
    traced = []

    @functools.partial(gf.checkpoint, static_argnums=(1, -1), static_argnames="flag")
    def f(x, power, negate, *, flag=False):
        traced.append(power)
        y = x**power
        return -y if negate else (y + 1 if flag else y)

    assert f(2.0, 3, False).item() == 8.0
    assert f(2.0, 3, False).item() == 8.0 and traced == [3]
    assert f(2.0, 3, True).item() == -8.0
    assert f(2.0, 3, False, flag=True).item() == 9.0
    assert gf.grad(f)(2.0, 3, False).item() == 12.0
    assert gf.checkpoint(lambda x, many: x * many[0], static_argnums=1)(2.0, [3]).item() == 6.0


def test_methods_and_disable_jit():
    class Model:
        @gf.checkpoint
        def apply(self, x):
            return x * x

    # A method's object is an argument like any other.
    with pytest.raises(TypeError, match=r"\[checkpoint\] arguments must be arrays.*as self"):
        Model().apply(1.0)
    with gf.disable_jit():
        assert gf.grad(lambda x: gf.checkpoint(lambda y: y if y < 0 else y * y)(x))(3.0) == 6.0


def test_errors():
    with pytest.raises(NotImplementedError, match=r"\[checkpoint\].*concrete=True.*static_argnums"):
        gf.checkpoint(jnp.sin, concrete=True)
    with pytest.raises(TypeError, match=r"\[checkpoint\] fun must be callable; got 3"):
        gf.checkpoint(3)
    with pytest.raises(TypeError, match=r"\[checkpoint\] policy must be callable; got 3"):
        gf.checkpoint(jnp.sin, policy=3)
    with pytest.raises(ValueError, match=r"static_argnums must name arguments.*4 for a call with"):
        gf.checkpoint(jnp.sin, static_argnums=4)(1.0)
    with pytest.raises(TypeError, match=r"\[checkpoint\] arguments must be arrays.*'a'.*as x"):
        gf.checkpoint(lambda x: x)("a")
    with pytest.raises(gf.errors.TracerBoolConversionError):
        gf.checkpoint(lambda x: x if x > 0 else -x)(1.0)
    with pytest.raises(TypeError, match=r"\[checkpoint\] function must return arrays"):
        gf.checkpoint(lambda x: "text")(1.0)
    with pytest.raises(TypeError, match=r"\[checkpoint_name\] the name must be a string; got 3"):
        checkpoint_name(1.0, 3)
    both = policies.save_from_both_policies(lambda *_, **__: 1, policies.nothing_saveable)
    with pytest.raises(ValueError, match="policies must answer with a bool; got 1"):
        gf.grad(gf.checkpoint(jnp.sin, policy=both))(1.0)
    places = {"offload_src": "device", "offload_dst": "pinned_host"}
    with pytest.raises(NotImplementedError, match="memory of their device"):
        policies.offload_dot_with_no_batch_dims(**places)
    with pytest.raises(NotImplementedError, match="memory of their device"):
        policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[], names_which_can_be_offloaded=["a"], **places
        )
    with pytest.raises(ValueError, match=r"a name must be in one list; got \['a'\] in both"):
        policies.save_and_offload_only_these_names(
            names_which_can_be_saved=["a"], names_which_can_be_offloaded=["a"], **places
        )


def test_the_program_shows_what_is_computed_again():
    jaxpr = gf.make_jaxpr(gf.grad(gf.checkpoint(lambda x: jnp.sin(jnp.sin(x)))))(1.0).jaxpr
    first, second = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "remat"]
    assert not first.params["differentiated"] and second.params["differentiated"]
    names = [eqn.primitive.name for eqn in all_eqns(second.params["jaxpr"].jaxpr)]
    assert names.count("sin") == 1 and names.count("cos") == 2
