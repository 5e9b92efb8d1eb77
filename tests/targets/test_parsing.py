"""Texts are parsed whatever else parses meanwhile."""

import ast
import gc

import pytest

from gpuflow.targets import parsing

TEXT = "\n".join(f"def f{k}(x):\n    return [x + {k} for x in range(x)]" for k in range(100))


@pytest.fixture
def collector_that_parses():
    """The garbage collector runs often, and then something else parses: a thread's turn."""
    thresholds = gc.get_threshold()

    def parse(phase, info):
        del phase, info
        ast.parse("x = [1, (2, 3)]")

    gc.callbacks.append(parse)
    gc.set_threshold(50)
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(parse)


def test_what_the_collector_runs_does_not_disturb_a_parse(collector_that_parses):
    """Python 3.11 mixes up the depths of two trees, if one is made within the other's making."""
    assert len(parsing.parsed(TEXT).body) == 100
