"""The calls of sweep.py to gpuflow.numpy, as sweep_cells.py has them."""

from __future__ import annotations

from sweep_operands import EAGER, FLOATS, LAYOUTS, NUMERIC, REALS, SMALLER, Section

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
        variants=NUMERIC,
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
        jnp.select([bools, others], [x, y], default=z)
        jnp.choose(bits, [x, y], mode='clip')
        """,
    ),
    Section(
        variants=(*REALS, "bool"),
        calls="""
        jnp.less(x, y)
        jnp.logical_and(x, y)
        """,
    ),
    Section(
        variants=(*FLOATS, *LAYOUTS),
        calls="""
        jnp.floor(x)
        jnp.isnan(x)
        jnp.sign(x)
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
        jnp.piecewise(x, [bools, others], [1.0, lambda u: 2 * u, 0.0])
        jnp.vectorize(jnp.add)(x, y)
        jnp.frompyfunc(lambda u, v: u * v + u, 2, 1)(x, y)
        """,
    ),
]

REDUCTIONS = [
    Section(
        grad=True,
        variants=NUMERIC,
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
        jnp.prod(near)
        jnp.prod(near_rows, axis=1)
        jnp.mean(x)
        jnp.mean(rows, axis=0)
        jnp.std(x)
        jnp.var(x)
        jnp.var(rows, axis=0)
        jnp.average(rows, axis=1, weights=weights)
        jnp.ptp(rows, axis=1)
        jnp.trace(rows)
        jnp.cumsum(x)
        jnp.cumsum(rows, axis=0)
        jnp.cumprod(near)
        jnp.cumulative_sum(x, include_initial=True)
        jnp.cumulative_prod(near)
        jnp.nansum(x)
        jnp.nanmean(x)
        jnp.nanmax(x)
        jnp.nanmin(x)
        jnp.nanstd(x)
        jnp.nanvar(x)
        jnp.nanprod(near)
        jnp.nancumsum(x)
        jnp.nancumprod(near)
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
        jnp.histogramdd(pairs, bins=10)
        jnp.bincount(digits, length=10)
        jnp.apply_along_axis(jnp.sum, 0, rows)
        jnp.apply_over_axes(jnp.sum, rows, (0,))
        """,
    ),
    # An element may lie between edges that are rounded otherwise.
    Section(
        compared="result[1:]",
        calls="""
        jnp.histogram2d(x, y, bins=20)
        """,
    ),
]

# Functions that move elements about.
MOVING = [
    Section(
        grad=True,
        variants=(*NUMERIC, "bool"),
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
        jnp.broadcast_arrays(rows, row)
        jnp.broadcast_to(x, (2, n))
        jnp.column_stack([x, y])
        jnp.concat([rows, rows], axis=1)
        jnp.copy(x)
        jnp.delete(x, 5)
        jnp.delete(x, first, assume_unique_indices=True)
        jnp.diag(rows)
        jnp.diag(row)
        jnp.diagflat(row)
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
        jnp.meshgrid(row, other_row)
        jnp.moveaxis(stack, 0, 2)
        jnp.pad(x, 3, mode='edge')
        jnp.pad(rows, 2, mode='reflect')
        jnp.pad(x, 3, mode='wrap')
        jnp.permute_dims(stack, (2, 0, 1))
        jnp.place(x, bools, few, inplace=False)
        jnp.put(x, first, few, inplace=False)
        jnp.put_along_axis(rows, column, 2.0, axis=1, inplace=False)
        jnp.ravel(rows)
        jnp.repeat(x, 3)
        jnp.repeat(rows, 2, axis=1)
        jnp.resize(x, (n // 2, 3))
        jnp.roll(x, 7)
        jnp.rollaxis(stack, 2)
        jnp.rot90(rows)
        jnp.split(x, 4)
        jnp.squeeze(single)
        jnp.stack([x, y])
        jnp.stack([x, y], axis=1)
        jnp.swapaxes(stack, 0, 1)
        jnp.take(rows, columns, axis=1)
        jnp.take_along_axis(rows, column_rows, axis=1)
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
        jnp.sort_complex(waves)
        """,
    ),
    Section(
        calls="""
        jnp.argsort(x)
        jnp.argsort(rows, axis=1)
        jnp.lexsort((digits, x))
        jnp.searchsorted(grid, y)
        jnp.digitize(y, grid)
        jnp.packbits(bools)
        jnp.unpackbits(bytes)
        jnp.ravel_multi_index((digits, digits), (10, 10), mode='clip')
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
        """,
    ),
    # The order on either side of the element that is asked for is free.
    Section(
        compared="result[20]",
        calls="""
        jnp.partition(x, 20)
        jnp.argpartition(x, 20)
        """,
    ),
    # Both sort several times, or compare all pairs.
    Section(
        sizes=SMALLER,
        calls="""
        jnp.isin(ints, nats)
        jnp.union1d(ints, nats, size=50)
        jnp.intersect1d(ints, nats, size=50)
        jnp.setdiff1d(ints, nats, size=50)
        jnp.setxor1d(ints, nats, size=50)
        """,
    ),
    Section(
        sizes=SMALLER,
        modes=EAGER,
        calls="""
        jnp.union1d(ints, nats)
        jnp.intersect1d(ints, nats)
        jnp.setdiff1d(ints, nats)
        jnp.setxor1d(ints, nats)
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

CALLS = [*ELEMENTWISE, *REDUCTIONS, *MOVING, *MAKING]
