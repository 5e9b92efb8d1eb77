"""The calls of sweep.py to lax, nn, scipy.special and random, and what is not timed."""

from __future__ import annotations

from sweep_numpy_calls import FLOATS, LAYOUTS, SMALLER
from sweep_operands import SIZES, Section

ONE_SIZE = SIZES[1:2]  # lax, where jnp has the same function, which is timed at all sizes

LAX = [
    Section(
        sizes=ONE_SIZE,
        calls="""
        lax.abs(x)
        lax.acos(unit)
        lax.acosh(large)
        lax.add(x, y)
        lax.argmax(rows, 1, 'int32')
        lax.argmin(rows, 1, 'int32')
        lax.asin(unit)
        lax.asinh(x)
        lax.atan(x)
        lax.atan2(x, y)
        lax.atanh(unit)
        lax.bitwise_and(ints, nats)
        lax.bitwise_not(ints)
        lax.bitwise_or(ints, nats)
        lax.bitwise_xor(ints, nats)
        lax.cbrt(x)
        lax.ceil(x)
        lax.clamp(-1.0, x, 1.0)
        lax.conj(waves)
        lax.cos(x)
        lax.cosh(x)
        lax.cumprod(unit)
        lax.cumsum(x)
        lax.digamma(positive)
        lax.div(x, positive)
        lax.eq(x, y)
        lax.erf(x)
        lax.erf_inv(unit)
        lax.erfc(x)
        lax.exp(x)
        lax.exp2(x)
        lax.expand_dims(x, (0,))
        lax.expm1(x)
        lax.floor(x)
        lax.ge(x, y)
        lax.gt(x, y)
        lax.igamma(positive, y * y)
        lax.igammac(positive, y * y)
        lax.imag(waves)
        lax.is_finite(x)
        lax.le(x, y)
        lax.lgamma(positive)
        lax.log(positive)
        lax.log1p(positive)
        lax.lt(x, y)
        lax.max(x, y)
        lax.min(x, y)
        lax.mul(x, y)
        lax.ne(x, y)
        lax.neg(x)
        lax.nextafter(x, y)
        lax.polygamma(digits.astype('float32'), positive)
        lax.population_count(ints)
        lax.pow(positive, x)
        lax.real(waves)
        lax.reciprocal(positive)
        lax.rem(x, positive)
        lax.reshape(rows, (n,))
        lax.round(x)
        lax.select(bools, x, y)
        lax.shift_left(ints, shifts)
        lax.sign(x)
        lax.sin(x)
        lax.sinh(x)
        lax.sqrt(positive)
        lax.square(x)
        lax.squeeze(x[None], (0,))
        lax.stack([x, y])
        lax.sub(x, y)
        lax.tan(unit)
        lax.tanh(x)
        lax.tile(x, (3,))
        lax.transpose(rows, (1, 0))
        lax.unstack(stack, 1)
        lax.zeta(large, positive)
        lax.broadcast(x, (2,))
        lax.broadcast_to_rank(x, 2)
        lax.full((n,), 2.5)
        lax.full_like(x, 2.5)
        lax.split(x, (n // 4, n - n // 4))
        lax.optimization_barrier(x)
        lax.stop_gradient(x)
        """,
    ),
    Section(
        grad=True,
        variants=(*FLOATS, *LAYOUTS),
        calls="""
        lax.logistic(x)
        lax.rsqrt(positive)
        lax.integer_pow(x, 3)
        """,
    ),
    Section(
        grad=True,
        calls="""
        lax.bessel_i0e(x)
        lax.bessel_i1e(x)
        lax.associative_scan(jnp.add, x)
        lax.batch_matmul(stack, stack)
        lax.broadcast_in_dim(rows[0], (side, side), (0,))
        lax.broadcast_like(x[:1], x)
        lax.collapse(rows, 0)
        lax.complex(x, y)
        lax.concatenate([rows, rows], 1)
        lax.conv(images, filters, (1, 1), 'SAME')
        lax.conv_general_dilated(images, filters, (2, 2), 'VALID')
        lax.conv_general_dilated_patches(images, (3, 3), (1, 1), 'SAME')
        lax.conv_transpose(images, filters, (2, 2), 'SAME', None, channels_first)
        lax.conv_with_general_padding(images, filters, (1, 1), ((1, 1), (1, 1)), None, None)
        lax.convert_element_type(x, 'bfloat16')
        lax.cumlogsumexp(x)
        lax.cummax(x)
        lax.cummin(x)
        lax.dot(rows, square)
        lax.dot_general(rows, square, (((1,), (1,)), ((), ())))
        lax.dynamic_index_in_dim(rows, places[0] % side)
        lax.dynamic_slice(x, (places[0],), (n // 2,))
        lax.dynamic_slice_in_dim(x, places[0], n // 2)
        lax.dynamic_update_index_in_dim(rows, rows[1], 3, 0)
        lax.dynamic_update_slice(x, y[:20], (5,))
        lax.dynamic_update_slice_in_dim(x, y[:20], 5, 0)
        lax.gather(x, places[:, None], gather_numbers, (1,))
        lax.index_in_dim(rows, 3)
        lax.index_take(rows, (places[:side] % side,), (0,))
        lax.pad(x, 0.0, ((1, 1, 1),))
        lax.reduce_max(rows, (1,))
        lax.reduce_min(rows, (0,))
        lax.reduce_prod(rows, (1,))
        lax.reduce_sum(rows, (0,))
        lax.reduce_precision(x, 5, 10)
        lax.reduce_window(rows, 0.0, lax.add, (3, 3), (1, 1), 'SAME')
        lax.rev(rows, (0,))
        lax.select_n(bools, x, y)
        lax.slice(x, (1,), (n - 1,), (2,))
        lax.slice_in_dim(x, 3, n - 3)
        lax.sort(x)
        lax.top_k(x, 10)
        lax.top_k(rows, 5)
        lax.scatter_add(x, places[:, None], y, scatter_numbers)
        lax.scatter_mul(x, first, y[:20], scatter_numbers, unique_indices=True)
        lax.scatter(x, first, y[:20], scatter_numbers)
        lax.cond(x[0] > 0, jnp.sin, jnp.cos, x)
        lax.switch(digits[0] % 3, [jnp.sin, jnp.cos, jnp.tanh], x)
        lax.scan(lambda u, v: (u * 0.5 + v, u), rows[0], rows)
        lax.map(lambda u: jnp.sum(u * u), rows)
        lax.betainc(positive, positive, share)
        lax.igamma_grad_a(positive, positive)
        lax.random_gamma_grad(positive, positive)
        """,
    ),
    Section(
        calls="""
        lax.approx_max_k(x, 10)
        lax.approx_min_k(x, 10)
        lax.bitcast_convert_type(x, 'int32')
        lax.broadcasted_iota('int32', (side, side), 1)
        lax.clz(words)
        lax.mulhi(words, words)
        lax.iota('int32', n)
        lax.fft(waves, 'FFT', (n,))
        lax.fori_loop(0, 10, lambda k, u: u * 0.5 + k, x)
        lax.while_loop(lambda u: u[0] < 10, lambda u: (u[0] + 1, u[1] * 0.5 + 1), (0, x))
        lax.ragged_dot(rows, jnp.stack([square, square]), jnp.array([3, side - 3]))
        lax.reduce(x, 0.0, lax.add, (0,))
        lax.reduce(rows, -1.0, lax.max, (1,))
        lax.reduce_and(bools, (0,))
        lax.reduce_or(bools, (0,))
        lax.reduce_xor(ints, (0,))
        lax.rng_bit_generator(raw_key, (n,))
        lax.scatter_max(x, places[:, None], y, scatter_numbers)
        lax.scatter_min(x, places[:, None], y, scatter_numbers)
        lax.scatter_sub(x, places[:, None], y, scatter_numbers)
        lax.scatter_apply(x, first, jnp.sin, scatter_numbers, update_shape=(20,))
        lax.shift_right_arithmetic(ints, shifts)
        lax.shift_right_logical(ints, shifts)
        lax.sort_key_val(x, y)
        lax.sort((digits, x), num_keys=1)
        lax.custom_linear_solve(lambda u: 2 * u, x, lambda f, b: b / 2, symmetric=True)
        lax.custom_root(lambda u: u - x[0], x[0], lambda f, u: u - f(u), lambda g, u: u / g(1.0))
        """,
    ),
    Section(
        free="the generator is the backend's",
        calls="""
        lax.rng_uniform(0.0, 1.0, (n,))
        """,
    ),
]

NN = [
    Section(
        grad=True,
        variants=(*FLOATS, *LAYOUTS),
        calls="""
        nn.softmax(rows)
        nn.gelu(x)
        nn.silu(x)
        nn.logsumexp(rows, axis=1)
        nn.relu(x)
        """,
    ),
    Section(
        grad=True,
        calls="""
        nn.celu(x)
        nn.elu(x)
        nn.gelu(x, approximate=False)
        nn.glu(rows)
        nn.hard_sigmoid(x)
        nn.hard_silu(x)
        nn.hard_tanh(x)
        nn.identity(x)
        nn.leaky_relu(x)
        nn.log1mexp(positive)
        nn.log_sigmoid(x)
        nn.log_softmax(rows)
        nn.logmeanexp(rows, axis=1)
        nn.mish(x)
        nn.relu6(x)
        nn.selu(x)
        nn.sigmoid(x)
        nn.soft_sign(x)
        nn.softmax(rows, axis=0)
        nn.softplus(x)
        nn.sparse_plus(x)
        nn.sparse_sigmoid(x)
        nn.squareplus(x)
        nn.standardize(rows)
        nn.tanh(x)
        """,
    ),
    Section(
        sizes=SMALLER,
        grad=True,
        calls="""
        nn.dot_product_attention(queries, queries, queries)
        nn.dot_product_attention(queries, queries, queries, is_causal=True)
        """,
    ),
    Section(
        calls="""
        nn.one_hot(digits, 10)
        """,
    ),
]

SPECIAL = [
    Section(
        grad=True,
        variants=FLOATS,
        calls="""
        special.erf(x)
        special.gammaln(positive)
        """,
    ),
    Section(
        grad=True,
        calls="""
        special.beta(positive, large)
        special.betaln(positive, large)
        special.boxcox(positive, x)
        special.boxcox1p(positive, x)
        special.dawsn(x)
        special.digamma(positive)
        special.entr(positive)
        special.erfc(x)
        special.erfcx(x)
        special.erfinv(unit)
        special.exp1(positive)
        special.expi(positive)
        special.expit(x)
        special.fresnel(x)
        special.gamma(positive)
        special.i0(x)
        special.i0e(x)
        special.i1(x)
        special.i1e(x)
        special.kl_div(positive, large)
        special.log_ndtr(x)
        special.log_softmax(rows, axis=1)
        special.loggamma(positive)
        special.logit(share)
        special.logsumexp(rows, axis=1)
        special.multigammaln(large, 2)
        special.ndtr(x)
        special.ndtri(share)
        special.owens_t(x, y)
        special.poch(positive, large)
        special.polygamma(1, positive)
        special.rel_entr(positive, large)
        special.sici(positive)
        special.softmax(rows, axis=1)
        special.spence(positive)
        special.xlog1py(x, positive)
        special.xlogy(x, positive)
        """,
    ),
    Section(
        calls="""
        special.betainc(positive, positive, share)
        special.comb(10.0, digits)
        special.expn(2, positive)
        special.factorial(digits)
        special.gammainc(positive, positive)
        special.gammaincc(positive, positive)
        special.gammasgn(x)
        special.wofz(waves)
        special.zeta(large, positive)
        """,
    ),
    Section(
        sizes=SMALLER,
        calls="""
        special.bessel_jn(positive, v=3, n_iter=20)
        special.hyp1f1(share, large, unit)
        special.hyp2f1(share, share, large, unit)
        special.sph_harm_y(jnp.full(n, 2), jnp.full(n, 1), positive, x, n_max=3)
        """,
    ),
    Section(
        sizes=SIZES[:1],
        calls="""
        special.bernoulli(20)
        """,
    ),
]

RANDOM = [
    Section(
        calls="""
        random.bernoulli(key, 0.3, (n,))
        random.bits(key, (n,))
        random.categorical(key, rows)
        random.cauchy(key, (n,))
        random.choice(key, n, (n,))
        random.choice(key, x, (n,), p=share / share.sum())
        random.choice(key, x, (n // 2,), replace=False)
        random.double_sided_maxwell(key, 0.0, 1.0, (n,))
        random.exponential(key, (n,))
        random.geometric(key, 0.3, (n,))
        random.gumbel(key, (n,))
        random.laplace(key, (n,))
        random.logistic(key, (n,))
        random.lognormal(key, 1.0, (n,))
        random.maxwell(key, (n,))
        random.normal(key, (n,))
        random.pareto(key, 2.0, (n,))
        random.permutation(key, n)
        random.permutation(key, x)
        random.rademacher(key, (n,))
        random.randint(key, (n,), 0, 10)
        random.rayleigh(key, 1.0, (n,))
        random.triangular(key, 0.0, 0.5, 1.0, (n,))
        random.truncated_normal(key, -2.0, 2.0, (n,))
        random.uniform(key, (n,))
        random.wald(key, 1.0, (n,))
        random.weibull_min(key, 1.0, 2.0, (n,))
        random.key_data(random.split(key, n))
        random.multivariate_normal(key, taps, jnp.eye(9), (n // 10,))
        """,
    ),
    Section(
        sizes=SMALLER,
        calls="""
        random.ball(key, 3, shape=(n // 3,))
        random.beta(key, 2.0, 3.0, (n,))
        random.binomial(key, 10, 0.3, (n,))
        random.chisquare(key, 3.0, shape=(n,))
        random.dirichlet(key, taps ** 2 + 1, (n // 10,))
        random.f(key, 3.0, 4.0, shape=(n,))
        random.gamma(key, 2.0, (n,))
        random.generalized_normal(key, 2.0, (n,))
        random.loggamma(key, 2.0, (n,))
        random.multinomial(key, 20.0, jnp.ones(9) / 9, shape=(n // 10, 9))
        random.poisson(key, 3.0, (n,))
        random.t(key, 3.0, (n,))
        """,
    ),
    Section(
        sizes=SMALLER,
        compared="jnp.abs(result)",
        calls="""
        random.orthogonal(key, side)
        """,
    ),
    Section(
        sizes=SIZES[:1],
        calls="""
        random.PRNGKey(7)
        random.clone(raw_key)
        random.fold_in(raw_key, 7)
        random.key_data(key)
        random.split(raw_key)
        """,
    ),
    Section(
        sizes=SIZES[:1],
        compared="jax.random.key_data(result)",
        calls="""
        random.key(7)
        random.wrap_key_data(raw_key)
        """,
    ),
]

CALLS = [*LAX, *NN, *SPECIAL, *RANDOM]

# Public functions that are not timed, by the reason.
NOT_TIMED = {
    "answers about types and shapes, or about Python's own values; it computes nothing": """
        jnp.broadcast_shapes jnp.can_cast jnp.einsum_path jnp.finfo jnp.iinfo jnp.iscomplexobj
        jnp.isdtype jnp.isrealobj jnp.isscalar jnp.issubdtype jnp.iterable jnp.ndim
        jnp.promote_types jnp.result_type jnp.shape jnp.size lax.broadcast_shapes
        lax.conv_dimension_numbers lax.conv_general_permutations lax.conv_general_shape_tuple
        lax.conv_shape_tuple lax.conv_transpose_shape_tuple lax.dtype lax.padtype_to_pads
        lax.reduce_window_shape_tuple lax.shape_as_value lax.DotDimensionNumbers
        nn.get_scaled_dot_general_config random.key_dtype random.key_impl
    """,
    "reads, writes or prints text and files": """
        jnp.array_repr jnp.array_str jnp.fromfile jnp.fromstring jnp.get_printoptions jnp.load
        jnp.printoptions jnp.save jnp.savez jnp.set_printoptions
    """,
    "goes through Python's values one by one": "jnp.fromiter",
    "is about several devices, of which this sweep has one": """
        lax.all_gather lax.all_to_all lax.axis_index lax.axis_size lax.pbroadcast lax.pcast
        lax.pmax lax.pmean lax.pmin lax.ppermute lax.pshuffle lax.psum lax.psum_scatter
        lax.pswapaxes lax.ragged_all_to_all lax.with_sharding_constraint
    """,
    "is about how programs are staged; it computes nothing": """
        lax.after_all lax.create_token lax.composite lax.dce_sink lax.platform_dependent lax.stage
    """,
    "JAX has it for TPUs or GPUs only": "nn.scaled_dot_general nn.scaled_matmul",
    "the general form of functions that are timed": """
        lax.conv_general_dilated_local lax.ragged_dot_general
    """,
}
