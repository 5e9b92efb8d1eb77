"""Fixtures of the transformation tests: 64-bit numbers, and jit without building kernels."""

import pytest
from control_interpreter import Interpreted

import gpuflow as gf
from gpuflow.control import entry


@pytest.fixture
def x64():
    """64-bit numbers, so that finite differences mean something."""
    with gf.enable_x64():
        yield


@pytest.fixture
def interpreted_jit(monkeypatch):
    """Run what jit compiled op by op: these tests are about programs, not about kernels."""

    def executable_of(jaxpr, donated):
        del donated
        return Interpreted(jaxpr)

    monkeypatch.setattr(entry, "executable_of", executable_of)
