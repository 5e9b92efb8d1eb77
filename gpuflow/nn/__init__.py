"""Functions for neural networks: activations, softmax, attention, normalization, initializers."""

from typing import TYPE_CHECKING

from gpuflow.base.names import public_names as _public_names
from gpuflow.base.names import publish as _publish
from gpuflow.nn.activations import celu as celu
from gpuflow.nn.activations import elu as elu
from gpuflow.nn.activations import gelu as gelu
from gpuflow.nn.activations import glu as glu
from gpuflow.nn.activations import hard_sigmoid as hard_sigmoid
from gpuflow.nn.activations import hard_silu as hard_silu
from gpuflow.nn.activations import hard_swish as hard_swish
from gpuflow.nn.activations import hard_tanh as hard_tanh
from gpuflow.nn.activations import identity as identity
from gpuflow.nn.activations import leaky_relu as leaky_relu
from gpuflow.nn.activations import log1mexp as log1mexp
from gpuflow.nn.activations import log_sigmoid as log_sigmoid
from gpuflow.nn.activations import mish as mish
from gpuflow.nn.activations import relu as relu
from gpuflow.nn.activations import relu6 as relu6
from gpuflow.nn.activations import selu as selu
from gpuflow.nn.activations import sigmoid as sigmoid
from gpuflow.nn.activations import silu as silu
from gpuflow.nn.activations import soft_sign as soft_sign
from gpuflow.nn.activations import softplus as softplus
from gpuflow.nn.activations import sparse_plus as sparse_plus
from gpuflow.nn.activations import sparse_sigmoid as sparse_sigmoid
from gpuflow.nn.activations import squareplus as squareplus
from gpuflow.nn.activations import swish as swish
from gpuflow.nn.activations import tanh as tanh
from gpuflow.nn.attention import dot_product_attention as dot_product_attention
from gpuflow.nn.normalization import log_softmax as log_softmax
from gpuflow.nn.normalization import logmeanexp as logmeanexp
from gpuflow.nn.normalization import logsumexp as logsumexp
from gpuflow.nn.normalization import one_hot as one_hot
from gpuflow.nn.normalization import softmax as softmax
from gpuflow.nn.normalization import standardize as standardize
from gpuflow.nn.scaled import get_scaled_dot_general_config as get_scaled_dot_general_config
from gpuflow.nn.scaled import scaled_dot_general as scaled_dot_general
from gpuflow.nn.scaled import scaled_matmul as scaled_matmul

if TYPE_CHECKING:
    from gpuflow.nn import initializers as initializers

# Imported on first access.
_MODULES = ("initializers",)
_publish(globals(), "nn", _public_names(globals()), _MODULES)
