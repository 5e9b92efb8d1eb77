"""Matrix decompositions and solvers, with exact dtypes and shapes."""

from gpuflow.lax.polar import qdwh as qdwh
from gpuflow.lax.primitives import primitive_names as _primitive_names
from gpuflow.ops.linalg_algorithms import EighImplementation as EighImplementation
from gpuflow.ops.linalg_algorithms import EigImplementation as EigImplementation
from gpuflow.ops.linalg_algorithms import SvdAlgorithm as SvdAlgorithm
from gpuflow.ops.linalg_cholesky import cholesky as cholesky
from gpuflow.ops.linalg_cholesky import cholesky_update as cholesky_update
from gpuflow.ops.linalg_cholesky import symmetric_product as symmetric_product
from gpuflow.ops.linalg_eig import eig as eig
from gpuflow.ops.linalg_eigh import eigh as eigh
from gpuflow.ops.linalg_forms import hessenberg as hessenberg
from gpuflow.ops.linalg_forms import schur as schur
from gpuflow.ops.linalg_forms import tridiagonal as tridiagonal
from gpuflow.ops.linalg_lu import lu as lu
from gpuflow.ops.linalg_lu import lu_pivots_to_permutation as lu_pivots_to_permutation
from gpuflow.ops.linalg_ormqr import ormqr as ormqr
from gpuflow.ops.linalg_qr import geqrf as geqrf
from gpuflow.ops.linalg_qr import householder_product as householder_product
from gpuflow.ops.linalg_qr import qr as qr
from gpuflow.ops.linalg_solve import triangular_solve as triangular_solve
from gpuflow.ops.linalg_svd import svd as svd
from gpuflow.ops.linalg_tridiagonal import tridiagonal_solve as tridiagonal_solve

__getattr__, __dir__ = _primitive_names(__name__, "lax.linalg", globals(), own_files_only=True)
