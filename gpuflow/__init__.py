"""gpuflow: a GPU-first array framework with JAX's names. See docs/architecture.md."""

from gpuflow import ad_checkpoint as ad_checkpoint
from gpuflow import custom_batching as custom_batching
from gpuflow import custom_derivatives as custom_derivatives
from gpuflow import debug as debug
from gpuflow import errors as errors
from gpuflow import experimental as experimental
from gpuflow import flatten_util as flatten_util
from gpuflow import lax as lax
from gpuflow import nn as nn
from gpuflow import numpy as numpy
from gpuflow import random as random
from gpuflow import tree as tree
from gpuflow import tree_util as tree_util
from gpuflow import wiring
from gpuflow.api import ShapeDtypeStruct as ShapeDtypeStruct
from gpuflow.api import block_until_ready as block_until_ready
from gpuflow.api import clear_caches as clear_caches
from gpuflow.api import default_device as default_device
from gpuflow.api import device_count as device_count
from gpuflow.api import device_get as device_get
from gpuflow.api import device_put as device_put
from gpuflow.api import devices as devices
from gpuflow.api import disable_jit as disable_jit
from gpuflow.api import effects_barrier as effects_barrier
from gpuflow.api import enable_x64 as enable_x64
from gpuflow.api import ensure_compile_time_eval as ensure_compile_time_eval
from gpuflow.api import eval_shape as eval_shape
from gpuflow.api import explain as explain
from gpuflow.api import jit as jit
from gpuflow.api import local_device_count as local_device_count
from gpuflow.api import local_devices as local_devices
from gpuflow.api import make_jaxpr as make_jaxpr
from gpuflow.api import process_count as process_count
from gpuflow.api import process_index as process_index
from gpuflow.api import typeof as typeof
from gpuflow.api_ad import grad as grad
from gpuflow.api_ad import jvp as jvp
from gpuflow.api_ad import linearize as linearize
from gpuflow.api_ad import value_and_grad as value_and_grad
from gpuflow.api_ad import vjp as vjp
from gpuflow.api_config import debug_infs as debug_infs
from gpuflow.api_config import debug_nans as debug_nans
from gpuflow.api_config import default_matmul_precision as default_matmul_precision
from gpuflow.api_config import default_prng_impl as default_prng_impl
from gpuflow.api_config import numpy_dtype_promotion as numpy_dtype_promotion
from gpuflow.api_config import numpy_rank_promotion as numpy_rank_promotion
from gpuflow.api_config import threefry_partitionable as threefry_partitionable
from gpuflow.api_jacobian import hessian as hessian
from gpuflow.api_jacobian import jacfwd as jacfwd
from gpuflow.api_jacobian import jacobian as jacobian
from gpuflow.api_jacobian import jacrev as jacrev
from gpuflow.api_passes import fwd_and_bwd as fwd_and_bwd
from gpuflow.api_vmap import vmap as vmap
from gpuflow.base.config import config as config
from gpuflow.base.dtypes import float0 as float0
from gpuflow.base.names import missing_name as _missing_name
from gpuflow.base.names import public_names as _public_names
from gpuflow.callbacks import pure_callback as pure_callback
from gpuflow.control.checkpoint import checkpoint as checkpoint
from gpuflow.control.checkpoint import checkpoint as remat  # noqa: F401
from gpuflow.control.custom_gradient import custom_gradient as custom_gradient
from gpuflow.control.custom_rules import custom_jvp as custom_jvp
from gpuflow.control.custom_vjp import custom_vjp as custom_vjp
from gpuflow.control.linear_transpose import closure_convert as closure_convert
from gpuflow.control.linear_transpose import linear_transpose as linear_transpose
from gpuflow.control.remat_policies import checkpoint_policies as checkpoint_policies
from gpuflow.runtime.array import Array as Array
from gpuflow.runtime.device import Device as Device
from gpuflow.runtime.device import default_backend as default_backend
from gpuflow.runtime.kernels import cache_stats as cache_stats
from gpuflow.timing import timeit as timeit
from gpuflow.version import __version__ as __version__

wiring.install()

_MODULES = ["errors", "lax", "nn", "numpy", "random", "tree", "tree_util"]
__getattr__ = _missing_name(__name__, "gpuflow", [*_public_names(globals()), *_MODULES])
