"""The modules of JAX that are not gpuflow's of the same name; any other ``jax.X`` is ``gpuflow.X``.

A row is the name of a module, or a ``Names``: ``surfaces.py`` makes a module of it when a program
imports it. A module has the rows below its name as submodules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from gpuflow.base.records import record


@record
class Names:
    """A module whose names are objects of other modules.

    Attributes:
        of: names by the module of the objects, with spaces between them. ``new=old``: the object
            has another name there. ``*``: all public names.
        refused: names that raise NotImplementedError when they are called, by the reason.
        removed: the replacements of names that JAX has removed.
    """

    of: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    removed: Mapping[str, str] = field(default_factory=dict)


HIJAX_REFUSED = "values must be arrays or refs; got a custom type. Fix: hijax=False, its default."
_PALLAS_REFUSED = (
    "the kernel must be one of gpuflow's own; got Pallas, which writes for TPUs and for Triton. "
    "Fix: plain jax.numpy, which is fused, or gpuflow.kernel, gpuflow.kernel.block or "
    "gpuflow.raw_kernel (docs/kernels.md)."
)
_CODE = "gpuflow.as_jax.internals"
_VERSIONS = "gpuflow.as_jax.versions"
_SPLASH = "jax.experimental.pallas.ops.tpu.splash_attention"
_REMOVED = {
    "device_put_replicated": "jax.device_put(x, sharding)",
    "device_put_sharded": "jax.device_put(x, sharding)",
    "tree_flatten": "jax.tree.flatten",
    "tree_leaves": "jax.tree.leaves",
    "tree_map": "jax.tree.map",
    "tree_structure": "jax.tree.structure",
    "tree_transpose": "jax.tree.transpose",
    "tree_unflatten": "jax.tree.unflatten",
}

_PUBLIC: dict[str, str | Names] = {
    "jax": Names({"gpuflow": "*", _VERSIONS: "__version__ __version_info__"}, removed=_REMOVED),
    "jax.api_util": f"{_CODE}.api_util",
    # gpuflow.core is the inner core of this framework; jax.core has a few names.
    "jax.core": f"{_CODE}.core",
    "jax.extend": Names(),
    "jax.extend.backend": Names({f"{_CODE}.xla_bridge": "backends get_backend"}),
    "jax.extend.core": Names(
        {
            f"{_CODE}.core": """
            CallPrimitive ClosedJaxpr DebugInfo DropVar Effect Effects
            InconclusiveDimensionOperation Jaxpr JaxprEqn JaxprTypeError Literal Primitive TraceTag
            Var call_impl check_jaxpr concrete_or_error find_top_trace gensym
            get_opaque_trace_state jaxpr_as_fun jaxprs_in_params mapped_aval new_jaxpr_eqn
            no_effects primal_dtype_to_tangent_dtype set_current_trace subjaxprs take_current_trace
            unmapped_aval unsafe_get_axis_names_DO_NOT_USE valid_jaxtype
            """
        }
    ),
    "jax.extend.core.primitives": f"{_CODE}.named_primitives",
    "jax.extend.ifrt_programs": Names(
        refused={
            "programs must be jitted functions; got one for a plug-in. Fix: jax.jit.": (
                "ifrt_programs"
            )
        }
    ),
    "jax.extend.linear_util": Names(
        {
            f"{_CODE}.linear_util": """
            StoreException WrappedFun cache merge_linear_aux transformation transformation2
            transformation_with_aux transformation_with_aux2 wrap_init
            """
        }
    ),
    "jax.extend.random": f"{_CODE}.prng",
    "jax.extend.source_info_util": Names(
        {
            f"{_CODE}.traceback_util": "register_exclusion",
            "gpuflow.core.source_info": """
            NameStack SourceInfo current current_name_stack extend_name_stack new_name_stack
            new_source_info reset_name_stack set_name_stack summarize transform_name_stack
            user_context
            """,
        }
    ),
    "jax.interpreters": Names(),
    "jax.interpreters.ad": f"{_CODE}.ad",
    "jax.interpreters.batching": f"{_CODE}.batching",
    "jax.interpreters.mlir": f"{_CODE}.mlir",
    "jax.interpreters.partial_eval": f"{_CODE}.partial_eval",
    "jax.interpreters.pxla": f"{_CODE}.pxla",
    "jax.interpreters.xla": Names(
        {
            f"{_CODE}.dispatch": "apply_primitive",
            f"{_CODE}.type_tables": "canonicalize_dtype_handlers pytype_aval_mappings",
        }
    ),
    "jax.lib": Names({"jaxlib": "xla_client", _VERSIONS: "__version__ jaxlib_extension_version"}),
    "jax.version": _VERSIONS,
    "jaxlib": Names({_VERSIONS: "__version__ __version_info__"}),
    "jaxlib._jax": Names({"gpuflow.control.jit_function": "PjitFunction=JitFunction"}),
    "jaxlib.xla_client": Names(
        {
            "gpuflow.base.errors": "JaxRuntimeError XlaRuntimeError=JaxRuntimeError",
            "gpuflow.runtime.device": "Device",
        }
    ),
}
_EXPERIMENTAL: dict[str, str | Names] = {
    "jax.experimental.array_serialization": Names(),
    "jax.experimental.array_serialization.serialization": Names(
        {
            f"{_CODE}.serialization": """
            AsyncManager BarrierTimeoutError GlobalAsyncCheckpointManager
            GlobalAsyncCheckpointManagerBase _get_metadata get_tensorstore_spec is_remote_storage
            """,
            f"{_CODE}.tensorstore_impl": """
            TS_CONTEXT=_TS_CONTEXT _DEFAULT_DRIVER=_DEFAULT_BASE_DRIVER _LimitInFlightBytes
            async_deserialize async_serialize run_deserialization run_serialization
            """,
        }
    ),
    "jax.experimental.array_serialization.tensorstore_impl": f"{_CODE}.tensorstore_impl",
    "jax.experimental.colocated_python": Names(
        {
            f"{_CODE}.colocated_python": """
            ColocatedFunction colocated_cpu_devices colocated_python colocated_python_class
            """
        }
    ),
    "jax.experimental.colocated_python.func": Names(),
    "jax.experimental.colocated_python.serialization": Names(
        {"jax._src": "xb=xla_bridge", f"{_CODE}.colocated_python": "_get_cpu_device_map"},
        refused={
            "devices must be those of jax.devices(); got a list of them. Fix: a tuple of "
            "devices.": "DeviceList"
        },
    ),
    "jax.experimental.hijax": Names(
        {
            f"{_CODE}.effects": "control_flow_allowed_effects",
            f"{_CODE}.hijax": """
            HiPrimitive HiType MutableHiType VJPHiPrimitive=HiPrimitive aval_method aval_property
            register_hitype
            """,
            "gpuflow.core.aval": "AbstractValue=ShapedArray ShapedArray",
            "gpuflow.core.refs": "AbstractRef",
            "gpuflow.core.rules": "Zero is_undefined_primal=is_undefined",
            "gpuflow.ops.zeros": "instantiate_zeros=instantiate",
        },
        refused={HIJAX_REFUSED: "AvalMutableQDD AvalQDD HiPspec TransformedRef"},
    ),
    "jax.experimental.pallas": Names(
        {f"{_CODE}.util": "cdiv next_power_of_2"},
        refused={
            _PALLAS_REFUSED: """
            ANY BlockDim BlockSpec Blocked BoundedSlice Buffered CompilerParams CostEstimate
            DeviceIdType Element GridSpec HOST Indirect MemoryRef MemorySpace RevisitMode Slice
            Squeezed align_to broadcast_to core_map debug_check debug_print delay ds dslice empty
            empty_like empty_ref_like enable_debug_checks enable_poison_buffers estimate_cost
            get_global kernel loop lower_as_mlir multiple_of no_block_spec num_programs pallas_call
            pallas_export_experimental program_id reciprocal run_scoped run_state select_ref
            semaphore semaphore_read semaphore_signal semaphore_wait squeezed strides_from_shape
            when with_scoped
            """
        },
    ),
    "jax.experimental.pallas.ops": Names(),
    "jax.experimental.pallas.ops.tpu": Names(),
    "jax.experimental.pallas.ops.tpu.megablox": Names(refused={_PALLAS_REFUSED: "gmm"}),
    _SPLASH: Names(
        refused={
            _PALLAS_REFUSED: """
            BlockSizes CausalMask FullMask LocalMask Mask MultiHeadMask NumpyMask QKVLayout
            SegmentIds make_causal_mask make_local_attention_mask make_random_mask make_splash_mha
            make_splash_mha_single_device make_splash_mqa make_splash_mqa_single_device
            """
        }
    ),
    f"{_SPLASH}.splash_attention_kernel": Names(
        refused={
            _PALLAS_REFUSED: """
            BlockSizes QKVLayout SegmentIds SplashAttentionKernel make_splash_mha
            make_splash_mha_single_device make_splash_mqa make_splash_mqa_single_device
            """
        }
    ),
    f"{_SPLASH}.splash_attention_mask": Names(
        refused={
            _PALLAS_REFUSED: """
            CausalMask ChunkedCausalMask FullMask LocalMask LogicalAnd LogicalOr Mask MultiHeadMask
            NumpyMask make_causal_mask make_chunk_attention_mask make_local_attention_mask
            make_random_mask
            """
        }
    ),
    "jax.experimental.pallas.tpu": Names(
        refused={
            _PALLAS_REFUSED: """
            ARBITRARY BufferedRef CMEM CompilerParams GridDimensionSemantics HBM InterpretParams
            MemorySpace PARALLEL PrefetchScalarGridSpec SEMAPHORE SMEM SemaphoreType
            TPUCompilerParams VMEM async_copy async_remote_copy bitcast core_barrier
            create_tensorcore_mesh einshape emit_pipeline force_tpu_interpret_mode load
            make_async_copy make_async_remote_copy prng_random_bits prng_seed roll
            run_on_first_core stochastic_round store sync_copy
            """
        }
    ),
    "jax.experimental.pallas.triton": Names(
        refused={
            _PALLAS_REFUSED: """
            CompilerParams TritonCompilerParams approx_tanh atomic_add atomic_and atomic_cas
            atomic_max atomic_min atomic_or atomic_xchg atomic_xor debug_barrier dot
            elementwise_inline_asm load max_contiguous store
            """
        }
    ),
}
# Those that libraries import.
_PRIVATE: dict[str, str | Names] = {
    "jax._src": Names(),
    "jax._src.ad_checkpoint": Names({"gpuflow.ad_checkpoint": "*", "gpuflow.lax": "remat_p"}),
    "jax._src.ad_util": Names(
        {
            f"{_CODE}.ad": """
            Zero add_any_p=add_jaxvals_p add_jaxvals add_jaxvals_p zeros_like_aval
            """,
            f"{_CODE}.primitives": "stop_gradient_p",
        }
    ),
    "jax._src.api": Names(
        {"gpuflow.api.derivatives": "_jvp=jvp", "gpuflow.dtypes": "_dtype=result_type"}
    ),
    "jax._src.api_util": "jax.api_util",
    "jax._src.array": Names({"gpuflow.runtime.array": "ArrayImpl=Array"}),
    "jax._src.checkify": Names(
        {
            "builtins": "JaxException=Exception",
            "gpuflow.experimental.checkify": "*",
            "typing": "Out=Any",
        }
    ),
    # Libraries patch it to forbid compiling; gpuflow never calls it.
    "jax._src.compiler": Names(),
    "jax._src.config": f"{_CODE}.config",
    "jax._src.core": "jax.core",
    "jax._src.dispatch": f"{_CODE}.dispatch",
    "jax._src.distributed": f"{_CODE}.distributed",
    "jax._src.dtypes": Names(
        {
            "gpuflow.base.dtypes": "ExtendedDType",
            "gpuflow.dtypes": "*",
            f"{_CODE}.dtypes": "supports_inf",
            "typing": "DType=Any",
        }
    ),
    "jax._src.effects": f"{_CODE}.effects",
    "jax._src.extend": "jax.extend",
    "jax._src.flatten_util": Names({"gpuflow.flatten_util": "ravel_pytree"}),
    "jax._src.hijax": "jax.experimental.hijax",
    "jax._src.interpreters": "jax.interpreters",
    "jax._src.lax": Names(),
    "jax._src.lax.control_flow": Names(
        {
            "gpuflow.lax": """
            associative_scan cond cond_p fori_loop map scan scan_p switch while_loop while_p
            """
        }
    ),
    "jax._src.lax.convolution": Names(
        {"gpuflow.lax": "conv_general_dilated conv_general_dilated_p"}
    ),
    "jax._src.lax.lax": Names({"gpuflow.lax": "*"}),
    "jax._src.lib": "jax.lib",
    "jax._src.lib.xla_client": "jaxlib.xla_client",
    "jax._src.linear_util": f"{_CODE}.linear_util",
    "jax._src.mesh": Names(
        {
            "gpuflow.core.mesh": "AbstractMesh AxisType Mesh",
            "gpuflow.parallel.meshes": "get_abstract_mesh get_concrete_mesh=get_mesh",
        }
    ),
    "jax._src.nn": Names(),
    "jax._src.nn.functions": Names({"gpuflow.nn": "*"}),
    "jax._src.nn.initializers": Names({"gpuflow.nn.initializers": "*"}),
    "jax._src.numpy": Names(),
    "jax._src.numpy.einsum": f"{_CODE}.einsum",
    "jax._src.numpy.lax_numpy": Names({"gpuflow.numpy": "*"}),
    "jax._src.numpy.ufuncs": Names({"gpuflow.numpy": "ufunc"}),
    "jax._src.numpy.util": Names({"gpuflow.numpy.promotion": "promote_dtypes_inexact"}),
    "jax._src.pallas": "jax.experimental.pallas",
    "jax._src.pjit": Names(
        {
            "gpuflow.api.programs": "jit",
            "gpuflow.lax": "jit_p",
            "gpuflow.sharding": "auto_axes",
            "jax._src": "mesh_lib=mesh",
            f"{_CODE}.api_util": "debug_info",
            f"{_CODE}.sharding_impls": "UNSPECIFIED UnspecifiedValue",
        }
    ),
    "jax._src.random": Names({"gpuflow.random": "*"}),
    "jax._src.random.core": Names({"gpuflow.random": "*"}),
    "jax._src.scipy": Names(),
    "jax._src.scipy.special": Names({"gpuflow.scipy.special": "*"}),
    "jax._src.sharding_impls": Names(
        {
            "gpuflow.sharding": "*",
            f"{_CODE}.sharding_impls": "UNSPECIFIED UnspecifiedValue canonicalize_sharding",
        }
    ),
    "jax._src.source_info_util": Names(
        {"jax.extend.source_info_util": "*", f"{_CODE}.source_info_util": "Frame user_frame"}
    ),
    "jax._src.state": Names({"gpuflow.core.refs": "AbstractRef"}),
    "jax._src.state.indexing": Names({"jax.experimental.pallas": "Slice"}),
    "jax._src.state.types": Names({"gpuflow.core.refs": "AbstractRef"}),
    "jax._src.traceback_util": f"{_CODE}.traceback_util",
    "jax._src.tree_util": Names({"gpuflow.tree_util": "*", f"{_CODE}.tree_util": "_registry"}),
    "jax._src.typing": Names({"gpuflow.typing": "*"}),
    "jax._src.util": Names(
        {
            "functools": "wraps",
            "gpuflow.base.util": "safe_zip",
            f"{_CODE}.api_util": "safe_map",
            f"{_CODE}.util": "canonicalize_axis unzip2",
        }
    ),
    "jax._src.xla_bridge": f"{_CODE}.xla_bridge",
}
TABLE: Mapping[str, str | Names] = {**_PUBLIC, **_EXPERIMENTAL, **_PRIVATE}
