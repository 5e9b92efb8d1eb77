"""``jax.extend``: the names that libraries import."""

from gpuflow.as_jax.internals.extend import backend as backend
from gpuflow.as_jax.internals.extend import core as core
from gpuflow.as_jax.internals.extend import ifrt_programs as ifrt_programs
from gpuflow.as_jax.internals.extend import linear_util as linear_util
from gpuflow.as_jax.internals.extend import random as random
from gpuflow.as_jax.internals.extend import source_info_util as source_info_util
