"""Where gpuflow is not supported, its import says so in a sentence."""

import subprocess
import sys
import warnings

import pytest

from gpuflow.base import system

_SAID = r"\[import\] gpuflow supports Linux; got '{}', where no test has run. Fix: use Linux: "


def test_here_nothing_is_said():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        system.check_system()


@pytest.mark.parametrize("name", ["darwin", "win32"])
def test_other_systems_are_warned_about(name, monkeypatch):
    monkeypatch.setattr(system.sys, "platform", name)
    with pytest.warns(RuntimeWarning, match=_SAID.format(name)):
        system.check_system()


def test_a_python_without_the_global_lock_is_refused(monkeypatch):
    monkeypatch.setattr(system.sys, "_is_gil_enabled", lambda: False, raising=False)
    with pytest.raises(ImportError, match=r"needs Python's global.*Fix: start Python with PYTHON_"):
        system.check_system()


def imported(line):
    """The errors of a process that runs a line and imports gpuflow."""
    # Pieces of the standard library are other ones on other systems: those are imported before.
    code = f"import sys, numpy, ctypes, subprocess, asyncio, signal; {line}; import gpuflow"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr


def test_the_import_itself_says_so():
    assert imported("pass") == ""
    said = imported("sys.platform = 'darwin'")
    assert said.count("gpuflow supports Linux; got 'darwin'") == 1
    said = imported("sys._is_gil_enabled = lambda: False")
    assert "ImportError: [import] gpuflow needs Python's global interpreter lock" in said
