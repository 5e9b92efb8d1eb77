"""Exported functions in a fresh process, in other programs, and their derivatives."""

from __future__ import annotations

from collections import namedtuple

import export_cases
import numpy as np
import pytest
from export_cases import CASES, read_elsewhere, run_elsewhere, write
from export_reader import digest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import export, lax, random, tree_util
from gpuflow.errors import ExportError


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """All functions of ``export_cases``, as they are here and without compiler elsewhere."""
    folder = tmp_path_factory.mktemp("exported")
    here = {}
    for name, (function, args) in export_cases.FUNCTIONS.items():
        kwargs = export_cases.KEYWORDS.get(name, {})
        jitted = gf.jit(function)
        write(folder, name, export.export(jitted)(*args, **kwargs), gf.tree.leaves((args, kwargs)))
        here[name] = digest(gf.tree.leaves(jitted(*args, **kwargs)))
    done, there = read_elsewhere(folder, compiler=False, cache=folder / "empty")
    assert done.returncode == 0, done.stderr
    return here, there


@pytest.mark.parametrize("name", export_cases.FUNCTIONS)
def test_results_without_source_and_compiler_are_bit_for_bit_those_of_the_function(elsewhere, name):
    here, there = elsewhere
    assert there[name] == here[name]


def test_no_kernel_was_built_elsewhere(elsewhere):
    assert elsewhere[1]["built"] == 0


def exported_and_read(function, *args, vjp_order=0, **kwargs):
    made = export.export(gf.jit(function))(*args, **kwargs)
    return made, export.deserialize(made.serialize(vjp_order))


def test_what_an_exported_function_says_of_itself():
    def scaled(x, *, by):
        return {"y": x * by}

    made, read = exported_and_read(scaled, jnp.ones((2, 3)), by=2)
    for one in (made, read):
        assert one.fun_name == "scaled" and repr(one) == "Exported(fun_name=scaled, ...)"
        assert [str(aval) for aval in one.in_avals] == ["f32[2,3]", "i32[]"]
        assert one.in_avals[1].weak_type
        assert [str(aval) for aval in one.out_avals] == ["f32[2,3]"]
        assert one.in_tree == tree_util.tree_structure(((0,), {"by": 0}))
        assert one.out_tree == tree_util.tree_structure({"y": 0})
        assert one.platforms == (export.default_export_platform(),)
        assert one.nr_devices == 1 and one.module_kept_var_idx == (0, 1)
        assert "mul" in one.mlir_module()
    assert made.has_vjp() and not read.has_vjp()


def test_calls_inside_of_other_programs():
    _, read = exported_and_read(lambda x: jnp.sin(x) * 2, export_cases.X)
    x, want = export_cases.X, jnp.sin(export_cases.X) * 2
    joined = gf.jit(lambda x: jnp.sin(x) * 2 + 1)(x)
    np.testing.assert_array_equal(gf.jit(lambda x: read.call(x) + 1)(x), joined)
    # JAX refuses vmap of an exported function; here the program is there to be batched.
    np.testing.assert_allclose(gf.vmap(read.call)(jnp.stack([x, -x])), [want, -want], rtol=1e-6)
    inner = export.export(gf.jit(lambda x: read.call(x) - 1))(x)
    joined = gf.jit(lambda x: jnp.sin(x) * 2 - 1)(x)
    np.testing.assert_array_equal(export.deserialize(inner.serialize()).call(x), joined)


def test_derivatives_of_each_order_that_was_written():
    def cubes(x, n):
        return (x**3).sum() * n

    x = jnp.array([1.0, 2.0])
    made, read = exported_and_read(cubes, x, 2, vjp_order=2)
    for one in (made, read):
        np.testing.assert_allclose(gf.grad(one.call)(x, 2), 6 * x**2, rtol=1e-6)
        hessian = gf.jit(gf.jacrev(gf.grad(one.call)))(x, 2)
        np.testing.assert_allclose(hessian, jnp.diag(12 * x), rtol=1e-6)
    assert read.vjp().vjp().has_vjp() is False
    assert [str(aval) for aval in read.vjp().in_avals] == ["f32[2]", "i32[]", "f32[]"]
    third = gf.grad(lambda x: gf.grad(lambda x: gf.grad(read.call)(x, 2).sum())(x).sum())
    with pytest.raises(ValueError, match=r"derivative of vjp\(vjp\(cubes\)\) must be in its bytes"):
        third(x)


def test_derivatives_beside_integer_results():
    _, read = exported_and_read(lambda x, n: (x[n] * 2, x.argmax()), jnp.ones(3), 1, vjp_order=1)
    np.testing.assert_array_equal(gf.grad(lambda x: read.call(x, 1)[0])(jnp.ones(3)), [0, 2, 0])


def test_forward_mode_is_refused_as_in_jax():
    _, read = exported_and_read(jnp.sin, jnp.ones(3), vjp_order=1)
    with pytest.raises(TypeError, match="forward-mode"):
        gf.jvp(read.call, (jnp.ones(3),), (jnp.ones(3),))


def test_rules_of_ones_own_decide_the_derivative():
    """The program has no rules: it must not be differentiated itself."""
    _, read = exported_and_read(export_cases._own_rule, jnp.float32(3), vjp_order=1)
    assert float(gf.grad(read.call)(jnp.float32(3))) == 7.0


def test_donation_is_the_callers():
    made = export.export(gf.jit(lambda x: x.at[0].add(1.0), donate_argnums=0))(jnp.ones(1000))
    read = export.deserialize(made.serialize())
    x = jnp.ones(1000)
    assert float(read.call(x)[0]) == 2.0 and not x.is_deleted()
    assert float(gf.jit(read.call, donate_argnums=0)(x)[0]) == 2.0 and x.is_deleted()


def test_settings_travel(tmp_path):
    with gf.enable_x64(True):
        x, jitted = jnp.linspace(0, 1, 5), gf.jit(lambda x: jnp.sin(x) / 3)
        write(tmp_path, "wide", export.export(jitted)(x), [x])
        want = digest([jitted(x)])
    read = export.deserialize((tmp_path / "wide.gf").read_bytes())
    assert read.in_avals[0].dtype == np.float64
    with gf.enable_x64(True):
        assert digest([read.call(jnp.linspace(0, 1, 5))]) == want
    with pytest.raises(ExportError, match=r"must be f64\[5\]; got f32\[5\]"):
        read.call(jnp.linspace(0, 1, 5))


Point = namedtuple("Point", "x y")


class Pair:
    def __init__(self, a, b, tag):
        self.a, self.b, self.tag = a, b, tag


tree_util.register_pytree_node(Pair, lambda p: ((p.a, p.b), p.tag), lambda tag, ab: Pair(*ab, tag))
export.register_namedtuple_serialization(Point, serialized_name="test_export.Point")
export.register_pytree_node_serialization(
    Pair,
    serialized_name="test_export.Pair",
    serialize_auxdata=str.encode,
    deserialize_auxdata=bytes.decode,
)


def test_registered_nodes():
    args = Point(1.0, 2.0), Pair(3.0, 4.0, "in")
    _, read = exported_and_read(lambda p, q: Pair(p.x, q.b, "out"), *args)
    out = read.call(*args)
    assert (type(out), float(out.a), float(out.b), out.tag) == (Pair, 1.0, 4.0, "out")
    with pytest.raises(ExportError, match="must have the structure"):
        read.call(Point(1.0, 2.0), Pair(3.0, 4.0, "other"))


def test_registrations_are_checked():
    with pytest.raises(ValueError, match="registered once; got Point as 'again'"):
        export.register_namedtuple_serialization(Point, serialized_name="again")
    with pytest.raises(ValueError, match="must be a namedtuple; got dict"):
        export.register_namedtuple_serialization(dict, serialized_name="no")
    Other = namedtuple("Other", "x")
    with pytest.raises(ExportError, match=r"got Other\. Fix: export.register_namedtuple_serial"):
        export.export(gf.jit(lambda x: Other(x)))(1.0)


REFUSED = {
    "no jit": (lambda: export.export(jnp.sin), ValueError, "must be the result of jit"),
    "callback": (
        lambda: export.export(gf.jit(lambda x: gf.pure_callback(np.sin, x, x)))(jnp.ones(2)),
        ExportError,
        r"must not call Python; got pure_callback \(.*test_export.py",
    ),
    "print": (
        lambda: export.export(gf.jit(lambda x: (gf.debug.print("{}", x), x)[1]))(jnp.ones(2)),
        ExportError,
        "must have no effects; got debug",
    ),
    "sharding": (
        lambda: export.export(
            gf.jit(jnp.sin, in_shardings=gf.sharding.SingleDeviceSharding(gf.devices()[0]))
        )(jnp.ones(2)),
        ExportError,
        "must use one device; got sin with in_shardings",
    ),
    "shard_map": (
        lambda: export.export(
            gf.jit(
                gf.shard_map(
                    lambda x: lax.psum(x, "i"),
                    mesh=gf.make_mesh((1,), ("i",)),
                    in_specs=gf.P("i"),
                    out_specs=gf.P(),
                )
            )
        )(jnp.ones(2)),
        ExportError,
        "use one device",
    ),
    "ref": (
        lambda: export.export(gf.jit(lambda r: r[...] * 2))(gf.new_ref(jnp.ones(2))),
        ExportError,
        "must not use refs",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exported_says_so(name):
    make, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        make()


def test_calls_with_other_arguments_name_them():
    made, _ = exported_and_read(lambda x, d: x + d["k"], jnp.ones((2, 3)), {"k": 1.0})
    for args, message in (
        ((jnp.ones((2, 4)), {"k": 1.0}), r"args\[0\] of <l.* must be f32\[2,3\]; got f32\[2,4\]"),
        ((jnp.ones((2, 3)), {"k": 1}), r"args\[1\]\['k'\] of <l.* must be f32\[\]; got i32\[\]"),
        ((jnp.ones((2, 3)),), "must have the structure"),
    ):
        with pytest.raises(ExportError, match=message):
            made.call(*args)


def test_platforms_are_checked():
    made = export.export(gf.jit(jnp.sin), platforms=("elsewhere",))(jnp.ones(2))
    with pytest.raises(ExportError, match="must be called on elsewhere; got arrays on"):
        made.call(jnp.ones(2))
    with pytest.raises(ExportError, match="must be called on elsewhere"):
        gf.jit(made.call)(jnp.ones(2))
    checks = [export.DisabledSafetyCheck.platform()]
    free = export.export(gf.jit(jnp.sin), platforms=("elsewhere",), disabled_checks=checks)
    read = export.deserialize(free(jnp.ones(2)).serialize())
    assert read.call(jnp.ones(2)).shape == (2,)
    assert export.DisabledSafetyCheck.custom_call("f").is_custom_call() == "f"


def test_keys_are_arguments():
    _, read = exported_and_read(lambda k: random.normal(k, (3,)), random.key(1))
    np.testing.assert_array_equal(read.call(random.key(5)), random.normal(random.key(5), (3,)))


@pytest.mark.cuda_toolchain
def test_on_a_simulated_gpu(tmp_path):
    """Both variants of a kernel are in the file; a process without compiler builds nothing."""
    program = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from export_cases import FUNCTIONS, write
from export_reader import digest
import gpuflow as gf
from gpuflow import export
function, args = FUNCTIONS["gradient"]
write(Path(sys.argv[1]), "gradient", export.export(gf.jit(function))(*args), args)
print(digest([gf.jit(function)(*args)]))
"""
    place = {"GPUFLOW_PLATFORM": "cuda_sim"}
    here = run_elsewhere([program, tmp_path, CASES], **place)
    done, there = read_elsewhere(tmp_path, compiler=False, cache=tmp_path / "empty", **place)
    assert there == {"gradient": here.stdout.strip(), "built": 0}, done.stderr
