"""The JAX version that gpuflow follows, and its ``importlib.metadata``.

Tests: tests/test_as_jax.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import Distribution, DistributionFinder

# Names, signatures, defaults, dtypes and random bits are those of this release.
JAX_VERSION = "0.10.2"
JAX_VERSION_INFO = tuple(int(component) for component in JAX_VERSION.split("."))

# The names that this module has as jax.version, jax.lib and jaxlib.
__version__ = JAX_VERSION
__version_info__ = JAX_VERSION_INFO
jaxlib_extension_version = 0  # there are no extension modules, of which later ones have more


class _AliasDistribution(Distribution):
    """Metadata of the package ``jax`` or ``jaxlib`` while the alias is installed."""

    def __init__(self, name: str) -> None:
        self._package = name

    def read_text(self, filename: str) -> str | None:
        """The metadata; there are no other files."""
        if filename != "METADATA":
            return None
        return (
            f"Metadata-Version: 2.1\nName: {self._package}\nVersion: {JAX_VERSION}\n"
            "Summary: gpuflow under JAX's name (gpuflow.as_jax)\n"
        )

    def locate_file(self, path: object) -> object:  # type: ignore[override]
        """There are no files."""
        raise FileNotFoundError(
            f"[as_jax] {self._package} is an alias of gpuflow without files; got a request for "
            f"{path}. Fix: ask importlib.metadata about gpuflow."
        )


class VersionFinder(DistributionFinder):
    """Finder of the distributions ``jax`` and ``jaxlib`` while the alias is installed."""

    def find_spec(self, *_: object) -> None:
        """Return None: it finds no modules."""

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterable[Distribution]:
        """Return the requested ones of the two distributions."""
        name = context.name if context is not None else None
        return [_AliasDistribution(alias) for alias in ("jax", "jaxlib") if name in (None, alias)]
