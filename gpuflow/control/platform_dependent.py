"""The public functions ``platform_dependent`` and ``composite`` of ``lax``.

Tests: tests/lax/test_lax_rest.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gpuflow.base import tree
from gpuflow.base.errors import UnexpectedTracerError, check
from gpuflow.core.argument_kinds import explained
from gpuflow.core.trace import Tracer
from gpuflow.runtime.device import default_device


@explained
def platform_dependent(
    *args: Any, default: Callable[..., Any] | None = None, **per_platform: Callable[..., Any]
) -> Any:
    """Call the function for the platform of the default device, selected during tracing.

    Args:
        args: arguments of the function.
        default: the function for platforms that are not named.
        per_platform: functions by platform name, such as ``cpu=`` and ``cuda=``.

    Returns:
        The result of the selected function.

    Raises:
        TypeError: if a branch is not callable.
        ValueError: if a branch is named ``gpu``, which is not a platform.
        NotImplementedError: if there is no branch for the platform.

    Example:
        >>> lax.platform_dependent(3.0, default=lambda x: x + 1)
        4.0
    """
    branches = dict(per_platform) if default is None else {**per_platform, "default": default}
    for name, branch in branches.items():
        check(
            callable(branch),
            lambda name=name, branch=branch: (
                f"[platform_dependent] branches must be callable; got {name}={branch!r}. "
                "Fix: pass a function."
            ),
        )
    check(
        "gpu" not in branches,
        lambda: (
            "[platform_dependent] keywords must be platforms; got 'gpu'. Fix: cuda=, or default=."
        ),
        ValueError,
    )
    platform = default_device().platform
    function = branches.get(platform, default)
    if function is None:
        raise NotImplementedError(
            f"[platform_dependent] there must be a branch for the platform {platform!r}; got "
            f"{', '.join(branches) or 'none'}. Fix: {platform}=, or default=."
        )
    return function(*args)


@explained
def composite(decomposition: Callable[..., Any], name: str, version: int = 0) -> Callable[..., Any]:
    """Define a function by its decomposition, with a name for compilers.

    Args:
        decomposition: the definition of the function; its keyword arguments are attributes.
        name: the name, such as ``"my.softmax"``.
        version: a version number, to be increased when the definition changes.

    Returns:
        A function of the same arguments.

    Raises:
        TypeError: if the decomposition is not callable, or the name is not a string.
        UnexpectedTracerError: when the returned function is called, if an attribute is traced.

    Example:
        >>> f = lax.composite(lambda x, *, scale: x * scale, name="my.scaled")
        >>> f(jnp.array([1.0, 2.0]), scale=3.0)
        Array([3., 6.], dtype=float32)
    """
    del version
    check(
        callable(decomposition) and isinstance(name, str),
        lambda: (
            "[composite] there must be a function and a name; got "
            f"{decomposition!r} and {name!r}. Fix: lax.composite(f, name='my.f')."
        ),
    )

    @functools.wraps(decomposition)
    def call(*args: Any, **attributes: Any) -> Any:
        traced = [
            key
            for key, value in attributes.items()
            if any(isinstance(leaf, Tracer) for leaf in tree.leaves(value))
        ]
        if traced:
            raise UnexpectedTracerError(
                f"[composite] attributes of {name} must be known when traced; got tracers for "
                f"{', '.join(traced)}. Fix: pass them as positional arguments."
            )
        return decomposition(*args, **attributes)

    return call
