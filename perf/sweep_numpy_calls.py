"""The calls of sweep.py to gpuflow.numpy, its linalg and its fft, as sweep_cells.py has them."""

from __future__ import annotations

from sweep_operands import SIZES, Section

SMALLER = SIZES[:2]  # where a million elements take seconds, in both
EAGER, JIT = ("eager",), ("jit",)
FLOATS = ("bfloat16", "float16")
LAYOUTS = ("transposed", "narrow", "strided")
NUMBERS = (*FLOATS, "int32", "complex64", *LAYOUTS)
REALS = (*FLOATS, "int32", *LAYOUTS)

ELEMENTWISE = [
    Section(
        grad=True,
        variants=(*FLOATS, "complex64", *LAYOUTS),
        calls="""
        jnp.exp(x)
        jnp.sin(x)
        jnp.tanh(x)
        jnp.log(positive)
        jnp.sqrt(positive)
        """,
    ),
    Section(
        grad=True,
        variants=NUMBERS,
        calls="""
        jnp.abs(x)
        jnp.square(x)
        jnp.add(x, y)
        jnp.multiply(x, y)
        jnp.divide(x, positive)
        """,
    ),
    Section(
        grad=True,
        variants=(*REALS, "bool"),
        calls="""
        jnp.maximum(x, y)
        jnp.where(bools, x, y)
        jnp.clip(x, -1, 1)
        """,
    ),
    Section(
        grad=True,
        calls="""
        jnp.acos(unit)
        jnp.acosh(large)
        jnp.asin(unit)
        jnp.asinh(x)
        jnp.arctan(x)
        jnp.atanh(unit)
        jnp.cbrt(x)
        jnp.cos(x)
        jnp.cosh(x)
        jnp.deg2rad(x)
        jnp.degrees(x)
        jnp.exp2(x)
        jnp.expm1(x)
        jnp.fabs(x)
        jnp.i0(x)
        jnp.log10(positive)
        jnp.log1p(positive)
        jnp.log2(positive)
        jnp.negative(x)
        jnp.positive(x)
        jnp.reciprocal(positive)
        jnp.sinc(x)
        jnp.sinh(x)
        jnp.tan(unit)
        jnp.real(waves)
        jnp.imag(waves)
        jnp.conj(waves)
        jnp.angle(waves)
        jnp.nan_to_num(x)
        jnp.arctan2(x, y)
        jnp.copysign(x, y)
        jnp.float_power(positive, x)
        jnp.fmax(x, y)
        jnp.fmin(x, y)
        jnp.hypot(x, y)
        jnp.logaddexp(x, y)
        jnp.logaddexp2(x, y)
        jnp.minimum(x, y)
        jnp.power(positive, x)
        jnp.power(x, 3)
        jnp.subtract(x, y)
        jnp.ldexp(x, shifts)
        jnp.fmod(x, positive)
        jnp.mod(x, positive)
        jnp.modf(x)
        jnp.astype(x, 'bfloat16')
        jnp.select([x > 1, x > 0], [x, y], default=z)
        jnp.choose(digits % 2, [x, y])
        """,
    ),
    Section(
        variants=(*REALS, "bool"),
        calls="""
        jnp.less(x, y)
        jnp.sign(x)
        jnp.logical_and(x, y)
        """,
    ),
    Section(
        variants=(*FLOATS, *LAYOUTS),
        calls="""
        jnp.floor(x)
        jnp.isnan(x)
        """,
    ),
    Section(
        variants=("int32", *FLOATS),
        calls="""
        jnp.floor_divide(x, positive)
        """,
    ),
    Section(
        calls="""
        jnp.ceil(x)
        jnp.trunc(x)
        jnp.rint(x)
        jnp.around(x)
        jnp.around(x, 2)
        jnp.isfinite(x)
        jnp.isinf(x)
        jnp.isneginf(x)
        jnp.isposinf(x)
        jnp.isreal(waves)
        jnp.iscomplex(waves)
        jnp.signbit(x)
        jnp.spacing(x)
        jnp.frexp(x)
        jnp.logical_not(x)
        jnp.logical_or(x, y)
        jnp.logical_xor(x, y)
        jnp.equal(x, y)
        jnp.greater(x, y)
        jnp.greater_equal(x, y)
        jnp.less_equal(x, y)
        jnp.not_equal(x, y)
        jnp.isclose(x, y)
        jnp.heaviside(x, y)
        jnp.nextafter(x, y)
        jnp.divmod(x, positive)
        jnp.divmod(ints, nats)
        jnp.bitwise_and(ints, nats)
        jnp.bitwise_or(ints, nats)
        jnp.bitwise_xor(ints, nats)
        jnp.bitwise_not(ints)
        jnp.bitwise_count(ints)
        jnp.left_shift(ints, shifts)
        jnp.right_shift(ints, shifts)
        jnp.gcd(ints, nats)
        jnp.lcm(ints, nats)
        jnp.astype(x, 'int32')
        jnp.piecewise(x, [x > 1, x > 0], [1.0, lambda u: 2 * u, 0.0])
        jnp.vectorize(jnp.add)(x, y)
        jnp.frompyfunc(lambda u, v: u * v + u, 2, 1)(x, y)
        """,
    ),
]

REDUCTIONS = [
    Section(
        grad=True,
        variants=NUMBERS,
        calls="""
        jnp.sum(x)
        jnp.sum(rows, axis=0)
        jnp.sum(rows, axis=1)
        jnp.mean(rows, axis=1)
        jnp.cumsum(rows, axis=1)
        """,
    ),
    Section(
        grad=True,
        variants=REALS,
        calls="""
        jnp.max(x)
        jnp.max(rows, axis=0)
        jnp.max(rows, axis=1)
        jnp.std(rows, axis=1)
        """,
    ),
    Section(
        variants=(*REALS, "bool"),
        calls="""
        jnp.any(rows, axis=1)
        jnp.argmax(rows, axis=1)
        jnp.argmax(x)
        """,
    ),
    Section(
        grad=True,
        calls="""
        jnp.amin(x)
        jnp.prod(rows, axis=1)
        jnp.mean(x)
        jnp.mean(rows, axis=0)
        jnp.std(x)
        jnp.var(x)
        jnp.var(rows, axis=0)
        jnp.average(rows, axis=1, weights=rows[0] ** 2 + 1)
        jnp.ptp(rows, axis=1)
        jnp.trace(rows)
        jnp.cumsum(x)
        jnp.cumsum(rows, axis=0)
        jnp.cumprod(unit)
        jnp.cumulative_sum(x, include_initial=True)
        jnp.cumulative_prod(unit)
        jnp.nansum(x)
        jnp.nanmean(x)
        jnp.nanmax(x)
        jnp.nanmin(x)
        jnp.nanstd(x)
        jnp.nanvar(x)
        jnp.nanprod(unit)
        jnp.nancumsum(x)
        jnp.nancumprod(unit)
        jnp.trapezoid(x)
        jnp.cov(tall, rowvar=False)
        jnp.corrcoef(tall, rowvar=False)
        jnp.median(x)
        jnp.nanmedian(x)
        jnp.percentile(x, 30.0)
        jnp.quantile(rows, 0.3, axis=1)
        jnp.nanpercentile(x, 30.0)
        jnp.nanquantile(x, 0.3)
        """,
    ),
    Section(
        calls="""
        jnp.all(bools)
        jnp.any(bools)
        jnp.argmin(x)
        jnp.argmin(rows, axis=0)
        jnp.nanargmax(x)
        jnp.nanargmin(x)
        jnp.count_nonzero(bools)
        jnp.allclose(x, y)
        jnp.array_equal(x, y)
        jnp.array_equiv(x, y)
        jnp.histogram(x, bins=20)
        jnp.histogram_bin_edges(x, bins=20)
        jnp.histogram2d(x, y, bins=20)
        jnp.histogramdd(tall[:, :2], bins=10)
        jnp.bincount(digits, length=10)
        jnp.apply_along_axis(jnp.sum, 0, rows)
        jnp.apply_over_axes(jnp.sum, rows, (0,))
        """,
    ),
]

# Functions that move elements about.
MOVING = [
    Section(
        grad=True,
        variants=(*NUMBERS, "bool"),
        calls="""
        jnp.concatenate([x, y])
        jnp.flip(rows, axis=1)
        jnp.transpose(rows)
        jnp.pad(rows, 1)
        jnp.reshape(rows, (-1,))
        """,
    ),
    Section(
        grad=True,
        variants=(*FLOATS, "transposed", "strided", "int32"),
        calls="""
        jnp.take(x, places)
        jnp.roll(rows, 3, axis=1)
        jnp.tril(rows)
        """,
    ),
    Section(
        grad=True,
        calls="""
        jnp.append(x, y)
        jnp.array([x, y])
        jnp.array_split(x, 3)
        jnp.atleast_1d(x)
        jnp.atleast_2d(x)
        jnp.atleast_3d(x)
        jnp.block([[rows, rows], [rows, rows]])
        jnp.broadcast_arrays(rows, rows[0])
        jnp.broadcast_to(x, (2, n))
        jnp.column_stack([x, y])
        jnp.concat([rows, rows], axis=1)
        jnp.copy(x)
        jnp.delete(x, 5)
        jnp.delete(x, jnp.array([2, 5]), assume_unique_indices=True)
        jnp.diag(rows)
        jnp.diag(rows[0])
        jnp.diagflat(rows[0])
        jnp.diagonal(rows)
        jnp.diff(x)
        jnp.dsplit(stack, 2)
        jnp.dstack([x, y])
        jnp.ediff1d(x)
        jnp.expand_dims(x, 0)
        jnp.fill_diagonal(rows, 2.0, inplace=False)
        jnp.fliplr(rows)
        jnp.flipud(rows)
        jnp.gradient(x)
        jnp.hsplit(rows, 2)
        jnp.hstack([x, y])
        jnp.insert(x, 5, 2.0)
        jnp.matrix_transpose(rows)
        jnp.meshgrid(rows[0], rows[1])
        jnp.moveaxis(stack, 0, 2)
        jnp.pad(x, 3, mode='edge')
        jnp.pad(rows, 2, mode='reflect')
        jnp.pad(x, 3, mode='wrap')
        jnp.permute_dims(stack, (2, 0, 1))
        jnp.place(x, bools, y[:7], inplace=False)
        jnp.put(x, places[:8], y[:8], inplace=False)
        jnp.put_along_axis(rows, places[:side, None] % side, 2.0, axis=1, inplace=False)
        jnp.ravel(rows)
        jnp.repeat(x, 3)
        jnp.repeat(rows, 2, axis=1)
        jnp.resize(x, (n // 2, 3))
        jnp.roll(x, 7)
        jnp.rollaxis(stack, 2)
        jnp.rot90(rows)
        jnp.split(x, 4)
        jnp.squeeze(x[None])
        jnp.stack([x, y])
        jnp.stack([x, y], axis=1)
        jnp.swapaxes(stack, 0, 1)
        jnp.take(rows, places[:side] % side, axis=1)
        jnp.take_along_axis(rows, places.reshape(side, side) % side, axis=1)
        jnp.tile(x, 3)
        jnp.triu(rows)
        jnp.unstack(stack, axis=1)
        jnp.vander(x, 4)
        jnp.vsplit(rows, 2)
        jnp.vstack([x, y])
        jnp.unwrap(x)
        jnp.interp(y, grid, x)
        """,
    ),
    Section(
        grad=True,
        variants=(*FLOATS, "int32", "transposed", "strided"),
        calls="""
        jnp.sort(rows, axis=1)
        """,
    ),
    Section(
        grad=True,
        calls="""
        jnp.sort(x)
        jnp.sort(rows, axis=0)
        jnp.partition(x, 20)
        jnp.sort_complex(waves)
        """,
    ),
    Section(
        calls="""
        jnp.argsort(x)
        jnp.argsort(rows, axis=1)
        jnp.argpartition(x, 20)
        jnp.lexsort((digits, x))
        jnp.searchsorted(grid, y)
        jnp.digitize(y, grid)
        jnp.isin(ints, nats)
        jnp.packbits(bools)
        jnp.unpackbits(bytes)
        jnp.ravel_multi_index((digits, digits), (10, 10))
        jnp.unravel_index(places, (2, n))
        jnp.extract(bools, x, size=20)
        jnp.compress(bools, x, size=20)
        jnp.nonzero(bools, size=20)
        jnp.flatnonzero(bools, size=20)
        jnp.argwhere(bools, size=20)
        jnp.unique(ints, size=50)
        jnp.unique_all(ints, size=50)
        jnp.unique_counts(ints, size=50)
        jnp.unique_inverse(ints, size=50)
        jnp.unique_values(ints, size=50)
        jnp.union1d(ints, nats, size=50)
        jnp.intersect1d(ints, nats, size=50)
        jnp.setdiff1d(ints, nats, size=50)
        jnp.setxor1d(ints, nats, size=50)
        """,
    ),
    Section(
        modes=EAGER,
        calls="""
        jnp.argwhere(bools)
        jnp.compress(bools, x)
        jnp.extract(bools, x)
        jnp.flatnonzero(bools)
        jnp.nonzero(bools)
        jnp.where(bools)
        jnp.unique(ints)
        jnp.unique_all(ints)
        jnp.unique_counts(ints)
        jnp.unique_inverse(ints)
        jnp.unique_values(ints)
        jnp.union1d(ints, nats)
        jnp.intersect1d(ints, nats)
        jnp.setdiff1d(ints, nats)
        jnp.setxor1d(ints, nats)
        jnp.bincount(digits)
        jnp.trim_zeros(x)
        jnp.asarray(numpy_array)
        jnp.from_dlpack(x)
        jnp.frombuffer(buffer, dtype='float32')
        jnp.mask_indices(side, jnp.triu)
        jnp.ix_(ints, nats)
        """,
    ),
]

MAKING = [
    Section(
        calls="""
        jnp.arange(n)
        jnp.arange(0.0, n, 1.0)
        jnp.bartlett(n)
        jnp.blackman(n)
        jnp.diag_indices(n)
        jnp.diag_indices_from(rows)
        jnp.eye(side)
        jnp.fromfunction(lambda u, v: u * v, (side, side))
        jnp.full((n,), 2.5)
        jnp.full_like(x, 2.5)
        jnp.geomspace(1.0, 100.0, n)
        jnp.hamming(n)
        jnp.hanning(n)
        jnp.identity(side)
        jnp.indices((side, side))
        jnp.kaiser(n, 4.0)
        jnp.linspace(0.0, 1.0, n)
        jnp.logspace(0.0, 2.0, n)
        jnp.ones((n,))
        jnp.ones_like(x)
        jnp.tri(side)
        jnp.tril_indices(side)
        jnp.tril_indices_from(rows)
        jnp.triu_indices(side)
        jnp.triu_indices_from(rows)
        jnp.zeros((n,))
        jnp.zeros_like(x)
        """,
    ),
    Section(
        free="what stands in memory that nobody has written is anything",
        calls="""
        jnp.empty((n,))
        jnp.empty_like(x)
        lax.empty((n,), 'float32')
        """,
    ),
]

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
        jnp.matvec(rows, square[0])
        jnp.vecmat(square[0], rows)
        jnp.matmul(stack, stack)
        jnp.inner(rows, square)
        jnp.outer(rows[0], rows[1])
        jnp.tensordot(rows, square, axes=1)
        jnp.einsum('ij,kj->ik', rows, square)
        jnp.einsum('bij,bjk->bik', stack, stack)
        jnp.einsum('ij->i', rows)
        jnp.kron(rows[:5, :5], stack[0])
        jnp.cross(triples, triples[::-1])
        jnp.convolve(x, taps)
        jnp.correlate(x, taps)
        jnp.polyval(taps, x)
        jnp.polyadd(x, y)
        jnp.polysub(x, y)
        jnp.polymul(x, taps)
        jnp.polyder(x)
        jnp.polyint(x)
        linalg.cross(triples, triples[::-1])
        linalg.diagonal(stack)
        linalg.matmul(rows, square)
        linalg.matrix_norm(rows)
        linalg.matrix_transpose(rows)
        linalg.norm(x)
        linalg.norm(rows, axis=1)
        linalg.outer(rows[0], rows[1])
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
        jnp.polydiv(taps, taps[:4])
        jnp.polyfit(share[:100], y[:100], 2)
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
        linalg.lstsq(tall, tall[:, 0])
        linalg.tensorinv(square.reshape(side, side), ind=1)
        linalg.tensorsolve(square, rows[0])
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
        fft.fft2(waves.reshape(side, side))
        fft.ifft2(waves.reshape(side, side))
        fft.rfft2(rows)
        fft.irfft2(waves.reshape(side, side))
        fft.fftn(waves.reshape(side, side))
        fft.ifftn(waves.reshape(side, side))
        fft.rfftn(rows)
        fft.irfftn(waves.reshape(side, side))
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

CALLS = [*ELEMENTWISE, *REDUCTIONS, *MOVING, *MAKING, *PRODUCTS, *DECOMPOSITIONS, *FFT]
