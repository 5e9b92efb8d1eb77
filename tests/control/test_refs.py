"""Refs: read and written eagerly, in programs, loops, branches, derivatives and maps."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base.errors import UnexpectedTracerError

# The functions run as they are and as one compiled program: what refs hold must not differ.
both = pytest.mark.parametrize("how", [lambda f: f, gf.jit], ids=["eager", "jit"])


def values(ref):
    return np.asarray(ref[...])


def same(ref, expected):
    np.testing.assert_allclose(values(ref), expected, rtol=1e-6)


# --- the cell ------------------------------------------------------------------------------


def test_a_ref_has_a_type_and_is_no_array():
    ref = gf.new_ref(jnp.arange(6.0).reshape(2, 3))
    assert (ref.shape, ref.dtype, ref.ndim, ref.size, len(ref)) == ((2, 3), np.float32, 2, 6, 2)
    assert str(gf.typeof(ref)) == "Ref{f32[2,3]}" == str(ref.aval)
    assert isinstance(ref, gf.Ref) and not isinstance(ref, gf.Array)
    assert repr(gf.new_ref(jnp.ones(2))) == "Ref([1., 1.], dtype=float32)"
    assert gf.tree.leaves({"a": ref}) == [ref] and ref == ref and hash(ref)
    assert gf.device_get(ref) is ref and gf.block_until_ready(ref) is ref
    assert gf.new_ref(1.0)[...].weak_type and ref.sharding == ref[...].sharding


@pytest.mark.parametrize("index", [..., 0, -1, slice(1, 3), (slice(None), 1), np.array([0, 2])])
def test_reading_and_writing_parts(index):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    expected = x.copy()
    ref = gf.new_ref(x)
    np.testing.assert_array_equal(ref[index], x[index])
    new = -jnp.asarray(x[index])
    old = gf.ref.swap(ref, index, new)
    np.testing.assert_array_equal(old, x[index])
    expected[index] = -x[index]
    same(ref, expected)
    ref[index] += 1.0
    expected[index] += 1.0
    same(ref, expected)
    gf.ref.addupdate(ref, index, new)
    expected[index] += np.asarray(new)
    same(ref, expected)
    gf.ref.set(ref, index, new)
    expected[index] = new
    np.testing.assert_array_equal(gf.ref.get(ref, index), expected[index])


def test_places_that_repeat_add_up():
    ref = gf.new_ref(jnp.zeros(3))
    gf.ref.addupdate(ref, np.array([0, 0, 2]), jnp.ones(3))
    same(ref, [2, 0, 1])


def test_a_ref_keeps_its_dtype():
    ref = gf.new_ref(jnp.zeros(2, jnp.bfloat16))
    ref[0] = 1.5  # a Python float yields
    assert ref[...].dtype == jnp.bfloat16 and not ref[...].weak_type
    integers = gf.new_ref(jnp.zeros((), jnp.int8))
    integers[...] = jnp.int32(3)  # as JAX does
    assert integers[...].dtype == np.int8 and int(integers[...]) == 3
    weak = gf.new_ref(1.0)
    weak[...] = jnp.float32(2.0)
    assert weak[...].weak_type


def test_a_ref_holds_a_copy():
    x = jnp.arange(3.0)
    ref = gf.new_ref(x)
    gf.jit(lambda x: x + 1, donate_argnums=0)(x)
    same(ref, [0, 1, 2])
    for other in (copy.copy(ref), copy.deepcopy(ref)):
        other[0] = 5.0
        same(ref, [0, 1, 2])


def test_keys_can_change():
    ref = gf.new_ref(gf.random.key(0))

    @gf.jit
    def draw():
        ref[...], key = gf.random.split(ref[...])
        return gf.random.bits(key)

    first, second = draw(), draw()
    key, subkey = gf.random.split(gf.random.key(0))
    assert int(first) == int(gf.random.bits(subkey)) != int(second)
    assert int(second) == int(gf.random.bits(gf.random.split(key)[1]))


def test_freezing():
    ref = gf.new_ref(jnp.arange(2))
    np.testing.assert_array_equal(gf.freeze(ref), [0, 1])
    for use in (lambda: ref[...], lambda: gf.freeze(ref), lambda: ref.addupdate(1, 0)):
        with pytest.raises(ValueError, match=r"\[ref\] a frozen ref must not be used; got Ref"):
            use()
    assert repr(ref) == "<frozen Ref{i32[2]}>"
    assert gf.ref.free_ref(gf.new_ref(1)) == ()
    assert gf.empty_ref(gf.ShapeDtypeStruct((2,), np.int32)).shape == (2,)


# --- programs ------------------------------------------------------------------------------


@both
def test_arguments_and_closed_over_refs(how):
    counter, state = gf.new_ref(0), gf.new_ref(jnp.zeros(3))

    def step(refs, x):
        counter[...] += 1
        refs["state"][...] += x
        return refs["state"][1] * 2

    step = how(step)
    assert float(step({"state": state}, jnp.arange(3.0))) == 2.0
    assert float(step({"state": state}, jnp.arange(3.0))) == 4.0
    same(state, [0, 2, 4])
    assert int(counter[...]) == 2


def test_a_program_with_refs_is_traced_once():
    traced = []
    closed = gf.new_ref(jnp.zeros(2))

    @gf.jit
    def f(ref, x):
        traced.append(1)
        ref[...] = closed[...] + x
        closed[0] = 7.0

    a, b = gf.new_ref(jnp.zeros(2)), gf.new_ref(jnp.zeros(2))
    f(a, 1.0)
    f(b, 2.0)
    f(a, 3.0)
    assert len(traced) == 1
    same(a, [10, 3])
    same(b, [9, 2])
    f(gf.new_ref(jnp.zeros(2, jnp.float32)), 3)
    assert len(traced) == 2  # another type of x


def test_refs_are_read_when_the_program_is_called():
    ref = gf.new_ref(1.0)
    double = gf.jit(lambda: ref[...] * 2)
    assert float(double()) == 2.0
    ref[...] = 5.0
    assert float(double()) == 10.0


@both
def test_refs_that_a_function_makes(how):
    def f(x):
        ref = gf.new_ref(x)
        ref[0] += 1.0
        for k in range(3):
            ref[...] = ref[...] * (k + 1)
        return gf.freeze(ref)

    np.testing.assert_allclose(how(f)(jnp.arange(2.0)), [6, 6])


def test_a_ref_passes_through_nested_programs():
    ref = gf.new_ref(jnp.zeros(2))

    @gf.jit
    def innermost(x):
        ref[0] += x

    @gf.jit
    def inner(other, x):
        innermost(x)
        other[1] += x
        return other[1]

    @gf.jit
    def outer(other, x):
        innermost(x)
        return inner(other, x) + inner(other, x)

    other = gf.new_ref(jnp.zeros(2))
    assert float(outer(other, 2.0)) == 6.0
    assert float(inner(other, 1.0)) == 5.0
    same(ref, [7, 0])
    same(other, [0, 5])


def test_inlined_and_disabled_jit():
    ref = gf.new_ref(0.0)
    add = gf.jit(lambda r, x: r.addupdate(x), inline=True)
    gf.jit(lambda x: add(ref, x))(2.0)
    with gf.disable_jit():
        add(ref, 3.0)
        gf.jit(lambda: ref.addupdate(1.0))()
    assert float(ref[...]) == 6.0


def test_static_refs_and_donation():
    ref = gf.new_ref(jnp.ones(3))
    before = ref[...]
    gf.jit(lambda r, x: r.addupdate(x), static_argnums=0)(ref, jnp.ones(3))
    gf.jit(lambda r, x: r.addupdate(x), donate_argnums=0)(ref, jnp.ones(3))
    np.testing.assert_array_equal(before, np.ones(3))  # whoever read it keeps it
    same(ref, [3, 3, 3])


def test_stages():
    closed = gf.new_ref(jnp.ones(2))

    def f(ref, x):
        ref[...] += closed[...] * x
        closed[0] = 3.0
        return x + 1

    ref = gf.new_ref(jnp.zeros(2))
    lowered = gf.jit(f).lower(ref, 2.0)
    assert lowered.out_info.shape == () and len(gf.tree.leaves(lowered.args_info)) == 2
    compiled = lowered.compile()
    assert float(compiled(ref, 2.0)) == 3.0 and float(compiled(ref, 2.0)) == 3.0
    same(ref, [8, 4])
    same(closed, [3, 1])
    assert gf.eval_shape(f, ref, 2.0).shape == ()
    same(closed, [3, 1])
    program = gf.make_jaxpr(f)(ref, 2.0)
    assert len(program.in_avals) == 2 and len(program.out_avals) == 3
    assert gf.make_jaxpr(f, return_shape=True)(ref, 2.0)[1].shape == ()


def test_shardings():
    mesh = gf.make_mesh((1,), ("a",))
    sharding = gf.NamedSharding(mesh, gf.P("a"))
    ref = gf.new_ref(gf.device_put(jnp.arange(4.0), sharding))
    assert ref.sharding == sharding
    f = gf.jit(
        lambda r, x: (r.addupdate(x), x * 2)[1],
        in_shardings=(sharding, None),
        out_shardings=sharding,
    )
    assert f(ref, jnp.ones(4)).sharding == sharding
    same(ref, [1, 2, 3, 4])


# --- whose memory --------------------------------------------------------------------------


def address(array):
    return np.asarray(array).ctypes.data


def test_programs_write_in_place():
    ref = gf.new_ref(jnp.zeros(100_000))

    @gf.jit
    def write(k):
        ref[k] = 1.0

    write(3)
    before = address(ref._value)
    write(5)
    assert address(ref._value) == before
    seen = ref[...]
    write(7)
    assert address(ref._value) != before == address(seen)
    assert [float(seen[k]) for k in (3, 5, 7)] == [1, 1, 0] and float(ref[7]) == 1


def test_what_others_hold_does_not_change():
    a, b = gf.new_ref(jnp.zeros(4)), gf.new_ref(jnp.ones(4))

    @gf.jit
    def f(x):
        a[...] = x
        b[...] = x
        return x, a[...]

    @gf.jit
    def swap():
        a[...], b[...] = b[...], a[...]

    x = jnp.arange(4.0)
    outs = f(x)
    a[0] = 9.0
    swap()
    swap()
    later = f(x + 1)
    for out in (x, *outs):
        np.testing.assert_array_equal(out, [0, 1, 2, 3])
    for out in (*later, a[...], b[...]):
        np.testing.assert_array_equal(out, [1, 2, 3, 4])
    held = jnp.zeros(4)
    a[...] = held
    f(x)
    np.testing.assert_array_equal(held, np.zeros(4))


def test_derivatives_keep_what_they_read():
    ref = gf.new_ref(jnp.arange(3.0))
    write = gf.jit(lambda: ref.__setitem__(..., jnp.full(3, 7.0)))
    _, pullback = gf.vjp(lambda x: x * gf.jit(lambda: ref[...])(), jnp.ones(3))
    write()
    np.testing.assert_array_equal(pullback(jnp.ones(3))[0], [0, 1, 2])


def test_a_program_that_fails_changes_nothing():
    ref = gf.new_ref(jnp.zeros(3))

    @gf.jit
    def divide():
        ref[...] = ref[...] / ref[...]

    with gf.debug_nans(True), pytest.raises(FloatingPointError, match="div"):
        divide()
    same(ref, [0, 0, 0])


# --- loops and branches --------------------------------------------------------------------


@both
def test_scan_carries_refs(how):
    total, fixed = gf.new_ref(0.0), gf.new_ref(2.0)
    rows = gf.new_ref(jnp.zeros((4, 2)))

    def run(rows, xs):
        def body(carry, item):
            row, x = item
            total[...] += x * fixed[...]
            row[0] = total[...]
            return carry + 1, total[...] + carry

        return lax.scan(body, 0.0, (rows, xs), reverse=True)

    last, ys = how(run)(rows, jnp.arange(4.0))
    assert float(last) == 4 and float(total[...]) == 12 and float(fixed[...]) == 2
    same(rows, [[12, 0], [12, 0], [10, 0], [6, 0]])
    np.testing.assert_allclose(ys, [15, 14, 11, 6])


@both
def test_other_loops_carry_refs(how):
    ref = gf.new_ref(jnp.zeros(3))

    def run(n):
        lax.fori_loop(0, 3, lambda k, _: ref.__setitem__(k, 1.0), None)
        lax.fori_loop(0, n, lambda k, _: ref.addupdate(2.0, 0), None)
        lax.map(lambda x: ref.addupdate(x, 1), jnp.arange(3.0))
        return lax.while_loop(lambda k: (k < 10) & (ref[0] < 20.0), advance, 0)

    def advance(k):
        ref[0] += 5.0
        return k + 1

    assert int(how(run)(2)) == 3
    same(ref, [20, 4, 1])


def test_bounded_while_loops_carry_refs():
    ref, limit = gf.new_ref(1.0), gf.new_ref(100.0)

    @gf.jit
    def run():
        def body(k):
            ref[...] *= 2.0
            return k + 1

        return lax.while_loop(lambda k: ref[...] < limit[...], body, 0, max_steps=20)

    assert int(run()) == 7 and float(ref[...]) == 128.0


@both
def test_branches_write_different_refs(how):
    a, b, c = gf.new_ref(1.0), gf.new_ref(2.0), gf.new_ref(3.0)

    def run(number, c):
        def first(c):
            a[...] = b[...] + c[...]
            return a[...]

        def second(c):
            c[...] = -1.0
            return b[...]

        return lax.switch(number, [first, second, lambda c: 0.0], c)

    run = how(run)
    assert float(run(0, c)) == 5.0 and float(run(1, c)) == 2.0 and float(run(2, c)) == 0.0
    assert [float(ref[...]) for ref in (a, b, c)] == [5, 2, -1]
    how(lambda p: lax.cond(p, lambda: a.addupdate(1.0), lambda: None))(False)
    assert float(a[...]) == 5.0
    how(lambda p: lax.cond(p, lambda: a.addupdate(1.0), lambda: None))(True)
    assert float(a[...]) == 6.0


def test_loops_in_branches_in_programs():
    ref = gf.new_ref(jnp.zeros(2))

    @gf.jit
    def run(flag, n):
        @gf.jit
        def add(k, _):
            ref[1] += 1.0
            lax.cond(k > 0, lambda: ref.addupdate(1.0, 0), lambda: None)

        return lax.cond(flag, lambda: lax.fori_loop(0, n, add, None), lambda: None)

    run(True, 3)
    run(False, 3)
    same(ref, [2, 3])


# --- transformations -----------------------------------------------------------------------


def loop_of(x):
    """x * 1 * 2 * 3, through a ref that a scan changes."""
    ref = gf.new_ref(x)

    def body(_, t):
        ref[...] *= t
        return None, None

    lax.scan(body, None, jnp.arange(1.0, 4.0))
    return jnp.sum(jnp.sin(gf.freeze(ref)))


@both
def test_derivatives_through_refs(how):
    x = jnp.asarray([0.1, 0.2])
    expected = 6 * np.cos(6 * np.asarray(x))
    np.testing.assert_allclose(how(gf.grad(loop_of))(x), expected, rtol=1e-5)
    np.testing.assert_allclose(gf.grad(how(gf.checkpoint(loop_of)))(x), expected, rtol=1e-5)
    tangent = how(lambda x: gf.jvp(loop_of, (x,), (jnp.ones(2),))[1])(x)
    np.testing.assert_allclose(tangent, expected.sum(), rtol=1e-5)
    out, pullback = gf.vjp(how(loop_of), x)
    np.testing.assert_allclose(pullback(jnp.ones_like(out))[0], expected, rtol=1e-5)
    hessian = how(gf.hessian(loop_of))(x)
    second = np.diag(-36 * np.sin(6 * np.asarray(x)))
    np.testing.assert_allclose(hessian, second, rtol=1e-4, atol=1e-5)


@both
def test_refs_beside_what_is_differentiated(how):
    seen, scale = gf.new_ref(0.0), gf.new_ref(3.0)

    def loss(x, scale):
        seen[...] = lax.stop_gradient(x)
        scale[...] += 1.0
        return x * x * scale[...]

    assert float(how(gf.grad(loss))(2.0, scale)) == 16.0
    assert float(gf.grad(how(gf.checkpoint(loss)))(2.0, scale)) == 20.0
    assert float(seen[...]) == 2.0 and float(scale[...]) == 5.0


@pytest.mark.parametrize("inner", [lambda f: f, gf.jit, gf.checkpoint], ids=["", "jit", "remat"])
def test_differentiated_values_stay_inside(inner):
    ref = gf.new_ref(jnp.zeros(2))

    @inner
    def f(x):
        ref[0] = x
        return x * x

    for transformed in (gf.grad(f), gf.jit(gf.grad(f)), lambda x: gf.jvp(f, (x,), (x,))):
        with pytest.raises(ValueError, match=r"cannot get a differentiated value; got one"):
            transformed(3.0)
    same(ref, [0, 0])


@both
def test_mapped_refs(how):
    shared, own = gf.new_ref(2.0), gf.new_ref(jnp.zeros((2, 3)))

    def f(x, own):
        inner = gf.new_ref(0.0)
        inner[...] = x
        own[0] = x * shared[...]
        lax.scan(lambda c, t: (c, own.addupdate(t, 1)), 0, jnp.arange(3.0))
        return gf.freeze(inner) + own[0]

    out = how(gf.vmap(f, in_axes=(0, 1)))(jnp.arange(3.0), own)
    np.testing.assert_allclose(out, [0, 3, 6])
    same(own, [[0, 2, 4], [3, 3, 3]])
    gf.vmap(lambda x: shared.addupdate(1.0))(jnp.arange(3.0))
    assert float(shared[...]) == 3.0
    gf.vmap(lambda r, x: r.addupdate(1.0), in_axes=(None, 0))(shared, jnp.arange(3.0))
    assert float(shared[...]) == 4.0


@pytest.mark.parametrize("inner", [lambda f: f, gf.jit], ids=["plain", "jit"])
def test_mapped_values_stay_inside(inner):
    ref = gf.new_ref(jnp.zeros(2))

    @inner
    def f(x):
        ref[0] = x

    @inner
    def g(x):
        lax.cond(x > 1, lambda: ref.__setitem__(0, 1.0), lambda: None)

    for function in (f, g):
        with pytest.raises(ValueError, match=r"a mapped value; got one for .* Fix: map the ref"):
            gf.vmap(function)(jnp.arange(3.0))
    same(ref, [0, 0])


# --- errors --------------------------------------------------------------------------------


def test_types_and_places_are_checked():
    ref = gf.new_ref(jnp.zeros(3))
    cases = [
        (lambda: ref.__setitem__(..., 1.0), r"\[set\] the value must have the shape"),
        (lambda: ref.__setitem__(0, 1), r"\[set\] the value must have the dtype of .* i32"),
        (lambda: ref.addupdate(jnp.ones(2)), r"\[addupdate\] the value must have the shape"),
        (lambda: gf.ref.swap(ref, 0, 1j), r"\[swap\] the value must have the dtype"),
        (lambda: ref[3], r"\[get\] the index must be within the array; got 3 for Ref\{f32\[3\]\}"),
        (lambda: ref.__setitem__((0, 0), 1.0), r"\[set\] the index must be within"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    same(ref, [0, 0, 0])


def test_refs_are_no_arrays():
    ref = gf.new_ref(jnp.zeros(3))
    cases = [
        (lambda: np.asarray(ref), r"\[numpy\] the operand must be an array, not a ref"),
        (lambda: jnp.asarray(ref), r"the operand must be an array, not a ref"),
        (lambda: lax.asarray(ref), r"operands must be arrays or numbers; got Ref\{f32"),
        (lambda: jnp.sin(ref), r"\[sin\] operands must be arrays"),
        (lambda: jnp.add(ref, ref), r"operands must be arrays or numbers; got Ref at position 0"),
        (lambda: ref + 1, r"unsupported operand"),
        (lambda: list(ref), r"\[iter\] a ref cannot be walked through"),
        (lambda: len(gf.new_ref(0.0)), r"\[len\] the array must have"),
        (lambda: gf.new_ref(ref), r"\[new_ref\] the value must be an array; got a Ref\{f32"),
        (lambda: gf.new_ref([1.0]), r"\[new_ref\] the value must be an array or a number"),
        (lambda: gf.freeze(1.0), r"\[freeze\] the first argument must be a Ref"),
        (lambda: gf.ref.get(jnp.ones(2)), r"\[get\] the first argument must be a Ref"),
        (lambda: ref.__setitem__(..., ref), r"\[set\] the value must be an array; got a Ref"),
        (lambda: gf.grad(lambda r: r[0])(ref), r"\[grad of <lambda>\] arguments must be arrays"),
        (lambda: gf.jit(lambda r, s: r[0])(ref, "s"), r"\[jit\] arguments of <lambda>.* 's'"),
    ]
    for call, message in cases:
        with pytest.raises(TypeError, match=message):
            call()
    with pytest.raises(NotImplementedError, match=r"\[at\] \.at must be used on an array"):
        ref.at[0]
    with pytest.raises(NotImplementedError, match=r"\[new_ref\] memory_space must be None"):
        gf.new_ref(1.0, memory_space="vmem")


def test_refs_are_not_returned_or_carried():
    ref = gf.new_ref(jnp.zeros(3))
    cases = [
        lambda: gf.jit(lambda r: r)(ref),
        lambda: gf.jit(lambda: {"a": ref})(),
        lambda: gf.jit(lambda: gf.new_ref(1.0))(),
        lambda: gf.vmap(lambda x: ref)(jnp.ones(2)),
        lambda: gf.checkpoint(lambda: ref)(),
        lambda: lax.scan(lambda c, x: (c, ref), 0, jnp.ones(2)),
        lambda: lax.scan(lambda c, x: (c, x), ref, jnp.ones(2)),
        lambda: lax.fori_loop(0, 2, lambda k, c: c, ref),
        lambda: lax.while_loop(lambda c: False, lambda c: c, ref),
        lambda: lax.cond(True, lambda: ref, lambda: ref),
    ]
    for call in cases:
        with pytest.raises(ValueError, match=r"must be arrays; got Ref\{.*a ref, which cannot be"):
            call()


def test_a_ref_has_one_name():
    ref = gf.new_ref(jnp.zeros(3))
    cases = [
        lambda: gf.jit(lambda a, b: a[0] + b[0])(ref, ref),
        lambda: gf.jit(lambda a: a[0] + ref[0])(ref),
        lambda: gf.checkpoint(lambda a: a[0] + ref[0])(ref),
        lambda: gf.vmap(lambda a, b: a[...] + b[...])(ref, ref),
        lambda: lax.cond(True, lambda a, b: None, lambda a, b: None, ref, ref),
        lambda: lax.scan(lambda c, r: (c, ref[0]), 0, ref),
    ]
    for call in cases:
        with pytest.raises(ValueError, match=r"a ref must be passed once; got Ref\{f32\[3\]\}"):
            call()
    closing = gf.jit(lambda a: a[0] + ref[0])
    closing(gf.new_ref(jnp.zeros(3)))
    with pytest.raises(ValueError, match="closed over as well"):  # also when it is traced already
        closing(ref)


def test_leaked_refs():
    kept = []

    def keep(x, ref):
        kept.extend((gf.new_ref(x), ref))
        return x

    gf.jit(keep)(1.0, gf.new_ref(2.0))
    gf.grad(lambda x: keep(x, None))(1.0)
    for ref in (kept[0], kept[1], kept[2]):
        with pytest.raises(UnexpectedTracerError, match=r"\[ref\] a ref must be used in the trans"):
            ref[...]
        with pytest.raises(UnexpectedTracerError, match=r"leaked Ref\{f32\[\]\}"):
            gf.jit(lambda ref=ref: ref[...])()
        assert repr(ref) == "<Ref{f32[]} of a traced function>"


def test_freezing_belongs_to_the_maker():
    ref = gf.new_ref(jnp.zeros(3))
    inner = gf.jit(lambda r: gf.jit(lambda: gf.freeze(r))())
    for f in (gf.jit(gf.freeze), gf.vmap(gf.freeze), inner):
        with pytest.raises(ValueError, match=r"\[freeze\] a ref must be frozen by the function"):
            f(ref)
    same(ref, [0, 0, 0])


def test_conditions_do_not_write():
    ref = gf.new_ref(0)

    def condition(k):
        ref[...] += 1
        return k < 3

    with pytest.raises(ValueError, match=r"\[while_loop\] cond_fun must not write refs; got .*i32"):
        lax.while_loop(condition, lambda k: k + 1, 0)


def test_what_does_not_carry_refs_says_so():
    ref = gf.new_ref(jnp.ones(1))

    with pytest.raises(NotImplementedError, match=r"\[ref\] .* must not use refs of outside"):
        gf.linear_transpose(lambda x: ref[0] * x, 1.0)


def test_devices_share_a_ref_of_outside():
    ref = gf.new_ref(1.0)

    def f(x):
        ref[...] += 1.0
        return x * ref[...]

    mesh = gf.make_mesh((1,), ("a",))
    mapped = gf.shard_map(f, mesh=mesh, in_specs=gf.P("a"), out_specs=gf.P("a"))
    assert float(mapped(jnp.ones(1))[0]) == 2.0
    assert float(gf.jit(mapped)(jnp.ones(1))[0]) == 3.0
    assert float(gf.pmap(f)(jnp.ones(1))[0]) == 4.0 == float(ref[...])
