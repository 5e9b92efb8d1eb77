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
allow_f16_reductions array_garbage_collection_guard auto_pcast backend_target
bcoo_cusparse_lowering captured_constants_report_frames captured_constants_warn_bytes
check_proxy_envs check_static_indices check_vma
compilation_cache_check_contents compilation_cache_dir compilation_cache_expect_pgle
compilation_cache_include_metadata_in_key compilation_cache_max_size
compiler_detailed_logging_min_ops compiler_enable_remat_pass cpu_collectives_implementation
cpu_enable_async_dispatch cpu_get_global_topology_timeout_minutes
cpu_get_local_topology_timeout_minutes cross_host_transfer_socket_address
cross_host_transfer_timeout_seconds cross_host_transfer_transfer_size
cross_host_transport_addresses cuda_visible_devices custom_vjp3
debug_leaked_clients_on_clear_backends debug_log_modules disable_bwd_checks
disable_most_optimizations disable_vmap_shmap_error disallow_mesh_context_manager
distributed_debug dump_ir_modes dump_ir_to eager_constant_folding embedded_constants_max_bytes
enable_checks enable_compilation_cache enable_custom_prng enable_empty_arrays enable_memories
enable_pgle enable_preemption_service enable_recoverability error_checking_behavior_divide
error_checking_behavior_nan error_checking_behavior_oob exec_time_optimization_effort
experimental_unsafe_xla_runtime_errors explicit_x64_dtypes export_calling_convention_version
export_ignore_forward_compatibility force_dcn_cross_host_transfers high_dynamic_range_gumbel
hlo_source_file_canonicalization_regex include_debug_info_in_dumps
include_full_tracebacks_in_locations jax2tf_associative_scan_reductions
jax2tf_default_native_serialization jit_pjit_api_merge legacy_prng_key log_checkpoint_residuals
logging_level memory_fitting_effort memory_fitting_level mock_gpu_topology mock_num_gpu_processes
mosaic_allow_hlo mutable_array_checks no_execution oneapi_visible_devices optimization_level
pallas_enable_debug_checks pallas_poison_buffers pallas_use_mosaic_gpu pallas_verbose_errors
persistent_cache_enable_xla_caches persistent_cache_min_compile_time_secs
persistent_cache_min_entry_size_bytes pgle_aggregation_percentile pgle_profiling_runs
pjrt_client_create_options pprint_use_color ragged_dot_use_gpu_pallas_triton_lowering
ragged_dot_use_ragged_dot_instruction raise_persistent_cache_errors random_seed_offset
refs_to_pins remat3 remove_custom_partitioning_ptr_from_cache_key
remove_size_one_mesh_axis_from_type rocm_visible_devices scan3 send_traceback_to_runtime
serialization_version share_autotune_config_between_hosts share_binary_between_hosts
share_binary_between_hosts_timeout_ms softmax_custom_jvp sort_devices_by_process_index
source_url_schema spmd_mode thread_guard threefry_gpu_kernel_lowering
traceback_in_locations_limit tracer_error_num_traceback_frames transfer_guard
transfer_guard_device_to_device transfer_guard_device_to_host transfer_guard_host_to_device
use_direct_linearize use_emit_pipeline_primitive use_magma use_shardy_partitioner
use_simplified_jaxpr_constants vjp3 xla_backend xla_profile_version
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
