"""docs/gpu.md has the table that docs/make_providers.py makes, and tables name what ops are."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.fixture(scope="module")
def make_providers():
    spec = importlib.util.spec_from_file_location("make_providers", DOCS / "make_providers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(make_providers):
    text = make_providers.OUTPUT.read_text(encoding="utf-8")
    assert make_providers.page(text) == text, (
        "ops or providers have changed. Fix: python docs/make_providers.py"
    )


def test_every_provider_has_an_op_and_every_block_a_provider(make_providers):
    """A block that no op is, or that no target makes, would be a line that nothing reaches."""
    with_provider = {*make_providers.CPU, *make_providers.CUDA}
    assert with_provider == {*make_providers.ops_of_blocks()}
    for providers in (*make_providers.CPU.values(), *make_providers.CUDA.values()):
        names = [provider.name for provider in providers]
        assert names and len(set(names)) == len(names)
