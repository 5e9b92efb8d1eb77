"""The forms in which shard_map is called, and what its programs are told of values: as in JAX."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest
from virtual_devices import eight_devices as eight_devices

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import P, lax
from gpuflow.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

X = np.arange(8, dtype=np.float32)


@pytest.fixture
def mesh():
    return Mesh(np.array(gf.devices()), ("x",))


@pytest.fixture
def wide():
    return Mesh(np.array(gf.devices()).reshape(4, 2), ("x", "y"))


def explicit(*sizes):
    names = ("x", "y")[: len(sizes)]
    return gf.make_mesh(sizes, names, (AxisType.Explicit,) * len(sizes))


def doubled(**options):
    return gf.shard_map(lambda x: 2 * x, out_specs=P("x"), **options)


# --- meshes and specs that are known at the call -----------------------------------------------


def test_the_mesh_of_the_context_is_that_of_the_call(mesh):
    late = doubled(in_specs=P("x"))
    with pytest.raises(ValueError, match=r"the mesh must be a Mesh; got None. Fix:"):
        late(X)
    for scope in (gf.set_mesh, gf.sharding.use_mesh):
        with scope(mesh):
            for call in (late, gf.jit(late)):
                np.testing.assert_array_equal(call(X), 2 * X)


def test_a_decorator_without_a_mesh(mesh):
    @gf.shard_map(in_specs=P("x"), out_specs=P("x"))
    def triple(x):
        return 3 * x

    with gf.set_mesh(mesh):
        np.testing.assert_array_equal(triple(X), 3 * X)
    assert triple.__name__ == "triple"


def test_an_abstract_mesh_has_the_devices_of_the_context_or_of_arguments(mesh):
    call = doubled(mesh=AbstractMesh((8,), ("x",)), in_specs=P("x"))
    with gf.set_mesh(mesh):
        assert call(X).sharding.device_set == set(gf.devices())
    turned = Mesh(np.array(gf.devices()[::-1]), ("x",))
    placed = gf.device_put(X, NamedSharding(turned, P("x")))
    assert call(placed).sharding.mesh.devices.tolist() == gf.devices()[::-1]
    np.testing.assert_array_equal(call(placed), 2 * X)
    with pytest.raises(ValueError, match=r"with an AbstractMesh, arguments must be sharded over"):
        call(X)


def test_specs_of_arguments_on_explicit_axes_may_be_left_out():
    mesh = explicit(4, 2)
    x = np.arange(16.0, dtype=np.float32).reshape(8, 2)
    x = gf.device_put(x, NamedSharding(mesh, P("x", "y")))
    seen = []

    def total(block):
        seen.append(block.shape)
        return lax.psum(block, "y")

    out = gf.shard_map(total, mesh=mesh, out_specs=P("x"))(x)
    assert seen[0] == (2, 1) and out.sharding.spec == P("x")
    np.testing.assert_array_equal(out, np.asarray(x).sum(1, keepdims=True))
    plain = gf.shard_map(lambda x: x + 1, mesh=mesh, out_specs=P())(X)
    np.testing.assert_array_equal(plain, X + 1)
    with pytest.raises(ValueError, match=r"in_specs must match the types of arguments"):
        gf.shard_map(total, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(x)


def test_specs_are_not_guessed_on_other_axes(mesh):
    for call in (doubled(mesh=mesh), gf.jit(doubled(mesh=explicit(8)))):
        with pytest.raises(TypeError, match=r"in_specs must be given unless arguments are .* Fix:"):
            call(X)


def test_arguments_that_are_no_arrays(mesh):
    count = []

    def apply(function, x, name):
        count.append(name)
        return function(x)

    call = gf.shard_map(apply, mesh=mesh, in_specs=(None, P("x"), None), out_specs=P("x"))
    for _ in range(2):
        np.testing.assert_allclose(call(jnp.sin, X, "a"), np.sin(X), rtol=1e-6)  # rounding
    np.testing.assert_array_equal(call(jnp.negative, X, "a"), -X)
    np.testing.assert_array_equal(call(jnp.negative, X, "b"), -X)
    assert count == ["a", "a", "b"]  # traced once for each
    grad = gf.grad(lambda x: call(jnp.square, x, "a").sum())
    np.testing.assert_array_equal(grad(X), 2 * X)
    with pytest.raises(ValueError, match=r"not arrays must be hashable; got .*\{1\}\]. Fix:"):
        call(jnp.sin, X, {1})
    with pytest.raises(TypeError, match=r"arguments of .* must be arrays or numbers; got <"):
        gf.shard_map(apply, mesh=mesh, in_specs=P(), out_specs=P())(jnp.sin, X, "a")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"axis_names": "x"}, TypeError, r"axis_names must be a set; got 'x'. Fix: \{'x'\}"),
        ({"axis_names": {"z"}}, ValueError, r"axis_names must be axes of the mesh; got \['z'\]"),
        ({"in_specs": P(P.UNCONSTRAINED)}, ValueError, "in_specs must hold axes of the mesh and"),
        ({"in_specs": P(unreduced={"x"})}, ValueError, "in_specs must hold axes of the mesh and"),
        ({"out_specs": P(reduced={"x"})}, ValueError, "out_specs must hold axes of the mesh and"),
        ({"mesh": 3}, ValueError, "the mesh must be a Mesh; got 3"),
    ],
)
def test_refused_options(mesh, options, error, message):
    arguments = {"mesh": mesh, "in_specs": P("x"), "out_specs": P("x"), **options}
    with pytest.raises(error, match=message):
        gf.shard_map(lambda x: x, **arguments)(X)


# --- nesting -----------------------------------------------------------------------------------


def test_a_shard_map_inside_of_another_takes_its_mesh(wide):
    def outer(x):
        types = gf.sharding.get_abstract_mesh().axis_types
        assert types == (AxisType.Manual, AxisType.Auto)
        return gf.shard_map(
            lambda y: lax.psum(y, "y"), in_specs=P(None, "y"), out_specs=P(), axis_names={"y"}
        )(x)

    call = gf.shard_map(outer, mesh=wide, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    x = np.arange(16.0, dtype=np.float32).reshape(8, 2)
    for run in (call, gf.jit(call)):
        np.testing.assert_array_equal(run(x), x.sum(1, keepdims=True))
    again = gf.shard_map(
        lambda x: gf.shard_map(lambda y: y, in_specs=P("x"), out_specs=P("x"))(x),
        mesh=wide,
        in_specs=P("x"),
        out_specs=P("x"),
    )
    with pytest.raises(ValueError, match=r"axes must not be those of an enclosing shard_map; got"):
        again(x)


def test_a_partition_spec_inside_means_the_mesh_of_the_program(mesh):
    call = gf.shard_map(
        lambda x: lax.with_sharding_constraint(x, P()), mesh=mesh, in_specs=P("x"), out_specs=P("x")
    )
    np.testing.assert_array_equal(gf.jit(call)(X), X)


# --- what varies -------------------------------------------------------------------------------


def over(mesh, f, out=None, **options):
    out = P("x") if out is None else out
    return gf.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=out, **options)(X)


def test_types_tell_what_varies(mesh):
    seen = {}

    def look(x):
        inner = gf.grad(lambda v: (seen.update(inner=gf.typeof(v).mat.varying), v.sum())[1])(x)
        total = lax.psum(x, "x")
        seen.update(x=gf.typeof(x).mat.varying, total=gf.typeof(total).mat.varying)
        seen.update(text=str(gf.typeof(x)), same=gf.typeof(x) == gf.typeof(x + 1))
        seen.update(cast=gf.typeof(lax.pcast(total, "x", to="varying")).mat.varying)
        return inner

    over(mesh, look)
    assert seen["x"] == seen["cast"] == seen["inner"] == {"x"} and seen["total"] == set()
    assert seen["text"].endswith("[1]{V:x}") and seen["same"]
    assert gf.typeof(X).mat.varying == gf.typeof(X).mat.reduced == set()


LOOPS = {
    "scan": lambda x, c: lax.scan(lambda c, _: (c + x, None), c, None, length=3)[0],
    "fori_loop": lambda x, c: lax.fori_loop(0, 3, lambda i, c: c + x, c),
    "while_loop": lambda x, c: lax.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + x), (0, c)
    )[1],
}


@pytest.mark.parametrize("loop", LOOPS)
def test_carries_must_not_begin_to_vary(mesh, loop):
    run = LOOPS[loop]
    message = r"a carry must vary along the same mesh axes; got f32.1. at first .*V:x.* Fix: lax."
    with pytest.raises(TypeError, match=message):
        over(mesh, lambda x: run(x, jnp.zeros(1)))
    for first in (lambda x: lax.pcast(jnp.zeros(1), "x", to="varying"), lambda x: 0 * x):
        np.testing.assert_array_equal(over(mesh, lambda x, f=first: run(x, f(x))), 3 * X)
    same = over(mesh, lambda x: run(lax.psum(x, "x"), jnp.zeros(1)), P())
    np.testing.assert_array_equal(same, [84])
    free = over(mesh, lambda x: run(x, jnp.zeros(1)), check_vma=False)
    np.testing.assert_array_equal(free, 3 * X)


def test_loops_of_the_library_carry_constants(mesh):
    # Their own loops begin with zeros; nobody could mend a refusal there.
    def draw(x):
        key = gf.random.fold_in(gf.random.key(0), lax.axis_index("x"))
        return gf.random.gamma(key, 2.0 + x) + gf.random.poisson(key, 3.0, (1,))

    assert np.unique(over(mesh, draw)).size > 4
    np.testing.assert_array_equal(
        over(mesh, lambda x: jnp.searchsorted(jnp.arange(8.0), x).astype(float)), X
    )


def test_casts(mesh):
    with pytest.raises(ValueError, match=r"the value must not vary along 'x' yet; got .* Fix: le"):
        over(mesh, lambda x: lax.pcast(x, "x", to="varying"))
    with pytest.raises(ValueError, match="to must be 'varying', 'reduced' or 'unreduced'; got 'a'"):
        over(mesh, lambda x: lax.pcast(x, "x", to="a"))


# --- programs inside ---------------------------------------------------------------------------


def test_a_backward_rule_may_sum_over_devices(mesh):
    # The sum was added up once more for each device: 8 times the derivative.
    @gf.custom_vjp
    def scaled(w, x):
        return w * x

    def backward(kept, ct):
        w, x = kept
        return lax.psum((ct * x).sum(), "x"), ct * w

    scaled.defvjp(lambda w, x: (w * x, (w, x)), backward)

    def loss(w, rule, **options):
        return gf.shard_map(
            lambda w, x: lax.psum(rule(w, x).sum(), "x"),
            mesh=mesh,
            in_specs=(P(), P("x")),
            out_specs=P(),
            **options,
        )(w, X)

    for run in (gf.grad, lambda f, **how: gf.jit(gf.grad(f, **how), static_argnums=1)):
        assert float(run(loss)(2.0, scaled)) == float(run(loss)(2.0, jnp.multiply)) == 28.0


def test_each_device_makes_its_callback(mesh):
    seen = []

    def host(v):
        seen.append(v.shape)
        return np.asarray(v) * 2

    out = over(mesh, lambda x: gf.pure_callback(host, gf.ShapeDtypeStruct((1,), np.float32), x))
    np.testing.assert_array_equal(out, 2 * X)
    assert seen == [(1,)] * 8
    rows = gf.pmap(lambda x: gf.pure_callback(host, gf.ShapeDtypeStruct((), np.float32), x))(X)
    np.testing.assert_array_equal(rows, 2 * X)


def test_a_call_is_traced_once(mesh):
    traced = []
    call = gf.shard_map(
        lambda x: (traced.append(1), x)[1], mesh=mesh, in_specs=P("x"), out_specs=P("x")
    )
    jitted = gf.jit(call)
    assert [np.asarray(f(X)).sum() for f in (call, call, jitted, jitted)] == [28.0] * 4
    assert len(traced) == 2


# --- PartitionSpec -----------------------------------------------------------------------------


def test_reduced_and_unreduced_axes():
    spec = P("x", unreduced={"y"})
    assert spec.unreduced == {"y"} and spec.reduced == P("x").unreduced == frozenset()
    assert spec != P("x") and spec == P("x", unreduced={"y"}) and P(reduced={"x"}) != P()
    assert repr(spec) == "P('x', unreduced={'y'})"
    assert pickle.loads(pickle.dumps(spec)) == spec and pickle.loads(pickle.dumps(P("x"))) == P("x")
    assert P("x").update(reduced={"y"}) == P("x", reduced={"y"})
    assert spec.update(partitions=(None,)) == P(None, unreduced={"y"})
    for wrong in (
        partial(P, "x", unreduced={"x"}),
        partial(P, unreduced={"x"}, reduced={"x"}),
        partial(P, unreduced={None}),
        partial(P, ("x", "y"), reduced={"y"}),
    ):
        with pytest.raises(ValueError, match=r"must hold mesh axes, each once; got .* Fix:"):
            wrong()
    with pytest.raises(TypeError, match=r"unreduced must be a set of mesh axes; got 'x'. Fix:"):
        P(unreduced="x")
