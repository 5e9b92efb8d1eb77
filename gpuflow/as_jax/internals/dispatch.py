"""``jax._src.dispatch``: one primitive at a time; effects of called programs have happened.

Tests: tests/test_as_jax_names.py.
"""

from __future__ import annotations

import functools
from typing import Any

from gpuflow.api.programs import jit
from gpuflow.base.caches import lru_cache
from gpuflow.core.primitive import Primitive


def wait_for_tokens() -> None:
    """There is nothing to wait for."""


class _RuntimeTokens:
    """Effects of programs that run: they have happened when a call returns."""

    def clear(self) -> None:
        """There is nothing to forget."""

    def block_until_ready(self) -> None:
        """There is nothing to wait for."""


runtime_tokens = _RuntimeTokens()


def apply_primitive(prim: Primitive, *args: Any, **params: Any) -> Any:
    """Compile and run a single primitive, by its lowering.

    Args:
        prim: the primitive; one whose ``impl`` is this function needs a lowering.
        args: its operands. params: its parameters.
    """
    try:
        compiled = _compiled(prim, tuple(sorted(params.items())))
    except TypeError:  # params without a hash
        compiled = jit(functools.partial(prim.bind, **params))
    return compiled(*args)


@lru_cache(1024)
def _compiled(prim: Primitive, params: tuple[tuple[str, Any], ...]) -> Any:
    return jit(functools.partial(prim.bind, **dict(params)))
