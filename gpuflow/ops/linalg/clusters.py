"""Equal eigenvalues in derivatives of their vectors.

The tangents of vectors are quotients over gaps of values, and a function of the matrix multiplies
them with differences of its values: f(b) - f(a) over b - a, whose limit is f'(a). At equal values
that would be 0 times infinity, and of values that differ by rounding the quotient of two errors. So
where a derivative is taken, values that are equal up to rounding are moved apart by the root of the
precision: half of the digits of both the quotient and the value stay right. Other values stay.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow.core.aval import aval_of
from gpuflow.ops.elementwise.arithmetic import add, mul, sub
from gpuflow.ops.elementwise.comparison import eq, le
from gpuflow.ops.elementwise.complex_numbers import abs as absolute
from gpuflow.ops.elementwise.convert import convert_element_type, stop_gradient
from gpuflow.ops.elementwise.select import where
from gpuflow.ops.layout.axes import insert_axis
from gpuflow.ops.layout.concatenate import concatenate
from gpuflow.ops.layout.iota import iota
from gpuflow.ops.layout.slicing import slice_in_dim
from gpuflow.ops.reductions.cumulative import cummax, cummin
from gpuflow.ops.reductions.reduce import reduce_max
from gpuflow.ops.zeros import full

# Gaps of so many roundings of the largest value are none.
_ROUNDINGS = 16.0


def apart(values: Any) -> Any:
    """Ascending or descending ``values`` (..., n), with those that are equal moved apart."""
    shape, dtype = aval_of(values).shape, aval_of(values).dtype
    count = shape[-1]
    if count < 2:
        return values
    eps, last = float(np.finfo(dtype).eps), len(shape) - 1
    fixed = stop_gradient(values)
    largest = insert_axis(reduce_max(absolute(fixed), (last,)), last)
    scale = where(eq(largest, 0), 1, largest)
    ahead, behind = (slice_in_dim(fixed, k, count - 1 + k, axis=last) for k in (1, 0))
    steps = sub(ahead, behind)
    joined = le(absolute(steps), mul(scale, _ROUNDINGS * eps))
    edge = full((*shape[:-1], 1), False, np.bool_)
    place = iota(np.int32, shape, last)
    first = cummax(where(concatenate([edge, joined], last), 0, place), axis=last)
    ends = where(concatenate([joined, edge], last), count - 1, place)
    end = cummin(ends, axis=last, reverse=True)
    # Twice the distance from the middle of its group, so that the mean of a group stays.
    offset = sub(add(place, place), add(first, end))
    sign = where(le(slice_in_dim(fixed, 0, 1, axis=last),
                    slice_in_dim(fixed, count - 1, count, axis=last)), 0.5, -0.5)  # fmt: skip
    sign = convert_element_type(sign, dtype)
    distance = mul(mul(scale, sign), (eps / count) ** 0.5)
    return add(values, mul(convert_element_type(offset, dtype), distance))
