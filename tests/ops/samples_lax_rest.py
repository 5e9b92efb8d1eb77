"""How the sweep calls ragged products and raw random bits."""

import numpy as np
from op_sweep import Sample

from gpuflow.ops.random.rng_bit_generator import RandomAlgorithm

_SIZES = np.array([[2, 0, 1], [1, 1, 4]], np.int32)  # rows beyond all groups, and beyond the end
_FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64")


def _ragged_dot(lhs, rhs, sizes, *, preferred_element_type):
    out = np.zeros((*lhs.shape[:2], rhs.shape[3]), np.result_type(lhs, rhs))
    for b, i in np.ndindex(*lhs.shape[:2]):
        ends = np.cumsum(sizes[b])
        if i < ends[-1]:
            out[b, i] = lhs[b, i] @ rhs[b, np.searchsorted(ends, i, side="right")]
    return out


def _ragged_outer(lhs, rhs, sizes, *, preferred_element_type):
    out = np.zeros((*sizes.shape, lhs.shape[2], rhs.shape[2]), np.result_type(lhs, rhs))
    for b, i in np.ndindex(*lhs.shape[:2]):
        ends = np.cumsum(sizes[b])
        if i < ends[-1]:
            group = np.searchsorted(ends, i, side="right")
            out[b, group] += np.outer(lhs[b, i], rhs[b, i])
    return out


_STATE = np.array([7, 9, 0xFFFFFFFE, 3], np.uint32)

SAMPLES = {
    "ragged_dot": [
        Sample(
            ((2, 5, 3), (2, 3, 3, 4), (2, 3)),
            {"preferred_element_type": None},
            fixed={2: _SIZES},
            dtypes=_FLOATS,
            reference=_ragged_dot,
        )
    ],
    "ragged_outer": [
        Sample(
            ((2, 5, 3), (2, 5, 4), (2, 3)),
            {"preferred_element_type": None},
            fixed={2: _SIZES},
            dtypes=_FLOATS,
            reference=_ragged_outer,
        )
    ],
    "rng_bit_generator": [
        Sample(
            ((4,),),
            {
                "shape": shape,
                "dtype": np.dtype(dtype),
                "algorithm": algorithm,
                "is_shared": False,
            },
            fixed={0: _STATE},
            dtypes=("uint32",),
        )
        for algorithm in (RandomAlgorithm.RNG_THREE_FRY, RandomAlgorithm.RNG_PHILOX)
        for dtype, shape in (("uint32", (3, 4)), ("uint8", (5,)), ("uint16", ()))
    ],
}

TESTED_ELSEWHERE = {
    "ormqr": "tests/ops/test_linalg_rest.py",
    "rng_uniform": "tests/lax/test_lax_rest.py",
    "dce_sink": "tests/lax/test_lax_rest.py",
}
