"""Meshes of devices and shardings of arrays, as in jax.sharding."""

from gpuflow.base.names import public_names as _public_names
from gpuflow.base.names import publish as _publish
from gpuflow.core.aval import ManualAxisType as ManualAxisType
from gpuflow.core.mesh import AbstractMesh as AbstractMesh
from gpuflow.core.mesh import AxisType as AxisType
from gpuflow.core.mesh import Mesh as Mesh
from gpuflow.core.positional import PositionalSharding as PositionalSharding
from gpuflow.core.sharding import NamedSharding as NamedSharding
from gpuflow.core.sharding import PartitionSpec as PartitionSpec
from gpuflow.core.sharding import Sharding as Sharding
from gpuflow.core.sharding import SingleDeviceSharding as SingleDeviceSharding
from gpuflow.parallel.mapping.axis_modes import auto_axes as auto_axes
from gpuflow.parallel.mapping.axis_modes import explicit_axes as explicit_axes
from gpuflow.parallel.meshes import get_abstract_mesh as get_abstract_mesh
from gpuflow.parallel.meshes import get_mesh as get_mesh
from gpuflow.parallel.meshes import set_mesh as set_mesh
from gpuflow.parallel.meshes import use_abstract_mesh as use_abstract_mesh
from gpuflow.parallel.meshes import use_mesh as use_mesh
from gpuflow.parallel.placement import (
    make_single_device_sharding as make_single_device_sharding,
)
from gpuflow.parallel.placement import reshard as reshard

_publish(globals(), "sharding", _public_names(globals()))
