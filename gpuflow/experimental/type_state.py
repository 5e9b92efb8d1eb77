"""State of types that libraries define, for programs written for JAX.

Tests: tests/test_as_jax_names.py.
"""

from __future__ import annotations

from typing import Any


def cur_qdd(x: Any) -> Any:
    """Return the mutable state of a value's type during tracing.

    Arrays have none. A value of a library's type has one if it has a method ``cur_qdd``.

    Args:
        x: a value of such a type.

    Returns:
        The result of ``x.cur_qdd()``.

    Raises:
        TypeError: if the type of ``x`` has no state.

    Example:
        >>> class Box:
        ...     def cur_qdd(self):
        ...         return "full"
        >>> gf.experimental.cur_qdd(Box())
        'full'
    """
    state = getattr(x, "cur_qdd", None)
    if state is None:
        raise TypeError(
            f"[cur_qdd] the value must be of a type with state; got a {type(x).__name__}. "
            "Fix: gf.typeof(x), the type of an array."
        )
    return state()
