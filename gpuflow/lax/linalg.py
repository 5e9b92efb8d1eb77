"""Matrix decompositions and solvers, with exact dtypes and shapes."""

from gpuflow.lax.polar import qdwh as qdwh
from gpuflow.lax.primitives import publish_with_primitives as _publish
from gpuflow.ops.linalg.algorithms import EighImplementation as EighImplementation
from gpuflow.ops.linalg.algorithms import EigImplementation as EigImplementation
from gpuflow.ops.linalg.algorithms import SvdAlgorithm as SvdAlgorithm
from gpuflow.ops.linalg.cholesky import cholesky as cholesky
from gpuflow.ops.linalg.cholesky import cholesky_update as cholesky_update
from gpuflow.ops.linalg.cholesky import symmetric_product as symmetric_product
from gpuflow.ops.linalg.eig import eig as eig
from gpuflow.ops.linalg.eigh import eigh as eigh
from gpuflow.ops.linalg.forms import hessenberg as hessenberg
from gpuflow.ops.linalg.forms import schur as schur
from gpuflow.ops.linalg.forms import tridiagonal as tridiagonal
from gpuflow.ops.linalg.lu import lu as lu
from gpuflow.ops.linalg.ormqr import ormqr as ormqr
from gpuflow.ops.linalg.qr import geqrf as geqrf
from gpuflow.ops.linalg.qr import householder_product as householder_product
from gpuflow.ops.linalg.qr import qr as qr
from gpuflow.ops.linalg.row_exchanges import (
    lu_pivots_to_permutation as lu_pivots_to_permutation,
)
from gpuflow.ops.linalg.solve import triangular_solve as triangular_solve
from gpuflow.ops.linalg.svd import svd as svd
from gpuflow.ops.linalg.tridiagonal import tridiagonal_solve as tridiagonal_solve

_publish(globals(), "lax.linalg", defining_files_only=True)
