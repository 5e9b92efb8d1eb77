"""The calls of sweep.py to nn, scipy.special and random, and what is not timed."""

from __future__ import annotations

from sweep_operands import FLOATS, LAYOUTS, SIZES, SMALLER, Section

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
        special.sph_harm_y(twos, ones, positive, x, n_max=3)
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
        free="sums of chances are rounded otherwise, so draws beside them meet other elements",
        calls="""
        random.choice(key, x, (n,), p=chances)
        """,
    ),
    Section(
        calls="""
        random.bernoulli(key, 0.3, (n,))
        random.bits(key, (n,))
        random.categorical(key, rows)
        random.cauchy(key, (n,))
        random.choice(key, n, (n,))
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
        random.split(raw_key, n)
        random.multivariate_normal(key, taps, covariance, (n // 10,))
        """,
    ),
    Section(
        sizes=SMALLER,
        calls="""
        random.ball(key, 3, shape=(n // 3,))
        random.beta(key, 2.0, 3.0, (n,))
        random.binomial(key, 10, 0.3, (n,))
        random.chisquare(key, 3.0, shape=(n,))
        random.dirichlet(key, concentrations, (n // 10,))
        random.f(key, 3.0, 4.0, shape=(n,))
        random.gamma(key, 2.0, (n,))
        random.generalized_normal(key, 2.0, (n,))
        random.loggamma(key, 2.0, (n,))
        random.multinomial(key, 20.0, nine_chances, shape=(n // 10, 9))
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

CALLS = [*NN, *SPECIAL, *RANDOM]

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
