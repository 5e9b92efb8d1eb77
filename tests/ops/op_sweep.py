"""The machinery of the op sweep: operands, transformed calls, comparisons.

A function under test takes arrays and returns a list of arrays. ``samples.py`` says how to call
the primitives that are not plain elementwise.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import simulated_gpu

import gpuflow.ops
from gpuflow.base import dtypes
from gpuflow.base.config import config
from gpuflow.core.aval import ShapedArray, aval_of, storage_dtype
from gpuflow.core.jaxpr import ClosedJaxpr, check_jaxpr
from gpuflow.core.lowering import Elementwise
from gpuflow.core.primitive import Primitive, registry
from gpuflow.core.rules import AxisData, UndefinedPrimal
from gpuflow.core.staging import trace_closed
from gpuflow.ops.contractions.precision import Precision
from gpuflow.ops.layout.batch_dims import batch_to_dim
from gpuflow.ops.zeros import instantiate
from gpuflow.transforms.batching import batch_flat
from gpuflow.transforms.jvp import jvp_flat
from gpuflow.transforms.linearize import linearize_flat
from gpuflow.transforms.transpose import backward_pass

Function = Callable[..., list[Any]]

DTYPES_32 = tuple(
    np.dtype(name)
    for name in (
        "bool",
        "int8",
        "int32",
        "uint8",
        "uint32",
        "float16",
        ml_dtypes.bfloat16,
        "float32",
        "complex64",
    )
)
DTYPES_64 = tuple(np.dtype(name) for name in ("int64", "float64", "complex128"))

# On a simulated GPU each op on each type is a kernel that must be built, op by op too. There one
# type stands for all that kernels hold in the same way; WHOLE_SWEEP=1 runs all of them.
WHOLE = simulated_gpu.WHOLE or not simulated_gpu.ON_SIMULATED_GPU


# Of products in samples: primitives that are bound directly do not know the setting.
EXACT = (Precision.HIGHEST, Precision.HIGHEST)


@dataclass(frozen=True)
class Sample:
    """One way to call a primitive.

    Attributes:
        shapes: one shape for each operand.
        params: the parameters, or a function of the swept dtype that gives them.
        fixed: operands by number that keep their value and dtype (predicates, indices, keys), or
            functions that make them.
        domain: (low, high) for each operand; None: the primitive's, or (-3, 3).
        dtypes: names of the swept dtypes; None: all that the shape rule accepts. Samples with
            fixed operands only name one.
        reference: ``(*float64 arrays, **params) -> array``; None: the primitive's, or its impl.
        tolerance: relative to the eps of the result's dtype, in place of the primitive's.
        widen: False where the reference must get the operands in their own dtype.
        derivative: False for ops whose jvp is not the derivative (stop_gradient).
        unordered: the results' last dimension is in any order, which may differ between one matrix
            and several.
        signs: False where the signs of results are the choice of the library that computes them.
    """

    shapes: tuple[tuple[int, ...], ...]
    params: Any = field(default_factory=dict)
    fixed: dict[int, Any] = field(default_factory=dict)
    domain: Any = None
    dtypes: tuple[str, ...] | None = None
    reference: Any = None
    tolerance: float | None = None
    widen: bool = True
    derivative: bool = True
    unordered: bool = False
    signs: bool = True

    def params_for(self, dtype: Any) -> dict[str, Any]:
        """The parameters for one swept dtype."""
        return self.params(dtype) if callable(self.params) else self.params

    def fixed_value(self, number: int) -> Any:
        """The value of a fixed operand."""
        value = self.fixed[number]
        return value() if callable(value) else value


def all_primitives() -> dict[str, Primitive]:
    """Every primitive of the ops folder; those that hold programs are tested with control/."""
    for module in pkgutil.walk_packages(gpuflow.ops.__path__, "gpuflow.ops."):
        importlib.import_module(module.name)
    return {
        name: primitive
        for name, primitive in sorted(registry().items())
        if primitive.subjaxprs is None
    }


def default_samples(primitive: Primitive) -> list[Sample]:
    """The samples of a plain elementwise primitive, or none."""
    if not isinstance(primitive.lower, Elementwise) or primitive.sweep.domain is None:
        return []
    arity = len(primitive.sweep.domain)
    samples = [Sample(((2, 3),) * arity)]
    if arity > 1:  # sizes of 1 and rank 0 repeat
        samples.append(Sample(((2, 1), *((1, 3),) * (arity - 1))))
        samples.append(Sample(((2, 3), *((),) * (arity - 1))))
    return samples


# --- operands ------------------------------------------------------------------------------


def accepted_dtypes(primitive: Primitive, sample: Sample, candidates: Sequence[Any]) -> list[Any]:
    """The candidate dtypes that the shape rule takes; a refusal must name the op."""
    accepted = []
    for dtype in candidates:
        if sample.dtypes is not None and dtype.name not in sample.dtypes:
            continue
        avals = operand_avals(sample, dtype)
        try:
            primitive.shape(*avals, **sample.params_for(dtype))
        except (TypeError, ValueError) as error:
            assert str(error).startswith(f"[{primitive.name}] "), error
            assert "Fix:" in str(error), error
        else:
            accepted.append(dtype)
    return accepted


def operand_avals(sample: Sample, dtype: Any) -> list[ShapedArray]:
    """The avals of a sample's operands in one dtype."""
    return [
        aval_of(sample.fixed_value(number)) if number in sample.fixed else ShapedArray(shape, dtype)
        for number, shape in enumerate(sample.shapes)
    ]


def operands(primitive: Primitive, sample: Sample, dtype: Any, seed: int = 0) -> list[Any]:
    """Random operands of a sample in one dtype."""
    random = np.random.default_rng([seed, len(primitive.name), *primitive.name.encode()])
    domain = sample.domain or primitive.sweep.domain or ((-3.0, 3.0),) * len(sample.shapes)
    return [
        sample.fixed_value(number)
        if number in sample.fixed
        else random_array(random, shape, dtype, *domain[number])
        for number, shape in enumerate(sample.shapes)
    ]


def random_array(random: Any, shape: Any, dtype: Any, low: float, high: float) -> np.ndarray:
    """Uniform numbers in [low, high] as ``dtype``; integers are spread over [-9, 9]."""
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        return random.integers(0 if dtype.kind == "u" else -9, 10, shape).astype(dtype)
    values = random.uniform(low, high, shape)
    if dtype.kind == "c":
        values = values + 1j * random.uniform(-1.0, 1.0, shape)
    return np.asarray(values).astype(dtype)


def is_variable(value: Any) -> bool:
    """Whether a value can have a tangent."""
    return dtypes.is_inexact(aval_of(value).dtype)


# --- calls ---------------------------------------------------------------------------------


def bound(primitive: Primitive, params: dict[str, Any]) -> Function:
    """The primitive as a function that returns a list."""

    def function(*values: Any) -> list[Any]:
        outs = primitive.bind(*values, **params)
        return list(outs) if primitive.multiple_results else [outs]

    return function


def variables_only(function: Function, values: Sequence[Any]) -> tuple[Function, list[Any]]:
    """The function of its inexact operands and of its inexact results alone."""
    places = [k for k, value in enumerate(values) if is_variable(value)]

    def inner(*given: Any) -> list[Any]:
        full = list(values)
        for place, value in zip(places, given, strict=True):
            full[place] = value
        return [out for out in function(*full) if is_variable(out)]

    return inner, [values[place] for place in places]


def jvp(function: Function, primals: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """The output tangents as arrays."""
    _, out_tangents = jvp_flat(function, primals, tangents)
    return [instantiate(tangent) for tangent in out_tangents]


def vjp(function: Function, primals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
    """The input cotangents as arrays."""
    _, jaxpr, residuals, _ = linearize_flat(function, primals)
    check_jaxpr(jaxpr)
    unknown = [UndefinedPrimal(var.aval) for var in jaxpr.invars]
    result = backward_pass(jaxpr, residuals, unknown, cotangents)
    return [instantiate(cotangent) for cotangent in result]


def vmap(function: Function, values: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
    """The mapped function's outputs, mapped dimension first."""
    size = next(np.shape(v)[d] for v, d in zip(values, dims, strict=True) if d is not None)
    outs, out_dims = batch_flat(function, AxisData(None, size), values, dims)
    return [batch_to_dim(out, d, 0, size) for out, d in zip(outs, out_dims, strict=True)]


def traced(function: Function, values: Sequence[Any]) -> ClosedJaxpr:
    """The checked jaxpr of a function."""
    closed = trace_closed(function, [aval_of(value) for value in values])
    check_jaxpr(closed.jaxpr)
    return closed


def x64() -> Any:
    """Enable 64-bit dtypes inside a ``with`` block."""
    return config.override("enable_x64", True)


# --- comparison ----------------------------------------------------------------------------


def as_numpy(value: Any) -> np.ndarray:
    """The values of an Array, in the dtype in which they are stored."""
    aval = aval_of(value)
    if dtypes.is_extended(aval.dtype):
        return value.host().view(storage_dtype(aval.dtype))
    return np.asarray(value)


def widest(dtype: Any) -> np.dtype:
    """float64 for floats, complex128 for complex numbers, else the dtype itself."""
    if dtypes.is_extended(dtype) or not dtypes.is_inexact(dtype):
        return dtype
    return dtypes.complex128 if dtypes.is_complex(dtype) else dtypes.float64


def in_order(x: np.ndarray) -> np.ndarray:
    """Numbers sorted along the last dimension; parts that differ by roundings count as equal."""
    keys = np.round(x.imag, 3), np.round(x.real, 3)
    return np.take_along_axis(x, np.lexsort(keys, axis=-1), axis=-1)


def assert_close(got: Any, want: Any, tolerance: float, what: str = "", sums: bool = False) -> None:
    """Equal up to ``tolerance`` times eps of the dtype of ``got``; exactly for other dtypes.

    With ``sums`` the allowed error is relative to the largest expected magnitude, because sums
    cancel; otherwise to each element, or to the smallest normal number.
    """
    got, want = as_numpy(got), np.asarray(want)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    if not dtypes.is_inexact(got.dtype):
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    limits = ml_dtypes.finfo(got.dtype)
    relative = tolerance * float(limits.eps)
    wide = got.astype(widest(got.dtype))
    with np.errstate(over="ignore"):
        want = want.astype(got.dtype).astype(wide.dtype)
    scale = float(limits.smallest_normal)
    finite = np.abs(want[np.isfinite(want)])
    if sums and finite.size:
        scale = max(1.0, float(finite.max()))
    np.testing.assert_allclose(wide, want, rtol=relative, atol=relative * scale, err_msg=what)


def difference_quotient(
    function: Function, primals: Sequence[Any], tangents: Sequence[Any], step: float
) -> list[np.ndarray]:
    """Central differences along ``tangents``, in double precision."""
    ahead = [p + step * t for p, t in zip(primals, tangents, strict=True)]
    behind = [p - step * t for p, t in zip(primals, tangents, strict=True)]
    pairs = zip(function(*ahead), function(*behind), strict=True)
    return [(as_numpy(a) - as_numpy(b)) / (2 * step) for a, b in pairs]


def pairing(cotangents: Sequence[Any], tangents: Sequence[Any]) -> float:
    """``real(sum(ct * t))``: how cotangents and tangents pair, without conjugation."""
    pairs = zip(cotangents, tangents, strict=True)
    return float(sum(np.sum(as_numpy(ct) * as_numpy(t)).real for ct, t in pairs))
