"""Steps that hold blocks: branches, loops, mapped functions, refs and derivatives of moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from awkward import moves
from awkward.writer import BITS, EXACT, ROUGH, Value, Writer

Draws = Callable[[int], Sequence[Callable[[Writer], None]]]


def _small(v: Value) -> bool:
    return v.size <= 400 and v.rank <= 6 and v.grade > ROUGH


def _fill(block: Writer, draws: Draws, steps: int = 4) -> None:
    choices = draws(block.depth)
    for _ in range(block.rng.randint(2, steps)):
        block.pick(choices)(block)


def _body(w: Writer, shown: Sequence[Value], parameters: Sequence[Value], draws: Draws) -> Writer:
    block = w.inner([*shown, *parameters])
    _fill(block, draws)
    return block


def _carry(block: Writer, like: Value, fallback: Value) -> str:
    """The text of one of the block's last values, with the type of a carry."""
    last = [v for v in block.values[-3:] if v.grade > ROUGH]
    return block.fitted(block.pick(last) if last else fallback, like.shape, like.dtype)


def _parameter(w: Writer, v: Value, grade: int = EXACT) -> Value:
    return Value(w.name("p"), v.shape, v.dtype, min(v.grade, grade))


def cond(w: Writer, draws: Draws) -> None:
    v = w.find(_small)
    shown = [u for u in w.values if _small(u)][-3:]
    if v is None:
        return
    names = [w.name("branch") for _ in range(w.pick([2, 2, 3]))]
    for name in names:
        parameter = _parameter(w, v)
        block = _body(w, shown, [parameter], draws)
        w.define(name, [parameter.name], block, _carry(block, v, parameter))
    decided = w.find(lambda u: u.grade > ROUGH and u.dtype == "int32" and u.size > 0)
    if len(names) == 3:
        which = w.rng.randint(-2, 5) if decided is None else f"{decided.name}.ravel()[0]"
        branches = ", ".join(names)
        w.add(f"lax.switch({which}, [{branches}], {v.name})", v.shape, v.dtype, EXACT)
        return
    which = w.pick(["True", "False"]) if decided is None else f"{decided.name}.sum() % 2 == 0"
    text = f"lax.cond({which}, {names[0]}, {names[1]}, {v.name})"
    w.add(text, v.shape, v.dtype, EXACT)


def fori(w: Writer, draws: Draws) -> None:
    v = w.find(_small)
    shown = [u for u in w.values if _small(u)][-2:]
    if v is None:
        return
    number, carry = Value(w.name("i"), (), "int32", EXACT), _parameter(w, v)
    block = _body(w, shown, [number, carry], draws)
    name = w.name("body")
    w.define(name, [number.name, carry.name], block, _carry(block, v, carry))
    bounds = w.pick(["0, 3", "-1, 1", "2, 2", "3, 1", "0, jnp.int32(2)", "jnp.int32(4), 1"])
    w.add(f"lax.fori_loop({bounds}, {name}, {v.name})", v.shape, v.dtype, EXACT)


def while_loop(w: Writer, draws: Draws) -> None:
    v = w.find(_small)
    if v is None:
        return
    number, carry = Value(w.name("i"), (), "int32", EXACT), _parameter(w, v)
    block = _body(w, [], [number, carry], draws)
    name = w.name("body")
    pair = w.name("pair")
    returned = f"({number.name} + 1, {_carry(block, v, carry)})"
    block.lines.insert(0, "    " * block.indent + f"{number.name}, {carry.name} = {pair}")
    w.define(name, [pair], block, returned)
    trips = w.pick([0, 1, 3])
    start = w.pick(["0", "jnp.int32(-1)"])
    first = f"(jnp.asarray({start}, 'int32'), {v.name})"
    text = f"lax.while_loop(lambda s: s[0] < {trips}, {name}, {first})[1]"
    w.add(text, v.shape, v.dtype, EXACT)


def scan(w: Writer, draws: Draws) -> None:
    v = w.find(_small)
    xs = w.find(lambda u: _small(u) and u.rank > 0 and 0 < u.shape[0] <= 9)
    if v is None or xs is None:
        return
    carry = _parameter(w, v)
    row = Value(w.name("row"), xs.shape[1:], xs.dtype, min(xs.grade, EXACT))
    block = _body(w, [u for u in w.values if _small(u)][-1:], [carry, row], draws)
    last = block.values[-1]
    name = w.name("body")
    w.define(name, [carry.name, row.name], block, f"({_carry(block, v, carry)}, {last.name})")
    options = w.pick(["", ", reverse=True", ", unroll=2", ", unroll=True"])
    result = w.name("r")
    w.line(f"{result} = lax.scan({name}, {v.name}, {xs.name}{options})")
    w.add(f"{result}[0]", v.shape, v.dtype, EXACT)
    w.add(f"{result}[1]", (xs.shape[0], *last.shape), last.dtype, min(last.grade, EXACT))


def vmap(w: Writer, draws: Draws) -> None:
    v = w.find(lambda u: _small(u) and u.rank > 0 and min(u.shape) > 0 and max(u.shape) <= 40)
    if v is None:
        return
    d, axis = w.axis(v.rank)
    row = Value(w.name("row"), (*v.shape[:d], *v.shape[d + 1 :]), v.dtype, v.grade)
    block = _body(w, [u for u in w.values if _small(u)][-1:], [row], draws)
    last = block.values[-1]
    name = w.name("mapped")
    w.define(name, [row.name], block, last.name)
    at = w.rng.randint(0, last.rank)
    shape = (*last.shape[:at], v.shape[d], *last.shape[at:])
    text = f"jax.vmap({name}, in_axes={axis}, out_axes={at})({v.name})"
    w.add(text, shape, last.dtype, min(last.grade, EXACT))


def wrapped(w: Writer, draws: Draws) -> None:
    v = w.find(_small)
    if v is None:
        return
    parameter = _parameter(w, v)
    block = _body(w, [u for u in w.values if _small(u)][-2:], [parameter], draws)
    last = block.values[-1]
    name = w.name("inner")
    w.define(name, [parameter.name], block, last.name)
    wrapper = w.pick(["jax.jit", "jax.checkpoint", "jax.named_call", "jax.jit"])
    w.add(f"{wrapper}({name})({v.name})", last.shape, last.dtype, min(last.grade, EXACT))


def reference(w: Writer, draws: Draws) -> None:
    """An array that changes in place."""
    v = w.find(lambda u: _small(u) and u.rank > 0 and u.dtype != "complex64")
    if v is None:
        return
    name = w.name("ref")
    w.line(f"{name} = jax.new_ref({v.name})")
    for _ in range(w.pick([1, 2, 3])):
        n = v.shape[0]
        entry = w.pick(["...", ":", *([str(w.rng.randrange(n)), "0:1"] if n else [])])
        number = f"jnp.array(1, {v.dtype!r})"
        if entry == "...":
            w.line(f"{name}[...] = jnp.flip({name}[...])")
        else:
            change = f"{name}[{entry}]"
            w.line(f"{change} = jnp.full_like({change}, {number})")
    w.add(f"{name}[...]", v.shape, v.dtype, EXACT)
    del draws


def derivative(w: Writer, draws: Draws) -> None:
    """Cotangents of moves: small integers that come together without rounding."""
    v = w.find(lambda u: u.dtype == "float32" and 0 < u.size <= 400 and u.rank > 0 and _small(u))
    if v is None:
        return
    parameter = Value(w.name("p"), v.shape, v.dtype, BITS)
    block = w.inner([parameter])
    for _ in range(w.pick([1, 1, 2, 3])):
        w.pick(DIFFERENTIABLE)(block)
    last = block.values[-1]
    if last.dtype != "float32":
        return
    name = w.name("moved")
    w.define(name, [parameter.name], block, last.name)
    ct = w.integers(-3, 3, last.shape, "int8") + ".astype('float32')"
    ways = {
        "jax.vjp({0}, {1})[1]({2})[0]": v,
        "jax.jvp({0}, ({1},), (jnp.ones_like({1}),))[1]": last,
        "jax.grad(lambda x: jnp.vdot({2}, {0}(x)))({1})": v,
    }
    form = w.pick(ways)
    like = ways[form]
    # Beside nan and infinity a product with 0 is nan in one way and not in another.
    finite = f"jnp.nan_to_num({v.name}, posinf=1, neginf=2)"
    w.add(form.format(name, finite, ct), like.shape, "float32", EXACT)
    del draws


DIFFERENTIABLE = (
    moves.reshape, moves.transpose, moves.flip, moves.roll, moves.broadcast, moves.repeat,
    moves.tile, moves.stack, moves.concatenate, moves.pad, moves.lax_pad, moves.triangle,
    moves.basic_index, moves.basic_index, moves.dynamic_slice, moves.gather, moves.gather,
    moves.two_indices, moves.take, moves.take_along, moves.scatter_slice,
)  # fmt: skip

DRAWS = (
    cond,
    cond,
    fori,
    while_loop,
    scan,
    scan,
    vmap,
    vmap,
    wrapped,
    reference,
    derivative,
    derivative,
)
