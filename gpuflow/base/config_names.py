"""Names of JAX's settings that mean nothing here, and what is said of unknown ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpuflow.base.lazy import LazyModule

if TYPE_CHECKING:
    import difflib
else:
    difflib = LazyModule("difflib")

# Programs that are written for JAX set these; here they would change nothing. Without "jax_".
_WITHOUT_EFFECT = """
allow_f16_reductions array_garbage_collection_guard auto_pcast check_static_indices
check_tracer_leaks check_vma compilation_cache_dir compilation_cache_expect_pgle
compilation_cache_include_metadata_in_key compilation_cache_max_size
compiler_enable_remat_pass cpu_enable_async_dispatch custom_vjp3 debug_key_reuse
debug_log_modules disable_bwd_checks disable_most_optimizations disable_vmap_shmap_error
dump_ir_modes dump_ir_to eager_constant_folding enable_checks enable_compilation_cache
enable_custom_prng enable_empty_arrays enable_memories enable_pgle
exec_time_optimization_effort include_full_tracebacks_in_locations
jax2tf_associative_scan_reductions jit_pjit_api_merge legacy_prng_key logging_level
memory_fitting_effort memory_fitting_level mutable_array_checks optimization_level
persistent_cache_enable_xla_caches persistent_cache_min_compile_time_secs
persistent_cache_min_entry_size_bytes pprint_use_color raise_persistent_cache_errors
random_seed_offset remat3 remove_size_one_mesh_axis_from_type rocm_visible_devices
share_autotune_config_between_hosts share_binary_between_hosts softmax_custom_jvp
spmd_mode thread_guard traceback_filtering transfer_guard
transfer_guard_device_to_device transfer_guard_device_to_host
transfer_guard_host_to_device use_direct_linearize use_shardy_partitioner
vjp3 xla_backend xla_profile_version
"""
WITHOUT_EFFECT = frozenset(_WITHOUT_EFFECT.split())


def unknown_setting(name: str, known: Iterable[str]) -> str:
    """The message about a setting that does not exist, with names that are close to it."""
    names = sorted(known)
    close = difflib.get_close_matches(name.removeprefix("jax_"), names, 3, 0.7)
    mend = " or ".join(map(repr, close)) or "one of these names"
    return (
        f"[config] the setting must be one of {', '.join(names)}; got {name!r}. "
        f"Fix: use {mend}, with or without the prefix jax_."
    )
