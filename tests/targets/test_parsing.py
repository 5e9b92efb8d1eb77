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


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_is_left_as_it_was(is_on):
    was = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        tree = parsing.parsed("x = 1")
        with pytest.raises(SyntaxError):
            parsing.parsed("x =")
        assert gc.isenabled() == is_on
    finally:
        (gc.enable if was else gc.disable)()
    assert ast.unparse(tree) == "x = 1"


def test_a_fork_within_a_parse_frees_the_lock_and_the_collector():
    collector = parsing._Collector()
    collector.lock.acquire()
    collector.is_stopped = True
    gc.disable()
    try:
        collector.renew()
        assert gc.isenabled() and not collector.lock.locked()
    finally:
        gc.enable()
