"""``jax._src.sharding_impls``: shardings, and the mark of one that is not given."""

from gpuflow.sharding import *  # noqa: F403


class UnspecifiedValue:
    """Stands in params for a sharding that is not given."""

    def __repr__(self) -> str:
        return "UnspecifiedValue"


UNSPECIFIED = UnspecifiedValue()
