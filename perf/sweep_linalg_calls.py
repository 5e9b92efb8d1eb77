"""The calls of sweep.py to products, linear algebra and Fourier transforms of gpuflow.numpy."""

from __future__ import annotations

from sweep_operands import EAGER, FLOATS, JIT, SIZES, SMALLER, Section

PRODUCTS = [
    Section(
        grad=True,
        variants=(*FLOATS, "int32", "complex64", "transposed"),
        calls="""
        jnp.matmul(rows, square)
        """,
    ),
    Section(
        grad=True,
        calls="""
        jnp.dot(x, y)
        jnp.dot(rows, square)
        jnp.vdot(x, y)
        jnp.vecdot(rows, square)
        jnp.matvec(rows, row)
        jnp.vecmat(row, rows)
        jnp.matmul(stack, stack)
        jnp.inner(rows, square)
        jnp.outer(row, other_row)
        jnp.tensordot(rows, square, axes=1)
        jnp.einsum('ij,kj->ik', rows, square)
        jnp.einsum('bij,bjk->bik', stack, stack)
        jnp.einsum('ij->i', rows)
        jnp.kron(small, small)
        jnp.cross(triples, other_triples)
        jnp.convolve(x, taps)
        jnp.correlate(x, taps)
        jnp.polyval(taps, x)
        jnp.polyadd(x, y)
        jnp.polysub(x, y)
        jnp.polymul(x, taps)
        jnp.polyder(x)
        jnp.polyint(x)
        linalg.cross(triples, other_triples)
        linalg.diagonal(stack)
        linalg.matmul(rows, square)
        linalg.matrix_norm(rows)
        linalg.matrix_transpose(rows)
        linalg.norm(x)
        linalg.norm(rows, axis=1)
        linalg.outer(row, other_row)
        linalg.tensordot(rows, square, axes=1)
        linalg.trace(stack)
        linalg.vecdot(rows, square)
        linalg.vector_norm(x)
        linalg.matrix_power(square, 3)
        linalg.multi_dot([rows, square, rows])
        """,
    ),
    Section(
        calls="""
        jnp.polydiv(taps, divisor)
        jnp.polyfit(share, y, 2)
        jnp.poly(taps)
        """,
        sizes=SIZES[:1],
    ),
    Section(
        modes=EAGER,
        sizes=SIZES[:1],
        compared="jnp.sort(jnp.abs(result))",
        calls="""
        jnp.roots(taps)
        """,
    ),
    Section(
        modes=JIT,
        sizes=SIZES[:1],
        compared="jnp.sort(jnp.abs(result))",
        calls="""
        jnp.roots(taps, strip_zeros=False)
        """,
    ),
]

DECOMPOSITIONS = [
    Section(
        grad=True,
        calls="""
        linalg.cholesky(spd)
        linalg.det(stack)
        linalg.inv(square)
        linalg.inv(stack)
        linalg.slogdet(square)
        linalg.solve(square, rows)
        linalg.solve(stack, stack)
        """,
    ),
    Section(
        sizes=SMALLER,
        grad=True,
        calls="""
        linalg.eigvalsh(spd)
        linalg.pinv(tall)
        linalg.svdvals(square)
        """,
    ),
    # Residuals of systems that have a solution are rounding errors.
    Section(
        sizes=SMALLER,
        compared="result[0]",
        calls="""
        linalg.lstsq(tall, right)
        """,
    ),
    Section(
        sizes=SMALLER,
        compared="jnp.abs(result[0])",
        calls="""
        linalg.eigh(spd)
        linalg.qr(tall)
        """,
    ),
    Section(
        sizes=SMALLER,
        compared="result[1]",
        calls="""
        linalg.svd(tall, full_matrices=False)
        """,
    ),
    Section(
        sizes=SMALLER,
        compared="jnp.sort(jnp.abs(result))",
        calls="""
        linalg.eigvals(square)
        """,
    ),
    Section(
        sizes=SMALLER,
        compared="jnp.sort(jnp.abs(result[0]))",
        calls="""
        linalg.eig(square)
        """,
    ),
    Section(
        sizes=SMALLER,
        calls="""
        linalg.cond(square)
        linalg.matrix_rank(square)
        linalg.tensorinv(square, ind=1)
        linalg.tensorsolve(square, row)
        """,
    ),
]

FFT = [
    Section(
        grad=True,
        calls="""
        fft.fft(waves)
        fft.ifft(waves)
        fft.rfft(x)
        fft.irfft(waves)
        fft.hfft(waves)
        fft.ihfft(x)
        fft.fft2(wave_rows)
        fft.ifft2(wave_rows)
        fft.rfft2(rows)
        fft.irfft2(wave_rows)
        fft.fftn(wave_rows)
        fft.ifftn(wave_rows)
        fft.rfftn(rows)
        fft.irfftn(wave_rows)
        fft.fftshift(x)
        fft.ifftshift(x)
        """,
    ),
    Section(
        calls="""
        fft.fftfreq(n)
        fft.rfftfreq(n)
        """,
    ),
]

CALLS = [*PRODUCTS, *DECOMPOSITIONS, *FFT]
