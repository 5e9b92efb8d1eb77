"""``jax._src.tree_util``: jax.tree_util, and which classes are nodes of trees."""

from gpuflow.base.tree import is_node_type
from gpuflow.tree_util import *  # noqa: F403


class _Registry:
    """Answers ``cls in _registry``."""

    def __contains__(self, cls: type) -> bool:
        return is_node_type(cls)


_registry = _Registry()
