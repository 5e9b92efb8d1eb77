"""Names that libraries import from the internals of JAX (jax.core, jax.extend, jax._src)."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any


def __getattr__(name: str) -> Any:
    # JAX has imported its inner modules when a program sees it: ``jax._src.tree_util`` works.
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"[jax._src] the name must be one that gpuflow has; got {name!r}.")
