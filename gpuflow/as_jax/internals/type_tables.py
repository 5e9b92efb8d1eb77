"""Tables of types that libraries enter their own into.

Nothing reads them: values are arrays, numbers, and what has ``__jax_array__``.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def _itself(value: Any) -> Any:
    return value


canonicalize_dtype_handlers: dict[type, Any] = {np.ndarray: _itself}
pytype_aval_mappings: dict[type, Any] = {np.ndarray: _itself}
