"""Arrays as text: NumPy's functions and options, which arrays here obey as well."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from gpuflow.numpy.arguments import as_array


def array_repr(
    arr: Any, max_line_width: int | None = None, precision: int | None = None,
    suppress_small: bool | None = None,
) -> str:  # fmt: skip
    """The text from which an array could be made.

    Args:
        arr: array.
        max_line_width, precision, suppress_small: by default those of ``set_printoptions``.
    """
    x = as_array("array_repr", arr)
    with np.printoptions(**_options(max_line_width, precision, suppress_small)):
        return repr(x)


def array_str(
    a: Any, max_line_width: int | None = None, precision: int | None = None,
    suppress_small: bool | None = None,
) -> str:  # fmt: skip
    """The values of an array as text; arguments as for ``array_repr``."""
    x = as_array("array_str", a)
    with np.printoptions(**_options(max_line_width, precision, suppress_small)):
        return str(x)


def _options(width: int | None, precision: int | None, suppress: bool | None) -> dict[str, Any]:
    options = {"linewidth": width, "precision": precision, "suppress": suppress}
    return {name: value for name, value in options.items() if value is not None}


def get_printoptions() -> dict[str, Any]:
    """How arrays are printed; see ``np.get_printoptions``."""
    return dict(np.get_printoptions())


def set_printoptions(*args: Any, **kwargs: Any) -> None:
    """Change how arrays are printed; arguments as for ``np.set_printoptions``."""
    np.set_printoptions(*args, **kwargs)


def printoptions(*args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
    """A context with other print options; arguments as for ``np.set_printoptions``."""
    return np.printoptions(*args, **kwargs)
