"""Full-precision products for algorithms, independent of ``default_matmul_precision``.

Tests: tests/numpy/test_numpy_linalg.py.
"""

from __future__ import annotations

from functools import partial

from gpuflow.numpy.contractions import dot, matmul, vdot
from gpuflow.ops.contractions.precision import Precision

exact_dot = partial(dot, precision=Precision.HIGHEST)
exact_matmul = partial(matmul, precision=Precision.HIGHEST)
exact_vdot = partial(vdot, precision=Precision.HIGHEST)
