"""Public functions with awkward arguments return, or raise an error in this package's form.

Calls start from those in the examples of docstrings; one or two arguments are replaced by values of
other kinds, ranks, dtypes and sizes, by huge numbers, nan, containers and functions. Each chunk of
calls runs in a process of its own, with limits on time and memory: a call that ends its process,
takes too long or allocates much is a failure too.

``FUZZ_EXAMPLES=5000 FUZZ_SEED=7 pytest -n auto tests/test_awkward_arguments.py`` makes 5,000 other
calls. ``python tests/argument_fuzz/worker.py 7 1234 1235`` repeats the one numbered 1,234.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from argument_fuzz import calls, worker

ROOT = Path(__file__).resolve().parents[1]
SEED = os.environ.get("FUZZ_SEED", "0")
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0")) or 1200
CHUNK = 300
MAX_SECONDS = 900  # of a chunk: a limit for a process that hangs where no signal is seen


@pytest.mark.parametrize("first", range(0, EXAMPLES, CHUNK))
def test_errors_have_the_form(first, tmp_path):
    command = [sys.executable, worker.__file__, SEED, str(first), str(min(first + CHUNK, EXAMPLES))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=MAX_SECONDS,
        check=False,
    )
    lines = done.stdout.splitlines()
    wrong = [json.loads(line) for line in lines if line.startswith("{")]
    assert not wrong, json.dumps(wrong, indent=1)
    assert lines and lines[-1] == "done", f"{lines[-1:]} ended the process: {done.stderr[-2000:]}"


def test_functions_of_all_modules_are_called():
    names = {name for name, _ in calls.functions()}
    assert len(names) > 800
    for name in ("gf.jit", "gf.numpy.fft.fft", "gf.scipy.stats.norm.pdf", "gf.tree_util.keystr"):
        assert name in names, name


def test_a_wrong_outcome_is_found():
    def raises(error):
        raise error

    def returns(value):
        return value

    assert worker.outcome(returns, [1], {}) is None
    said = TypeError("[f] x must be an array; got 'a'. Fix: f(jnp.ones(3)).")
    assert worker.outcome(raises, [said], {}) is None
    assert worker.outcome(calls.fails, [], {}) is None
    for text in ("'int' object is not iterable", "[f] x must be an array. Fix: jnp.ones(3)."):
        wrong = worker.outcome(gf_raises, [TypeError(text)], {})
        assert wrong is not None and wrong["text"] == text


def gf_raises(error):
    raise error
