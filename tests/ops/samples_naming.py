"""Sweep samples of the ops that only say something to transformations or the compiler."""

from op_sweep import Sample

SAMPLES = {
    "name": [
        Sample(((3, 4),), {"name": "a"}),
        Sample(((),), {"name": "b"}),
        Sample(((0, 2),), {"name": "b"}),
    ],
    "optimization_barrier": [
        Sample(((3, 4), (5,))),
        Sample(((), (0, 2), (31,))),
    ],
}
