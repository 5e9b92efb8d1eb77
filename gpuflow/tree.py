"""Pytrees under short names: ``tree.map``, ``tree.leaves`` and so on."""

from gpuflow.base.names import publish as _publish
from gpuflow.tree_util import static as static
from gpuflow.tree_util import tree_all as all
from gpuflow.tree_util import tree_broadcast as broadcast
from gpuflow.tree_util import tree_flatten as flatten
from gpuflow.tree_util import tree_flatten_with_path as flatten_with_path
from gpuflow.tree_util import tree_leaves as leaves
from gpuflow.tree_util import tree_leaves_with_path as leaves_with_path
from gpuflow.tree_util import tree_map as map
from gpuflow.tree_util import tree_map_with_path as map_with_path
from gpuflow.tree_util import tree_reduce as reduce
from gpuflow.tree_util import tree_reduce_associative as reduce_associative
from gpuflow.tree_util import tree_structure as structure
from gpuflow.tree_util import tree_transpose as transpose
from gpuflow.tree_util import tree_unflatten as unflatten

__all__ = [
    "all",
    "broadcast",
    "flatten",
    "flatten_with_path",
    "leaves",
    "leaves_with_path",
    "map",
    "map_with_path",
    "reduce",
    "reduce_associative",
    "static",
    "structure",
    "transpose",
    "unflatten",
]

_publish(globals(), "tree", __all__)
