"""Names of JAX that public programs use: all are there under the alias, and do as JAX 0.10.2.

The expected values are those of JAX.
"""

from __future__ import annotations

import copy
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import opt_einsum
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.as_jax.internals import (
    ad,
    api_util,
    batching,
    config,
    core,
    dispatch,
    dtypes,
    effects,
    mlir,
    pxla,
    source_info_util,
    traceback_util,
)
from gpuflow.as_jax.internals import linear_util as lu
from gpuflow.as_jax.internals import partial_eval as pe
from gpuflow.as_jax.internals import prng as jex_random
from gpuflow.as_jax.internals.einsum import _einsum
from gpuflow.as_jax.surfaces import module_of
from gpuflow.experimental import multihost_utils
from gpuflow.sharding import NamedSharding

util = module_of("jax._src.util")
colocated_python = module_of("jax.experimental.colocated_python")
jex_core, siu = module_of("jax.extend.core"), module_of("jax.extend.source_info_util")
xla = module_of("jax.interpreters.xla")

# Those that public programs use of JAX 0.10.2, but for names with an underscore.
NAMES = (Path(__file__).parent / "data" / "jax_public_names.txt").read_text().split()
# The reasons are in docs/as_jax.md.
LEFT_OUT = ("jax.experimental.pallas.", "jax.tools.")

RESOLVE = """
import importlib, sys, warnings
import gpuflow.as_jax
gpuflow.as_jax.install()
warnings.simplefilter("ignore")

def resolve(full):
    first, *rest = full.split(".")
    value, path = importlib.import_module(first), first
    for part in rest:
        path += "." + part
        try:
            value = getattr(value, part)
        except AttributeError:
            value = importlib.import_module(path)

for name in sys.stdin.read().split():
    try:
        resolve(name)
    except Exception as error:
        print(name, error)
"""


def test_all_public_names_are_there():
    names = [name for name in NAMES if not name.startswith(LEFT_OUT)]
    if importlib.util.find_spec("tensorstore") is None:
        names.remove("jax.experimental.array_serialization.serialization.TS_CONTEXT")
    assert len(names) > 1400
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE],
        input="\n".join(names),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""


# --- functions with facts and transformations ----------------------------------------------


def f(x, y):
    return x * 2, jnp.sin(y)


VECTOR = core.ShapedArray((3,), np.float32)


def test_debug_info_names_the_arguments():
    info = api_util.debug_info("jit", f, (1.0, 2.0), {})
    assert isinstance(info, core.DebugInfo) and info.traced_for == "jit"
    assert info.func_src_info.startswith(f"f at {__file__}:") and info.arg_names == ("x", "y")
    info = api_util.debug_info("t", lambda a, *b, c=1: 0, ({"k": [1, 2]}, 3, 4), {"c": 5})
    assert info.arg_names == ("a['k'][0]", "a['k'][1]", "b[0]", "b[1]", "c")
    info = api_util.debug_info("t", lambda a, b: 0, (1, 2), {}, static_argnums=(0,))
    assert info.arg_names == ("b",)


def test_some_arguments_are_given():
    fun = lu.wrap_init(lambda a, b, c: (a, b, c))
    partial, rest = api_util.argnums_partial(fun, (0, -1), (1, 2, 3))
    assert partial.call_wrapped(10, 30) == (10, 2, 30) and rest == (1, 3)
    with pytest.raises(ValueError, match="dyn_argnums must be positions of 3 arguments; got 3"):
        api_util.argnums_partial(fun, 3, (1, 2, 3))
    with pytest.raises(ValueError, match="static arguments must be hashable; got argument 1"):
        api_util.argnums_partial(fun, 0, (1, [2], 3))
    partial, _ = api_util.argnums_partial(fun, 0, (1, [2], 3), require_static_args_hashable=False)
    assert partial.call_wrapped(10) == (10, [2], 3)
    with pytest.raises(TypeError, match=r"\[check_callable\] .* be a function; got 3"):
        api_util.check_callable(3)
    with pytest.raises(TypeError, match="got the generator function"):
        api_util.check_callable(lambda: (yield))


def test_results_of_equal_functions_are_remembered_with_their_stores():
    @lu.transformation_with_aux2
    def counted(g, store, times, *args):
        store.store(times)
        return [g(*args)] * times

    calls = []

    @lu.cache
    def run(fun, x):
        calls.append(x)
        return fun.call_wrapped(x)

    def double(x):
        return 2 * x

    for times, expected in ((2, [6, 6]), (2, [6, 6]), (3, [6, 6, 6])):
        fun, aux = counted(lu.wrap_init(double), times)
        assert run(fun, 3) == expected and aux() == times
    assert calls == [3, 3]
    run.evict_function(double)
    run(counted(lu.wrap_init(double), 2)[0], 3)
    assert calls == [3, 3, 3]


def test_one_of_two_stores_is_filled():
    @lu.transformation_with_aux
    def keeping(*args):
        out = yield args, {}
        yield out, "kept"

    fun, aux = keeping(lu.wrap_init(lambda x: x))
    _, empty = keeping(lu.wrap_init(lambda x: x))
    with pytest.raises(lu.StoreException, match="none of two"):
        lu.merge_linear_aux(aux, empty)
    assert fun.call_wrapped(1) == 1
    assert lu.merge_linear_aux(aux, empty) == (True, "kept")
    assert lu.merge_linear_aux(empty, aux) == (False, "kept")
    with pytest.raises(lu.StoreException, match="both of two"):
        lu.merge_linear_aux(aux, aux)
    with pytest.raises(lu.StoreException, match="must be filled before it is read"):
        empty()


# --- programs ------------------------------------------------------------------------------


def test_programs_are_recorded_and_pruned():
    fun = lu.wrap_init(f, debug_info=api_util.debug_info("t", f, (1.0, 2.0), {}))
    jaxpr, avals, consts = pe.trace_to_jaxpr_dynamic(fun, [VECTOR, VECTOR])
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["mul", "sin"]
    assert avals == [VECTOR] * 2 and consts == []
    small, used = pe.dce_jaxpr(jaxpr, [True, False])
    assert used == [True, False] and [eqn.primitive.name for eqn in small.eqns] == ["mul"]
    assert len(small.invars) == len(small.outvars) == 1
    small, used = pe.dce_jaxpr(jaxpr, [True, False], instantiate=True)
    assert used == [True, True] and len(small.invars) == 2
    core.check_jaxpr(small)
    np.testing.assert_array_equal(core.eval_jaxpr(small, [], jnp.ones(3), jnp.ones(3))[0], 2)


def test_pruning_drops_constants_and_asks_rules():
    table = jnp.arange(3.0)
    fun = lu.wrap_init(lambda x, y: [x + table, gf.jit(lambda z: (z, jnp.cos(z) * y))(x)[1]])
    jaxpr, _, consts = pe.trace_to_jaxpr_dynamic(fun, [VECTOR, VECTOR])
    assert len(consts) == 1
    small, used_consts, used = pe.dce_jaxpr_consts(jaxpr, [False, True])
    assert used_consts == [False] and used == [True, True] and not small.constvars
    _, _, used = pe.dce_jaxpr_consts(jaxpr, [True, False])
    assert used == [True, False]
    sin_p = lax.sin_p
    jaxpr, _, _ = pe.trace_to_jaxpr_dynamic(lu.wrap_init(f), [VECTOR, VECTOR])
    pe.dce_rules[sin_p] = lambda used, eqn: ([True], eqn)
    try:
        small, used = pe.dce_jaxpr(jaxpr, [True, False])
    finally:
        del pe.dce_rules[sin_p]
    assert used == [True, True] and [eqn.primitive.name for eqn in small.eqns] == ["mul", "sin"]


def test_tracers_of_staging_have_the_class_that_libraries_ask_for():
    seen = []
    gf.make_jaxpr(lambda x: seen.append(isinstance(x, pe.DynamicJaxprTracer)) or x)(1.0)
    gf.jvp(lambda x: seen.append(isinstance(x, pe.DynamicJaxprTracer)) or x, (1.0,), (1.0,))
    assert seen == [True, False]


def test_equations_and_literals_have_jaxs_types():
    eqn = gf.make_jaxpr(lambda x, y: (x * 2.0, y))(jnp.ones(2), 1).eqns[0]
    assert type(eqn.invars) is list and type(eqn.outvars) is list
    assert type(eqn.invars[1].val) is float and eqn.invars[1].val == 2.0
    (literal,) = gf.make_jaxpr(lambda x: x + np.float32(2))(1.0).eqns[0].invars[1:]
    assert type(literal.val) is np.float32
    new = core.gensym()(VECTOR)
    assert new.aval is VECTOR and new != core.gensym("_a")(VECTOR)
    other = eqn.replace(outvars=[new], source_info=siu.new_source_info())
    assert other.outputs == (new,) and other.source_info.traceback is None
    assert other.replace(invars=eqn.invars[:1]).inputs == eqn.inputs[:1]
    jaxpr = gf.make_jaxpr(lambda x: x + 1)(1.0).jaxpr
    info = jaxpr.debug_info._replace(arg_names=("z",))
    again = jaxpr.replace(eqns=list(jaxpr.eqns), outvars=list(jaxpr.outvars), debug_info=info)
    assert again.eqns == jaxpr.eqns and again.debug_info.arg_names == ("z",)
    made = core.new_jaxpr_eqn(
        eqn.invars,
        eqn.outvars,
        eqn.primitive,
        eqn.params,
        core.no_effects,
        eqn.source_info,
        core.JaxprEqnContext(None, True),
    )
    assert made.source == eqn.source is not None and made.effects == frozenset()


# --- what is current -----------------------------------------------------------------------


def test_contexts():
    assert core.unsafe_get_axis_names_DO_NOT_USE() == [] and core.trace_ctx.is_top_level()
    seen = []

    def look(x):
        env = core.trace_ctx.axis_env
        seen.append((core.unsafe_get_axis_names_DO_NOT_USE(), env.axis_size("i")))
        assert env.axis_exists("i") and not env.axis_exists("j") and env.axis_names() == ("i",)
        with pytest.raises(NameError, match=r"\[axis_size\] the axis must be in scope; got 'j'"):
            env.axis_size("j")
        return x

    gf.vmap(look, axis_name="i")(jnp.ones(2))
    assert seen == [(["i"], 2)]

    def known_inside(x):
        assert not core.trace_ctx.is_top_level()
        with core.eval_context():
            constant = jnp.sin(2.0)
        assert isinstance(constant, gf.Array) and not isinstance(constant, core.Tracer)
        return x * constant

    np.testing.assert_allclose(gf.jit(known_inside)(1.0), 0.9092974, rtol=1e-6)
    before = core.trace_ctx.trace
    core.trace_ctx.set_trace(None)
    assert core.trace_ctx.trace is before


def test_sizes_are_compared():
    assert core.is_constant_dim(3) and core.min_dim(2, 3) == 2 and core.max_dim(2, 3) == 3
    a, b = gf.export.symbolic_shape("a, b")
    assert not core.is_constant_dim(a)
    assert core.max_dim(a + 1, a) == a + 1 and core.min_dim(a + 1, a) == a
    with pytest.raises(core.InconclusiveDimensionOperation):
        core.max_dim(a, b)


def test_scopes_are_named():
    with gf.named_scope("outer"), siu.extend_name_stack("inner"), siu.transform_name_stack("jvp"):
        assert str(siu.current_name_stack()) == "outer/inner/jvp()"
        with siu.reset_name_stack():
            assert len(siu.current_name_stack()) == 0
        with siu.user_context(None, name_stack=siu.new_name_stack("mine")):
            assert str(siu.current().name_stack) == "mine"
    stack = siu.new_name_stack("a").extend("b").transform("vmap")
    assert str(stack) == "a/b/vmap()" and str(stack[1:]) == "b/vmap()"
    assert str(siu.new_name_stack("a") + siu.new_name_stack("b")) == "a/b"
    scoped = siu.set_name_stack(stack)(lambda: str(siu.current_name_stack()))
    assert scoped() == "a/b/vmap()" and not len(siu.current_name_stack())


def test_lines_of_equations_are_passed_on():
    assert siu.summarize(siu.new_source_info()) == ""
    eqn = gf.make_jaxpr(jnp.sin)(1.0).eqns[0]
    text = siu.summarize(eqn.source_info)
    assert text.startswith(f"{__file__}:") and "(test_lines_of_equations_are_passed_on)" in text

    def again(x):
        with siu.user_context(eqn.source_info.traceback):
            return jnp.cos(x)

    (other,) = gf.make_jaxpr(again)(1.0).eqns
    assert other.source == eqn.source
    frame = source_info_util.user_frame(eqn.source_info.traceback)
    assert (frame.file_name, frame.start_line) == (__file__, eqn.source.line)
    assert source_info_util.user_frame(None) is None
    assert str(siu.current()).startswith(__file__)


# --- primitives ----------------------------------------------------------------------------

X = np.arange(12, dtype=np.float32).reshape(2, 6)


@pytest.mark.parametrize(
    ("name", "operands", "params", "expected"),
    [
        ("split", [X], {"sizes": (1, 2, 3), "axis": 1}, [X[:, :1], X[:, 1:3], X[:, 3:]]),
        ("stack", [X, X + 1], {"axis": 1}, np.stack([X, X + 1], 1)),
        ("unstack", [X], {"axis": 0}, [X[0], X[1]]),
        ("tile", [X], {"reps": (2, 1)}, np.tile(X, (2, 1))),
    ],
)
def test_primitives_that_are_other_ops_here(name, operands, params, expected):
    primitive = getattr(lax, f"{name}_p")
    assert getattr(jex_core.primitives, f"{name}_p") is primitive

    def bind(*xs):
        return primitive.bind(*xs, **params)

    def check(got, wanted):
        assert gf.tree.structure(list(got)) == gf.tree.structure(list(wanted))
        for x, y in zip(got, wanted, strict=True):
            np.testing.assert_allclose(x, y)

    check(bind(*operands), expected)
    check(gf.jit(bind)(*operands), expected)
    assert [eqn.primitive for eqn in gf.make_jaxpr(bind)(*operands).eqns] == [primitive]
    mapped = gf.vmap(bind)(*[np.stack([x, 2 * x]) for x in operands])
    check(
        [x[1] for x in mapped] if name in ("split", "unstack") else mapped[1],
        gf.tree.map(np.asarray, bind(*[2 * x for x in operands])),
    )
    loss = lambda *xs: sum(jnp.sum(out**2) for out in gf.tree.leaves(bind(*xs)))  # noqa: E731
    for gradient, x in zip(
        gf.grad(loss, tuple(range(len(operands))))(*operands), operands, strict=True
    ):
        np.testing.assert_allclose(gradient, 2 * x * (2 if name == "tile" else 1))


@pytest.mark.parametrize("name", ["cond", "scan", "while", "add"])
def test_any_primitive_is_bound_under_a_trace(name):
    def function(x):
        if name == "cond":
            return lax.cond(x > 0, jnp.sin, jnp.cos, x)
        if name == "scan":
            return lax.scan(lambda c, _: (c * 2, c), x, None, 3)[0]
        if name == "while":
            return lax.while_loop(lambda c: c < 9, lambda c: c * 2, x)
        return x + 1

    jaxpr = gf.make_jaxpr(function)(1.5).jaxpr
    values = dict(zip(jaxpr.invars, [jnp.asarray(1.5)], strict=True))
    for eqn in jaxpr.eqns:
        args = [a.val if isinstance(a, core.Literal) else values[a] for a in eqn.invars]
        avals = [core.get_aval(x) for x in args]
        outs = eqn.primitive.bind_with_trace(core.trace_ctx.trace, args, avals, eqn.params)
        values.update(
            zip(eqn.outvars, outs if eqn.primitive.multiple_results else [outs], strict=True)
        )
    np.testing.assert_allclose(values[jaxpr.outvars[0]], function(1.5), rtol=1e-6)


def test_calls_are_their_operations():
    call_p = core.CallPrimitive("mine")
    call_p.def_impl(jex_core.call_impl)
    fun = lu.wrap_init(lambda x, y: [x + y])
    assert call_p.bind(1.0, 2.0, subfuns=(fun,), name="f") == [3.0]
    jaxpr = gf.make_jaxpr(lambda x: call_p.bind(x, 2.0, subfuns=(fun,))[0])(1.0)
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["add"] and call_p.call_primitive
    assert core.closed_call_p.bind_with_trace(
        core.trace_ctx.trace, (1.0, 2.0), (), {"subfuns": (fun,)}
    ) == [3.0]


class Tag(jex_core.Primitive):
    """As kfac_jax has them: with rules that are methods."""

    multiple_results = True

    def __init__(self):
        super().__init__("tag")
        mlir.register_lowering(self, lambda context, *args: list(args))
        ad.primitive_jvps[self] = lambda primals, tangents: (self.bind(*primals), list(tangents))
        batching.primitive_batchers[self] = lambda args, dims: (self.bind(*args), dims)

    def impl(self, *args):
        return list(args)

    def abstract_eval(self, *avals):
        return list(avals), core.no_effects


def test_rules_may_be_methods_of_a_librarys_class():
    tag = Tag()
    assert tag.multiple_results and isinstance(tag, Tag)
    assert isinstance(lax.sin_p, jex_core.Primitive) and not isinstance(lax.sin_p, Tag)
    assert tag.bind(1.0, 2.0) == [1.0, 2.0]
    out, tangent = gf.jvp(gf.jit(lambda x: tag.bind(x * 2, x)[0]), (3.0,), (1.0,))
    assert (float(out), float(tangent)) == (6.0, 2.0)
    np.testing.assert_array_equal(gf.vmap(lambda x: tag.bind(x)[0])(jnp.arange(3)), [0, 1, 2])
    tag.abstract_eval = lambda *avals: (list(avals), {effects.Effect()})
    with pytest.raises(NotImplementedError, match="must have no effects; got"):
        gf.make_jaxpr(lambda x: tag.bind(x))(1.0)


def test_one_primitive_is_compiled_by_its_lowering():
    assert xla.apply_primitive is dispatch.apply_primitive
    mine = jex_core.Primitive("mine")
    mine.def_impl(lambda *args, **params: dispatch.apply_primitive(mine, *args, **params))
    mine.def_abstract_eval(lambda x, *, by: x)
    mlir.register_lowering(mine, mlir.lower_fun(lambda x, *, by: x * by, multiple_results=False))
    np.testing.assert_allclose(mine.bind(jnp.arange(3.0), by=2.0), [0, 2, 4])
    out = xla.apply_primitive(
        lax.sort_p, jnp.array([2.0, 1.0]), **gf.make_jaxpr(jnp.sort)(jnp.ones(2)).eqns[-1].params
    )
    assert gf.tree.leaves(out)[0].tolist() == [1.0, 2.0]
    dispatch.runtime_tokens.clear()


def test_a_lowering_may_be_a_program():
    jaxpr = gf.make_jaxpr(lambda x: jnp.sin(x) * 2)(1.0)
    outs = mlir.core_call_lowering(None, jnp.asarray(1.0), name="f", call_jaxpr=jaxpr)
    np.testing.assert_allclose(outs[0], 2 * np.sin(1.0), rtol=1e-6)


# --- derivatives ---------------------------------------------------------------------------


def g(x, y):
    return [jnp.sin(x) * y, y * 3.0, jnp.ones(2)]


def test_jvp_of_flat_functions():
    primals, tangents = (0.5, 2.0), (1.0, ad.Zero(core.get_aval(2.0)))
    outs, out_tangents = ad.jvp(lu.wrap_init(g), primals, tangents)
    np.testing.assert_allclose(outs[0], np.sin(0.5) * 2, rtol=1e-6)
    np.testing.assert_allclose(out_tangents[0], np.cos(0.5) * 2, rtol=1e-6)
    assert float(out_tangents[1]) == 0.0 and out_tangents[2].shape == (2,)
    _, out_tangents = ad.jvp(g, primals, tangents, instantiate=False)
    assert [type(t) is ad.Zero for t in out_tangents] == [False, True, True]
    _, _, aux = ad.jvp(lambda x: ([x], "more"), [1.0], [1.0], has_aux=True)
    assert aux == "more"
    outs, _ = ad.jvp(lu.wrap_init(g)).call_wrapped(primals, tangents)
    assert float(outs[1]) == 6.0


def test_linearize_of_flat_functions():
    outs, is_zero, jaxpr, consts, aux = ad.linearize(
        lambda x, y: (g(x, y), "more"), (0.5, 2.0), has_aux=True
    )
    assert is_zero == [False, False, True] and aux == "more" and len(outs) == 3
    tangents = core.eval_jaxpr(jaxpr, consts, jnp.float32(1.0), jnp.float32(10.0))
    np.testing.assert_allclose(tangents[0], np.cos(0.5) * 2 + 10 * np.sin(0.5), rtol=1e-6)
    np.testing.assert_allclose(tangents[1], 30.0, rtol=1e-6)


def test_types_of_tangents_have_their_older_name():
    assert gf.typeof(jnp.arange(3)).at_least_vspace().dtype == gf.dtypes.float0
    aval = gf.typeof(jnp.ones(2))
    assert aval.at_least_vspace() is aval


# --- meshes and hosts ----------------------------------------------------------------------


def test_the_mesh_in_force():
    assert pxla.thread_resources.env.physical_mesh.empty
    mesh = gf.make_mesh((1,), ("x",))
    with mesh:
        assert pxla.thread_resources.env.physical_mesh == mesh


def test_results_are_made_of_parts():
    sharding = NamedSharding(gf.make_mesh((1,), ("x",)), gf.P("x"))
    handler = pxla.global_avals_to_results_handler([VECTOR, VECTOR], [sharding] * 2, True)
    outs = handler([[jnp.ones(3)], [jnp.zeros(3)]])
    assert outs[0].sharding == sharding and outs[1].tolist() == [0, 0, 0]


def test_arrays_of_a_host_and_back():
    mesh = gf.make_mesh((1,), ("x",))
    tree = {"a": np.arange(4), "b": (jnp.ones(2),)}
    specs = {"a": gf.P("x"), "b": gf.P()}
    out = multihost_utils.host_local_array_to_global_array(tree, mesh, specs)
    assert out["a"].sharding == NamedSharding(mesh, gf.P("x")) and out["a"].tolist() == [0, 1, 2, 3]
    back = multihost_utils.global_array_to_host_local_array(out, mesh, gf.P("x"))
    assert back["a"] is out["a"] and back["b"][0].tolist() == [1, 1]
    for convert in (
        multihost_utils.host_local_array_to_global_array,
        multihost_utils.global_array_to_host_local_array,
    ):
        traced = gf.jit(gf.grad(lambda x: convert(x, mesh, gf.P("x")).sum()))  # noqa: B023
        assert traced(jnp.ones(3)).tolist() == [1, 1, 1]
        with pytest.raises(ValueError, match="pspecs must be PartitionSpecs; got None"):
            convert(tree, mesh, None)


def test_functions_run_on_the_hosts_of_devices():
    cpus = colocated_python.colocated_cpu_devices(gf.devices("cpu")[:1])
    assert cpus == tuple(gf.devices("cpu")[:1])
    mesh = gf.make_mesh((1,), ("x",))
    assert colocated_python.colocated_cpu_devices(mesh).devices.flat[0].platform == "cpu"

    @colocated_python.colocated_python
    def add(x, y):
        return {"sum": x + y}

    assert add(jnp.ones(2), 1.0)["sum"].tolist() == [2, 2] and add.__name__ == "add"
    assert add.specialize(devices=cpus)(jnp.ones(1), 1.0)["sum"].tolist() == [2]

    @colocated_python.colocated_python_class
    class Counter:
        def __init__(self, start):
            self.count = start

        def add(self, x):
            self.count += int(x)
            return jnp.asarray(self.count)

    counter = Counter(1)
    assert int(counter.add(jnp.asarray(2))) == 3 and int(counter.add(jnp.asarray(2))) == 5

    class Elsewhere:
        process_index, platform = 7, "cpu"

    with pytest.raises(NotImplementedError, match="devices must be driven by this process; got"):
        colocated_python.colocated_cpu_devices([Elsewhere()])
    device = gf.devices("cpu")[0]
    assert colocated_python.serialization._get_cpu_device_map()[device.id] == device


def test_state_of_types():
    class Box:
        def cur_qdd(self):
            return "full"

    assert gf.experimental.cur_qdd(Box()) == "full"
    with pytest.raises(TypeError, match=r"\[cur_qdd\] the value must be of a type with state"):
        gf.experimental.cur_qdd(jnp.ones(2))


# --- random numbers ------------------------------------------------------------------------


def mix(key, counters):
    x = (key[0] ^ counters) * jnp.uint32(2246822519) + key[1]
    x = x ^ (x >> 15)
    return x * jnp.uint32(3266489917)


def my_seed(seed):
    s = jnp.asarray(seed).astype(jnp.uint32)
    return jnp.stack([s, s * jnp.uint32(2654435761)])


def my_split(key, shape):
    count = int(np.prod(shape))
    return mix(key, jnp.arange(2 * count, dtype=jnp.uint32)).reshape(*shape, 2)


def my_bits(key, width, shape):
    bits = mix(key, jnp.arange(int(np.prod(shape)), dtype=jnp.uint32)).reshape(shape)
    return bits.astype({8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[width])


def my_fold_in(key, data):
    return jnp.stack([mix(key, jnp.asarray(data).astype(jnp.uint32)), key[1]])


def test_a_generator_of_ones_own_gives_jaxs_numbers():
    """The numbers are those of JAX 0.10.2 with the same four functions."""
    mine = jex_random.define_prng_impl(
        key_shape=(2,),
        seed=my_seed,
        split=my_split,
        random_bits=my_bits,
        fold_in=my_fold_in,
        name="mine",
        tag="mn",
    )
    random = gf.random
    key = random.key(7, impl=mine)
    assert str(key.dtype) == "key<mn>" and random.key_data(key).tolist() == [7, 1401181143]
    a, b = random.split(key)
    uniform = [0.05627787113189697, 0.005258321762084961, 0.40522098541259766]
    np.testing.assert_allclose(random.uniform(a, (3,)), uniform, rtol=1e-6)
    normal = gf.jit(lambda key: random.normal(key, (2,)))(b)
    np.testing.assert_allclose(normal, [-1.058045744895935, -0.19706152379512787], rtol=1e-5)
    assert random.key_data(random.fold_in(key, 3)).tolist() == [2385819585, 1401181143]
    mapped = gf.vmap(random.uniform)(random.split(key, 3))
    np.testing.assert_allclose(mapped, [0.05627787, 0.14501727, 0.2864635], rtol=1e-6)
    assert random.randint(a, (4,), 0, 100).tolist() == [94, 87, 21, 72]
    assert random.permutation(a, 5).tolist() == [2, 0, 1, 4, 3]
    bits = lax.scan(lambda k, _: (random.split(k)[0], random.bits(k)), key, None, 3)[1]
    assert bits.tolist() == [2656851041, 241711962, 3003160886]
    assert random.wrap_key_data(jnp.array([1, 2], jnp.uint32), impl=mine).dtype == mine
    assert jex_random.random_seed(7, mine) == jex_random.seed_with_impl(mine, 7)
    other = jex_random.define_prng_impl(
        key_shape=(4,),
        seed=lambda s: jnp.tile(my_seed(s), 2),
        split=my_split,
        random_bits=my_bits,
        fold_in=my_fold_in,
        name="mine",
    )
    assert other != mine and random.key_data(random.key(1, impl=other)).shape == (4,)
    with pytest.raises(NotImplementedError, match=r"key_shape must be .* got \(3,\)"):
        jex_random.define_prng_impl(
            key_shape=(3,), seed=my_seed, split=my_split, random_bits=my_bits, fold_in=my_fold_in
        )


def test_generators_of_gpuflow_have_their_names_there():
    key = jex_random.seed_with_impl(jex_random.threefry_prng_impl, 0)
    assert key == gf.random.key(0)
    assert jex_random.seed_with_impl("rbg", 0).dtype == jex_random.rbg_prng_impl


# --- the rest ------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [39.0, 39.9, np.float32(39), np.int64(39), np.array(39), "39"])
def test_the_length_of_a_scan_is_an_int_of_what_is_given(length):
    assert float(lax.scan(lambda c, _: (c + 1, None), 0.0, None, length=length)[0]) == 39.0


@pytest.mark.parametrize("length", [np.array([1, 2]), "x", 2j, float("nan"), object()])
def test_other_lengths_are_refused(length):
    with pytest.raises(TypeError, match=r"\[scan\] length must be an integer; got"):
        lax.scan(lambda c, _: (c, None), 0.0, None, length=length)


def test_axes_of_transpose_may_be_an_array():
    x = jnp.ones((2, 3, 4))
    for axes in ([2, 0, 1], (2, 0, 1), np.array([2, 0, 1]), jnp.array([2, 0, 1])):
        assert x.transpose(axes).shape == (4, 2, 3)
    assert gf.jit(lambda x: np.transpose(x, np.array([2, 0, 1])))(x).shape == (4, 2, 3)


def test_small_private_names():
    assert config.enable_x64.value is False and config.threefry_partitionable.value is True
    assert config.enable_checks.value is False
    assert not hasattr(config, "nonsense") and not hasattr(config, "_nonsense")
    assert util.unzip2([(1, 2), (3, 4)]) == ((1, 3), (2, 4)) and util.canonicalize_axis(-1, 3) == 2
    assert util.safe_map(lambda x, y: x + y, [1, 2], [3, 4]) == [4, 6]
    with pytest.raises(ValueError, match="longer than"):
        util.safe_zip([1], [1, 2])
    assert [dtypes.supports_inf(d) for d in (np.float32, np.int32, gf.numpy.float8_e4m3fn)] == [
        True,
        False,
        False,
    ]
    keys = core.get_aval(gf.random.split(gf.random.key(0), 3))
    assert core.physical_aval(keys) == core.ShapedArray((3, 2), np.uint32)
    assert core.physical_aval(VECTOR) is VECTOR
    kinds = effects.EffectTypeSet()
    kinds.add_type(effects.Effect)
    assert kinds.contains(effects.Effect()) and not kinds.contains(3)
    found = {effects.Effect()}
    assert kinds.filter_in(found) == found and kinds.filter_not_in(found) == set()
    paths = traceback_util._exclude_paths
    paths.append("/nowhere")
    paths.remove("/nowhere")


def test_sums_of_products_go_along_a_path():
    """haliax takes the path from opt_einsum, with digits as symbols."""
    a, b = np.arange(6.0).reshape(2, 3), np.arange(24.0).reshape(2, 4, 3)
    operands, path = opt_einsum.contract_path("23,013->012", a, b, einsum_call=True)
    found = _einsum(operands, path, None, None)
    np.testing.assert_allclose(found, np.einsum("cd,abd->abc", a, b), rtol=1e-6)


def test_copies_of_primitives_are_others_and_may_be_renamed():
    """pennylane renames a copy of jit's."""
    copied = copy.deepcopy(lax.jit_p)
    copied.name = "another"
    assert copied is not lax.jit_p and copied.name == "another" and lax.jit_p.name != "another"
    assert copied.batch is lax.jit_p.batch


def test_shardings_over_the_axes_in_force_are_on_its_devices():
    """netket names the mesh in force by get_abstract_mesh()."""
    x = jnp.ones((2, 3))
    with gf.set_mesh(gf.make_mesh((1,), ("S",))):
        asked = NamedSharding(gf.sharding.get_abstract_mesh(), gf.P("S"))
        made = [
            gf.jit(lambda x: 2 * x, out_shardings=asked)(x),
            lax.with_sharding_constraint(x, asked),
            jnp.reshape(x, (3, 2), out_sharding=NamedSharding(asked.mesh, gf.P(None, "S"))),
        ]
        assert all(array.sharding.mesh == gf.sharding.get_mesh() for array in made)
    with pytest.raises(ValueError, match="only a Mesh has devices"):
        lax.with_sharding_constraint(x, asked)


def test_classes_of_arrays_are_of_jax_under_the_alias():
    """autoray takes the first part of the module of an array's class for its library."""
    program = """
import gpuflow.as_jax
gpuflow.as_jax.install()
import jax, pickle
x = jax.numpy.ones(2)
print(type(x).__module__, pickle.loads(pickle.dumps(x)).tolist())
jax.jit(lambda x: print(type(x).__module__))(x)
gpuflow.as_jax.uninstall()
print(type(x).__module__.partition(".")[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["jax", "[1.0,", "1.0]", "jax.core", "gpuflow"]
