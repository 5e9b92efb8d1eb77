"""Several processes: ``distributed.initialize()``. See docs/many_devices.md."""

from gpuflow.base.names import missing_name as _missing_name
from gpuflow.base.names import public_names as _public_names
from gpuflow.parallel.processes.distributed import initialize as initialize
from gpuflow.parallel.processes.distributed import is_initialized as is_initialized
from gpuflow.parallel.processes.distributed import shutdown as shutdown

__getattr__ = _missing_name(__name__, "distributed", _public_names(globals()))
