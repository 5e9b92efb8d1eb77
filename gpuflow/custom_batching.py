"""Functions with their own rules for vmap."""

from gpuflow.control.custom_vmap import custom_vmap as custom_vmap
from gpuflow.control.custom_vmap import sequential_vmap as sequential_vmap
