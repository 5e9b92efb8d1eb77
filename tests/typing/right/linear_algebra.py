"""jnp.linalg, jnp.fft and einsum."""

import gpuflow.numpy as jnp
from gpuflow import Array

a = jnp.eye(3) + 0.1
q, r = jnp.linalg.qr(a)
u, s, vh = jnp.linalg.svd(a, full_matrices=False)
result = jnp.linalg.eigh(a)
sign, logdet = jnp.linalg.slogdet(a)
x: Array = jnp.linalg.solve(a, jnp.ones(3))
print(q @ r, u * s @ vh, result.eigenvalues, result.eigenvectors, sign, logdet, jnp.linalg.det(a))
print(jnp.linalg.norm(x), jnp.linalg.norm(a, axis=1), jnp.linalg.inv(a), jnp.linalg.cholesky(a))
print(jnp.linalg.lstsq(a, x)[0], jnp.linalg.svd(a, compute_uv=False), jnp.linalg.matrix_rank(a))
print(jnp.einsum("ij,jk->ik", a, a), jnp.tensordot(a, a, axes=1), jnp.kron(a, a).shape)
print(jnp.fft.ifft(jnp.fft.fft(x)).real, jnp.fft.rfft2(a), jnp.fft.fftfreq(4))
