"""jit's further options and stages, clear_caches, ensure_compile_time_eval and debug_nans."""

import functools
import subprocess
import sys

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.core.trace import Tracer
from gpuflow.sharding import PartitionSpec

pytestmark = pytest.mark.simulated_gpu

X = np.array([1.0, 2.0, 3.0], "f")


# --- methods and decorators --------------------------------------------------------------------


class Scale:
    def __init__(self, factor):
        self.factor = factor

    @gf.jit(static_argnums=0)
    def apply(self, x):
        return x * self.factor

    @gf.jit(static_argnames=("self", "power"), inline=True)
    def raised(self, x, *, power=2):
        return (x * self.factor) ** power


def test_a_method_knows_its_object():
    double, triple = Scale(2.0), Scale(3.0)
    np.testing.assert_array_equal(double.apply(X), 2 * X)
    np.testing.assert_array_equal(triple.apply(X), 3 * X)
    np.testing.assert_array_equal(Scale.apply(double, X), 2 * X)
    np.testing.assert_allclose(triple.raised(X, power=3), (3 * X) ** 3, rtol=1e-6)
    assert double.apply.__self__ is double and double.apply.__name__ == "apply"
    np.testing.assert_array_equal(gf.vmap(double.apply)(X), 2 * X)


def test_options_are_accepted_as_in_jax():
    f = gf.jit(
        lambda x, unused: x + 1,
        keep_unused=True,
        device=None,
        backend="cpu",
        compiler_options={"xla_flag": 1},
    )
    np.testing.assert_array_equal(f(X, 3.0), X + 1)
    assert gf.jit(keep_unused=True)(lambda x: x)(X).shape == (3,)


def test_options_and_dialects_of_the_stages():
    lowered = gf.jit(lambda x: x * 2).lower(X)
    for options in (None, {}, {"xla_embed_ir_in_executable": True}):
        np.testing.assert_array_equal(lowered.compile(compiler_options=options)(X), 2 * X)
    for dialect in (None, "stablehlo", "hlo"):
        assert "mul" in lowered.as_text(dialect) and "mul" in lowered.as_text(debug_info=True)
    with pytest.raises(ValueError, match=r"\[as_text\] dialect must be one of .*; got 'llvm'"):
        lowered.as_text(dialect="llvm")
    for wrong in (
        lambda: lowered.compile(compiler_options={"fast": True}),
        lambda: gf.jit(jnp.sin, compiler_options={"fast": True}),
    ):
        with pytest.raises(gf.errors.JaxRuntimeError, match="options must be XLA's; got 'fast'"):
            wrong()


def generator(x):
    yield x


@pytest.mark.parametrize(
    "transform",
    [
        gf.jit,
        gf.vmap,
        gf.pmap,
        gf.grad,
        gf.value_and_grad,
        gf.jacfwd,
        gf.jacrev,
        gf.hessian,
    ],
)
def test_generators_are_refused(transform):
    """What they compute they compute after the transformation has ended."""
    for function in (generator, functools.partial(generator, 1)):
        with pytest.raises(TypeError, match=r"must return its results; got .*generator.*Fix: "):
            transform(function)


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"device": "cpu"}, TypeError, "device must be a Device or None; got 'cpu'"),
        ({"backend": "tpu"}, RuntimeError, "got 'tpu'"),
        ({"device": gf.devices()[0], "backend": "cpu"}, ValueError, "got both"),
    ],
)
def test_wrong_places(options, error, text):
    with pytest.raises(error) as caught:
        gf.jit(lambda x: x, **options)
    assert text in str(caught.value) and "Fix: " in str(caught.value)


def test_programs_run_on_the_device_that_was_named():
    """In a process of its own: the number of devices is fixed at its start."""
    program = """
import gpuflow as gf, gpuflow.numpy as jnp
second = gf.devices()[1]
on_second = gf.jit(lambda x: x + 1, device=second)
out = on_second(jnp.ones(3))
assert out.device == second, out.device
assert on_second(2.0).device == second
assert gf.jit(lambda: jnp.zeros(2), device=second)().device == second
assert float(gf.grad(on_second)(1.0)) == 1.0
assert jnp.ones(3).device == gf.devices()[0]
"""
    environment = {"GPUFLOW_CPU_DEVICES": "2", "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=120)


# --- stages ------------------------------------------------------------------------------------


def test_every_stage_knows_the_types():
    f = gf.jit(lambda t, *, n: {"y": t["x"] * n}, static_argnames="n")
    traced = f.trace({"x": X}, n=2)
    lowered = traced.lower()
    for stage in (traced, lowered, lowered.compile()):
        assert stage.fun_name == "<lambda>"
        assert stage.in_avals == (({"x": gf.typeof(X)},), {})
        assert stage.out_info == {"y": gf.ShapeDtypeStruct((3,), np.float32)}
        assert stage.out_avals == {"y": gf.typeof(X)}
    assert str(traced.jaxpr) == str(lowered.jaxpr)
    np.testing.assert_array_equal(lowered.compile()({"x": X})["y"], 2 * X)


def test_eval_shape_gives_structs():
    got = gf.jit(lambda x: (x.T, 1)).eval_shape(gf.ShapeDtypeStruct((2, 3), np.float32))
    assert got[0] == gf.ShapeDtypeStruct((3, 2), np.float32)
    assert got[1] == gf.ShapeDtypeStruct((), np.int32, weak_type=True)


# --- caches ------------------------------------------------------------------------------------


def test_clear_caches_forgets_all_programs():
    traces = []
    functions = [gf.jit(lambda x, k=k: traces.append(k) or x * k) for k in range(2)]
    for _ in range(2):
        for f in functions:
            f(X)
    assert traces == [0, 1]
    gf.clear_caches()
    assert [f._cache_size() for f in functions] == [0, 0]
    np.testing.assert_array_equal(functions[1](X), X)
    assert traces == [0, 1, 1]


# --- ensure_compile_time_eval --------------------------------------------------------------------


def test_ops_in_the_block_run_at_once():
    @gf.jit
    def f(x):
        with gf.ensure_compile_time_eval():
            y = gf.jit(jnp.sin)(jnp.asarray(3.0))
            table = gf.vmap(lambda v: v * 2)(jnp.arange(3.0))
            slope = gf.grad(jnp.sin)(0.0)
            is_positive = y > 0
        assert is_positive and float(slope) == 1.0  # known: they decide here
        return x + table

    np.testing.assert_array_equal(f(X), [1, 4, 7])
    assert "sin" not in str(f.lower(X).as_text())
    got = gf.vmap(f)(np.stack([X, X]))
    np.testing.assert_array_equal(got[1], [1, 4, 7])


@pytest.mark.parametrize("transform", [gf.jit, gf.vmap, gf.grad, gf.make_jaxpr])
def test_traced_values_are_traced_in_the_block(transform):
    known = []

    def f(x):
        with gf.ensure_compile_time_eval():
            known.append(float(gf.jit(jnp.cos)(0.0)))
            return gf.jit(jnp.sin)(x) * jnp.cos(0.0)

    x = X if transform is gf.vmap else np.float32(0.5)
    got = transform(f)(x)
    if transform is gf.make_jaxpr:
        (got,) = got(x)
    want = np.cos(0.5) if transform is gf.grad else np.sin(x)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert known == [1.0]


# --- debugging ---------------------------------------------------------------------------------


def test_a_nan_in_a_program_is_traced_to_its_op():
    @gf.jit
    def f(x):
        return jnp.exp(jnp.log(x - 2) + 1)

    assert np.isnan(f(X)[0])
    with gf.config.override("debug_nans", True):
        with pytest.raises(FloatingPointError, match=r"\[log\] results must be finite.*nan in f32"):
            f(jnp.asarray(X))
        with pytest.raises(FloatingPointError, match=r"\[log\]"):
            gf.jit(gf.vmap(f))(X)
        donating = gf.jit(lambda x: jnp.log(x), donate_argnums=0)
        with pytest.raises(FloatingPointError, match=r"\[log\] results must be finite"):
            donating(jnp.asarray(-X))
        np.testing.assert_allclose(f(jnp.asarray(X + 2)), np.e * X, rtol=1e-5)
    assert np.isnan(f(X)[0])
    with gf.config.override("debug_infs", True), pytest.raises(FloatingPointError, match="div"):
        gf.jit(lambda x: 1 / x)(np.zeros(2, "f"))


def test_disable_jit_under_other_transformations():
    seen = []

    @gf.jit
    def f(x):
        seen.append(isinstance(x, Tracer))
        return x * 2

    with gf.disable_jit():
        f(jnp.asarray(X))
        assert float(gf.grad(f)(3.0)) == 2.0
        text = str(gf.make_jaxpr(f)(1.0))
    assert seen == [False, True, True] and "jit" not in text


# --- what is asked for twice, and what stages know of arguments ---------------------------------


@pytest.mark.parametrize(
    "options",
    [{"static_argnums": 0, "donate_argnames": "x"}, {"static_argnames": "x", "donate_argnums": 0}],
)
def test_an_argument_is_not_both_static_and_donated(options):
    with pytest.raises(ValueError, match=r"both static and donated; got \[0\].*Fix:"):
        gf.jit(lambda x: x, **options)


def test_stages_know_the_arguments():
    lowered = gf.jit(lambda x, y: x + y, donate_argnums=0).lower(X, y=1.0)
    (x,), named = lowered.args_info
    assert (x.shape, x.dtype, x.donated) == ((3,), np.float32, True)
    assert named["y"].shape == () and not named["y"].donated


def test_structs_print_as_they_are_written():
    assert repr(gf.ShapeDtypeStruct((3,), "f")) == "ShapeDtypeStruct(shape=(3,), dtype=float32)"
    weak = gf.ShapeDtypeStruct((), "f", weak_type=True)
    assert repr(weak).endswith("dtype=float32, weak_type=True)")


def test_names_of_partial_functions():
    def scaled(scale, x):
        return scale * x

    assert gf.jit(functools.partial(functools.partial(scaled, 2.0))).__name__ == "scaled"
    with pytest.raises(TypeError, match=r"argnames must be strings; got 1"):
        gf.jit(scaled, static_argnames=(1,))


def test_donated_arguments_of_the_stages():
    traced = gf.jit(lambda x, y: x * y, donate_argnums=1).trace({"a": 1.0, "b": 2.0}["a"], X)
    assert traced.donate_argnums == traced.lower().donate_argnums == (1,)
    assert traced.lower().compile().donate_argnums == (1,)


def test_shardings_of_structs():
    mesh = gf.make_mesh((1,), ("a",))
    for sharding in (gf.NamedSharding(mesh, PartitionSpec("a")), PartitionSpec("a"), None):
        struct = gf.ShapeDtypeStruct((4,), "float32", sharding=sharding)
        assert struct.sharding == sharding and struct.update(shape=(2,)).sharding == sharding
        assert gf.jit(lambda x: x + 1).lower(struct).compile()(np.ones(4, "f")).shape == (4,)
    assert "sharding=" in repr(gf.ShapeDtypeStruct((4,), "float32", sharding=PartitionSpec("a")))
    assert struct != gf.ShapeDtypeStruct((4,), "float32", sharding=PartitionSpec("a"))
    assert PartitionSpec("a") != None  # noqa: E711  (it was equal to all that is no tuple)
    with pytest.raises(ValueError, match=r"\[ShapeDtypeStruct\] sharding must be a Sharding"):
        gf.ShapeDtypeStruct((4,), "float32", sharding="a")


def test_traced_values_are_not_fetched():
    assert gf.jit(lambda x: gf.device_get({"a": x})["a"] * 2)(3.0).item() == 6


def test_argument_numbers_are_any_integers():
    numbers = (np.int64(1), np.array(1), jnp.array(1), np.array([1]), [np.int32(1)], {1}, iter([1]))
    for static in numbers:
        f = gf.jit(lambda x, flag: x if flag else -x, static_argnums=static)
        assert f(2.0, True) == 2 and f(2.0, False) == -2
    assert gf.make_jaxpr(lambda x, n: x * n, static_argnums=np.array([1]))(2.0, 3).in_avals
    assert len(gf.make_jaxpr(lambda x, n: x * n, static_argnums=None)(2.0, 3).in_avals) == 2
    assert gf.checkpoint(lambda x, n: x * n, static_argnums=jnp.array(1))(2.0, 3) == 6
    with pytest.raises(TypeError, match=r"\[jit\] static_argnums must name positional"):
        gf.jit(lambda x: x, static_argnums=0.5)
    with pytest.raises(TypeError, match=r"\[checkpoint\] static_argnums must name positional"):
        gf.checkpoint(lambda x: x, static_argnums=["a"])
