"""Kernels of single ops for the sweep: the body that an op emits, interpreted on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuflow.core.aval import ShapedArray, storage_dtype
from gpuflow.core.lowering import Elementwise, Indexed, Reduction, TupleReduction
from gpuflow.core.primitive import Primitive
from gpuflow.kir.builder import Builder, ComplexPair
from gpuflow.kir.interpret import run
from gpuflow.kir.nodes import Axis, Kernel, Mode, Operand, Role, Stride
from gpuflow.kir.scalar import COMPONENT_DTYPES, COMPUTE_DTYPES, NARROW_DTYPES, compute_dtype
from gpuflow.kir.verify import verify


def has_kernel(primitive: Primitive, avals: Sequence[ShapedArray]) -> bool:
    """Whether the op has a body that these avals can reach."""
    rule = primitive.lower
    emits = isinstance(rule, (Elementwise, Reduction, TupleReduction, Indexed))
    names = {storage_dtype(aval.dtype).name for aval in avals}
    if isinstance(rule, Elementwise) and rule.holds is not None and not rule.holds(*avals):
        return False
    if names & {*COMPONENT_DTYPES}:
        emits = _takes_pairs(rule)
    return emits and names <= {*COMPUTE_DTYPES, *NARROW_DTYPES, *COMPONENT_DTYPES}


def _takes_pairs(rule: Any) -> bool:
    if isinstance(rule, Elementwise):
        return rule.pair is not None
    if isinstance(rule, Indexed):
        return rule.selects
    return isinstance(rule, Reduction) and rule.by_components


def _load(builder: Builder, operand: Operand) -> Any:
    if operand.dtype not in COMPONENT_DTYPES:
        return builder.load(operand.name)
    return ComplexPair(*[builder.load(operand.name, component=part) for part in (0, 1)])


def _store(builder: Builder, operand: str, value: Any) -> None:
    if isinstance(value, ComplexPair):
        builder.store(operand, value.real, component=0)
        builder.store(operand, value.imag, component=1)
    else:
        builder.store(operand, value)


def run_kernel(
    primitive: Primitive,
    arrays: Sequence[np.ndarray],
    in_avals: Sequence[ShapedArray],
    out_avals: Sequence[ShapedArray],
    params: dict[str, Any],
) -> list[np.ndarray]:
    """The op's outputs as its interpreted kernel computes them."""
    lower = primitive.lower
    if isinstance(lower, Elementwise):
        return _run_elementwise(lower, arrays, in_avals, out_avals, params)
    if isinstance(lower, Reduction | TupleReduction):
        return [_run_reduction(lower, arrays[0], out_avals[0], params)]
    return _run_indexed(lower, arrays, in_avals, out_avals, params)


def _name(aval: ShapedArray) -> str:
    return storage_dtype(aval.dtype).name


def _flat(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1)


def _emptied(out_avals: Sequence[ShapedArray]) -> dict[str, np.ndarray]:
    return {
        f"o{k}": np.zeros(aval.size, storage_dtype(aval.dtype)) for k, aval in enumerate(out_avals)
    }


def _finish(
    kernel: Kernel, arrays: dict[str, Any], extents: Any, strides: Any, out_avals: Any
) -> list[np.ndarray]:
    verify(kernel)
    run(kernel, arrays, extents, strides)
    return [arrays[f"o{k}"].reshape(aval.shape) for k, aval in enumerate(out_avals)]


def _run_elementwise(
    lower: Elementwise, arrays: Any, in_avals: Any, out_avals: Any, params: Any
) -> list[np.ndarray]:
    operands = {
        **{
            f"x{k}": Operand(f"x{k}", _name(a), Mode.IN, (Stride.UNIT,))
            for k, a in enumerate(in_avals)
        },
        **{
            f"o{k}": Operand(f"o{k}", _name(a), Mode.OUT, (Stride.UNIT,))
            for k, a in enumerate(out_avals)
        },
    }
    builder = Builder(operands, ("i0",))
    out_aval = out_avals[0] if len(out_avals) == 1 else tuple(out_avals)
    with builder.for_axis("i0"):
        values = [_load(builder, operands[f"x{k}"]) for k in range(len(in_avals))]
        is_complex = any(operand.dtype in COMPONENT_DTYPES for operand in operands.values())
        body = lower.pair if is_complex else lower.body
        if isinstance(body, str):
            results = builder.apply(body, *values)
        else:
            results = body(builder, values, in_avals, out_aval, params)
        for k, value in enumerate(results if isinstance(results, tuple) else (results,)):
            _store(builder, f"o{k}", value)
    kernel = Kernel("k", (Axis("i0", Role.PARALLEL),), tuple(operands.values()), builder.finish())
    shape = out_avals[0].shape
    inputs = {f"x{k}": _flat(np.broadcast_to(array, shape)) for k, array in enumerate(arrays)}
    extents = {"i0": out_avals[0].size}
    return _finish(kernel, {**inputs, **_emptied(out_avals)}, extents, None, out_avals)


def _run_reduction(
    lower: Reduction | TupleReduction, array: np.ndarray, out_aval: ShapedArray, params: Any
) -> np.ndarray:
    axes = params["axes"]
    kept = [d for d in range(array.ndim) if d not in axes]
    rows = _flat(array.transpose([*kept, *axes]))
    dtype = _name(ShapedArray((), array.dtype))
    operands = {
        "d0": Operand("d0", "int64", Mode.INDEX, (Stride.ZERO, Stride.UNIT)),
        "x0": Operand("x0", dtype, Mode.IN, (Stride.ANY, Stride.UNIT)),
        "o0": Operand("o0", _name(out_aval), Mode.OUT, (Stride.ANY, Stride.ZERO)),
    }
    builder = Builder(operands, ("i0", "i1"))
    compute = compute_dtype(dtype)
    with builder.for_axis("i0"):
        if isinstance(lower, TupleReduction):
            reduced = _reduced_tuple(builder, lower, ShapedArray((), array.dtype), out_aval, params)
        else:
            neutral = builder.const(compute, lower.init(np.dtype(compute)))
            parts = (0, 1) if dtype in COMPONENT_DTYPES else (None,)
            reduced = builder.reduce(
                "i1",
                [neutral] * len(parts),
                lower.combine,
                lambda: [builder.load("x0", component=part) for part in parts],
            )
            reduced = ComplexPair(*reduced) if len(parts) == 2 else reduced[0]
        _store(builder, "o0", reduced)
    kernel_axes = (Axis("i0", Role.PARALLEL), Axis("i1", Role.REDUCE))
    kernel = Kernel("k", kernel_axes, tuple(operands.values()), builder.finish())
    width = array.size // max(out_aval.size, 1)
    extents = {"i0": out_aval.size, "i1": width}
    strides = {("x0", "i0"): width, ("o0", "i0"): 1}
    arrays = {"d0": 0, "x0": rows, **_emptied([out_aval])}
    return _finish(kernel, arrays, extents, strides, [out_aval])[0]


def _reduced_tuple(
    builder: Builder, lower: TupleReduction, aval: ShapedArray, out_aval: ShapedArray, params: Any
) -> Any:
    values = builder.reduce(
        "i1",
        lower.init(builder, aval, params),
        lambda *sides: lower.combine(builder, *sides),
        lambda: lower.element(builder, builder.load("x0"), builder.load("d0"), params),
    )
    return lower.result(builder, values, out_aval)


class IndexedContext:
    """What an Indexed body sees, on plain row-major operands."""

    def __init__(
        self, builder: Builder, in_avals: Any, out_aval: ShapedArray, numbers: Sequence[int]
    ) -> None:
        self.builder, self._numbers = builder, numbers
        self._in_avals = in_avals
        self._shape = out_aval.shape

    def index(self, dim: int) -> Any:
        return self.builder.load(f"d{dim}")

    def number(self, k: int) -> Any:
        return self._const(self._numbers[k])

    def bound(self, dim: int, k: int) -> Any:
        del dim
        return self.number(k)

    def _const(self, number: int) -> Any:
        return self.builder.const("int64", int(number))

    def linear_index(self, first_dim: int = 0) -> Any:
        dims = range(first_dim, len(self._shape))
        return self._address([self.index(d) for d in dims], self._shape[first_dim:])

    def load(self, operand: int, indices: Sequence[Any], where: Any = None) -> Any:
        offset = self._address(indices, self._in_avals[operand].shape)
        if storage_dtype(self._in_avals[operand].dtype).name not in COMPONENT_DTYPES:
            return self.builder.load(f"x{operand}", offset, where)
        return ComplexPair(*[self.builder.load(f"x{operand}", offset, where, k) for k in (0, 1)])

    def element(self, operand: int, dims: Sequence[int]) -> Any:
        shape = self._in_avals[operand].shape
        zero = self._const(0)
        indices = [
            zero if size == 1 else self.index(d) for d, size in zip(dims, shape, strict=True)
        ]
        return self.load(operand, indices)

    def _address(self, indices: Sequence[Any], shape: Sequence[int]) -> Any:
        address = self._const(0)
        for index, size in zip(indices, shape, strict=True):
            scaled = self.builder.apply("mul", address, self._const(size))
            address = self.builder.apply("add", scaled, index)
        return address


def _run_indexed(
    lower: Indexed, arrays: Any, in_avals: Any, out_avals: Any, params: Any
) -> list[np.ndarray]:
    shape = out_avals[0].shape
    names = [f"i{d}" for d in range(len(shape))]
    zeros, any_stride = (Stride.ZERO,) * len(shape), (Stride.ANY,) * len(shape)
    operands = {
        **{f"x{k}": Operand(f"x{k}", _name(a), Mode.IN, zeros) for k, a in enumerate(in_avals)},
        **{f"d{d}": Operand(f"d{d}", "int64", Mode.INDEX, any_stride) for d in range(len(shape))},
        **{
            f"o{k}": Operand(f"o{k}", _name(a), Mode.OUT, any_stride)
            for k, a in enumerate(out_avals)
        },
    }
    builder = Builder(operands, names)
    out_aval = out_avals[0] if len(out_avals) == 1 else tuple(out_avals)
    numbers = lower.numbers(in_avals, params) if lower.numbers else ()
    context = IndexedContext(builder, in_avals, out_avals[0], numbers)

    def loops(dim: int) -> None:
        if dim < len(shape):
            with builder.for_axis(names[dim]):
                loops(dim + 1)
            return
        results = lower.body(context, in_avals, out_aval, params)
        for k, value in enumerate(results if isinstance(results, tuple) else (results,)):
            _store(builder, f"o{k}", value)

    loops(0)
    axes = tuple(Axis(name, Role.PARALLEL) for name in names)
    kernel = Kernel("k", axes, tuple(operands.values()), builder.finish())
    strides = {}
    for d, name in enumerate(names):
        step = int(np.prod(shape[d + 1 :], dtype=np.int64))
        strides.update({(f"o{k}", name): step for k in range(len(out_avals))})
        strides.update({(f"d{e}", name): int(e == d) for e in range(len(shape))})
    flat_arrays = {f"x{k}": _flat(array) for k, array in enumerate(arrays)}
    bases = {f"d{d}": 0 for d in range(len(shape))}
    extents = dict(zip(names, shape, strict=True))
    memory = {**flat_arrays, **bases, **_emptied(out_avals)}
    return _finish(kernel, memory, extents, strides, out_avals)
