"""What tracebacks show: frames of users, and this package's own where a setting asks for them."""

import linecache
import os
import subprocess
import sys
import threading
import traceback
from importlib.util import find_spec
from pathlib import Path

import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import config
from gpuflow.base import tracebacks

ROOT = Path(__file__).parents[2]

PROGRAM = """
import threading, sys
import gpuflow as gf
import gpuflow.numpy as jnp

x, y = jnp.ones((2, 3)), jnp.ones(4)

def loss(x):
    return (x + y).sum()

def body(carry, t):
    return carry + y, t

def stored(entry):
    raise KeyError(entry)

CALLS = {
    "eager": lambda: x + y,
    "composite": lambda: jnp.linalg.norm(x, axis=5),
    "op": lambda: jnp.dot(x, y),
    "jit": lambda: gf.jit(loss)(x),
    "grad": lambda: gf.grad(gf.jit(loss))(x),
    "vmap": lambda: gf.vmap(loss)(jnp.ones((5, 2, 3))),
    "scan": lambda: gf.jit(lambda x: gf.lax.scan(body, x, jnp.arange(3)))(x),
    "while": lambda: gf.lax.while_loop(lambda c: True, loss, x),
    "tree": lambda: gf.tree.map(stored, {"a": 1}),
}

def test_it():
    CALLS[NAME]()
"""
# The lines that a traceback of each must end with, by what is on them, innermost last.
SHOWN = {
    "eager": ["x + y"],
    "composite": ["jnp.linalg.norm(x, axis=5)"],
    "op": ["jnp.dot(x, y)"],
    "jit": ["gf.jit(loss)(x)", "(x + y).sum()"],
    "grad": ["gf.grad(gf.jit(loss))(x)", "(x + y).sum()"],
    "vmap": ["gf.vmap(loss)", "(x + y).sum()"],
    "scan": ["gf.jit(lambda", "gf.jit(lambda", "carry + y, t"],
    "while": ["gf.lax.while_loop(", "(x + y).sum()"],
    "tree": ["gf.tree.map(stored", "raise KeyError(entry)"],
}


def run(*arguments, filtering=""):
    environment = {**os.environ, "GPUFLOW_TRACEBACK_FILTERING": filtering}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=ROOT
    )


def raised(call):
    """The exception of a call."""
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


def namespace():
    """What PROGRAM defines, with lines that tracebacks find."""
    path = ROOT / "tests" / "program.py"  # not there: no file is read
    linecache.cache[str(path)] = (len(PROGRAM), None, PROGRAM.splitlines(True), str(path))
    found = {}
    exec(compile(PROGRAM, str(path), "exec"), found)
    return found


@pytest.mark.parametrize("name", SHOWN)
def test_frames_of_users_stay_and_own_ones_go(name):
    error = raised(namespace()["CALLS"][name])
    whole, context = error.__traceback__, error.__context__
    with tracebacks.without_own_frames(error) as hides:
        shown = traceback.extract_tb(error.__traceback__)
    assert hides and error.__traceback__ is whole and error.__context__ is context is None
    assert not [frame for frame in shown if frame.filename.startswith(tracebacks.PACKAGE_FOLDER)]
    lines = [frame.line for frame in shown if frame.filename.endswith("program.py")]
    assert len(lines) == len(SHOWN[name])
    for line, part in zip(lines, SHOWN[name], strict=True):
        assert part in line


def test_causes_and_groups_are_shown_so_too():
    first = raised(lambda: jnp.ones(3) + jnp.ones(4))
    with pytest.raises(ValueError) as caught:
        raise ValueError("mine") from ExceptionGroup("several", [first])
    error, whole = caught.value, first.__traceback__
    with tracebacks.without_own_frames(error) as hides:
        assert len(traceback.extract_tb(first.__traceback__)) == 2  # ours and the lambda
        assert "gpuflow/numpy" not in "".join(traceback.format_exception(error))
    assert hides and first.__traceback__ is whole and isinstance(error.__cause__, ExceptionGroup)


def test_what_never_came_here_is_left_alone():
    def parse():
        __import__("json").loads("{")

    error = raised(parse)
    assert tracebacks.filtered_traceback(error.__traceback__) is error.__traceback__
    assert tracebacks.filtered_traceback(None) is None


def test_library_frames_below_own_ones_go_and_those_below_users_stay():
    def parse(_):
        return __import__("json").loads("{")

    error = raised(lambda: gf.tree.map(parse, [1]))
    with tracebacks.without_own_frames(error):
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert names[-4:] == ["parse", "loads", "decode", "raw_decode"]
    assert "map" not in names


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("tracebacks") / "test_script.py"
    path.write_text(f"NAME = 'grad'\n{PROGRAM}\nif __name__ == '__main__':\n    test_it()\n")
    return str(path)


def test_python_shows_them_so(script):
    done = run(script)
    lines = done.stderr.splitlines()
    assert lines[0] == tracebacks._NOTE.strip() and lines[1].startswith("Traceback")
    assert lines[-1].startswith("TypeError: [add] shapes must broadcast")
    assert done.stderr.count("  File ") == 4 and f"{os.sep}gpuflow{os.sep}" not in done.stderr
    quiet = run(script, filtering="quiet_remove_frames").stderr.splitlines()
    assert quiet == lines[1:]
    for filtering in ("off", "tracebackhide"):
        whole = run(script, filtering=filtering).stderr
        assert whole.count("  File ") > 15 and tracebacks._NOTE not in whole


def test_pytest_shows_them_so(script):
    shown = run("-m", "pytest", "-p", "no:cacheprovider", script).stdout
    assert ">       CALLS[NAME]()" in shown and "(x + y).sum()" in shown
    assert "derivatives.py" not in shown
    assert "derivatives.py" in run("-m", "pytest", script, filtering="off").stdout
    assert "derivatives.py" in run("-m", "pytest", "--full-trace", script).stdout


@pytest.mark.skipif(find_spec("IPython") is None, reason="needs IPython: pip install ipython")
def test_ipython_shows_them_so(script):
    code = f"import sys; sys.path.insert(0, {str(Path(script).parent)!r}); import test_script as s"
    start = ("-m", "IPython", "--quick", "--colors=NoColor", "--simple-prompt", "-c")
    shown = run(*start, f"{code}; s.test_it()").stdout
    assert "(x + y).sum()" in shown and "derivatives.py" not in shown
    assert "derivatives.py" in run(*start, f"{code}; s.test_it()", filtering="off").stdout


class Shell:
    """What IPython's shell is to a handler of exceptions."""

    def showtraceback(self, shown, tb_offset):
        self.shown, self.offset = traceback.extract_tb(shown[1].__traceback__), tb_offset


@pytest.mark.parametrize("filtering", ["auto", "tracebackhide", "off"])
def test_a_shell_is_given_the_frames_of_users(filtering, capsys):
    error, shell = raised(lambda: jnp.ones(3) + jnp.ones(4)), Shell()
    before = config.traceback_filtering
    try:
        config.update("jax_traceback_filtering", filtering)
        tracebacks._show_in_ipython(shell, TypeError, error, error.__traceback__, 1)
    finally:
        config.update("traceback_filtering", before)
    assert shell.offset == 1 and (len(shell.shown) == 2) is (filtering != "off")
    assert (tracebacks._NOTE in capsys.readouterr().err) is (filtering == "auto")


def test_threads(capsys):
    errors = []
    with config.override("traceback_filtering", "auto"):
        hook = tracebacks._thread_hook(lambda args: errors.append(args.exc_traceback))
        error = raised(lambda: jnp.ones(3) + jnp.ones(4))
        parts = (type(error), error, error.__traceback__, threading.current_thread())
        hook(threading.ExceptHookArgs(parts))
    assert len(traceback.extract_tb(errors[0])) == 2
    assert tracebacks._NOTE in capsys.readouterr().err


def test_unknown_values():
    with pytest.raises(ValueError, match=r"traceback_filtering must be one of .*quiet.*Fix:"):
        config.update("traceback_filtering", "loud")
    assert (
        "GPUFLOW_TRACEBACK_FILTERING must be one of auto"
        in run("-c", "import gpuflow; gpuflow.devices()", filtering="loud").stderr
    )
