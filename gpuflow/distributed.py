"""Multiple processes: ``distributed.initialize()``. See docs/many_devices.md."""

from gpuflow.base.names import public_names as _public_names
from gpuflow.base.names import publish as _publish
from gpuflow.parallel.processes.distributed import initialize as initialize
from gpuflow.parallel.processes.distributed import is_initialized as is_initialized
from gpuflow.parallel.processes.distributed import shutdown as shutdown

_publish(globals(), "distributed", _public_names(globals()))
