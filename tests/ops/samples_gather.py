"""How the sweep calls gather and the scatters."""

import numpy as np
from op_sweep import Sample

from gpuflow.ops.indexing.dimension_numbers import (
    GatherDimensionNumbers,
    GatherScatterMode,
    ScatterDimensionNumbers,
)

_INDICES = np.array([[1], [3], [0]], np.int32)
_PAIRS = np.array([[1, 0], [3, 1], [0, 9]], np.int32)
_BATCHED = np.array([[[1], [3]], [[0], [2]]], np.int32)
_ROWS = GatherDimensionNumbers((1,), (0,), (0,))
_ELEMENTS = GatherDimensionNumbers((), (0, 1), (0, 1))
_ALONG = GatherDimensionNumbers((), (1,), (1,), (0,), (0,))


def _params(numbers, mode, **extra):
    return {
        "dimension_numbers": numbers,
        "mode": GatherScatterMode(mode),
        "unique_indices": False,
        "indices_are_sorted": False,
        **extra,
    }


_GATHERS = [
    Sample(
        ((4, 3), (3, 1)),
        _params(_ROWS, mode, fill_value=None, slice_sizes=(1, 3)),
        fixed={1: _INDICES},
    )
    for mode in ("clip", "fill", "promise_in_bounds")
] + [
    Sample(
        ((4, 3), (3, 1)),
        _params(
            GatherDimensionNumbers((0, 2), (), (0,)), "clip", fill_value=None, slice_sizes=(2, 2)
        ),
        fixed={1: _INDICES},
    ),
    Sample(
        ((4, 3), (3, 2)),
        _params(_ELEMENTS, "fill", fill_value=0, slice_sizes=(1, 1)),
        fixed={1: _PAIRS},
    ),
    Sample(
        ((2, 4), (2, 2, 1)),
        _params(_ALONG, "clip", fill_value=None, slice_sizes=(1, 1)),
        fixed={1: _BATCHED},
    ),
]


def _scatters(unique=False):
    rows = ScatterDimensionNumbers(*_ROWS)
    along = ScatterDimensionNumbers(*_ALONG)
    extra = {"unique_indices": unique}
    return [
        Sample(((4, 3), (3, 1), (3, 3)), {**_params(rows, "fill"), **extra}, fixed={1: _INDICES}),
        Sample(
            ((4, 3), (3, 2), (3,)),
            {**_params(ScatterDimensionNumbers(*_ELEMENTS), "fill"), **extra},
            fixed={1: _PAIRS},
        ),
        Sample(
            ((2, 4), (2, 2, 1), (2, 2)), {**_params(along, "clip"), **extra}, fixed={1: _BATCHED}
        ),
    ]


SAMPLES = {
    "gather": _GATHERS,
    "scatter": _scatters(),
    "scatter_add": _scatters(),
    # Without the promise that places differ its derivative is not defined, as in JAX.
    "scatter_mul": _scatters(unique=True),
    "scatter_min": _scatters(),
    "scatter_max": _scatters(),
}
