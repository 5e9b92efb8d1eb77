"""All primitives with their rules; and, as in JAX, reductions over segments."""

from gpuflow.ops.indexing.segments import segment_max as segment_max
from gpuflow.ops.indexing.segments import segment_min as segment_min
from gpuflow.ops.indexing.segments import segment_prod as segment_prod
from gpuflow.ops.indexing.segments import segment_sum as segment_sum
