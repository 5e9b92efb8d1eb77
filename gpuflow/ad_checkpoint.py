"""Rematerialization policies and functions that belong to ``gpuflow.checkpoint``."""

from gpuflow.base.names import public_names as _public_names
from gpuflow.base.names import publish as _publish
from gpuflow.control.checkpoint import print_saved_residuals as print_saved_residuals
from gpuflow.control.remat_policies import Offloadable as Offloadable
from gpuflow.control.remat_policies import Recompute as Recompute
from gpuflow.control.remat_policies import Saveable as Saveable
from gpuflow.control.remat_policies import checkpoint_policies as checkpoint_policies
from gpuflow.ops.effects.checkpoint_name import checkpoint_name as checkpoint_name

_publish(globals(), "ad_checkpoint", _public_names(globals()))
