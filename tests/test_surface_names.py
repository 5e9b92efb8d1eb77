"""Small modules have the names of JAX's, and the parameters."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path

import pytest
from together import together

PATH = Path(__file__).parent / "data" / "surface_signatures.json"
CASES = [
    (module, name, parameters)
    for module, names in json.loads(PATH.read_text()).items()
    for name, parameters in names.items()
]
MISSING = {"custom_derivatives.remat_opt_p"}  # a primitive of JAX's own
OTHER_PARAMETERS = {
    "ffi": "they take anything, and raise",
    "typing": "annotations have none",
    "ad_checkpoint.print_saved_residuals": "positional",
    "dtypes.issubdtype": "positional, as in NumPy",
    "custom_derivatives.custom_vjp_primal_tree_values": "positional",
}


@together(size=150)
@pytest.mark.parametrize(("module", "name", "parameters"), CASES)
def test_a_name(module, name, parameters):
    if f"{module}.{name}" in MISSING:
        return
    value = getattr(importlib.import_module(f"gpuflow.{module}"), name)
    if parameters is None or module in OTHER_PARAMETERS or isinstance(value, type):
        return
    if f"{module}.{name}" not in OTHER_PARAMETERS:
        assert list(inspect.signature(value).parameters) == parameters
