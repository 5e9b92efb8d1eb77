"""Batches of arrays, and prefetching them to devices during a step. See docs/data.md."""

from gpuflow.base.names import missing_name as _missing_name
from gpuflow.base.names import public_names as _public_names
from gpuflow.data.batching import Batches as Batches
from gpuflow.data.batching import batches as batches
from gpuflow.data.prefetching import Prefetched as Prefetched
from gpuflow.data.prefetching import prefetch_to_device as prefetch_to_device

__getattr__ = _missing_name(__name__, "data", _public_names(globals()))
