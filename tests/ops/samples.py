"""How the sweep calls primitives that are not plain elementwise: one entry for each.

Plain elementwise primitives (no parameters, operands of one dtype) need no entry. Large families
have a file of their own, ``samples_<family>.py`` beside this one, with a table ``SAMPLES`` and
perhaps ``TESTED_ELSEWHERE``; it is found by its name.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
from op_sweep import EXACT, Sample

from gpuflow.base import dtypes
from gpuflow.ops.elementwise.arithmetic import RoundingMethod
from gpuflow.ops.random import keys

FLOATS = ("float16", "bfloat16", "float32", "float64")
NUMBERS = ("int8", "int32", "uint8", "uint32", "int64", *FLOATS, "complex64", "complex128")

_PREDICATE = np.array([[True, False, True], [False, False, True]])
_CHOICE = np.array([[0, 1, 2], [-4, 9, 1]], np.int32)
_INDICES = np.array([[1, 0], [3, 1], [0, 2]], np.int32)


def _one_key():
    return keys.random_seed(7)


def _some_keys():
    return keys.random_seed(np.arange(3, dtype=np.int32))


def _prod_reference(x, *, axes):
    """Products one factor at a time, in another order than NumPy's."""
    out = np.ones(x.shape[axes[-1] + 1 :], x.dtype) if axes == (0,) else None
    if out is None:
        return np.exp(np.sum(np.log(x.astype(complex)), axis=axes)).real.astype(x.dtype)
    for row in x[::-1]:
        out = out * row
    return out


def _same_bytes(x, *, new_dtype):
    return np.frombuffer(x.tobytes(), new_dtype).reshape(x.shape)


ELEMENTWISE = {
    "add_any": [Sample(((2, 3), (2, 3)))],
    "integer_pow": [Sample(((2, 3),), {"y": y}) for y in (0, 1, 2, 3, 7)]
    + [Sample(((2, 3),), {"y": y}, dtypes=(*FLOATS, "complex64", "complex128")) for y in (-1, -3)],
    "round": [Sample(((2, 3),), {"rounding_method": method}) for method in RoundingMethod],
    "pow": [
        Sample(((2, 3), (2, 3))),
        Sample(((2, 1), (1, 3))),
        Sample(((2, 3), (2, 3)), fixed={1: np.array([[0, 1, -2], [3, 2, 5]], np.int32)}),
    ],
    "conj": [Sample(((2, 3),), lambda dtype: {"input_dtype": dtype})],
    "complex": [
        Sample(shapes, dtypes=("float32", "float64")) for shapes in (((2, 3), (2, 3)), ((2, 1), ()))
    ],
    "sign": [Sample(((2, 3),))],
    "copy": [Sample(((2, 3),))],
    "stop_gradient": [Sample(((2, 3),), derivative=False)],
    "select_n": [
        Sample(((2, 3),) * 3, fixed={0: _PREDICATE}),
        Sample(((),) + ((2, 3),) * 2, fixed={0: np.array(True)}),
        Sample(((2, 3),) * 4, fixed={0: _CHOICE}),
        Sample(((2, 3), (), (1, 3)), fixed={0: _PREDICATE}),
    ],
    "clamp": [
        Sample(((2, 3),) * 3),
        Sample(((), (2, 3), ())),
        Sample(((2, 1), (2, 3), (1, 3))),
    ],
    "convert_element_type": [
        Sample(((2, 3),), {"new_dtype": np.dtype(target), "weak_type": False})
        for target in ("bool", "int8", "int32", "uint8", "float16", dtypes.bfloat16, "float32")
    ]
    + [Sample(((2, 3),), {"new_dtype": np.dtype("complex64"), "weak_type": False})]
    + [
        Sample(((2, 3),), {"new_dtype": np.dtype(target), "weak_type": False}, dtypes=sources)
        for target, sources in (
            ("float64", ("float64", "int64", "complex128")),
            ("complex128", ("float64", "complex128")),
        )
    ],
    "bitcast_convert_type": [
        Sample(
            ((2, 3),),
            {"new_dtype": np.dtype(target)},
            dtypes=sources,
            widen=False,
            reference=_same_bytes,
        )
        for target, sources in (
            ("uint32", ("float32", "int32")),
            ("float32", ("int32", "uint32", "float32")),
            ("uint16", ("float16", "bfloat16")),
            ("float16", ("bfloat16", "float16")),
            (dtypes.bfloat16, ("float16", "bfloat16")),
            ("uint8", ("int8", "uint8")),
            ("int64", ("float64",)),
        )
    ],
}

REDUCTIONS = {
    **{
        name: [
            Sample(((2, 3, 2),), {"axes": (1,)}),
            Sample(((2, 3, 2),), {"axes": (0, 2)}),
            # The mean over the positions of an extremum of nothing is nan, as in JAX.
            Sample(((3, 0),), {"axes": (1,)}, derivative=False),
        ]
        for name in (
            "reduce_sum",
            "reduce_max",
            "reduce_min",
            "reduce_and",
            "reduce_or",
            "reduce_xor",
        )
    },
    "reduce_prod": [
        Sample(((5, 2),), {"axes": (0,)}, domain=((0.5, 2.0),), reference=_prod_reference),
        Sample(((2, 3, 2),), {"axes": (0, 2)}, domain=((0.5, 2.0),)),
        Sample(((3, 0),), {"axes": (1,)}),
    ],
    "argmax": [Sample(((2, 5, 2),), {"axes": (1,), "index_dtype": dtypes.int32})],
    "argmin": [Sample(((2, 5, 2),), {"axes": (1,), "index_dtype": np.dtype("uint8")})],
}

LAYOUT = {
    "broadcast_in_dim": [
        Sample(((3,),), {"shape": (2, 3), "broadcast_dimensions": (1,)}),
        Sample(((1, 3),), {"shape": (4, 2, 3), "broadcast_dimensions": (1, 2)}),
        Sample(((),), {"shape": (2, 2), "broadcast_dimensions": ()}),
    ],
    "reshape": [
        Sample(((2, 3),), {"new_sizes": (3, 2)}),
        Sample(((2, 3),), {"new_sizes": (2, 1, 3)}),
    ],
    "squeeze": [Sample(((2, 1, 3),), {"dimensions": (1,)})],
    "transpose": [Sample(((2, 3, 4),), {"permutation": (2, 0, 1)})],
    "device_put": [Sample(((2, 3),), {"device": None, "source": None})],
    "rev": [Sample(((2, 3, 2),), {"dimensions": (0, 1)})],
    "slice": [
        Sample(((4, 3),), {"start_indices": (1, 0), "limit_indices": (3, 3), "strides": None}),
        Sample(((5, 3),), {"start_indices": (0, 1), "limit_indices": (5, 3), "strides": (2, 1)}),
    ],
    "pad": [
        Sample(((2, 3), ()), {"padding_config": ((1, 0, 0), (0, 2, 1))}),
        Sample(((4, 3), ()), {"padding_config": ((-1, 0, 0), (1, -1, 0))}),
    ],
    "concatenate": [Sample(((2, 3), (1, 3), (2, 3)), {"dimension": 0})],
    "iota": [
        Sample((), {"dtype": np.dtype(name), "shape": (2, 3), "dimension": 1}, dtypes=("int32",))
        for name in ("int32", "uint8", "float16", "float32")
    ],
}

# How accurately a dot of 4 terms must be added: 4 roundings, and one of the result.
_DOT = {"precision": EXACT, "preferred_element_type": None}
CONTRACTIONS = {
    "dot_general": [
        Sample(
            ((2, 4), (4, 3)), {"dimension_numbers": (((1,), (0,)), ((), ())), **_DOT}, tolerance=8
        ),
        Sample(
            ((3, 2, 4), (3, 4)),
            {"dimension_numbers": (((2,), (1,)), ((0,), (0,))), **_DOT},
            tolerance=8,
        ),
    ],
}

INDEXING = {
    "dynamic_slice": [
        Sample(
            ((4, 3), (), ()),
            {"slice_sizes": (2, 2), "batch_dims": 0},
            fixed={1: np.int32(3), 2: np.int32(-1)},
        ),
        Sample(
            ((1, 4), (3,)),
            {"slice_sizes": (2,), "batch_dims": 1},
            fixed={1: np.array([0, 2, 9], np.int32)},
        ),
    ],
    "dynamic_update_slice": [
        Sample(((4, 3), (2, 2), (), ()), {"batch_dims": 0}, fixed={2: np.int32(1), 3: np.int32(0)}),
        Sample(
            ((1, 4), (3, 2), (3,)),
            {"batch_dims": 1},
            fixed={2: np.array([0, 2, 9], np.int32)},
        ),
    ],
    "row_gather": [
        Sample(((4, 2), (3, 2)), {"mode": "clip", "batch_dims": 0}, fixed={1: _INDICES}),
        Sample(((3, 4, 2), (3, 2)), {"mode": "fill", "batch_dims": 1}, fixed={1: _INDICES}),
    ],
    "row_scatter_add": [
        Sample(
            ((3, 2, 5), (3, 2)),
            {"shape": (4, 5), "mode": "zero", "batch_dims": 0},
            fixed={1: _INDICES},
        ),
    ],
}

_ORDERED = np.array([[3, 1, 2, 1, 3], [0, 0, -1, 5, 0]], np.int32)
CUMULATIVE = {
    name: [
        Sample(((2, 5),), {"axis": 1, "reverse": False}, domain=domain, tolerance=16),
        Sample(((4, 3),), {"axis": 0, "reverse": True}, domain=domain, tolerance=16),
        Sample(((3, 0),), {"axis": 1, "reverse": False}, derivative=False),
    ]
    for name, domain in (
        ("cumsum", None),
        ("cumprod", ((0.5, 2.0),)),
        ("cummax", None),
        ("cummin", None),
        ("cumlogsumexp", None),
    )
}

SORTING = {
    "sort": [
        Sample(((2, 5),), {"dimension": 1, "is_stable": True, "num_keys": 1}),
        Sample(((4, 3),) * 2, {"dimension": 0, "is_stable": True, "num_keys": 1}),
        Sample(
            ((2, 5),) * 3,
            {"dimension": 1, "is_stable": False, "num_keys": 2},
            fixed={0: _ORDERED},
        ),
    ],
    "top_k": [
        Sample(((2, 5),), {"k": 3, "axis": 1}),
        Sample(((4, 3),), {"k": 4, "axis": 0}),
    ],
}

# What the keys draw is compared with JAX in test_random_bits; here they meet the other checks.
RANDOM = {
    "threefry2x32": [Sample(((2, 3),) * 4)],
    "random_seed": [Sample(((2,),), {"impl": "threefry2x32"})],
    "random_wrap": [
        Sample(((3, 2),), {"impl": "threefry2x32"}, dtypes=("uint32",)),
    ],
    "random_unwrap": [Sample(((3,),), fixed={0: _some_keys}, dtypes=("uint32",))],
    "random_clone": [Sample(((3,),), fixed={0: _some_keys}, dtypes=("uint32",))],
    "random_consume": [Sample(((3,),), fixed={0: _some_keys}, dtypes=("uint32",))],
    "random_fold_in": [
        Sample(((), ()), fixed={0: _one_key, 1: np.uint32(5)}, dtypes=("uint32",)),
    ],
    "random_split": [
        Sample(
            ((),), {"shape": (4,), "partitionable": layout}, fixed={0: _one_key}, dtypes=("uint32",)
        )
        for layout in (True, False)
    ],
    "random_bits": [
        Sample(
            ((3,),),
            {"bit_width": width, "shape": (2, 3), "partitionable": layout},
            fixed={0: _some_keys},
            dtypes=("uint32",),
        )
        for width in (8, 16, 32)
        for layout in (True, False)
    ],
}

# Primitives whose whole meaning is an effect or a place; each with the file that tests it.
TESTED_ELSEWHERE = {
    "check": "tests/test_checkify.py",
    "debug_callback": "tests/ops/test_callbacks.py",
    "dot_general_epilogue": "tests/targets/cuda/test_gpu_epilogues.py",
    "raw_kernel": "tests/test_raw_kernels.py, tests/targets/cuda/test_user_kernels.py",
}

SAMPLES: dict[str, list[Sample]] = {
    **ELEMENTWISE,
    **REDUCTIONS,
    **LAYOUT,
    **CONTRACTIONS,
    **INDEXING,
    **CUMULATIVE,
    **SORTING,
    **RANDOM,
}

for _path in sorted(Path(__file__).parent.glob("samples_*.py")):
    _family = import_module(_path.stem)
    SAMPLES.update(_family.SAMPLES)
    TESTED_ELSEWHERE.update(getattr(_family, "TESTED_ELSEWHERE", {}))
