"""Several processes: ``distributed.initialize()``. See docs/many_devices.md."""

from gpuflow.parallel.distributed import initialize as initialize
from gpuflow.parallel.distributed import is_initialized as is_initialized
from gpuflow.parallel.distributed import shutdown as shutdown
