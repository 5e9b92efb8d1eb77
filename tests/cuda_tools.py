"""Marks tests that compile for CUDA, which needs wheels but no GPU: see optional_packages.py."""

import pytest

requires_cuda_tools = pytest.mark.cuda_toolchain
