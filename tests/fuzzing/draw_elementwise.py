"""Draws of elementwise steps, conversions and reductions."""

from __future__ import annotations

from math import inf, prod

from fuzzing.maker import Maker
from fuzzing.programs import FLOATS, INTEGERS, UNSIGNED

SMOOTH_UNARY = ("sin", "cos", "tanh", "logistic", "erf", "atan", "square")


def unary(m: Maker) -> None:
    k = m.find(lambda t: t.is_float)
    if k is None:
        return
    t = m.types[k]
    ops = {
        "sin": 1,
        "cos": 1,
        "tanh": 1,
        "logistic": 1,
        "erf": 1,
        "atan": 2,
        "square": t.bound**2,
        "sqrt": max(t.bound, 1),
        "cbrt": max(t.bound, 1),
        "log1p": inf,
        "rsqrt": inf,
        "log": inf,
        "exp": 20 if t.bound < 3 else inf,
        "expm1": 20 if t.bound < 3 else inf,
    }
    op = m.pick(SMOOTH_UNARY if m.options.smooth else sorted(ops))
    m.add(op, [k], t.shape, t.dtype, False, ops[op])


def exact_unary(m: Maker) -> None:
    k = m.find(lambda t: t.dtype not in ("bool", "complex64"))
    if k is None:
        return
    t = m.types[k]
    ops = ["neg"] if m.options.smooth and t.is_float else ["neg", "abs", "clamp"]
    if t.is_float and t.exact:
        ops += ["floor", "ceil", "round", "sign"]
    op = m.pick(ops if t.dtype not in UNSIGNED else ["neg"])
    m.add(op, [k], t.shape, t.dtype, True, t.bound + 1)


def number(m: Maker) -> None:
    k = m.find(lambda t: t.dtype != "bool")
    if k is None:
        return
    t, op = m.types[k], m.pick(["add_number", "mul_number"])
    value = m.pick([0, 1, 2, 3, -1] if t.is_integer else [0.0, 1.0, 0.5, 2.0, -1.5, 0.1])
    value = abs(value) if t.dtype in UNSIGNED else value
    m.add(op, [k], t.shape, t.dtype, t.is_integer, 2 * t.bound + 2, value=value)


def binary(m: Maker) -> None:
    k = m.find(lambda t: t.dtype != "bool")
    if k is None:
        return
    other, t = m.partner(k), m.types[k]
    u = m.types[other]
    ops = {"add": t.bound + u.bound, "sub": t.bound + u.bound, "mul": t.bound * u.bound}
    exact = t.is_integer
    if not t.is_complex and (exact or not m.options.smooth):
        ops |= {"max": max(t.bound, u.bound), "min": max(t.bound, u.bound), "div": inf}
    if t.is_integer:
        ops |= {"rem": 9, "bitwise_and": 9, "bitwise_xor": 9}
    elif t.is_float and not m.options.smooth:
        ops |= {"atan2": 4}
    op = m.pick(sorted(ops))
    m.add(op, [k, other], t.shape, t.dtype, exact or op in ("max", "min"), ops[op])


def logic(m: Maker) -> None:
    k = m.find(lambda t: t.dtype == "bool")
    if k is not None:
        op = m.pick(["bitwise_and", "bitwise_or", "bitwise_xor"])
        m.add(op, [k, m.partner(k)], m.types[k].shape, "bool", True)


def compare(m: Maker) -> None:
    k = m.find(lambda t: t.exact and not t.is_complex)
    if k is None:
        return
    other = m.partner(k)
    if m.types[other].exact:
        op = m.pick(["eq", "ne", "lt", "le", "gt", "ge"])
        m.add(op, [k, other], m.types[k].shape, "bool", True)


def select(m: Maker) -> None:
    p = m.find(lambda t: t.dtype == "bool")
    if p is None:
        return
    shape = m.types[p].shape
    k = m.find(lambda t: t.shape == shape or not shape)
    if k is None:
        return
    t = m.types[k]
    other = m.find(lambda u: u.shape == t.shape and u.dtype == t.dtype)
    assert other is not None
    bound = max(t.bound, m.types[other].bound)
    m.add("select", [p, k, other], t.shape, t.dtype, True, bound)


def convert(m: Maker) -> None:
    smooth = m.options.smooth
    k = m.find(lambda t: not t.is_complex and (t.exact or not smooth))
    if k is None:
        return
    t = m.types[k]
    targets = ["float64"] if smooth else [*FLOATS, "float32"]
    targets += [*INTEGERS, "bool"] if t.exact else []
    dtype = m.pick(targets)
    bound = 4e9 if t.is_integer else t.bound
    m.add("convert", [k], t.shape, dtype, True, bound, dtype=dtype)


def complex_parts(m: Maker) -> None:
    k = m.find(lambda t: t.is_complex)
    if k is not None:
        t, op = m.types[k], m.pick(["real", "imag", "abs", "conj", "neg"])
        dtype = "complex64" if op in ("conj", "neg") else "float32"
        m.add(op, [k], t.shape, dtype, op != "abs", 2 * t.bound)


# --- reductions ----------------------------------------------------------------------------


def reduce(m: Maker) -> None:
    k = m.find()
    assert k is not None
    t = m.types[k]
    axes = m.axes(len(t.shape))
    count = prod(t.shape[d] for d in axes)
    is_bits = t.is_integer or t.dtype == "bool"
    smooth = m.options.smooth and not is_bits
    ops = ["reduce_and", "reduce_or", "reduce_xor"] if is_bits else []
    if t.dtype != "bool":
        ops += ["reduce_sum", "reduce_sum"]
        ops += ["reduce_max", "reduce_min"] if not t.is_complex and not smooth else []
        ops += ["reduce_prod"] if count <= 9 and t.is_float else []
    op = m.pick(ops)
    bound = {"reduce_sum": t.bound * max(count, 1), "reduce_prod": inf}
    exact = op not in bound or t.is_integer
    shape = [size for d, size in enumerate(t.shape) if d not in axes]
    reduced = m.add(op, [k], shape, t.dtype, exact, bound.get(op, t.bound), axes=axes)
    if axes and m.chance():
        _use_reduced(m, k, reduced, axes)


def _use_reduced(m: Maker, k: int, made: int, axes: list[int]) -> None:
    """Keep the dimensions, or subtract a reduction from what was reduced."""
    t, u = m.types[k], m.types[made]
    if m.chance():
        shape = [1 if d in axes else size for d, size in enumerate(t.shape)]
        m.add("reshape", [made], shape, u.dtype, True, u.bound, new_sizes=shape)
        return
    full = m.add("spread", [made], t.shape, u.dtype, True, u.bound, axes=axes, shape=t.shape)
    if t.dtype != "bool":
        op = m.pick(["sub", "mul"])
        bound = t.bound * u.bound + t.bound + u.bound
        m.add(op, [k, full], t.shape, t.dtype, t.is_integer, bound)


def position(m: Maker) -> None:
    k = m.find(lambda t: t.exact and (t.is_float or t.is_integer) and 0 not in t.shape)
    if k is None or not m.types[k].shape:
        return
    t = m.types[k]
    axis = m.pick(range(len(t.shape)))
    shape = [size for d, size in enumerate(t.shape) if d != axis]
    m.add(m.pick(["argmax", "argmin"]), [k], shape, "int32", True, 1.0, axis=axis)


def cumulate(m: Maker) -> None:
    k = m.find(lambda t: bool(t.shape) and t.dtype != "bool")
    if k is None:
        return
    t = m.types[k]
    axis = m.pick(range(len(t.shape)))
    size = max(t.shape[axis], 1)
    ops = {"cumsum": t.bound * size}
    if not t.is_complex and (t.is_integer or not m.options.smooth):
        ops |= {"cummax": t.bound, "cummin": t.bound}
    if size <= 9:
        ops["cumprod"] = inf
    if t.is_float:
        ops["cumlogsumexp"] = t.bound + size
    op = m.pick(sorted(ops))
    exact = t.is_integer or op in ("cummax", "cummin")
    more = {"kind": op} if op in ("cumsum", "cumprod", "cummax") and m.chance() else {}
    name = "associative_scan" if more else op
    m.add(name, [k], t.shape, t.dtype, exact, ops[op], axis=axis, reverse=m.chance(), **more)


DRAWS = (
    *(unary, binary, reduce) * 3,
    exact_unary,
    number,
    number,
    logic,
    compare,
    select,
    convert,
    complex_parts,
    position,
    cumulate,
)
