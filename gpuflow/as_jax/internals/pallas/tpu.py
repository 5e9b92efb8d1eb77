"""``jax.experimental.pallas.tpu``: see the package."""

from gpuflow.as_jax.internals.pallas.refusing import publish_absent

_NAMES = """
ARBITRARY BufferedRef CMEM CompilerParams GridDimensionSemantics HBM InterpretParams MemorySpace
PARALLEL PrefetchScalarGridSpec SEMAPHORE SMEM SemaphoreType TPUCompilerParams VMEM async_copy
async_remote_copy bitcast core_barrier create_tensorcore_mesh einshape emit_pipeline
force_tpu_interpret_mode load make_async_copy make_async_remote_copy prng_random_bits prng_seed roll
run_on_first_core store stochastic_round sync_copy
"""
publish_absent(globals(), "jax.experimental.pallas.tpu", _NAMES)
