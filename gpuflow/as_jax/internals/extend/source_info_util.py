"""``jax.extend.source_info_util``: which files do not count as the user's."""

from gpuflow.as_jax.internals.traceback_util import register_exclusion as register_exclusion
