"""gpuflow: a GPU-first array framework with JAX's names. See docs/architecture.md."""

from typing import TYPE_CHECKING

# Before optree loads typing_extensions, with which NumPy 2.2 takes twice as long.
import numpy as _numpy  # noqa: F401

from gpuflow import ad_checkpoint as ad_checkpoint
from gpuflow import custom_batching as custom_batching
from gpuflow import custom_derivatives as custom_derivatives
from gpuflow import debug as debug
from gpuflow import errors as errors
from gpuflow import experimental as experimental
from gpuflow import flatten_util as flatten_util
from gpuflow import lax as lax
from gpuflow import numpy as numpy
from gpuflow import random as random
from gpuflow import ref as ref
from gpuflow import tree as tree
from gpuflow import tree_util as tree_util
from gpuflow import wiring as _wiring
from gpuflow.api.derivatives import grad as grad
from gpuflow.api.derivatives import jvp as jvp
from gpuflow.api.derivatives import linearize as linearize
from gpuflow.api.derivatives import value_and_grad as value_and_grad
from gpuflow.api.derivatives import vjp as vjp
from gpuflow.api.devices import block_until_ready as block_until_ready
from gpuflow.api.devices import default_device as default_device
from gpuflow.api.devices import device_count as device_count
from gpuflow.api.devices import device_get as device_get
from gpuflow.api.devices import device_put as device_put
from gpuflow.api.devices import devices as devices
from gpuflow.api.devices import local_device_count as local_device_count
from gpuflow.api.devices import local_devices as local_devices
from gpuflow.api.devices import process_count as process_count
from gpuflow.api.devices import process_index as process_index
from gpuflow.api.guards import allow_f16_reductions as allow_f16_reductions
from gpuflow.api.guards import array_garbage_collection_guard as array_garbage_collection_guard
from gpuflow.api.guards import enable_checks as enable_checks
from gpuflow.api.guards import enable_custom_prng as enable_custom_prng
from gpuflow.api.guards import legacy_prng_key as legacy_prng_key
from gpuflow.api.guards import make_user_context as make_user_context
from gpuflow.api.guards import softmax_custom_jvp as softmax_custom_jvp
from gpuflow.api.guards import thread_guard as thread_guard
from gpuflow.api.guards import transfer_guard as transfer_guard
from gpuflow.api.guards import transfer_guard_device_to_device as transfer_guard_device_to_device
from gpuflow.api.guards import transfer_guard_device_to_host as transfer_guard_device_to_host
from gpuflow.api.guards import transfer_guard_host_to_device as transfer_guard_host_to_device
from gpuflow.api.jacobian import hessian as hessian
from gpuflow.api.jacobian import jacfwd as jacfwd
from gpuflow.api.jacobian import jacobian as jacobian
from gpuflow.api.jacobian import jacrev as jacrev
from gpuflow.api.kernel import kernel as kernel
from gpuflow.api.passes import fwd_and_bwd as fwd_and_bwd
from gpuflow.api.process import copy_to_host_async as copy_to_host_async
from gpuflow.api.process import host_count as host_count
from gpuflow.api.process import host_id as host_id
from gpuflow.api.process import host_ids as host_ids
from gpuflow.api.process import live_arrays as live_arrays
from gpuflow.api.process import print_environment_info as print_environment_info
from gpuflow.api.process import process_indices as process_indices
from gpuflow.api.programs import ShapeDtypeStruct as ShapeDtypeStruct
from gpuflow.api.programs import clear_caches as clear_caches
from gpuflow.api.programs import disable_jit as disable_jit
from gpuflow.api.programs import effects_barrier as effects_barrier
from gpuflow.api.programs import enable_x64 as enable_x64
from gpuflow.api.programs import ensure_compile_time_eval as ensure_compile_time_eval
from gpuflow.api.programs import eval_shape as eval_shape
from gpuflow.api.programs import explain as explain
from gpuflow.api.programs import jit as jit
from gpuflow.api.programs import make_jaxpr as make_jaxpr
from gpuflow.api.programs import typeof as typeof
from gpuflow.api.raw_kernel import raw_kernel as raw_kernel
from gpuflow.api.settings import check_tracer_leaks as check_tracer_leaks
from gpuflow.api.settings import checking_leaks as checking_leaks
from gpuflow.api.settings import debug_infs as debug_infs
from gpuflow.api.settings import debug_key_reuse as debug_key_reuse
from gpuflow.api.settings import debug_nans as debug_nans
from gpuflow.api.settings import default_matmul_precision as default_matmul_precision
from gpuflow.api.settings import default_prng_impl as default_prng_impl
from gpuflow.api.settings import explain_cache_misses as explain_cache_misses
from gpuflow.api.settings import log_compiles as log_compiles
from gpuflow.api.settings import no_tracing as no_tracing
from gpuflow.api.settings import numpy_dtype_promotion as numpy_dtype_promotion
from gpuflow.api.settings import numpy_rank_promotion as numpy_rank_promotion
from gpuflow.api.settings import threefry_partitionable as threefry_partitionable
from gpuflow.api.vmap import vmap as vmap
from gpuflow.base.config import config as config
from gpuflow.base.dtypes import float0 as float0
from gpuflow.base.names import public_names as _public_names
from gpuflow.base.names import publish as _publish
from gpuflow.base.tracebacks import install as _install_tracebacks
from gpuflow.callbacks import pure_callback as pure_callback
from gpuflow.control.checkpoint import checkpoint as checkpoint
from gpuflow.control.custom.gradient import custom_gradient as custom_gradient
from gpuflow.control.custom.jvp import custom_jvp as custom_jvp
from gpuflow.control.custom.vjp import custom_vjp as custom_vjp
from gpuflow.control.linear_transpose import closure_convert as closure_convert
from gpuflow.control.linear_transpose import linear_transpose as linear_transpose
from gpuflow.control.remat_policies import checkpoint_policies as checkpoint_policies
from gpuflow.core.sharding import NamedSharding as NamedSharding
from gpuflow.core.sharding import PartitionSpec as _PartitionSpec
from gpuflow.explaining.topology import Topology as Topology
from gpuflow.numpy.placed_slices import ds as ds
from gpuflow.parallel.mapping.pmap import pmap as pmap
from gpuflow.parallel.mapping.shard_map_api import shard_map as shard_map
from gpuflow.parallel.mapping.smap import smap as smap
from gpuflow.parallel.meshes import get_abstract_mesh as get_abstract_mesh
from gpuflow.parallel.meshes import get_mesh as get_mesh
from gpuflow.parallel.meshes import make_mesh as make_mesh
from gpuflow.parallel.meshes import set_mesh as set_mesh
from gpuflow.parallel.placement import device_put_replicated as device_put_replicated
from gpuflow.parallel.placement import device_put_sharded as device_put_sharded
from gpuflow.parallel.placement import make_array_from_callback as make_array_from_callback
from gpuflow.parallel.placement import (
    make_array_from_process_local_data as make_array_from_process_local_data,
)
from gpuflow.parallel.placement import (
    make_array_from_single_device_arrays as make_array_from_single_device_arrays,
)
from gpuflow.parallel.placement import reshard as reshard
from gpuflow.ref import Ref as Ref
from gpuflow.ref import empty_ref as empty_ref
from gpuflow.ref import free_ref as free_ref
from gpuflow.ref import freeze as freeze
from gpuflow.ref import new_ref as new_ref
from gpuflow.runtime.array import Array as Array
from gpuflow.runtime.array import Shard as Shard
from gpuflow.runtime.device import Device as Device
from gpuflow.runtime.device import default_backend as default_backend
from gpuflow.runtime.kernel_cache import cache_stats as cache_stats
from gpuflow.scopes import named_call as named_call
from gpuflow.scopes import named_scope as named_scope
from gpuflow.timing import timeit as timeit
from gpuflow.tree_util import tree_flatten as tree_flatten
from gpuflow.tree_util import tree_leaves as tree_leaves
from gpuflow.tree_util import tree_map as tree_map
from gpuflow.tree_util import tree_structure as tree_structure
from gpuflow.tree_util import tree_transpose as tree_transpose
from gpuflow.tree_util import tree_unflatten as tree_unflatten
from gpuflow.version import __version__ as __version__

if TYPE_CHECKING:
    from gpuflow import as_jax as as_jax
    from gpuflow import checkpointing as checkpointing
    from gpuflow import data as data
    from gpuflow import distributed as distributed
    from gpuflow import dlpack as dlpack
    from gpuflow import dtypes as dtypes
    from gpuflow import example_libraries as example_libraries
    from gpuflow import export as export
    from gpuflow import extend as extend
    from gpuflow import ffi as ffi
    from gpuflow import image as image
    from gpuflow import memory as memory
    from gpuflow import mixed_precision as mixed_precision
    from gpuflow import monitoring as monitoring
    from gpuflow import nn as nn
    from gpuflow import profiler as profiler
    from gpuflow import scipy as scipy
    from gpuflow import sharding as sharding
    from gpuflow import stages as stages
    from gpuflow import test_util as test_util
    from gpuflow import typing as typing

_wiring.install()
_install_tracebacks()

remat = checkpoint
P = _PartitionSpec

_MODULES = (
    "ad_checkpoint",
    "custom_batching",
    "custom_derivatives",
    "debug",
    "errors",
    "experimental",
    "flatten_util",
    "lax",
    "numpy",
    "random",
    "ref",
    "tree",
    "tree_util",
)
# Imported when they are first asked for, so that programs without them start faster.
_LATER = (
    "as_jax", "checkpointing", "data", "distributed", "dlpack", "dtypes", "example_libraries",
    "export", "extend", "ffi", "image", "memory", "mixed_precision", "monitoring", "nn", "profiler",
    "scipy", "sharding", "stages", "test_util", "typing",
)  # fmt: skip
_publish(globals(), "gpuflow", [*_public_names(globals()), "__version__"], (*_MODULES, *_LATER))
