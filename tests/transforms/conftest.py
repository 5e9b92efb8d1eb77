"""Fixtures of the transformation tests: 64-bit numbers, and jit without building kernels."""

import pytest

import gpuflow as gf
from gpuflow.control import entry, jit


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
        return lambda operands, counted=None: jaxpr(*operands)

    monkeypatch.setattr(jit, "executable_of", executable_of)
    monkeypatch.setattr(entry, "executable_of", executable_of)
