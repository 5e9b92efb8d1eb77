"""How the sweep calls window reductions."""

import numpy as np
from op_sweep import Sample

from gpuflow.ops.elementwise.comparison import ge_p, le_p


def _params(window, strides, pads, base=None, gaps=None, **more):
    ones = (1,) * len(window)
    return {
        "window_dimensions": window,
        "window_strides": strides,
        "padding": pads,
        "base_dilation": base or ones,
        "window_dilation": gaps or ones,
        **more,
    }


_CASES = [
    (((6,),), ((3,), (2,), ((1, 0),))),
    (((2, 4, 5),), ((1, 2, 3), (1, 2, 1), ((0, 0), (0, 1), (1, 1)))),
    (((5,),), ((2,), (1,), ((2, -1),), (3,), (2,))),
]


def _taps(shape):
    """Numbers of taps, some of which no window has."""
    return np.random.default_rng(0).integers(-1, 5, shape).astype(np.int32)


_SAMPLES = [Sample(shapes, _params(*arguments)) for shapes, arguments in _CASES]

SAMPLES = {
    "reduce_window_sum": _SAMPLES,
    # Some windows of the last case are empty: their extreme is infinite.
    "reduce_window_max": _SAMPLES[:2],
    "reduce_window_min": _SAMPLES[:2],
    "select_and_gather_add": [
        Sample((*shapes, *shapes), _params(*arguments, select_prim=select_prim))
        for shapes, arguments in _CASES[:2]
        for select_prim in (ge_p, le_p)
    ],
    "select_and_scatter_add": [
        Sample((counts, *shapes), _params(*arguments, select_prim=select_prim))
        for (shapes, arguments), counts in zip(_CASES[:2], [(3,), (2, 2, 5)])
        for select_prim in (ge_p, le_p)
    ],
    "window_extreme": [
        Sample(shapes, _params(*arguments, select_prim=select_prim))
        for shapes, arguments in _CASES[:2]
        for select_prim in (ge_p, le_p)
    ],
    "window_spread": [
        # Only the compiler binds it, after derivatives: it has no transpose rule.
        Sample((n, n), _params(*arguments, shape=shape), fixed={1: _taps(n)}, derivative=False)
        for ((shape,), arguments), n in zip(_CASES[:2], [(3,), (2, 2, 5)])
    ],
}
