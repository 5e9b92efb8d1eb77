"""The names of primitives, ``lax.add_p`` for ``add``: looked up in the registry, listed nowhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from gpuflow.base.names import missing_name, public_names
from gpuflow.core.primitive import Primitive, registry


def primitive_names(
    module: str, short: str, namespace: dict[str, Any], own_files_only: bool = False
) -> tuple[Callable[[str], Primitive], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a module that has primitives under their names and ``_p``.

    Args:
        module: the module's name.
        short: what users call it, such as ``lax``.
        namespace: its ``globals()``.
        own_files_only: only primitives of the files that its public functions come from.
    """
    public = public_names(namespace)
    missing = missing_name(module, short, public)

    def primitives() -> dict[str, Primitive]:
        found = {f"{name}_p": primitive for name, primitive in registry().items()}
        if not own_files_only:
            return found
        files = {getattr(namespace[name], "__module__", "") for name in public}
        known = {name for file in files for name in vars(sys.modules.get(file, sys))}
        return {name: primitive for name, primitive in found.items() if name in known}

    def __getattr__(name: str) -> Primitive:
        if name.startswith("_") or not name.endswith("_p"):
            return missing(name)
        found = primitives()
        return found[name] if name in found else missing_name(module, short, found)(name)

    def __dir__() -> list[str]:
        return sorted([*namespace, *primitives()])

    return __getattr__, __dir__
