"""Every op's gradient as a program of a simulated GPU, against the same op by op on the CPU.

``GPUFLOW_PLATFORM=cuda_sim pytest`` runs it. That the rules are right is tested by test_every_op.
"""

import numpy as np
import pytest
import simulated_gpu
from op_sweep import (
    as_numpy,
    bound,
    operands,
    variables_only,
    vjp,
    x64,
)
from test_every_op import CASES, differentiable, directions, every_case

import gpuflow as gf
from gpuflow.core.lowering import Elementwise

pytestmark = pytest.mark.simulated_gpu

if not simulated_gpu.ON_SIMULATED_GPU:
    pytest.skip("it needs GPUFLOW_PLATFORM=cuda_sim", allow_module_level=True)

# Operands of an elementwise op that are repeated have the gradient of broadcasting besides.
ONCE = [
    (primitive, sample)
    for primitive, sample in CASES
    if not isinstance(primitive.lower, Elementwise) or len({*sample.shapes}) == 1
]


@pytest.mark.sampled
@every_case(ONCE)
def test_gradient(primitive, sample):
    """In double precision, so that the way of adding up leaves no difference to look at."""
    (cpu, *_) = gf.devices("cpu")
    with x64():
        with gf.default_device(cpu):
            dtypes = differentiable(primitive, sample)
            if not dtypes:
                return
            values = operands(primitive, sample, dtypes[0])
            function, primals = variables_only(
                bound(primitive, sample.params_for(dtypes[0])), values
            )
            cotangents = directions([as_numpy(out) for out in function(*primals)], 2)
            want = vjp(function, primals, cotangents)
        got = gf.jit(lambda *given: vjp(function, given, cotangents))(*primals)
        for result, wanted in zip(got, want, strict=True):
            wanted = as_numpy(wanted)
            scale = max(1.0, float(np.abs(wanted).max(initial=0.0)))
            np.testing.assert_allclose(as_numpy(result), wanted, rtol=1e-8, atol=1e-9 * scale)
