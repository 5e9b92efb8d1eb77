"""Fixtures for the tests of control flow: 64-bit numbers, and programs without kernels."""

import pytest
from control_interpreter import interpret

import gpuflow as gf
from gpuflow.control import entry, jit, programs


@pytest.fixture
def x64():
    """64-bit numbers, so that finite differences mean something."""
    with gf.enable_x64():
        yield


@pytest.fixture
def interpreted(monkeypatch):
    """Run what was compiled op by op: for tests of rules, which need no kernels."""

    class Interpreted:
        """What an Executable is for its callers."""

        donated = ()

        def __init__(self, jaxpr, donated):
            del donated
            self.jaxpr = jaxpr

        def __call__(self, operands, counted=None):
            del counted
            return interpret(self.jaxpr, *operands)

        def run(self, arrays, operands, device):
            del arrays, device
            return self(operands)

    for module in (jit, entry, programs):
        monkeypatch.setattr(module, "executable_of", Interpreted)
