"""The pip command that installs an extra of the running gpuflow: from a clone, or by name.

Tests: tests/base/test_installation.py.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

from gpuflow.base.lazy import LazyModule
from gpuflow.base.util import PACKAGE_FOLDER

if TYPE_CHECKING:
    from importlib import metadata
else:
    metadata = LazyModule("importlib.metadata")


def pip_install(extra: str) -> str:
    """The command that installs an extra; it works from any folder.

    gpuflow is not published under its name, so that a clone must be named by its folder.
    """
    return f'pip install "{_clone() or "gpuflow"}[{extra}]"'


def _clone() -> str | None:
    """The folder of the clone that runs, or that it was installed from, if it still exists."""
    folder = Path(PACKAGE_FOLDER).parent
    if (folder / "pyproject.toml").is_file():
        return _short(folder)
    with suppress(metadata.PackageNotFoundError, OSError, ValueError):
        # PEP 610, direct URLs of installed distributions.
        origin = json.loads(metadata.distribution("gpuflow").read_text("direct_url.json") or "{}")
        url = urlparse(origin.get("url", ""))
        folder = Path(unquote(url.path))
        if url.scheme == "file" and (folder / "pyproject.toml").is_file():
            return _short(folder)
    return None


def _short(folder: Path) -> str:
    with suppress(OSError):  # the current folder may be gone
        if folder.samefile("."):
            return "."
    return str(folder)
