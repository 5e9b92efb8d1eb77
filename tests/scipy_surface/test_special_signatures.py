"""Every function of jax.scipy.special and jax.scipy.stats is there, with its parameters."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from together import together

DATA = Path(__file__).parents[1] / "data" / "scipy_signatures.json"
FUNCTIONS = json.loads(DATA.read_text())["functions"]


def _parameters(function):
    return [
        f"{'*' if p.kind is p.KEYWORD_ONLY else ''}{p.name}"
        + ("" if p.default is p.empty else f"={p.default!r}")
        for p in inspect.signature(function).parameters.values()
    ]


def _find(name):
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(f"gpuflow.scipy.{module}"), attribute)


def test_all_functions_are_listed():
    assert len(FUNCTIONS) == 53 + 4 + 112


@together(size=200)
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_parameters_are_those_of_jax(name):
    function = _find(name)
    assert _parameters(function) == FUNCTIONS[name]
    assert inspect.getdoc(function)


def test_importing_gpuflow_does_not_import_the_families():
    """nn imports logsumexp; the tables and the other functions wait until they are asked for."""
    code = (
        "import sys, gpuflow; "
        "print([m for m in sys.modules if m.startswith('gpuflow.scipy.') and m.count('.') > 2])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert eval(out) in (["gpuflow.scipy.special.sums"], [])


def test_unknown_names_are_refused():
    special, stats = import_module("gpuflow.scipy.special"), import_module("gpuflow.scipy.stats")
    with pytest.raises(AttributeError, match=r"got 'gamm'. Fix: use special.gamma"):
        special.gamm  # noqa: B018
    with pytest.raises(AttributeError, match=r"got 'normm'. Fix: use stats.norm"):
        stats.normm  # noqa: B018
    assert set(dir(special)) >= {"erfcx", "zeta"}
