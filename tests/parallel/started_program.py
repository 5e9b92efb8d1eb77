"""A script that knows nothing of how it was started."""

import numpy as np

import gpuflow as gf
from gpuflow.experimental import multihost_utils

gf.distributed.initialize()
total = multihost_utils.process_allgather(np.int32(gf.process_index() + 1)).sum()
# One write, so that the lines of two processes on one terminal do not mix.
print(f"rank {gf.process_index()} of {gf.process_count()} sees {total}\n", end="", flush=True)
