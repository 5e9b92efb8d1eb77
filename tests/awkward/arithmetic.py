"""Steps that compute: one operation on numbers that are known to the bit, reductions, sorts."""

from __future__ import annotations

from awkward.values import DTYPES
from awkward.writer import EXACT, ROUGH, Value, Writer


def _known(w: Writer, accepts=lambda v: True) -> Value | None:
    return w.find(lambda v: v.grade > ROUGH and accepts(v))


def _with_axis(w: Writer, accepts=lambda v: True, empty: bool = True):
    """A value with a dimension, what remains without it, and the text of the axis."""
    v = _known(w, lambda v: v.rank > 0 and accepts(v))
    if v is None:
        return None
    d, axis = w.axis(v.rank)
    if v.shape[d] == 0 and not empty:
        return None
    return v, d, axis, (*v.shape[:d], *v.shape[d + 1 :])


# --- elementwise ---------------------------------------------------------------------------

EXACT_UNARY = ("floor", "ceil", "trunc", "rint", "negative", "abs", "square", "sqrt", "positive")
ROUGH_UNARY = ("exp", "log", "sin", "cos", "tanh", "log1p", "expm1", "arctan", "cbrt", "exp2")


def unary(w: Writer) -> None:
    v = _known(w, lambda v: v.is_float)
    if v is not None:
        w.add(f"jnp.{w.pick(EXACT_UNARY)}({v.name})", v.shape, v.dtype, EXACT)


def rough_unary(w: Writer) -> None:
    v = _known(w, lambda v: v.is_float)
    if v is not None:
        w.add(f"jnp.{w.pick(ROUGH_UNARY)}({v.name})", v.shape, v.dtype, ROUGH)


INTEGER_UNARY = (
    "jnp.invert",
    "jnp.negative",
    "jnp.abs",
    "lax.population_count",
    "lax.clz",
    "jnp.sign",
)


def integer_unary(w: Writer) -> None:
    v = _known(w, lambda v: v.is_integer)
    if v is not None:
        w.add(f"{w.pick(INTEGER_UNARY)}({v.name})", v.shape, v.dtype, EXACT)


def test(w: Writer) -> None:
    v = _known(w, lambda v: v.is_float)
    if v is not None:
        call = w.pick(["isnan", "isinf", "isfinite", "signbit", "isposinf", "isneginf"])
        w.add(f"jnp.{call}({v.name})", v.shape, "bool", EXACT)


def _pair(w: Writer, accepts=lambda v: True):
    """Two values of a dtype whose shapes broadcast, and the common shape."""
    v = _known(w, accepts)
    if v is None:
        return None

    def fits(u: Value) -> bool:
        if u.grade == ROUGH or u.dtype != v.dtype or u.rank > v.rank:
            return False
        tail = v.shape[v.rank - u.rank :]
        return all(a == b or a == 1 for a, b in zip(u.shape, tail))

    u = w.find(fits)
    return (v, u) if w.chance() else (u, v)


def _binary(w: Writer, accepts, forms, dtype: str | None = None) -> None:
    pair = _pair(w, accepts)
    if pair is None:
        return
    a, b = pair
    longer = a.shape if a.rank > b.rank else b.shape
    shorter = b.shape if a.rank > b.rank else a.shape
    shape = list(longer)
    for d in range(1, len(shorter) + 1):
        if longer[-d] == 1:
            shape[-d] = shorter[-d]
    form = w.pick(forms)
    w.add(form.format(a.name, b.name), shape, dtype or a.dtype, EXACT)


FLOAT_BINARY = (
    "{0} + {1}",
    "{0} - {1}",
    "{0} * {1}",
    "{0} / {1}",
    "jnp.copysign({0}, {1})",
    "jnp.maximum({0}, {1})",
    "jnp.minimum({0}, {1})",
    "jnp.fmax({0}, {1})",
    "jnp.nextafter({0}, {1})",
    "jnp.where({0} > {1}, {0}, {1})",
    "jnp.heaviside({0}, {1})",
)
INTEGER_BINARY = (
    "{0} + {1}",
    "{0} - {1}",
    "{0} * {1}",
    "{0} // {1}",
    "{0} % {1}",
    "{0} & {1}",
    "{0} | {1}",
    "{0} ^ {1}",
    "jnp.maximum({0}, {1})",
    "jnp.minimum({0}, {1})",
    "lax.div({0}, {1})",
    "lax.rem({0}, {1})",
    "lax.shift_left({0}, {1})",
    "lax.shift_right_logical({0}, {1})",
    "lax.shift_right_arithmetic({0}, {1})",
)
LAX = "lax."


def float_binary(w: Writer) -> None:
    _binary(w, lambda v: v.is_float, FLOAT_BINARY)


def integer_binary(w: Writer) -> None:
    pair = _pair(w, lambda v: v.is_integer)
    if pair is None:
        return
    form = w.pick(INTEGER_BINARY)
    a, _ = pair
    if LAX in form:  # takes equal shapes only
        w.add(form.format(a.name, a.name), a.shape, a.dtype, EXACT)
        return
    _binary(w, lambda v: v.is_integer, [form])


def compare(w: Writer) -> None:
    forms = ["{0} < {1}", "{0} <= {1}", "{0} == {1}", "{0} != {1}", "{0} > {1}", "{0} >= {1}"]
    _binary(w, lambda v: v.dtype != "complex64", forms, "bool")


def logic(w: Writer) -> None:
    forms = ["{0} & {1}", "{0} | {1}", "{0} ^ {1}", "jnp.logical_and({0}, ~{1})"]
    _binary(w, lambda v: v.dtype == "bool", forms)


def complex_binary(w: Writer) -> None:
    _binary(w, lambda v: v.dtype == "complex64", ["{0} + {1}", "{0} - {1}", "jnp.conj({0}) - {1}"])


def number(w: Writer) -> None:
    """With a number of Python's, which takes the array's dtype."""
    v = _known(w, lambda v: v.is_float or v.is_integer)
    if v is not None:
        form = w.pick(["{} + 1", "2 * {}", "3 - {}", "{} // 2", "{} % 3", "{} > 1"])
        if v.is_float and form in ("{} // 2", "{} % 3"):
            form = "{} / 2"
        dtype = "bool" if ">" in form else v.dtype
        w.add(form.format(v.name), v.shape, dtype, EXACT)


def cast(w: Writer) -> None:
    v = _known(w)
    dtype = w.pick(DTYPES)
    if v.dtype == "complex64" and dtype != "complex64":
        w.add(f"jnp.{w.pick(['real', 'imag'])}({v.name})", v.shape, "float32", EXACT)
        return
    form = w.pick(["{}.astype({!r})", "lax.convert_element_type({}, {!r})"])
    w.add(form.format(v.name, dtype), v.shape, dtype, EXACT)


def select(w: Writer) -> None:
    mask = w.find(lambda v: v.dtype == "bool" and v.grade > ROUGH)
    if mask is None:
        return
    v = w.find(lambda v: v.shape == mask.shape) or mask
    forms = ["jnp.where({0}, {1}, jnp.flip({1}))", "lax.select({0}, {1}, jnp.zeros_like({1}))"]
    form = w.pick(forms)
    w.add(form.format(mask.name, v.name), v.shape, v.dtype, min(v.grade, EXACT))


def clip(w: Writer) -> None:
    v = _known(w, lambda v: v.is_float or v.is_integer)
    if v is not None:
        form = w.pick(
            [
                "jnp.clip({0}, 1, 3)",
                "jnp.clip({0}, None, 2)",
                "lax.clamp(jnp.array(0, {1!r}), {0}, jnp.array(2, {1!r}))",
            ]
        )
        w.add(form.format(v.name, v.dtype), v.shape, v.dtype, EXACT)


# --- reductions, sorts, positions ----------------------------------------------------------


def extreme(w: Writer) -> None:
    operand = _with_axis(w, lambda v: v.is_float or v.is_integer, empty=False)
    if operand is not None:
        v, d, axis, rest = operand
        if w.chance(0.3):
            rest = (*v.shape[:d], 1, *v.shape[d + 1 :])
            axis = f"{axis}, keepdims=True"
        w.add(f"jnp.{w.pick(['max', 'min'])}({v.name}, axis={axis})", rest, v.dtype, EXACT)


def position(w: Writer) -> None:
    operand = _with_axis(w, lambda v: v.dtype != "complex64", empty=False)
    if operand is not None:
        v, _, axis, rest = operand
        w.add(f"jnp.{w.pick(['argmax', 'argmin'])}({v.name}, axis={axis})", rest, "int32", EXACT)


def integer_sum(w: Writer) -> None:
    operand = _with_axis(w, lambda v: v.is_integer)
    if operand is not None:
        v, _, axis, rest = operand
        call = w.pick(["sum", "prod"])
        text = f"jnp.{call}({v.name}, axis={axis}, dtype={v.dtype!r})"
        w.add(text, rest, v.dtype, EXACT)


# Of complex numbers JAX counts some with nan among those that are 0; here they are true, as in
# NumPy and Python.
def _has_truth(v: Value) -> bool:
    return v.dtype != "complex64"


def truth(w: Writer) -> None:
    operand = _with_axis(w, _has_truth)
    if operand is not None:
        v, _, axis, rest = operand
        w.add(f"jnp.{w.pick(['any', 'all'])}({v.name}, axis={axis})", rest, "bool", EXACT)


def count(w: Writer) -> None:
    operand = _with_axis(w, _has_truth)
    if operand is not None:
        v, _, axis, rest = operand
        w.add(f"jnp.count_nonzero({v.name}, axis={axis})", rest, "int32", EXACT)


RUNNING = (
    "jnp.cumsum({0}, axis={1}, dtype={2!r})",
    "lax.cummax({0}, axis={3})",
    "lax.cummin({0}, axis={3}, reverse=True)",
    "jnp.cumprod({0}, axis={1}, dtype={2!r})",
    "lax.associative_scan(jnp.maximum, {0}, axis={3})",
)


def running(w: Writer) -> None:
    operand = _with_axis(w, lambda v: v.is_integer)
    if operand is not None:
        v, d, axis, _ = operand
        w.add(w.pick(RUNNING).format(v.name, axis, v.dtype, d), v.shape, v.dtype, EXACT)


SORTS = (
    "jnp.sort({0}, axis={1}{2})",
    "jnp.argsort({0}, axis={1}{2})",
    "lax.sort({0}, dimension={3})",
)


def sort(w: Writer) -> None:
    operand = _with_axis(w, lambda v: v.dtype != "complex64")
    if operand is None:
        return
    v, d, axis, _ = operand
    form = w.pick(SORTS)
    descending = w.pick(["", ", descending=True"])
    dtype = "int32" if "argsort" in form else v.dtype
    w.add(form.format(v.name, axis, descending, d), v.shape, dtype, EXACT)


def search(w: Writer) -> None:
    v = _known(w, lambda v: v.rank == 1 and v.dtype != "complex64" and v.dtype != "bool")
    if v is not None:
        u = _known(w, lambda u: u.dtype == v.dtype)
        side = w.pick(["left", "right"])
        text = f"jnp.searchsorted(jnp.sort({v.name}), {u.name}, side={side!r})"
        w.add(text, u.shape, "int32", EXACT)


def unique(w: Writer) -> None:
    v = _known(w, lambda v: v.is_integer and v.size > 0)
    if v is not None:
        n = w.pick([1, 3, 6])
        w.add(f"jnp.unique({v.name}, size={n}, fill_value=1)", (n,), v.dtype, EXACT)


def histogram(w: Writer) -> None:
    v = _known(w, lambda v: v.is_integer)
    if v is not None:
        text = f"jnp.bincount(jnp.clip({v.name}, 0, 9).astype('int32').ravel(), length=8)"
        w.add(text, (8,), "int32", EXACT)


def product(w: Writer) -> None:
    v = _known(w, lambda v: v.dtype in ("int32", "uint32") and 1 <= v.rank <= 2)
    if v is None:
        return
    form = "jnp.vdot({0}, {0})" if v.rank == 1 else "{0} @ {0}.T"
    shape = () if v.rank == 1 else (v.shape[0], v.shape[0])
    w.add(form.format(v.name), shape, v.dtype, EXACT)


def float_sum(w: Writer) -> None:
    """Of small integers as floats, which add up without rounding."""
    operand = _with_axis(w, lambda v: v.dtype in ("int8", "uint8", "bool"))
    if operand is not None:
        v, _, axis, rest = operand
        text = f"jnp.{w.pick(['sum', 'mean'])}({v.name}.astype('float32'), axis={axis})"
        w.add(text, rest, "float32", EXACT if "sum" in text else ROUGH)


DRAWS = (
    unary, rough_unary, integer_unary, test, float_binary, float_binary, integer_binary,
    integer_binary, compare, logic, complex_binary, number, cast, cast, select, clip, extreme,
    position, integer_sum, truth, count, running, sort, search, unique, histogram, product,
    float_sum,
)  # fmt: skip
