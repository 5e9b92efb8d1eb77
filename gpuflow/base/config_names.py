"""Settings of JAX that have no effect in gpuflow, and the message about unknown names.

Tests: tests/test_config_flags.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gpuflow.base.lazy import LazyModule
from gpuflow.base.records import record

if TYPE_CHECKING:
    import difflib
else:
    difflib = LazyModule("difflib")


@record
class Idle:
    """A setting of JAX that has no effect.

    Attributes:
        default: its value in JAX.
        reason: completes "has no effect in gpuflow:".
        is_refused: whether another value is an error: results would differ from JAX's.
    """

    default: Any
    reason: str
    is_refused: bool = False


# By reason, without "jax_": settings that programs for JAX set, with JAX's defaults.
# fmt: off
_IDLE: dict[str, dict[str, Any]] = {
    "gpuflow caches compiled kernels always, in the folder of GPUFLOW_CACHE_DIR": dict(
        compilation_cache_check_contents=False, compilation_cache_dir=None,
        compilation_cache_expect_pgle=False, compilation_cache_include_metadata_in_key=False,
        compilation_cache_max_size=-1, enable_compilation_cache=True,
        persistent_cache_enable_xla_caches="xla_gpu_per_fusion_autotune_cache_dir",
        persistent_cache_min_compile_time_secs=1.0, persistent_cache_min_entry_size_bytes=0,
        raise_persistent_cache_errors=False, remove_custom_partitioning_ptr_from_cache_key=False,
        share_autotune_config_between_hosts=False, share_binary_between_hosts=False,
        share_binary_between_hosts_timeout_ms=1200000,
    ),
    "it controls XLA or MLIR, which gpuflow does not use": dict(
        allow_f16_reductions=True, backend_target="", bcoo_cusparse_lowering=False,
        compiler_detailed_logging_min_ops=10, compiler_enable_remat_pass=True,
        disable_most_optimizations=False, dump_ir_modes="stablehlo", dump_ir_to="",
        eager_constant_folding=False, embedded_constants_max_bytes=32, enable_pgle=False,
        exec_time_optimization_effort=0.0, experimental_unsafe_xla_runtime_errors=False,
        hlo_source_file_canonicalization_regex=None, include_debug_info_in_dumps=True,
        include_full_tracebacks_in_locations=True, memory_fitting_effort=0.0,
        memory_fitting_level="O2", optimization_level="UNKNOWN", pgle_aggregation_percentile=90,
        pgle_profiling_runs=3, pjrt_client_create_options=None,
        ragged_dot_use_gpu_pallas_triton_lowering=False, ragged_dot_use_ragged_dot_instruction=True,
        send_traceback_to_runtime="off", source_url_schema=None, spmd_mode="allow_jit",
        threefry_gpu_kernel_lowering=False, traceback_in_locations_limit=100, use_magma="auto",
        use_shardy_partitioner=True, xla_backend="", xla_profile_version=0,
    ),
    "it controls the compilers of Pallas, which gpuflow does not use": dict(
        mosaic_allow_hlo=False, pallas_enable_debug_checks=False, pallas_poison_buffers=False,
        pallas_use_mosaic_gpu=True, pallas_verbose_errors=False, use_emit_pipeline_primitive=False,
    ),
    "exported programs have gpuflow's own format": dict(
        export_calling_convention_version=10, export_ignore_forward_compatibility=False,
        jax2tf_associative_scan_reductions=False, jax2tf_default_native_serialization=True,
        serialization_version=0,
    ),
    "it selects among implementations inside JAX; gpuflow has one of each": dict(
        auto_pcast=True, check_vma=False, custom_vjp3=False, disable_bwd_checks=False,
        disable_vmap_shmap_error=False, disallow_mesh_context_manager=False, enable_checks=False,
        enable_empty_arrays=True, enable_memories=True, jit_pjit_api_merge=True,
        mutable_array_checks=True, refs_to_pins=False, remat3=False,
        remove_size_one_mesh_axis_from_type=False, scan3=False, softmax_custom_jvp=False,
        use_direct_linearize=True, use_simplified_jaxpr_constants=False, vjp3=False,
    ),
    "gpuflow does not have these checks and logs": dict(
        array_garbage_collection_guard=None, captured_constants_report_frames=0,
        captured_constants_warn_bytes=2000000000, check_static_indices=False,
        debug_leaked_clients_on_clear_backends=False, debug_log_modules="",
        error_checking_behavior_divide="ignore", error_checking_behavior_nan="ignore",
        error_checking_behavior_oob="ignore", legacy_prng_key="allow",
        log_checkpoint_residuals=False, logging_level="NOTSET", pprint_use_color=True,
        thread_guard=False, tracer_error_num_traceback_frames=5, transfer_guard=None,
        transfer_guard_device_to_device=None, transfer_guard_device_to_host=None,
        transfer_guard_host_to_device=None,
    ),
    "gpuflow.distributed.initialize and environment variables configure processes": dict(
        check_proxy_envs=True, cpu_collectives_implementation="gloo",
        cpu_enable_async_dispatch=True, cpu_get_global_topology_timeout_minutes=5,
        cpu_get_local_topology_timeout_minutes=2, cross_host_transfer_socket_address="",
        cross_host_transfer_timeout_seconds=None, cross_host_transfer_transfer_size=None,
        cross_host_transport_addresses="", cuda_visible_devices="all", distributed_debug=False,
        enable_preemption_service=True, enable_recoverability=False,
        force_dcn_cross_host_transfers=False, mock_gpu_topology="", mock_num_gpu_processes=0,
        oneapi_visible_devices="all", rocm_visible_devices="all",
        sort_devices_by_process_index=True,
    ),
}
# fmt: on
_REFUSED = {
    "no_execution": Idle(False, "jitted functions run when they are called", True),
    "explicit_x64_dtypes": Idle(
        "warn", "without enable_x64, 64-bit dtypes become 32-bit ones", True
    ),
}
WITHOUT_EFFECT = _REFUSED | {
    name: Idle(default, reason)
    for reason, names in _IDLE.items()
    for name, default in names.items()
}
_WITHOUT_PREFIX = frozenset(
    (
        "check_vma",
        "eager_constant_folding",
        "jax2tf_associative_scan_reductions",
        "jax2tf_default_native_serialization",
        "mock_num_gpu_processes",
    )
)


def name_in_jax(short: str) -> str:
    """The name of a setting in JAX."""
    return short if short in _WITHOUT_PREFIX else f"jax_{short}"


def unknown_setting(name: str, known: Iterable[str], methods: Iterable[str] = ()) -> str:
    """The message about a setting that does not exist, with names that are close to it.

    Args:
        name: the requested name.
        known: the settings.
        methods: names of methods, if an attribute was requested.
    """
    names = sorted(known)
    close = difflib.get_close_matches(name.removeprefix("jax_"), [*names, *methods], 3, 0.6)
    fix = " or ".join(map(repr, close)) or "one of these names"
    return (
        f"[config] the setting must be one of {', '.join(names)}; got {name!r}. "
        f"Fix: use {fix}, with or without the prefix jax_."
    )
