"""Primitives written JAX's way (gpuflow.as_jax): rules in tables, lowerings that are functions."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.as_jax.internals import ad, api_util, batching, core, mlir, traceback_util
from gpuflow.as_jax.internals import linear_util as lu
from gpuflow.as_jax.surfaces import module_of
from gpuflow.base import tracebacks

ad_util, extend_core = module_of("jax._src.ad_util"), module_of("jax.extend.core")
primitives, xla = extend_core.primitives, module_of("jax.interpreters.xla")

X = np.linspace(0.1, 1.0, 5, dtype=np.float32)


def scaled_p():
    """``factor * x`` with all of its rules, each of which says that it was used."""
    used = []
    primitive = extend_core.Primitive("scaled")

    def impl(x, *, factor):
        used.append("impl")
        return x * factor

    def lowered(x, *, factor):
        used.append("lowering")
        return x * factor

    def jvp(primals, tangents, *, factor):
        used.append("jvp")
        (x,), (t,) = primals, tangents
        tangent = t if type(t) is ad.Zero else primitive.bind(t, factor=factor)
        return primitive.bind(x, factor=factor), tangent

    def transpose(cotangent, x, *, factor):
        used.append("transpose")
        assert ad.is_undefined_primal(x) and isinstance(x, ad.UndefinedPrimal)
        return ad.Zero if type(cotangent) is ad.Zero else [primitive.bind(cotangent, factor=factor)]

    def batch(operands, dims, *, factor):
        used.append("batch")
        return primitive.bind(*operands, factor=factor), dims[0]

    primitive.def_impl(impl)
    primitive.def_abstract_eval(lambda x, *, factor: core.ShapedArray(x.shape, x.dtype))
    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, mlir.lower_fun(lowered, multiple_results=False))
    return primitive, used


def test_all_rules_are_used():
    primitive, used = scaled_p()

    def f(x):
        return primitive.bind(x, factor=3.0)

    np.testing.assert_allclose(f(X), 3 * X, rtol=1e-6)
    assert used == ["impl"]
    np.testing.assert_allclose(gf.jit(f)(X), 3 * X, rtol=1e-6)
    assert used.count("lowering") == 1
    assert float(gf.jit(gf.grad(f))(2.0)) == 3.0 and "transpose" in used
    np.testing.assert_allclose(gf.jit(gf.vmap(gf.grad(lambda x: f(x) ** 2)))(X), 18 * X, rtol=1e-6)
    assert "batch" in used
    (eqn,) = gf.make_jaxpr(f)(X).eqns
    assert eqn.primitive is primitive and isinstance(eqn.primitive, extend_core.Primitive)
    assert isinstance(primitives.add_p, core.Primitive) and not isinstance(3, core.Primitive)


def test_several_results_and_batchers_with_the_axis():
    pair_p = core.Primitive("pair")
    pair_p.multiple_results = True
    pair_p.def_impl(lambda x: [x + 1, x.sum()])
    pair_p.def_abstract_eval(lambda x: [x, core.ShapedArray((), x.dtype)])
    mlir.register_lowering(pair_p, mlir.lower_fun(pair_p.impl))
    seen = []

    def with_size(size, name, trace_type, operands, dims):
        seen.append((size, name, trace_type, tuple(dims)))
        (x,) = operands
        x = batching.bdim_at_front(x, dims[0], size)
        return [x + 1, x.sum(axis=1)], [0, 0]

    batching.axis_primitive_batchers[pair_p] = with_size
    plus, total = gf.jit(gf.vmap(pair_p.bind, in_axes=1, axis_name="i"))(np.ones((5, 2), "f4"))
    assert plus.shape == (2, 5) and total.tolist() == [5.0, 5.0]
    assert seen == [(2, "i", None, (1,))]
    batching.fancy_primitive_batchers[pair_p] = lambda axis, operands, dims: (
        [operands[0], jnp.full(axis.size, 7.0)],
        [dims[0], 0],
    )
    assert gf.vmap(pair_p.bind)(np.ones((2, 5), "f4"))[1].tolist() == [7.0, 7.0]
    assert pair_p.bind(jnp.ones(2))[1] == 2.0


def test_what_is_missing_is_named():
    bare_p = core.Primitive("bare")
    with pytest.raises(NotImplementedError, match=r"\[bare\] evaluation needs .*def_impl"):
        bare_p.bind(1.0)
    with pytest.raises(NotImplementedError, match=r"\[bare\] tracing needs .*def_abstract_eval"):
        gf.jit(bare_p.bind)(1.0)
    bare_p.def_abstract_eval(lambda x: x)
    with pytest.raises(NotImplementedError, match=r"\[bare\] compiling needs .*register_lowering"):
        gf.jit(bare_p.bind)(1.0)
    with pytest.raises(NotImplementedError, match=r"\[bare\] differentiation needs .*primitive_jv"):
        gf.jvp(bare_p.bind, (1.0,), (1.0,))
    with pytest.raises(NotImplementedError, match=r"\[bare\] vmap needs .*primitive_batchers"):
        gf.vmap(bare_p.bind)(X)
    ad.primitive_jvps[bare_p] = lambda p, t: (p[0], bare_p.bind(t[0]))
    with pytest.raises(NotImplementedError, match=r"\[bare\] transposition needs .*primitive_tra"):
        gf.grad(bare_p.bind)(1.0)
    bare_p.def_effectful_abstract_eval(lambda x: (x, {"an effect"}))
    with pytest.raises(NotImplementedError, match=r"\[bare\] a primitive from outside must"):
        gf.make_jaxpr(bare_p.bind)(1.0)


def test_tables_show_gpuflows_rules_and_refuse_others():
    table = ad.primitive_jvps
    assert table[primitives.sin_p] is primitives.sin_p.derivatives.jvp and primitives.sin_p in table
    transposes = ad.primitive_transposes
    assert len(table) == len(list(table)) and primitives.sin_p not in transposes
    with pytest.raises(KeyError):
        transposes[primitives.sin_p]
    with pytest.raises(NotImplementedError, match=r"\[ad.primitive_jvps\] a rule must be of a pri"):
        table[primitives.sin_p] = None
    own = core.Primitive("own")
    table[own] = len
    assert table[own] is len
    del table[own]
    assert own not in table
    assert ad.get_primitive_transpose(primitives.neg_p) is primitives.neg_p.derivatives.transpose
    with pytest.raises(NotImplementedError, match=r"\[sin\] transposition needs"):
        ad.get_primitive_transpose(primitives.sin_p)
    assert primitives.linear_solve_p.name == "custom_linear_solve"
    assert primitives.stop_gradient_p is ad_util.stop_gradient_p
    assert "sin_p" in dir(primitives) and "linear_solve_p" in dir(primitives)
    with pytest.raises(AttributeError, match=r"got jax.extend.core.primitives.sinn_p.*sin_p"):
        primitives.sinn_p  # noqa: B018


def like_product(name):
    primitive = core.Primitive(name)
    primitive.def_impl(lambda x, y: x * y)
    primitive.def_abstract_eval(lambda x, y: x)
    mlir.register_lowering(primitive, mlir.lower_fun(primitive.impl, multiple_results=False))
    return primitive


def test_shorthands_for_rules():
    product_p = like_product("product")
    ad.defbilinear(
        product_p, lambda ct, x, y: product_p.bind(ct, y), lambda ct, x, y: product_p.bind(x, ct)
    )
    batching.defbroadcasting(product_p)
    assert gf.grad(product_p.bind, argnums=(0, 1))(2.0, 5.0) == (5.0, 2.0)
    mapped = gf.vmap(product_p.bind, in_axes=(0, None))(X, jnp.float32(2.0))
    np.testing.assert_allclose(mapped, 2 * X)
    other_p = like_product("other")
    ad.defjvp(other_p, lambda t, x, y: t * y, None)
    assert gf.grad(other_p.bind, argnums=(0, 1))(2.0, 5.0) == (5.0, 0.0)
    third_p = like_product("third")
    ad.defjvp2(third_p, lambda t, out, x, y: t * out, None)
    assert float(gf.grad(third_p.bind)(2.0, 5.0)) == 10.0
    double_p = core.Primitive("double")
    double_p.def_impl(lambda x: 2 * x)
    double_p.def_abstract_eval(lambda x: x)
    ad.deflinear(double_p, lambda ct: [2 * ct])
    batching.defvectorized(double_p)
    np.testing.assert_allclose(gf.vmap(gf.grad(double_p.bind))(X), np.full(5, 2.0))
    assert gf.jvp(double_p.bind, (1.0,), (3.0,)) == (2.0, 6.0)


def test_lowerings_are_called_with_traced_values_and_a_context():
    primitive, _ = scaled_p()
    contexts = []

    def rule(context, x, *, factor):
        contexts.append(context)
        (out,), token, keepalive = mlir.emit_python_callback(
            context,
            lambda v: (np.asarray(v) * factor,),
            None,
            [x],
            context.avals_in,
            context.avals_out,
            has_side_effect=False,
            sharding=None,
        )
        context.module_context.add_keepalive(keepalive)
        assert token is None
        return [out]

    mlir.register_lowering(primitive, rule, platform="nowhere")
    f = gf.jit(lambda x: primitive.bind(x, factor=2.0))
    np.testing.assert_allclose(f(X), 2 * X)
    assert not contexts  # that of all other platforms was taken
    mlir.register_lowering(primitive, rule)
    np.testing.assert_allclose(gf.jit(lambda x: primitive.bind(x, factor=4.0))(X), 4 * X)
    (context,) = contexts
    assert context.primitive is primitive and context.avals_in == context.avals_out
    with pytest.raises(NotImplementedError, match=r"\[emit_python_callback\] a lowering must have"):
        mlir.emit_python_callback(context, len, None, [], [], [], has_side_effect=True)


def test_inside_of_loops():
    primitive, _ = scaled_p()

    def f(x):
        return lax.scan(lambda c, _: (primitive.bind(c, factor=2.0), c), x, None, length=3)[0]

    assert float(gf.jit(f)(1.0)) == 8.0 == float(gf.jit(gf.grad(f))(1.0))
    np.testing.assert_allclose(gf.jit(gf.vmap(f))(X), 8 * X)


# --- names of the inside ---------------------------------------------------------------------


def test_types_of_mapped_values():
    aval = core.ShapedArray((2, 3, 4), np.float32)
    assert extend_core.mapped_aval(3, 1, aval).shape == (2, 4)
    assert extend_core.unmapped_aval(7, 1, aval).shape == (2, 7, 3, 4)
    assert extend_core.mapped_aval(3, None, aval) is aval is core.unmapped_aval(3, None, aval)
    assert extend_core.primal_dtype_to_tangent_dtype(np.dtype("int32")) == gf.float0
    zero = ad.Zero(aval)
    assert gf.tree.leaves({"a": zero}) == [] and gf.tree.map(abs, zero) == zero
    assert not np.asarray(ad.instantiate_zeros(zero)).any()


def test_jaxprs_are_found_and_made():
    closed = gf.make_jaxpr(lambda p, x: lax.cond(p, jnp.sin, jnp.cos, x))(True, 1.0)
    (cond,) = [eqn for eqn in closed.eqns if eqn.primitive.name == "cond"]
    inner = list(extend_core.jaxprs_in_params(cond.params))
    assert len(inner) == 2 and all(isinstance(jaxpr, core.Jaxpr) for jaxpr in inner)
    eqn = extend_core.new_jaxpr_eqn(
        cond.invars, cond.outvars, cond.primitive, cond.params, cond.effects, cond.source_info
    )
    again = closed.jaxpr.replace(eqns=[e if e is not cond else eqn for e in closed.eqns])
    (out,) = extend_core.jaxpr_as_fun(core.ClosedJaxpr(again, closed.literals))(True, 0.5)
    assert float(out) == pytest.approx(np.sin(0.5), rel=1e-6)


def test_current_traces_are_taken_and_set():
    def f(x):
        inside = extend_core.find_top_trace([x])
        with extend_core.take_current_trace() as taken:
            assert taken is inside and core.trace_state_clean()
            known = float(jnp.sin(jnp.float32(0.0)))
            with extend_core.set_current_trace(taken):
                assert extend_core.find_top_trace([]) is inside
        assert inside.main is inside
        return x + known

    assert float(gf.jit(f)(1.0)) == 1.0


def test_functions_are_transformed_as_linear_util_does():
    @lu.transformation
    def doubled(scale, *args):
        out = yield args, {}
        yield out * scale

    @lu.transformation_with_aux
    def with_count(*args):
        out = yield args, {}
        yield out, len(args)

    wrapped = doubled(lu.wrap_init(lambda a, b: a + b), 10)
    assert wrapped.call_wrapped(1, 2) == 30
    counted, count = with_count(lu.wrap_init(lambda a, b: a - b))
    assert counted.call_wrapped(5, 2) == 3 and count() == 2
    shifted = lu.transformation2(lambda f, shift, *args: f(*args) + shift)
    assert shifted(lu.wrap_init(lambda a: a * 2), 100).call_wrapped(1) == 102


def test_helpers_of_signatures_and_trees():
    assert api_util.safe_map(lambda a, b: a + b, [1, 2], [3, 4]) == [4, 6]
    assert list(api_util.fun_signature(lambda x, y=1: x).parameters) == ["x", "y"]
    assert api_util.fun_signature(3) is None
    treedef = gf.tree.structure({"a": 1, "b": (2, 3)})
    assert api_util.flatten_axes("test", treedef, {"a": 0, "b": 1}) == [0, 1, 1]
    assert xla.pytype_aval_mappings[np.ndarray] is core.pytype_aval_mappings[np.ndarray]


def test_frames_of_excluded_files_are_not_the_users(monkeypatch):
    frame = inspect.currentframe()
    monkeypatch.setattr(tracebacks, "excluded", [])
    assert traceback_util.include_frame(frame)
    traceback_util.register_exclusion(__file__)
    assert not traceback_util.include_frame(frame)
