"""The compilation cache API of JAX, for programs written for JAX."""

from gpuflow.experimental.compilation_cache.compilation_cache import reset_cache as reset_cache
from gpuflow.experimental.compilation_cache.compilation_cache import set_cache_dir as set_cache_dir
