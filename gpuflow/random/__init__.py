"""Random numbers from explicit keys, bit for bit those of JAX.

A key is a typed key (``key``) or a raw one of two uint32 numbers (``PRNGKey``); functions that
return keys use the form of their argument. Source: threefry2x32, Salmon et al. 2011, "Parallel
random numbers: as easy as 1, 2, 3"; the samplers follow jax.random.
"""

from gpuflow.base.names import public_names as _public_names
from gpuflow.base.names import publish as _publish
from gpuflow.random.base import bernoulli as bernoulli
from gpuflow.random.base import bits as bits
from gpuflow.random.base import cauchy as cauchy
from gpuflow.random.base import exponential as exponential
from gpuflow.random.base import laplace as laplace
from gpuflow.random.base import logistic as logistic
from gpuflow.random.base import normal as normal
from gpuflow.random.base import rademacher as rademacher
from gpuflow.random.base import randint as randint
from gpuflow.random.base import truncated_normal as truncated_normal
from gpuflow.random.base import uniform as uniform
from gpuflow.random.continuous import double_sided_maxwell as double_sided_maxwell
from gpuflow.random.continuous import geometric as geometric
from gpuflow.random.continuous import lognormal as lognormal
from gpuflow.random.continuous import maxwell as maxwell
from gpuflow.random.continuous import multivariate_normal as multivariate_normal
from gpuflow.random.continuous import orthogonal as orthogonal
from gpuflow.random.continuous import pareto as pareto
from gpuflow.random.continuous import rayleigh as rayleigh
from gpuflow.random.continuous import triangular as triangular
from gpuflow.random.continuous import wald as wald
from gpuflow.random.continuous import weibull_min as weibull_min
from gpuflow.random.counts import binomial as binomial
from gpuflow.random.counts import multinomial as multinomial
from gpuflow.random.counts import poisson as poisson
from gpuflow.random.gamma import ball as ball
from gpuflow.random.gamma import beta as beta
from gpuflow.random.gamma import chisquare as chisquare
from gpuflow.random.gamma import dirichlet as dirichlet
from gpuflow.random.gamma import f as f
from gpuflow.random.gamma import gamma as gamma
from gpuflow.random.gamma import generalized_normal as generalized_normal
from gpuflow.random.gamma import loggamma as loggamma
from gpuflow.random.gamma import t as t
from gpuflow.random.gumbel import categorical as categorical
from gpuflow.random.gumbel import gumbel as gumbel
from gpuflow.random.keys import PRNGKey as PRNGKey
from gpuflow.random.keys import clone as clone
from gpuflow.random.keys import fold_in as fold_in
from gpuflow.random.keys import key as key
from gpuflow.random.keys import key_data as key_data
from gpuflow.random.keys import key_dtype as key_dtype
from gpuflow.random.keys import key_impl as key_impl
from gpuflow.random.keys import split as split
from gpuflow.random.keys import wrap_key_data as wrap_key_data
from gpuflow.random.permutations import choice as choice
from gpuflow.random.permutations import permutation as permutation

_publish(globals(), "random", _public_names(globals()))
