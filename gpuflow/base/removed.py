"""Names that JAX has removed and gpuflow keeps, so that older scripts run.

Under the alias ``jax`` the first use of each warns: the program will not run on JAX again.

Tests: tests/test_as_jax.py.
"""

from __future__ import annotations

from gpuflow.base.records import record
from gpuflow.base.util import warn


@record(frozen=False, eq=False)
class _Watch:
    """Attributes: version: of JAX, while the alias is installed; None without it."""

    version: str | None = None


_watch = _Watch()
_reported: set[str] = set()


def watch(version: str | None) -> None:
    """Enable warnings of removed names; None disables them.

    Args:
        version: the version of JAX whose names are followed.
    """
    _watch.version = version
    _reported.clear()


def followed_version() -> str | None:
    """The version of JAX whose names the alias has; None without it."""
    return _watch.version


def note_removed(name: str, instead: str) -> None:
    """Report the use of a name that JAX has removed.

    Args:
        name: as programs write it.
        instead: the expression that JAX has for it.

    Warns:
        UserWarning: if the alias is installed, once for each name.
    """
    version = _watch.version
    if version is None or name in _reported:
        return
    _reported.add(name)
    warn(
        f"[as_jax] names must exist in JAX {version} for a program to run there too; got {name}, "
        f"which JAX has removed and gpuflow keeps. Fix: {instead}."
    )
