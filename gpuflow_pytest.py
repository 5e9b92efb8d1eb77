"""What pytest shows of errors that Python raised itself, of names that other libraries have.

A plugin that pytest finds by its entry point, wherever gpuflow is installed. It stands beside the
package: a test run that does not import gpuflow does not import it by this file.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(call: Any) -> None:
    """Add the note that a traceback has outside of pytest: what the name is here."""
    names = sys.modules.get("gpuflow.base.other_names")
    if names is None or call.excinfo is None:
        return
    more = names.note(call.excinfo.value)
    if more is not None and more not in getattr(call.excinfo.value, "__notes__", ()):
        call.excinfo.value.add_note(more)
