"""Sparse arrays: coordinate format (BCOO) and compressed rows (BCSR).

They are pytrees of arrays, so they can be passed through ``jit``, ``grad`` and ``vmap``. Their
operations are gathers, scatters and sums. See docs/design/0040-sparse.md.
"""

from typing import TYPE_CHECKING

from gpuflow.base.names import public_names as _public_names
from gpuflow.base.names import publish as _publish
from gpuflow.experimental.sparse.base import CuSparseEfficiencyWarning as CuSparseEfficiencyWarning
from gpuflow.experimental.sparse.base import JAXSparse as JAXSparse
from gpuflow.experimental.sparse.base import SparseEfficiencyError as SparseEfficiencyError
from gpuflow.experimental.sparse.base import SparseEfficiencyWarning as SparseEfficiencyWarning
from gpuflow.experimental.sparse.bcoo import BCOO as BCOO
from gpuflow.experimental.sparse.bcoo import bcoo_fromdense as bcoo_fromdense
from gpuflow.experimental.sparse.bcoo import bcoo_todense as bcoo_todense
from gpuflow.experimental.sparse.bcsr import BCSR as BCSR
from gpuflow.experimental.sparse.bcsr import bcsr_broadcast_in_dim as bcsr_broadcast_in_dim
from gpuflow.experimental.sparse.bcsr import bcsr_concatenate as bcsr_concatenate
from gpuflow.experimental.sparse.bcsr import bcsr_dot_general as bcsr_dot_general
from gpuflow.experimental.sparse.bcsr import bcsr_extract as bcsr_extract
from gpuflow.experimental.sparse.bcsr import bcsr_fromdense as bcsr_fromdense
from gpuflow.experimental.sparse.bcsr import bcsr_sum_duplicates as bcsr_sum_duplicates
from gpuflow.experimental.sparse.bcsr import bcsr_todense as bcsr_todense
from gpuflow.experimental.sparse.creation import empty as empty
from gpuflow.experimental.sparse.creation import eye as eye
from gpuflow.experimental.sparse.creation import random_bcoo as random_bcoo
from gpuflow.experimental.sparse.creation import todense as todense
from gpuflow.experimental.sparse.derivatives import grad as grad
from gpuflow.experimental.sparse.derivatives import jacfwd as jacfwd
from gpuflow.experimental.sparse.derivatives import jacobian as jacobian
from gpuflow.experimental.sparse.derivatives import jacrev as jacrev
from gpuflow.experimental.sparse.derivatives import value_and_grad as value_and_grad
from gpuflow.experimental.sparse.layout import bcoo_broadcast_in_dim as bcoo_broadcast_in_dim
from gpuflow.experimental.sparse.layout import bcoo_concatenate as bcoo_concatenate
from gpuflow.experimental.sparse.layout import bcoo_dynamic_slice as bcoo_dynamic_slice
from gpuflow.experimental.sparse.layout import bcoo_reduce_sum as bcoo_reduce_sum
from gpuflow.experimental.sparse.layout import bcoo_reshape as bcoo_reshape
from gpuflow.experimental.sparse.layout import bcoo_rev as bcoo_rev
from gpuflow.experimental.sparse.layout import bcoo_slice as bcoo_slice
from gpuflow.experimental.sparse.layout import bcoo_sort_indices as bcoo_sort_indices
from gpuflow.experimental.sparse.layout import bcoo_squeeze as bcoo_squeeze
from gpuflow.experimental.sparse.layout import bcoo_sum_duplicates as bcoo_sum_duplicates
from gpuflow.experimental.sparse.layout import bcoo_transpose as bcoo_transpose
from gpuflow.experimental.sparse.layout import bcoo_update_layout as bcoo_update_layout
from gpuflow.experimental.sparse.products import bcoo_dot_general as bcoo_dot_general
from gpuflow.experimental.sparse.products import (
    bcoo_dot_general_sampled as bcoo_dot_general_sampled,
)
from gpuflow.experimental.sparse.products import bcoo_extract as bcoo_extract
from gpuflow.experimental.sparse.products import bcoo_multiply_dense as bcoo_multiply_dense
from gpuflow.experimental.sparse.products import bcoo_multiply_sparse as bcoo_multiply_sparse
from gpuflow.experimental.sparse.transform import sparsify as sparsify

if TYPE_CHECKING:
    from gpuflow.experimental.sparse import linalg as linalg

_publish(globals(), "sparse", _public_names(globals()), ("linalg",))
