"""Fixtures for the tests of control flow: 64-bit numbers, and programs without kernels."""

import pytest
from control_interpreter import Interpreted, interpret

import gpuflow as gf
from gpuflow.control import entry, programs


@pytest.fixture
def x64():
    """64-bit numbers, so that finite differences mean something."""
    with gf.enable_x64():
        yield


@pytest.fixture
def interpreted(monkeypatch):
    """Run what was compiled op by op: for tests of rules, which need no kernels."""

    def executable_of(jaxpr, donated):
        del donated
        return Interpreted(lambda *operands: interpret(jaxpr, *operands))

    for module in (entry, programs):
        monkeypatch.setattr(module, "executable_of", executable_of)
