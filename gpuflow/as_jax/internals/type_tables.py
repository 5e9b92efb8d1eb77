"""Tables of types that libraries enter their own into.

They are unused: values are arrays, numbers, and objects with ``__jax_array__``.

Tests: tests/test_as_jax_primitives.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def _itself(value: Any) -> Any:
    return value


canonicalize_dtype_handlers: dict[type, Any] = {np.ndarray: _itself}
pytype_aval_mappings: dict[type, Any] = {np.ndarray: _itself}
