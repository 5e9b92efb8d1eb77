"""Names of primitives, such as ``lax.add_p`` for ``add``, looked up in the registry on access.

Tests: tests/ops/test_linalg_rest.py, tests/lax/test_lax_rest.py.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from functools import cache
from typing import Any

from gpuflow.base.names import missing_name, public_names
from gpuflow.core.primitive import Primitive, registry


def publish_with_primitives(
    namespace: dict[str, Any],
    short: str,
    modules: Collection[str] = (),
    defining_files_only: bool = False,
) -> None:
    """``publish`` for a module that has primitives too, under their names and ``_p``.

    Args:
        namespace: the module's ``globals()``.
        short: the public name, such as ``lax``.
        modules: its public submodules.
        defining_files_only: only primitives of the files that its public functions come from.
    """
    public, module = public_names(namespace), namespace["__name__"]
    missing = missing_name(module, short, public, modules)

    @cache
    def files() -> list[dict[str, Any]]:
        names = {getattr(namespace[name], "__module__", "") for name in public}
        return [vars(sys.modules[name]) for name in names if name in sys.modules]

    def is_here(name: str) -> bool:
        return not defining_files_only or any(name in file for file in files())

    def primitives() -> dict[str, Primitive]:
        by_name = {f"{name}_p": primitive for name, primitive in registry().items()}
        return {name: primitive for name, primitive in by_name.items() if is_here(name)}

    @cache
    def named(name: str) -> Primitive:
        primitive = registry().get(name.removesuffix("_p"))
        if primitive is None or not is_here(name):
            return missing_name(module, short, primitives())(name)
        return primitive

    def __getattr__(name: str) -> Primitive:
        if name.startswith("_") or not name.endswith("_p"):
            return missing(name)
        return named(name)

    def __dir__() -> list[str]:
        return sorted([*public, *modules, *primitives()])

    namespace.update(__getattr__=__getattr__, __dir__=__dir__)
