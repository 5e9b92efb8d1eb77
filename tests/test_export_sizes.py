"""Symbolic sizes: their arithmetic, programs for all sizes, and the conditions of calls."""

from __future__ import annotations

import re

import numpy as np
import pytest
from export_cases import read_elsewhere, write
from export_reader import digest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import export, lax, nn, random
from gpuflow.errors import ExportError, InconclusiveDimensionOperation


def sized(text, dtype=jnp.float32, **options):
    return gf.ShapeDtypeStruct(export.symbolic_shape(text, **options), dtype)


def test_arithmetic_of_sizes():
    a, b = export.symbolic_shape("a, b")
    for size, text in (
        (2 * b + 1, "2*b + 1"),
        (b - 3 + b, "2*b - 3"),
        (a * b * a, "a^2*b"),
        (1 - b, "-b + 1"),
        ((4 * b) // 2, "2*b"),
        (b // 2, "floordiv(b, 2)"),
        ((b + 1) % 4, "mod(b + 1, 4)"),
    ):
        assert str(size) == text
        assert export.symbolic_shape(text, scope=b.scope) == (size,)
    assert a + b - a == b and hash(a + b - a) == hash(b) and (4 * b) % 2 == 0
    assert a - a == 0 and export.is_symbolic_dim(b) and not export.is_symbolic_dim(3)


def test_comparisons_have_one_answer_or_raise():
    (b,) = export.symbolic_shape("b", constraints=["b >= 8", "b <= 100"])
    assert b >= 8 and b > 7 and not b < 8 and b + 1 <= 101 and b != 4 and b % 4 < 4
    with pytest.raises(InconclusiveDimensionOperation, match=r"got b >= 10\. Fix: .*'b >= 10'"):
        _ = b >= 10
    with pytest.raises(InconclusiveDimensionOperation, match="must not be used as a number"):
        range(b)


@pytest.mark.parametrize("text", ["2 b", "b[0]", "f(b, 2)", "b.real", "b ** 9", "'b'", "b or 1"])
def test_texts_that_are_no_sizes(text):
    with pytest.raises(ValueError, match="a size must be written with names"):
        export.symbolic_shape(text)


def test_shapes_like_others():
    assert export.symbolic_shape("2, _", like=(4, 3)) == (2, 3)
    assert export.symbolic_shape("(2, ...)", like=(4, 3, 5)) == (2, 3, 5)
    assert str(export.symbolic_shape("max(b, 2), 3")) == "(max(b, 2), 3)"
    with pytest.raises(ValueError, match="must have sizes in like"):
        export.symbolic_shape("b, _")
    with pytest.raises(ValueError, match="one comparison of sizes; got 'b'"):
        export.SymbolicScope(["b"])
    specs = export.symbolic_args_specs(({"x": jnp.ones((4, 3))}, 1.0), ("b, ...", None))
    assert str(specs[0]["x"].shape) == "(b, 3)" and specs[1].shape == ()
    assert specs[1].weak_type


KEY = random.key(0)
WEIGHT = random.normal(KEY, (5, 7))
FILTERS = random.normal(KEY, (4, 3, 3, 3))


def layers(x):
    return nn.softmax(jnp.tanh(x @ WEIGHT)), x.mean(), x.var(0), jnp.linalg.norm(x)


def attention(q):
    q = q.reshape(q.shape[0], q.shape[1], 2, -1)
    return nn.dot_product_attention(q, q, q, is_causal=True).reshape(q.shape[0], -1)


def network(x):
    x = nn.relu(lax.conv_general_dilated(x, FILTERS, (2, 2), "VALID"))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return x.reshape(x.shape[0], -1).mean(1)


# A function, the shapes of its arguments, what they are called with.
PROGRAMS = {
    "layers": (layers, ["b, 5"], [{"b": n} for n in (1, 2, 5, 7, 33, 20_000)]),
    "attention": (attention, ["b, t, 8"], [{"b": 2, "t": 9}, {"b": 3, "t": 3}, {"b": 1, "t": 20}]),
    "network": (network, ["b, 3, 24, h"], [{"b": 4, "h": 24}, {"b": 3, "h": 31}]),
    "shapes": (
        lambda x, y: (
            jnp.concatenate([x, y]),
            x[::2],
            jnp.pad(x, 2),
            x[1:-1],
            jnp.outer(x, y),
            jnp.arange(x.shape[0] * 2),
            jnp.zeros(x.shape),
            x.reshape(-1, 1),
        ),
        ["n", "2*n"],
        [{"n": 4}, {"n": 11}, {"n": 50}],
    ),
    "loops": (
        lambda x: (
            lax.scan(lambda c, a: (c + a, c * a), jnp.zeros(3), x),
            lax.fori_loop(0, x.shape[0], lambda i, s: s + x[i], jnp.zeros(3)),
        ),
        ["b, 3"],
        [{"b": 2}, {"b": 9}],
    ),
    "sorted": (lambda x: (jnp.sort(x, 0), jnp.cumsum(x, 0), x.argmax(0)), ["b, 3"], [{"b": 10}]),
    "gradient": (
        gf.grad(lambda x: nn.logsumexp(x @ WEIGHT, 1).mean()),
        ["b, 5"],
        [{"b": 6}, {"b": 40}],
    ),
    "keys": (lambda x: x + random.normal(KEY, x.shape), ["b, 3"], [{"b": 4}, {"b": 77}]),
}


def made(name):
    function, shapes, calls = PROGRAMS[name]
    scope = export.SymbolicScope(
        ["n >= 3"] if name == "shapes" else ["h >= 9"] if name == "network" else []
    )
    specs = [sized(shape, scope=scope) for shape in shapes]
    return gf.jit(function), export.export(gf.jit(function))(*specs), calls


def arguments(exported, sizes):
    def number(size):
        return size if isinstance(size, int) else eval(str(size), {}, dict(sizes))

    shapes = [tuple(map(number, aval.shape)) for aval in exported.in_avals]
    return [random.normal(random.key(k), shape) for k, shape in enumerate(shapes)]


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """Each program at each of its sizes, here, and in a process without source and compiler."""
    folder, here = tmp_path_factory.mktemp("sizes"), {}
    for name in PROGRAMS:
        jitted, exported, calls = made(name)
        blob = None
        for k, sizes in enumerate(calls):
            args = arguments(exported, sizes)
            if blob is None:
                write(folder, f"{name}_{k}", exported, args)
                blob = (folder / f"{name}_{k}.gf").read_bytes()
            else:
                (folder / f"{name}_{k}.gf").write_bytes(blob)
                np.savez(folder / f"{name}_{k}.npz", *map(np.asarray, args))
            here[f"{name}_{k}"] = digest(gf.tree.leaves(jitted(*args)))
    done, there = read_elsewhere(folder, compiler=False, cache=folder / "empty")
    assert done.returncode == 0, done.stderr
    return here, there


@pytest.mark.parametrize("name", [f"{n}_{k}" for n in PROGRAMS for k in range(len(PROGRAMS[n][2]))])
def test_one_file_gives_what_the_function_gives_at_all_sizes(elsewhere, name):
    here, there = elsewhere
    assert there[name] == here[name]


def test_no_kernel_was_built_for_any_size(elsewhere):
    assert elsewhere[1]["built"] == 0


def test_types_of_results_are_sizes_too():
    _, exported, _ = made("shapes")
    shown = [str(aval.shape) for aval in exported.out_avals]
    assert shown == [
        "(3*n,)",
        "(floordiv(n + 1, 2),)",
        "(n + 4,)",
        "(n - 2,)",
        "(n, 2*n)",
        "(2*n,)",
        "(n,)",
        "(n, 1)",
    ]
    assert exported.uses_global_constants
    assert [str(aval) for aval in export.deserialize(exported.serialize()).in_avals] == [
        "f32[n]",
        "f32[2*n]",
    ]


def test_derivatives_of_symbolic_sizes():
    exported = export.export(gf.jit(lambda x: jnp.mean(x**3)))(sized("b, 2"))
    read = export.deserialize(exported.serialize(vjp_order=1, sizes=[]))
    x = random.normal(KEY, (9, 2))
    np.testing.assert_allclose(gf.grad(read.call)(x), 3 * x**2 / 18, rtol=1e-5)
    assert str(read.vjp().out_avals[0]) == "f32[b,2]"


def test_calls_say_which_condition_is_not_met():
    scope = export.SymbolicScope(["b >= 4", "mod(b, 4) == 0", "b <= 4*c"])
    specs = sized("b, 3", scope=scope), sized("c, b", scope=scope)
    read = export.deserialize(export.export(gf.jit(lambda x, y: y @ x))(*specs).serialize(sizes=[]))
    assert read.call(jnp.ones((8, 3)), jnp.ones((5, 8))).shape == (5, 3)
    for shapes, message in (
        (((2, 3), (5, 2)), r"must satisfy b >= 4; got b = 2, c = 5"),
        (((6, 3), (5, 6)), r"must satisfy mod\(b, 4\) == 0; got b = 6"),
        (((8, 3), (1, 8)), r"must satisfy b <= 4\*c; got b = 8, c = 1"),
        (((8, 3), (5, 9)), r"args\[1\] of <l.* must be f32\[c,b\], where b = 8, c = 5; got"),
        (((8, 4), (5, 8)), r"args\[0\] of <lambda> must be f32\[b,3\], where b = 8"),
        (((0, 3), (5, 0)), r"must satisfy b >= 1; got b = 0"),
        (((8, 3, 1), (5, 8)), r"args\[0\] of <lambda> must be f32\[b,3\]; got f32\[8,3,1\]"),
    ):
        with pytest.raises(ExportError, match=message):
            read.call(*map(jnp.ones, shapes))


def test_sizes_must_tell_the_symbols():
    doubled = export.export(gf.jit(jnp.sin))(sized("2*b"))
    assert doubled.call(jnp.ones(6)).shape == (6,)
    with pytest.raises(ExportError, match=r"must determine b; got 2\*b = 7"):
        doubled.call(jnp.ones(7))
    square = export.export(gf.jit(jnp.sin))(sized("b*b"))
    with pytest.raises(ExportError, match=r"must determine b; got b\^2 = 9"):
        square.call(jnp.ones(9))


def branching(x):
    return jnp.sin(x) if x.shape[0] > 100 else jnp.cos(x)


def unrolled(x):
    return sum(x[k] for k in range(x.shape[0]))


def looked_up(x):
    return x * np.arange(x.shape[0])


def counted(x):
    return x * jnp.float32(x.shape[0] ** 5 % 97)


def averaged(x):
    return x.sum() / jnp.float32(x.shape[0]) + jnp.sqrt(x.shape[0])


@pytest.mark.parametrize(
    "function, message",
    [
        (branching, r"got cos at b = 64 and sin at b = 131 in .*Fix: .*\['b >= 131'\]"),
        (unrolled, r"must be the same for all sizes; got \d+ equations or parts at b = 2 and \d+"),
        (looked_up, r"constants of looked_up must not depend on symbolic sizes"),
        (counted, r"must be the same for all sizes; got 32.0 at b = 2 and 49.0 at b = 3"),
    ],
)
def test_functions_that_are_others_for_other_sizes(function, message):
    with pytest.raises(ExportError, match=message):
        export.export(gf.jit(function))(sized("b"))


def test_numbers_that_follow_from_sizes():
    exported = export.export(gf.jit(averaged))(sized("b"))
    for n in (1, 17, 999):
        np.testing.assert_array_equal(exported.call(jnp.ones(n)), gf.jit(averaged)(jnp.ones(n)))


def test_the_fix_that_the_error_names():
    exported = export.export(gf.jit(branching))(sized("b", constraints=["b >= 131"]))
    np.testing.assert_array_equal(exported.call(jnp.ones(200)), gf.jit(jnp.sin)(jnp.ones(200)))
    with pytest.raises(ExportError, match="must satisfy b >= 131; got b = 64"):
        exported.call(jnp.ones(64))


def test_constraints_may_leave_too_few_sizes():
    with pytest.raises(ExportError, match="must leave at least 4 sizes"):
        export.export(gf.jit(jnp.sin))(sized("b", constraints=["b >= 3", "b <= 4"]))


def test_scopes_must_be_one():
    with pytest.raises(ExportError, match="must share a scope"):
        export.export(gf.jit(jnp.add))(sized("b"), sized("b"))


def test_kernels_of_other_classes_are_built_or_asked_for(tmp_path):
    """Rows of 20 and 7: one class was built, the other is a short extent."""
    exported = export.export(gf.jit(lambda x: jnp.sin(x).sum(1)))(sized("3, n"))
    for name, n in (("a_long", 20), ("b_short", 7)):
        write(tmp_path, name, exported, [jnp.ones((3, n))], sizes=[])
    done, there = read_elsewhere(tmp_path, compiler=True, cache=tmp_path / "one")
    assert there["b_short"] == digest([gf.jit(lambda x: jnp.sin(x).sum(1))(jnp.ones((3, 7)))])
    assert there["built"] >= 1, done.stderr
    done, there = read_elsewhere(tmp_path, compiler=False, cache=tmp_path / "two")
    assert "a_long" in there and "b_short" not in there
    assert re.search(
        r"kernels of <lambda> for n = 7 must be in its bytes where there is no "
        r"compiler.*serialize\(sizes=\[\{'n': 7\}\]\)",
        done.stderr,
    )
    write(tmp_path, "b_short", exported, [jnp.ones((3, 7))], sizes=[{"n": 7}])
    assert read_elsewhere(tmp_path, compiler=False, cache=tmp_path / "three")[1]["built"] == 0


def test_asked_sizes_are_checked():
    exported = export.export(gf.jit(jnp.sin))(sized("n", constraints=["n >= 3"]))
    with pytest.raises(ExportError, match="must satisfy n >= 3; got n = 2"):
        exported.serialize(sizes=[{"n": 2}])
    with pytest.raises(ValueError, match=r"sizes must name n; got \{'m': 2\}"):
        exported.serialize(sizes=[{"m": 2}])
