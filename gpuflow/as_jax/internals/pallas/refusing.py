"""Modules of names that can be imported, and refuse when they are used."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from gpuflow.as_jax.internals.absent import absent_class
from gpuflow.base.names import publish

_REASON = (
    "the kernel must be one of gpuflow's own; got Pallas, which writes for TPUs and for Triton. "
    "Fix: plain jax.numpy, which is fused, or gpuflow.kernel, gpuflow.kernel.block or "
    "gpuflow.raw_kernel (docs/kernels.md)."
)


def publish_absent(
    namespace: dict[str, Any], module: str, names: str, modules: Collection[str] = ()
) -> None:
    """Give a module of Pallas its names.

    Args:
        namespace: the module's ``globals()``.
        module: its name in JAX.
        names: with spaces between them.
        modules: its submodules.
    """
    absent = {name: absent_class(f"{module}.{name}", _REASON) for name in names.split()}
    namespace.update(absent)
    publish(namespace, module, absent, modules)
