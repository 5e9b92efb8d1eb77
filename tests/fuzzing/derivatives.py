"""What must hold for the derivatives of every program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from fuzzing.comparing import NOISY_RUNS, SAFETY, check_close, wide
from fuzzing.programs import SPECIAL_SEEDS, Program, Step, all_steps, random_array, random_inputs
from fuzzing.reference import evaluate
from fuzzing.running import on_cpu, run

import gpuflow as gf
from gpuflow import lax

EPSILONS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


def _float_positions(program: Program) -> tuple[int, ...]:
    return tuple(k for k, (_, dtype) in enumerate(program.inputs) if "float" in dtype)


def _loss(program: Program, weights: Any, noise: Any = None, plain: bool = False) -> Any:
    """A scalar of the real outputs, bounded so that it does not overflow."""

    def loss(*xs: Any) -> Any:
        outs = run(program, xs, noise, plain)
        total = np.float32(0)
        for out, weight in zip(outs, weights, strict=True):
            if "float" in str(out.dtype):
                out = lax.sin(lax.convert_element_type(out, np.float32))
                total = total + lax.reduce_sum(lax.mul(out, weight), tuple(range(out.ndim)))
        return total

    return loss


def _output_weights(program: Program, inputs: Any) -> list[np.ndarray]:
    random = np.random.default_rng(program.seed)
    with on_cpu():
        return [random_array(random, np.shape(out), "float32") for out in run(program, inputs)]


def _compare_gradients(program: Program, ways: Any, inputs: Any, weights: Any) -> None:
    """Compare gradients with those of ops one by one, with and without noise."""
    numbers = _float_positions(program)
    with on_cpu():
        want = gf.grad(_loss(program, weights, plain=True), numbers)(*inputs)
        noisy = [
            gf.grad(_loss(program, weights, np.random.default_rng(k), True), numbers)(*inputs)
            for k in range(NOISY_RUNS)
        ]
    # The derivative of tanh is a difference from 1, whatever it is multiplied with; between
    # equations of one kernel narrow cotangents are not rounded.
    unit = max(EPSILONS.get(dtype, 1.2e-7) for dtype in all_dtypes(program)) / 1.2e-7
    singular = may_be_singular(program)
    for what, got in ways.items():
        for n, number in enumerate(numbers):
            others = [grads[n] for grads in noisy]
            name = f"{what}: gradient of operand {number}"
            check_close(got[n], want[n], others, False, name, unit, singular)


# Their derivatives may be infinite, or their values nan.
SINGULAR = ("log", "log1p", "sqrt", "rsqrt", "cbrt", "div", "atan2", "exp", "expm1", "abs")
FILLING = ("gather", "get_at", "row_gather", "cumprod", "reduce_prod", "cumlogsumexp")


def may_be_singular(program: Program) -> bool:
    """Whether cotangents of 0, which loops give to unused carries, may meet nan or infinity.

    Op by op such a carry has no cotangent at all, and the gradient stays finite.
    """
    steps = all_steps(program)
    held = any("body" in step.params or "branches" in step.params for step in steps)
    ops = {step.op for step in steps}
    special = program.seed >= SPECIAL_SEEDS
    return held and (special or bool(ops & {*SINGULAR, *FILLING}))


def check_grad(program: Program) -> None:
    """Gradients under jit and of control flow as a whole are those of ops one by one."""
    inputs, numbers = random_inputs(program), _float_positions(program)
    if not numbers:
        return
    weights = _output_weights(program, inputs)
    loss = _loss(program, weights)
    ways = {"jit": gf.jit(gf.grad(loss, numbers))(*inputs)}
    if any("body" in step.params or "branches" in step.params for step in program.steps):
        ways["with control flow"] = gf.grad(loss, numbers)(*inputs)
    _compare_gradients(program, ways, inputs, weights)


def check_vmap_grad(program: Program, mapped: Sequence[bool], size: int) -> None:
    """Mapped gradients are those of each element."""
    inputs, numbers = random_inputs(program), _float_positions(program)
    if not numbers:
        return
    weights = _output_weights(program, inputs)
    inputs = random_inputs(program, [size if flag else None for flag in mapped])
    axes = tuple(0 if flag else None for flag in mapped)
    function = gf.vmap(gf.grad(_loss(program, weights), numbers), in_axes=axes)
    grads = gf.jit(function)(*inputs)
    for k in {0, size - 1}:
        lane = [x[k] if flag else x for x, flag in zip(inputs, mapped, strict=True)]
        _compare_gradients(program, {f"element {k}": [g[k] for g in grads]}, lane, weights)


def check_derivatives(program: Program, plain: bool = True) -> None:
    """<cotangent, J tangent> from jvp is <J^T cotangent, tangent> from vjp."""
    inputs, numbers = random_inputs(program), _float_positions(program)
    random = np.random.default_rng(program.seed + 1)
    tangents = [random_array(random, inputs[k].shape, inputs[k].dtype.name) for k in numbers]

    def products(noise: Any) -> tuple[list[Any], list[Any]]:
        def function(*xs: Any) -> list[Any]:
            full = list(inputs)
            for k, x in zip(numbers, xs, strict=True):
                full[k] = x
            outs = run(program, full, noise, plain or noise is not None)
            return [out for out in outs if "float" in str(out.dtype)]

        primals = [inputs[k] for k in numbers]
        outs, moved = gf.jvp(function, primals, tangents)
        generator = np.random.default_rng(program.seed)
        weights = [random_array(generator, out.shape, out.dtype.name) for out in outs]
        grads = gf.vjp(function, *primals)[1](weights)
        forward = [wide(w) * wide(m) for w, m in zip(weights, moved, strict=True)]
        backward = [wide(g) * wide(t) for g, t in zip(grads, tangents, strict=True)]
        return forward, backward

    def total(parts: list[Any]) -> float:
        return sum(float(part.sum()) for part in parts)

    with np.errstate(all="ignore"):
        forward, backward = products(None)
        with on_cpu():
            noisy = [products(np.random.default_rng(k)) for k in range(3)]
        left, right = total(forward), total(backward)
        sums = [total(parts) for pair in noisy for parts in pair]
        size = sum(float(np.abs(part).sum()) for part in (*forward, *backward))
    if not np.isfinite([*sums, size, left, right]).all():
        return
    narrow = any("float32" not in d for d in all_dtypes(program))
    spread = max(abs(s - t) for s in sums for t in (left, right))
    # Cotangents are rounded to the dtype of their values in other places than tangents are.
    allowed = SAFETY * spread + (0.1 if narrow else 1e-4) * size + 1e-30
    assert abs(left - right) <= allowed, (left, right)


def all_dtypes(program: Program) -> set[str]:
    """Names of the dtypes of inputs and conversions."""
    of_inputs = {dtype for _, dtype in program.inputs}
    return of_inputs | {s.params["dtype"] for s in all_steps(program) if "dtype" in s.params}


def _may_drop_gradients(step: Step) -> bool:
    """Whether a step may read outside: without a mode, as in JAX, that reads the last element, and
    gradients are dropped, so that they are no differences."""
    if step.op != "get_at" or step.params["mode"] is not None:
        return False
    return any(kind == "array" for kind, *_ in step.params["index"])


def check_differences(program: Program) -> None:
    """Derivatives of a smooth float64 program are what differences of NumPy's results say.

    Central differences with steps h and h/2, extrapolated, have an error of the order of h**4; how
    far they lie apart bounds it, and the rounding errors of results, divided by h, come on top.
    """
    inputs, numbers = random_inputs(program), _float_positions(program)
    if not numbers or any(map(_may_drop_gradients, all_steps(program))):
        return
    random = np.random.default_rng(program.seed + 1)
    direction = [random.uniform(-1, 1, inputs[k].shape) for k in numbers]
    first = evaluate(program, inputs)
    if not all(np.isfinite(out).all() for out in first):
        return
    floats = [k for k, out in enumerate(first) if out.dtype.kind == "f"]
    weights = [random.uniform(-1, 1, first[k].shape) for k in floats]

    def moved(step: float) -> list[np.ndarray]:
        full = list(inputs)
        for k, along in zip(numbers, direction, strict=True):
            full[k] = inputs[k] + step * along
        return full

    def value(step: float) -> tuple[float, float]:
        outs = evaluate(program, moved(step))
        products = [(outs[k] * w) for k, w in zip(floats, weights, strict=True)]
        return sum(float(p.sum()) for p in products), sum(float(abs(p).sum()) for p in products)

    def central(h: float) -> float:
        return (value(h)[0] - value(-h)[0]) / (2 * h)

    steps = [4e-3, 2e-3, 1e-3]
    coarse, middle, fine = map(central, steps)
    good, better = (4 * middle - coarse) / 3, (4 * fine - middle) / 3
    size = value(0)[1] + 1
    allowed = 10 * abs(better - good) + SAFETY * 2.2e-16 * size / steps[-1] + 1e-9 * abs(better)

    def scalar(*xs: Any) -> Any:
        full = list(inputs)
        for k, x in zip(numbers, xs, strict=True):
            full[k] = x
        outs = run(program, full, plain=False)
        parts = [lax.mul(outs[k], w) for k, w in zip(floats, weights, strict=True)]
        return sum((lax.reduce_sum(p, tuple(range(p.ndim))) for p in parts), np.float64(0))

    primals = [inputs[k] for k in numbers]
    got: dict[str, float] = {}
    for what, wrap in (("", lambda f: f), ("jit of ", gf.jit)):
        got[what + "jvp"] = float(
            wrap(lambda xs, ts: gf.jvp(scalar, xs, ts)[1])(tuple(primals), tuple(direction))
        )
        grads = wrap(gf.grad(scalar, tuple(range(len(primals)))))(*primals)
        got[what + "grad"] = sum(
            float((np.asarray(g) * d).sum()) for g, d in zip(grads, direction, strict=True)
        )
    for what, derivative in got.items():
        assert abs(derivative - better) <= allowed, (what, derivative, better, allowed)


def check_second_order(program: Program) -> None:
    """Second derivatives of a smooth float64 program, in four ways, with and without Python loops.

    All ways compute the same sums of products in another order: what they differ by is far below a
    millionth of the largest term, and mistakes in rules are not.
    """
    inputs, numbers = random_inputs(program), _float_positions(program)
    if not numbers:
        return
    random = np.random.default_rng(program.seed + 1)
    primals = tuple(inputs[k] for k in numbers)
    direction = tuple(random.uniform(-1, 1, x.shape) for x in primals)
    outs = evaluate(program, inputs)
    weights = [random.uniform(-1, 1, out.shape) for out in outs]

    def loss(plain: bool) -> Any:
        def function(*xs: Any) -> Any:
            full = list(inputs)
            for k, x in zip(numbers, xs, strict=True):
                full[k] = x
            total = np.float64(0)
            for out, weight in zip(run(program, full, plain=plain), weights, strict=True):
                if "float" in str(out.dtype):
                    total = total + lax.reduce_sum(lax.mul(out, weight), tuple(range(out.ndim)))
            return total

        return function

    places = tuple(range(len(primals)))

    def forward_of_reverse(f: Any) -> Any:
        return lambda *xs: gf.jvp(gf.grad(f, places), xs, direction)[1]

    def reverse_of_forward(f: Any) -> Any:
        return gf.grad(lambda *xs: gf.jvp(f, xs, direction)[1], places)

    def reverse_of_reverse(f: Any) -> Any:
        def along(*xs: Any) -> Any:
            products = [
                lax.reduce_sum(lax.mul(g, d), tuple(range(d.ndim)))
                for g, d in zip(gf.grad(f, places)(*xs), direction, strict=True)
            ]
            return sum(products, np.float64(0))

        return gf.grad(along, places)

    want = forward_of_reverse(loss(True))(*primals)
    size = 1 + max(float(np.abs(np.asarray(w)).max(initial=0)) for w in want)
    if not np.isfinite(size):
        return
    singular = may_be_singular(program)
    for way in (forward_of_reverse, reverse_of_forward, reverse_of_reverse):
        got = gf.jit(way(loss(False)))(*primals)
        for k, (a, b) in enumerate(zip(got, want, strict=True)):
            compared = np.isfinite(np.asarray(a)) | (not singular)
            error = np.abs(np.asarray(a) - np.asarray(b)).max(initial=0, where=compared)
            assert error <= 1e-6 * size, f"{way.__name__} {k}: got {a}, want {b}"
