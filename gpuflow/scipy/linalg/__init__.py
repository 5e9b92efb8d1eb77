"""jax.scipy.linalg: decompositions, systems and functions of matrices."""

from gpuflow.base.names import public_names as _public_names
from gpuflow.base.names import publish as _publish
from gpuflow.scipy.linalg.factorizations import cho_factor as cho_factor
from gpuflow.scipy.linalg.factorizations import cholesky as cholesky
from gpuflow.scipy.linalg.factorizations import eigh as eigh
from gpuflow.scipy.linalg.factorizations import lu as lu
from gpuflow.scipy.linalg.factorizations import lu_factor as lu_factor
from gpuflow.scipy.linalg.factorizations import qr as qr
from gpuflow.scipy.linalg.factorizations import qr_multiply as qr_multiply
from gpuflow.scipy.linalg.factorizations import svd as svd
from gpuflow.scipy.linalg.forms import hessenberg as hessenberg
from gpuflow.scipy.linalg.forms import polar as polar
from gpuflow.scipy.linalg.forms import rsf2csf as rsf2csf
from gpuflow.scipy.linalg.forms import schur as schur
from gpuflow.scipy.linalg.functions import expm as expm
from gpuflow.scipy.linalg.functions import expm_frechet as expm_frechet
from gpuflow.scipy.linalg.functions import funm as funm
from gpuflow.scipy.linalg.functions import sqrtm as sqrtm
from gpuflow.scipy.linalg.named_matrices import dft as dft
from gpuflow.scipy.linalg.named_matrices import hadamard as hadamard
from gpuflow.scipy.linalg.named_matrices import helmert as helmert
from gpuflow.scipy.linalg.named_matrices import hilbert as hilbert
from gpuflow.scipy.linalg.named_matrices import invhilbert as invhilbert
from gpuflow.scipy.linalg.named_matrices import invpascal as invpascal
from gpuflow.scipy.linalg.named_matrices import pascal as pascal
from gpuflow.scipy.linalg.structured_matrices import block_diag as block_diag
from gpuflow.scipy.linalg.structured_matrices import circulant as circulant
from gpuflow.scipy.linalg.structured_matrices import companion as companion
from gpuflow.scipy.linalg.structured_matrices import convolution_matrix as convolution_matrix
from gpuflow.scipy.linalg.structured_matrices import fiedler as fiedler
from gpuflow.scipy.linalg.structured_matrices import fiedler_companion as fiedler_companion
from gpuflow.scipy.linalg.structured_matrices import hankel as hankel
from gpuflow.scipy.linalg.structured_matrices import leslie as leslie
from gpuflow.scipy.linalg.structured_matrices import toeplitz as toeplitz
from gpuflow.scipy.linalg.systems import cho_solve as cho_solve
from gpuflow.scipy.linalg.systems import det as det
from gpuflow.scipy.linalg.systems import inv as inv
from gpuflow.scipy.linalg.systems import lu_solve as lu_solve
from gpuflow.scipy.linalg.systems import solve as solve
from gpuflow.scipy.linalg.systems import solve_sylvester as solve_sylvester
from gpuflow.scipy.linalg.systems import solve_triangular as solve_triangular
from gpuflow.scipy.linalg.tridiagonal import eigh_tridiagonal as eigh_tridiagonal

_publish(globals(), "scipy.linalg", _public_names(globals()))
