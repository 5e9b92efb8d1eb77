"""Writes linalg_values.json: what JAX 0.10 makes of matrix decompositions and their gradients.

They fix conventions (signs of vectors, orders, JAX's complex gradients). Run by hand with 64 bits:
JAX_ENABLE_X64=1 python tests/data/make_linalg_values.py. The tests read the file and need no JAX.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from make_surface_data import FOLDER, described

OPERANDS = {
    "a": "jnp.array([[1.5, -2.0, 0.25], [0.5, 1.0, -1.25], [-0.75, 2.5, 0.5]])",
    "c": "a + 1j * jnp.array([[0.25, 1.0, -0.5], [1.5, -0.75, 2.0], [0.5, -1.0, 1.25]])",
    "tall": "jnp.array([[1.0, 2.0], [-0.5, 1.5], [2.5, -1.0], [0.25, 0.75]])",
    "tallc": "tall + 1j * tall[::-1] * jnp.array([1.0, -0.5])",
    "singular": "jnp.array([[1., 2, 3, 1], [2, 4, 6, 3], [1, 0, 1, 2], [0, 1, 1, 5]])",
    "four": "singular + jnp.eye(4)",
    "zeros": "jnp.zeros((3, 3))",
    "weights": "jnp.cos(jnp.arange(16.0))",
    # A real loss of all results, so that gradients see every element.
    "loss": "lambda *outs: sum(jnp.sum(jnp.real(x) * weights[: x.size].reshape(x.shape)) + "
    "jnp.sum(jnp.imag(x) * weights[::-1][: x.size].reshape(x.shape)) for x in outs)",
    "hermite": "lambda x: x + x.conj().T",
}

FUNCTIONS = {
    "jnp.linalg.det": ("a", "c", "four", "singular"),
    "lambda x: tuple(jnp.linalg.slogdet(x))": ("a", "c", "four"),
    "jnp.linalg.inv": ("a", "c"),
    "lambda x: jnp.linalg.solve(x, a[0])": ("a", "c"),
    "jnp.linalg.pinv": ("tall", "tall.T", "tallc", "tallc.T"),
    "lambda x: jnp.linalg.lstsq(x, weights[:4])[0]": ("tall",),
    "lambda x: jnp.linalg.cholesky(x @ x.conj().T + jnp.eye(3))": ("a", "c"),
    "lambda x: jnp.linalg.cholesky(x, symmetrize_input=False)": ("a @ a.T",),
    "lambda x: tuple(jnp.linalg.qr(x))": ("a", "c", "tall", "tallc", "tall.T"),
    "lambda x: tuple(jnp.linalg.qr(x, 'complete'))": ("tall", "tallc"),
    "lambda x: tuple(jnp.linalg.svd(x, full_matrices=False))": ("a", "tall", "tall.T"),
    "lambda x: tuple(abs(y) ** 2 for y in jnp.linalg.svd(x, False))": ("c", "tallc"),
    "lambda x: tuple(jnp.linalg.eigh(hermite(x)))": ("a",),
    "lambda x: (lambda w, v: (w, abs(v) ** 2))(*jnp.linalg.eigh(hermite(x)))": ("c",),
    "jnp.linalg.eigvals": ("a", "c"),
    "lambda x: tuple(lax.linalg.eig(x, enable_eigvec_derivs=True))": ("a", "c"),
    "lambda x: lax.linalg.lu(x)[0]": ("a", "c", "tall", "tall.T"),
    "lambda x: jnp.linalg.norm(x, 'nuc')": ("a", "tallc"),
    "lambda x: jnp.linalg.norm(x, 3, axis=0)": ("a", "c"),
    "jnp.linalg.cond": ("a", "c"),
    "jnp.fft.fftn": ("a", "c"),
    "jnp.fft.rfft": ("a", "tall.T"),
    "lambda x: jnp.fft.irfft(x, 5)": ("c",),
    "jnp.fft.hfft": ("c",),
}

VALUES = [
    "tuple(lax.linalg.lu(tall))",
    "tuple(lax.linalg.qr(tall, pivoting=True))",
    # The phases of its vectors are free, and LAPACK's depend on the processor.
    *(f"jnp.diag(lax.linalg.schur({x})[0])" for x in ("a", "c")),
    *(f"(lambda t, z: z @ t @ z.conj().T)(*lax.linalg.schur({x}))" for x in ("a", "c")),
    "tuple(lax.linalg.hessenberg(four))",
    "tuple(lax.linalg.tridiagonal(hermite(four)))",
    "tuple(lax.linalg.tridiagonal(hermite(c), lower=False))",
    "tuple(lax.linalg.eig(a))",
    "tuple(lax.linalg.eig(c))",
    "lax.linalg.cholesky_update(jnp.linalg.cholesky(a @ a.T).T, weights[:3])",
    "lax.linalg.tridiagonal_solve(weights[:4], weights[4:8] + 3, weights[8:12], tall)",
    "lax.linalg.lu_pivots_to_permutation(jnp.array([[2, 2, 3], [0, 1, 2]], jnp.int32), 5)",
    "tuple(jnp.linalg.lstsq(tall, weights[:4]))",
    "tuple(jnp.linalg.slogdet(zeros))",
    "jnp.linalg.cholesky(zeros)",
    "jnp.linalg.cholesky(-jnp.eye(2))",
    "jnp.linalg.inv(zeros)",
    "jnp.linalg.pinv(zeros)",
    "jnp.linalg.cond(zeros)",
    "jnp.linalg.cond(zeros, 1)",
    "jnp.linalg.det(jnp.zeros((0, 0)))",
    "tuple(jnp.linalg.slogdet(jnp.zeros((0, 0))))",
    "tuple(jnp.linalg.svd(jnp.zeros((0, 2))))",
    "tuple(jnp.linalg.qr(jnp.zeros((2, 0)), 'complete'))",
    "jnp.linalg.matrix_rank(singular - jnp.diag(jnp.diag(singular)))",
]
SECOND = ["jnp.linalg.det", "jnp.linalg.inv", "lambda x: lax.linalg.lu(x)[0]"]

EXPRESSIONS = [
    *VALUES,
    *[f"({function})({x})" for function, operands in FUNCTIONS.items() for x in operands],
    *[
        f"jax.grad(lambda x: loss(*jax.tree.leaves(({function})(x))))({x})"
        for function, operands in FUNCTIONS.items()
        for x in operands
    ],
    *[
        "jax.grad(lambda y: loss(jax.grad(lambda x: "
        f"loss(*jax.tree.leaves(({function})(x))))(y)))(a)"
        for function in SECOND
    ],
]

if __name__ == "__main__":
    space = {"jax": jax, "jnp": jnp, "lax": lax, "np": np}
    for name, text in OPERANDS.items():
        space[name] = eval(text, space)
    values = {text: described(eval(text, space)) for text in EXPRESSIONS}
    stored = {"operands": OPERANDS, "values": values}
    (FOLDER / "linalg_values.json").write_text(json.dumps(stored, indent=0) + "\n")
