"""Every public name of jax.numpy 0.10 and the keywords that it takes.

numpy_signatures.json holds, for each name, the parameters of JAX that can be passed by keyword,
without ``out_sharding``.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import numpy as np
import pytest
from together import together

import gpuflow.numpy as jnp

STORED = json.loads((Path(__file__).parents[1] / "data" / "numpy_signatures.json").read_text())


def test_every_name_is_there():
    assert [name for name in STORED if not hasattr(jnp, name)] == []


@together(size=300)
@pytest.mark.parametrize("name", [name for name, keywords in STORED.items() if keywords])
def test_keywords(name):
    value = getattr(jnp, name)
    if value is np.dtype and value.__text_signature__ is None:
        return  # NumPy before 2.4 says none
    parameters = inspect.signature(value).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    taken = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    assert [keyword for keyword in STORED[name] if keyword not in taken] == []


def test_functions_have_a_docstring():
    plain = [name for name in STORED if callable(getattr(jnp, name))]
    assert [name for name in plain if not getattr(jnp, name).__doc__] == []
