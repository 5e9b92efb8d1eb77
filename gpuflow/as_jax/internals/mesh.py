"""``jax._src.mesh``: meshes, and the one in force."""

from gpuflow.core.mesh import AbstractMesh as AbstractMesh
from gpuflow.core.mesh import AxisType as AxisType
from gpuflow.core.mesh import Mesh as Mesh
from gpuflow.parallel.meshes import get_abstract_mesh as get_abstract_mesh
from gpuflow.parallel.meshes import get_mesh as get_concrete_mesh  # noqa: F401
