"""Steps that move numbers: layout, slices, gathers, scatters."""

from __future__ import annotations

from awkward.values import size
from awkward.writer import BITS, EXACT, Writer

GATHER_MODES = ("fill", "clip", "drop", None)
SCATTER_MODES = ("drop", "clip", "fill", None)


def _shaped(w: Writer, least: int = 1):
    return w.find(lambda v: v.rank >= least)


# --- layout --------------------------------------------------------------------------------


def reshape(w: Writer) -> None:
    v = w.find()
    shapes = [(v.size,), (1, v.size), (v.size, 1)]
    for d in (2, 3, 4, 8):
        if v.size and v.size % d == 0:
            shapes += [(d, v.size // d), (v.size // d, 1, d)]
    shape = w.pick(shapes)
    order = ", order='F'" if w.chance(0.3) else ""
    w.add(f"jnp.reshape({v.name}, {shape}{order})", shape, v.dtype, v.grade)


def transpose(w: Writer) -> None:
    v = w.find()
    order = list(range(v.rank))
    w.rng.shuffle(order)
    shape = [v.shape[d] for d in order]
    w.add(f"jnp.transpose({v.name}, {tuple(order)})", shape, v.dtype, v.grade)


def flip(w: Writer) -> None:
    v = _shaped(w)
    if v is not None:
        _, axis = w.axis(v.rank)
        w.add(f"jnp.flip({v.name}, {axis})", v.shape, v.dtype, v.grade)


def roll(w: Writer) -> None:
    v = _shaped(w)
    if v is None:
        return
    _, axis = w.axis(v.rank)
    shift = w.pick([0, 1, -1, 3, -7, 100, -1000])
    axis = w.pick([axis, None])
    w.add(f"jnp.roll({v.name}, {shift}, axis={axis})", v.shape, v.dtype, v.grade)


def broadcast(w: Writer) -> None:
    v = w.find(lambda v: v.rank < 5)
    if v is None:
        return
    lead = w.pick([(), (2,), (0,), (3, 1), (1,)])
    shape = (*lead, *[w.pick([n, 3]) if n == 1 else n for n in v.shape])
    w.add(f"jnp.broadcast_to({v.name}, {shape})", shape, v.dtype, v.grade)


def expand(w: Writer) -> None:
    v = w.find(lambda v: v.rank < 7)
    if v is not None:
        d, axis = w.axis(v.rank + 1)
        shape = (*v.shape[:d], 1, *v.shape[d:])
        w.add(f"jnp.expand_dims({v.name}, {axis})", shape, v.dtype, v.grade)


def squeeze(w: Writer) -> None:
    v = w.find(lambda v: 1 in v.shape)
    if v is not None:
        d = w.pick([k for k, n in enumerate(v.shape) if n == 1])
        shape = (*v.shape[:d], *v.shape[d + 1 :])
        axis = w.pick([d, d - v.rank])
        form = w.pick(["jnp.squeeze({}, {})", "lax.squeeze({}, ({},))"])
        w.add(form.format(v.name, axis), shape, v.dtype, v.grade)


def repeat(w: Writer) -> None:
    v = _shaped(w)
    if v is None:
        return
    d, axis = w.axis(v.rank)
    n = w.pick([0, 1, 2, 3])
    shape = (*v.shape[:d], v.shape[d] * n, *v.shape[d + 1 :])
    w.add(f"jnp.repeat({v.name}, {n}, axis={axis})", shape, v.dtype, v.grade)


def tile(w: Writer) -> None:
    v = w.find(lambda v: v.rank < 4)
    if v is None:
        return
    reps = tuple(w.pick([1, 2, 3, 0]) for _ in range(v.rank + w.pick([0, 1])))
    full = (1,) * (len(reps) - v.rank) + v.shape
    shape = [n * r for n, r in zip(full, reps)]
    w.add(f"jnp.tile({v.name}, {reps})", shape, v.dtype, v.grade)


def concatenate(w: Writer) -> None:
    v = _shaped(w)
    if v is None:
        return
    d, axis = w.axis(v.rank)
    rest = [
        u
        for u in w.values
        if u.dtype == v.dtype
        and u.rank == v.rank
        and u.shape[:d] + u.shape[d + 1 :] == v.shape[:d] + v.shape[d + 1 :]
    ]
    parts = [v, *[w.pick(rest) for _ in range(w.pick([1, 2, 3]))]]
    shape = (*v.shape[:d], sum(u.shape[d] for u in parts), *v.shape[d + 1 :])
    names = ", ".join(u.name for u in parts)
    grade = min(u.grade for u in parts)
    w.add(f"jnp.concatenate([{names}], axis={axis})", shape, v.dtype, grade)


def stack(w: Writer) -> None:
    v = w.find(lambda v: v.rank < 7)
    if v is None:
        return
    d, axis = w.axis(v.rank + 1)
    rest = [u for u in w.values if (u.dtype, u.shape) == (v.dtype, v.shape)]
    parts = [v, *[w.pick(rest) for _ in range(w.pick([0, 1, 2]))]]
    shape = (*v.shape[:d], len(parts), *v.shape[d:])
    names = ", ".join(u.name for u in parts)
    grade = min(u.grade for u in parts)
    w.add(f"jnp.stack([{names}], axis={axis})", shape, v.dtype, grade)


PAD_MODES = ("edge", "reflect", "symmetric", "wrap", "constant")


def pad(w: Writer) -> None:
    v = w.find(lambda v: 0 < v.rank < 5)
    if v is None:
        return
    mode = w.pick(PAD_MODES if 0 not in v.shape else ("constant",))
    widths = [(w.pick([0, 1, 2, 5]), w.pick([0, 0, 1, 3])) for _ in v.shape]
    shape = [n + a + b for n, (a, b) in zip(v.shape, widths)]
    w.add(f"jnp.pad({v.name}, {widths}, mode={mode!r})", shape, v.dtype, v.grade)


def lax_pad(w: Writer) -> None:
    v = w.find(lambda v: 0 < v.rank < 5)
    if v is None:
        return
    config, shape = [], []
    for n in v.shape:
        low, high, inside = w.pick([-2, -1, 0, 1, 3]), w.pick([-1, 0, 2]), w.pick([0, 0, 1, 2])
        full = n + max(n - 1, 0) * inside
        if full + low + high < 0 or min(low, 0) + min(high, 0) + full < 0:
            low = high = 0
        config.append((low, high, inside))
        shape.append(full + low + high)
    w.add(f"lax.pad({v.name}, jnp.array(1, {v.dtype!r}), {config})", shape, v.dtype, v.grade)


def triangle(w: Writer) -> None:
    v = _shaped(w, 2)
    if v is not None:
        call = w.pick(["tril", "triu"])
        w.add(f"jnp.{call}({v.name}, {w.pick([0, 1, -1, 5, -9])})", v.shape, v.dtype, v.grade)


def rot90(w: Writer) -> None:
    v = _shaped(w, 2)
    if v is not None:
        turns = w.pick([1, 2, 3, -1, 4])
        shape = list(v.shape)
        if turns % 2:
            shape[-2], shape[-1] = shape[-1], shape[-2]
        w.add(f"jnp.rot90({v.name}, {turns}, axes=(-2, -1))", shape, v.dtype, v.grade)


# Of equal width.
PARTNERS = {
    "float32": ("int32", "uint32"),
    "int32": ("float32", "uint32"),
    "uint32": ("int32",),
    "float16": ("int16", "bfloat16"),
    "bfloat16": ("uint16",),
    "int16": ("uint16", "float16"),
    "uint16": ("int16", "bfloat16"),
    "int8": ("uint8",),
    "uint8": ("int8",),
}


def bitcast(w: Writer) -> None:
    v = w.find(lambda v: v.grade == BITS and v.dtype in PARTNERS)
    if v is not None:
        dtype = w.pick(PARTNERS[v.dtype])
        form = w.pick(["lax.bitcast_convert_type({}, {!r})", "{}.view({!r})"])
        if v.rank == 0:
            form = "lax.bitcast_convert_type({}, {!r})"
        w.add(form.format(v.name, dtype), v.shape, dtype, BITS)


# --- slices --------------------------------------------------------------------------------


def basic_index(w: Writer) -> None:
    v = w.find()
    entries, shape = [], []
    for n in v.shape:
        choice = w.pick(["all", "slice", "slice", "int", "none", "reverse"])
        if choice == "none" and v.rank < 7:
            entries.append("None")
            shape.append(1)
        if choice == "int" and n:
            entries.append(str(w.rng.randrange(-n, n)))
            continue
        bounds = {
            "all": slice(None),
            "none": slice(None),
            "int": slice(None),
            "reverse": slice(None, None, -1),
        }.get(choice)
        if bounds is None:
            ends = [None, 0, 1, -1, 2, n // 2, n, n + 3, -n - 2]
            bounds = slice(w.pick(ends), w.pick(ends), w.pick([None, 1, 2, 3, -1, -2]))
        parts = ["" if p is None else str(p) for p in (bounds.start, bounds.stop, bounds.step)]
        entries.append(":".join(parts))
        shape.append(len(range(*bounds.indices(n))))
    if w.chance(0.3):
        entries.append("...")
    if entries:
        w.add(f"{v.name}[{', '.join(entries)}]", shape, v.dtype, v.grade)


def dynamic_slice(w: Writer) -> None:
    v = _shaped(w)
    if v is None:
        return
    sizes = tuple(w.rng.randint(0, n) for n in v.shape)
    starts = ", ".join(f"jnp.int32({w.rng.randint(-n - 2, n + 2)})" for n in v.shape)
    w.add(f"lax.dynamic_slice({v.name}, ({starts},), {sizes})", sizes, v.dtype, v.grade)


def dynamic_update(w: Writer) -> None:
    v = _shaped(w)
    if v is None:
        return
    sizes = tuple(w.rng.randint(0, n) for n in v.shape)
    starts = ", ".join(f"jnp.int32({w.rng.randint(-n - 2, n + 2)})" for n in v.shape)
    source = w.find(lambda u: u.grade == BITS or u.grade == EXACT)
    if source is None:
        return
    update = w.fitted(source, sizes, v.dtype)
    w.add(
        f"lax.dynamic_update_slice({v.name}, {update}, ({starts},))",
        v.shape,
        v.dtype,
        min(v.grade, EXACT),
    )


# --- gathers and scatters ------------------------------------------------------------------


def _index(w: Writer, n: int, beyond: bool, shape: tuple[int, ...]) -> str:
    dtype = w.pick(["int32", "int32", "int8", "uint8", "int16", "uint32"])
    low, high = (-n - 3, n + 3) if beyond else (-n, n - 1)
    return w.integers(low, high, shape, dtype)


def gather(w: Writer) -> None:
    v = _shaped(w)
    if v is None:
        return
    d, _ = w.axis(v.rank)
    n = v.shape[d]
    shape = w.pick([(3,), (0,), (2, 2), (9,), (1,)])
    mode = w.pick(GATHER_MODES)
    if n == 0:
        return  # refused
    index = _index(w, n, True, shape)
    before = ":, " * d
    result = (*v.shape[:d], *shape, *v.shape[d + 1 :])
    options = "" if mode is None else f"mode={mode!r}"
    if mode in ("fill", None) and w.chance() and v.dtype != "bool":
        options = f"mode='fill', fill_value={w.pick([0, 1, 7])}"
    w.add(f"{v.name}.at[{before}{index}].get({options})", result, v.dtype, min(v.grade, EXACT))


def two_indices(w: Writer) -> None:
    """Two index arrays, side by side or apart, which broadcast."""
    v = _shaped(w, 2)
    if v is None or 0 in v.shape:
        return
    first, second = sorted(w.rng.sample(range(v.rank), 2))
    a = _index(w, v.shape[first], True, (2, 1))
    b = _index(w, v.shape[second], True, (3,))
    entries = [":"] * v.rank
    entries[first], entries[second] = a, b
    rest = [n for d, n in enumerate(v.shape) if d not in (first, second)]
    at = first if second == first + 1 else 0
    shape = [*rest[:at], 2, 3, *rest[at:]]
    w.add(f"{v.name}[{', '.join(entries)}]", shape, v.dtype, min(v.grade, EXACT))


def take(w: Writer) -> None:
    v = _shaped(w)
    if v is None:
        return
    d, axis = w.axis(v.rank)
    if v.shape[d] == 0:
        return
    shape = w.pick([(), (4,), (2, 3), (0,)])
    mode = w.pick(["clip", "wrap", "fill", None])
    index = _index(w, v.shape[d], True, shape) if shape else f"jnp.int32({w.rng.randint(-3, 9)})"
    result = (*v.shape[:d], *shape, *v.shape[d + 1 :])
    options = "" if mode is None else f", mode={mode!r}"
    text = f"jnp.take({v.name}, {index}, axis={axis}{options})"
    w.add(text, result, v.dtype, min(v.grade, EXACT))


def take_along(w: Writer) -> None:
    v = w.find(lambda v: 0 < v.rank < 4 and 0 not in v.shape and v.size <= 200)
    if v is None:
        return
    d, axis = w.axis(v.rank)
    shape = (*v.shape[:d], w.pick([1, 2, 5]), *v.shape[d + 1 :])
    if size(shape) > 300:
        return
    index = _index(w, v.shape[d], True, shape)
    mode = w.pick(["", ", mode='fill'", ", mode='clip'"])
    text = f"jnp.take_along_axis({v.name}, {index}, axis={axis}{mode})"
    w.add(text, shape, v.dtype, min(v.grade, EXACT))


def masked(w: Writer) -> None:
    """Elements that a mask marks, in a shape that is known beforehand."""
    v = w.find(lambda v: v.rank == 1 and v.grade > 1 and v.dtype != "complex64")
    if v is not None and v.size:  # else JAX fills with 0, whatever fill_value says
        count = w.pick([0, 1, 4])
        index = f"jnp.nonzero({v.name} > jnp.array(0, {v.dtype!r}), size={count}, fill_value=-1)[0]"
        w.add(index, (count,), "int32", EXACT)


# What repeated indices do not change, so that their order is nobody's business.
UPDATES = ("set", "add", "mul", "min", "max")


def scatter(w: Writer) -> None:
    v = w.find(lambda v: v.rank and v.grade > 1)
    if v is None:
        return
    d, _ = w.axis(v.rank)
    n = v.shape[d]
    update = w.pick(UPDATES)
    if v.dtype in ("bool", "complex64"):
        update = "set"
    mode = w.pick(SCATTER_MODES)
    if n == 0 and mode == "clip":
        return
    before = ":, " * d
    if v.is_integer and update != "set":  # in any order the same
        shape = w.pick([(3,), (0,), (2, 2), (9,)])
        index = _index(w, n, True, shape)
    else:
        count = w.rng.randint(0, min(n, 6))
        chosen = w.rng.sample(range(n), count)
        if chosen and mode != "clip":
            chosen[0] = w.pick([chosen[0], n + 2])
        elif chosen:
            chosen[0] = w.pick([chosen[0], chosen[0] - n])
        shape, index = (count,), f"jnp.array({chosen}, dtype='int32')"
    result = (*v.shape[:d], *shape, *v.shape[d + 1 :])
    source = w.find(lambda u: u.grade > 1)
    numbers = w.pick([w.fitted(source, result, v.dtype), f"jnp.array(3, {v.dtype!r})"])
    if size(result) > 2000:
        return
    if v.dtype in ("float16", "bfloat16", "float32") and update == "mul":
        numbers = f"jnp.array(2, {v.dtype!r})"
    options = "" if mode is None else f", mode={mode!r}"
    text = f"{v.name}.at[{before}{index}].{update}({numbers}{options})"
    w.add(text, v.shape, v.dtype, EXACT)


def scatter_slice(w: Writer) -> None:
    v = w.find(lambda v: v.rank and v.grade > 1)
    if v is None:
        return
    entry = w.pick(["::2", "::-1", "1:", ":-1", "5:2", "::-3", "-2:"])
    number = f"jnp.array(2, {v.dtype!r})"
    w.add(f"{v.name}.at[{entry}].set({number})", v.shape, v.dtype, EXACT)


DRAWS = (
    reshape, transpose, flip, roll, broadcast, expand, squeeze, repeat, tile, concatenate,
    concatenate, stack, pad, lax_pad, triangle, rot90, bitcast, basic_index, basic_index,
    dynamic_slice, dynamic_update, gather, gather, two_indices, take, take_along, masked, scatter,
    scatter, scatter_slice,
)  # fmt: skip
