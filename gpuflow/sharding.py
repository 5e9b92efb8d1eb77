"""Meshes of devices and shardings of arrays, as in jax.sharding."""

from gpuflow.base.names import missing_name as _missing_name
from gpuflow.base.names import public_names as _public_names
from gpuflow.core.sharding import AbstractMesh as AbstractMesh
from gpuflow.core.sharding import AxisType as AxisType
from gpuflow.core.sharding import Mesh as Mesh
from gpuflow.core.sharding import NamedSharding as NamedSharding
from gpuflow.core.sharding import PartitionSpec as PartitionSpec
from gpuflow.core.sharding import PositionalSharding as PositionalSharding
from gpuflow.core.sharding import Sharding as Sharding
from gpuflow.core.sharding import SingleDeviceSharding as SingleDeviceSharding
from gpuflow.parallel.placement import get_abstract_mesh as get_abstract_mesh
from gpuflow.parallel.placement import get_mesh as get_mesh
from gpuflow.parallel.placement import reshard as reshard
from gpuflow.parallel.placement import set_mesh as set_mesh
from gpuflow.parallel.placement import use_mesh as use_mesh

__getattr__ = _missing_name(__name__, "sharding", _public_names(globals()))
