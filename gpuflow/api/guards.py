"""Guards of JAX as context managers: settings that have no effect here.

They accept the values of JAX's guards, so that programs run unchanged, and each documents why it
has no effect. ``make_user_context`` is an exception.

Tests: tests/test_surface_modules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from gpuflow.base.config import config
from gpuflow.base.errors import check

_GUARDS = ("allow", "log", "disallow", "log_explicit", "disallow_explicit")
_FLAGS = (True, False)

Guard = Callable[..., AbstractContextManager[None]]

_DOC = """Changes nothing: {why}.

    Args:
        value: one of {choices}; by default the first.

    Returns:
        A context manager.

    Raises:
        ValueError: in the ``with`` statement, if the value is invalid.

    Example:
        >>> with gf.{name}({first}):
        ...     print(jnp.ones(2) + 1)
        [2. 2.]
    """


def _guard(name: str, allowed: Sequence[Any], why: str) -> Guard:
    """A context manager that checks its value and changes nothing."""

    @contextmanager
    def guard(value: Any = allowed[0]) -> Iterator[None]:
        check(
            value in allowed,
            lambda: (
                f"[{name}] the value must be one of {', '.join(map(repr, allowed))}; "
                f"got {value!r}. Fix: {name}({allowed[0]!r})."
            ),
            ValueError,
        )
        yield

    guard.__name__ = guard.__qualname__ = name
    named = ", ".join(f"``{choice!r}``" for choice in allowed)
    guard.__doc__ = _DOC.format(why=why, choices=named, name=name, first=repr(allowed[0]))
    return guard


_COPIES = "data only move between host and device if a function requests it"
transfer_guard: Guard = _guard("transfer_guard", _GUARDS, _COPIES)
transfer_guard_host_to_device: Guard = _guard("transfer_guard_host_to_device", _GUARDS, _COPIES)
transfer_guard_device_to_host: Guard = _guard("transfer_guard_device_to_host", _GUARDS, _COPIES)
transfer_guard_device_to_device: Guard = _guard("transfer_guard_device_to_device", _GUARDS, _COPIES)

enable_checks: Guard = _guard("enable_checks", _FLAGS, "GPUFLOW_CHECK=1 enables checks")
enable_custom_prng: Guard = _guard("enable_custom_prng", _FLAGS, "random.key creates typed keys")
legacy_prng_key: Guard = _guard("legacy_prng_key", ("allow", "warn", "error"), "raw keys work")
softmax_custom_jvp: Guard = _guard("softmax_custom_jvp", _FLAGS, "softmax has one derivative rule")
allow_f16_reductions: Guard = _guard(
    "allow_f16_reductions", _FLAGS, "16-bit floats are summed in float32"
)
thread_guard: Guard = _guard("thread_guard", _FLAGS, "arrays may be used by any thread")
array_garbage_collection_guard: Guard = _guard(
    "array_garbage_collection_guard", ("allow", "log", "fatal"), "arrays form no cycles"
)


class UserContext:
    """A value of the user's that functions may read while they are traced.

    ``jit`` retraces a function if the value differs.

    Attributes:
        value: in this thread, now.
    """

    def __init__(self, default: Any) -> None:
        self._default = default

    @property
    def value(self) -> Any:
        for owner, value in reversed(config.user_contexts):
            if owner is self:
                return value
        return self._default

    def __call__(self, value: Any) -> AbstractContextManager[None]:
        """Inside the block, the value is ``value``, which must be hashable."""
        try:
            hash(value)
        except TypeError:
            raise TypeError(
                f"[user_context] the value must be hashable, as jit looks it up; got {value!r}. "
                "Fix: use a tuple, or a string."
            ) from None
        others = [pair for pair in config.user_contexts if pair[0] is not self]
        return config.override("user_contexts", (*others, (self, value)))


def make_user_context(default_value: Any = None) -> UserContext:
    """Make a context with a value that functions can read: ``with context(3): f(x)``.

    Args:
        default_value: value outside of all blocks.

    Returns:
        A context, to be called with a value; its ``value`` is the current one.

    Example:
        >>> scale = gf.make_user_context(1.0)
        >>> f = gf.jit(lambda x: x * scale.value)
        >>> with scale(3.0):
        ...     print(f(2.0))
        6.0
        >>> print(f(2.0))
        2.0
    """
    return UserContext(default_value)
