"""A kernel that fails: what the error says, and that the process ends well."""

import numpy as np
import stand_in

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base.config import config
from gpuflow.targets.cuda.runtime.driver.faults import GpuFault

x = gf.device_put(np.ones(8, np.float32))
step = gf.jit(lambda v: jnp.sin(v) * 2)
step(x).block_until_ready()
big = gf.device_put(np.ones(1 << 20, np.float32))
stand_in.kernels.fails = True
try:
    step(x).block_until_ready()
except GpuFault as error:
    assert "cudaErrorIllegalAddress" in str(error), error
    if config.environment.check:
        assert "in kernel map_" in str(error), error
    else:
        assert "fault.py" in str(error) and "GPUFLOW_CHECK=1" in str(error), error
else:
    raise AssertionError("it must be an error")
try:
    np.asarray(x)
except GpuFault:
    pass
else:
    raise AssertionError("nothing works after that")
del x, big
print("ended")
