"""Progress of long builds on a terminal."""

import io
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuflow.base import progress

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_builds_before(monkeypatch):
    monkeypatch.setattr(progress, "_state", progress._State())
    monkeypatch.setattr(progress, "MIN_SECONDS", 0.0)
    progress._load_rich()  # an import may take longer than a build


class Terminal(io.StringIO):
    def isatty(self):
        return True


def build(seconds, kernels=0):
    with progress.building(1944):
        time.sleep(seconds)
        for _ in range(kernels):
            progress.kernel_built()
        if kernels:
            time.sleep(0.5)


@pytest.mark.parametrize(("after", "says"), [(0.05, True), (30.0, False)])
def test_only_long_builds_are_told_of(monkeypatch, after, says):
    monkeypatch.setattr(progress, "AFTER_SECONDS", after)
    monkeypatch.setattr(sys, "stderr", Terminal())
    build(1.0, kernels=3)
    text = sys.stderr.getvalue()
    assert ("building a program of 1,944 operations, 3 kernels so far" in text) is says
    assert progress._state.current is None


def test_builds_that_follow_each_other_add_up(monkeypatch):
    """Twenty programs of half a second each were ten seconds without a word."""
    monkeypatch.setattr(progress, "AFTER_SECONDS", 2.5)
    monkeypatch.setattr(sys, "stderr", Terminal())
    build(1.0)
    assert sys.stderr.getvalue() == ""
    build(2.5)
    assert "of 1,944 operations, after 1 others in 1." in sys.stderr.getvalue()
    monkeypatch.setattr(sys, "stderr", Terminal())
    time.sleep(2.7)  # the program runs: what comes then is counted from the start
    build(0.5)
    assert sys.stderr.getvalue() == "" and progress._state.builds == 1


def test_short_builds_are_never_shown(monkeypatch):
    monkeypatch.setattr(progress, "AFTER_SECONDS", 0.01)
    monkeypatch.setattr(progress, "MIN_SECONDS", 30.0)
    monkeypatch.setattr(sys, "stderr", Terminal())
    build(0.3)
    assert sys.stderr.getvalue() == ""


def test_builds_inside_of_builds_belong_to_the_outer_one(monkeypatch):
    monkeypatch.setattr(progress, "AFTER_SECONDS", 0.05)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.building(7):
        build(0.5)
        assert progress._state.current is not None
    text = sys.stderr.getvalue()
    assert "of 7 operations" in text and "1,944" not in text


def test_without_a_terminal_or_without_rich_there_is_nothing(monkeypatch, capfd):
    monkeypatch.setattr(progress, "AFTER_SECONDS", 0.01)
    build(0.1)
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(progress, "_load_rich", lambda: None)
    monkeypatch.setattr(sys, "stderr", Terminal())
    build(0.1)
    assert sys.stderr.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", None)  # pythonw
    build(0.0)


def test_errors_end_it(monkeypatch):
    monkeypatch.setattr(progress, "AFTER_SECONDS", 0.01)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(KeyError), progress.building(1):
        time.sleep(0.3)
        raise KeyError
    assert progress._state.current is None
    progress.kernel_built()


PROGRAM = """
import time
import gpuflow as gf, gpuflow.numpy as jnp
from gpuflow.base import progress
from gpuflow.compiler import pipeline
progress.AFTER_SECONDS = 0.2
compile_plan = pipeline.compile_plan
def slow(*args, **kwargs):
    time.sleep(1.5)
    return compile_plan(*args, **kwargs)
pipeline.compile_plan = slow
gf.jit(lambda x: jnp.sin(x) + 1)(jnp.ones(3))
print("done", flush=True)
"""


def test_a_program_in_a_terminal(tmp_path):
    ours, theirs = pty.openpty()
    environment = {**os.environ, "GPUFLOW_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**environment, "TERM": "xterm"},
        stderr=theirs,
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    with open(ours, "rb") as terminal:
        shown = terminal.read1(1 << 16).decode()
    assert done.stdout == "done\n"
    assert "building a program of 2 operations" in shown and "\x1b[2K" in shown  # and erased
