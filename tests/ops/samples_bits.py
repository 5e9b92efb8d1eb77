"""How the sweep calls ops on bits."""

from op_sweep import Sample

SAMPLES = {"nextafter": [Sample(((2, 3), (2, 3)), derivative=False, widen=False)]}
# Rounding is linear only up to rounding, which the checks of linear ops do not allow.
TESTED_ELSEWHERE = {"reduce_precision": "tests/lax/test_lax_shapes.py"}
