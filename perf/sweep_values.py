"""Whether results of two frameworks agree: used by sweep.py."""

from __future__ import annotations

from typing import Any

import numpy as np

# Relative to each value and to the root of the mean square of all: libraries differ in the last
# places of functions, sums and factorizations. 16 bits: some units in the last place.
TOLERANCE = {"float16": 1e-2, "bfloat16": 5e-2}
OTHER_TOLERANCE = 5e-4


def difference(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """How stored results differ: dtypes, shapes or values; empty where they agree."""
    if ours["dtypes"] != theirs["dtypes"]:
        return f"dtypes {' '.join(ours['dtypes'])}, not {' '.join(theirs['dtypes'])}"
    with np.load(ours["path"]) as one, np.load(theirs["path"]) as other:
        for name, dtype in zip(one.files, ours["dtypes"], strict=True):
            text = array_difference(one[name], other[name], dtype)
            if text:
                return text
    return ""


def array_difference(ours: np.ndarray, theirs: np.ndarray, dtype: str) -> str:
    """How two arrays of this dtype differ."""
    if ours.shape != theirs.shape:
        return f"shape {ours.shape}, not {theirs.shape}"
    if theirs.dtype.kind not in "fc":
        return worst(ours, theirs, ours != theirs)
    wide = np.complex128 if theirs.dtype.kind == "c" else np.float64
    ours, theirs = ours.astype(wide), theirs.astype(wide)
    finite = np.isfinite(theirs)
    scale = np.sqrt(np.mean(np.abs(theirs[finite]) ** 2)) if finite.any() else 0.0
    tolerance = TOLERANCE.get(dtype, OTHER_TOLERANCE)
    with np.errstate(invalid="ignore"):
        is_close = np.abs(ours - theirs) <= tolerance * (np.abs(theirs) + scale)
        is_same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    return worst(ours, theirs, ~(np.where(finite, is_close, False) | is_same))


def worst(ours: np.ndarray, theirs: np.ndarray, is_wrong: np.ndarray) -> str:
    """How many elements differ, and the first of them."""
    count = int(np.count_nonzero(is_wrong))
    if not count:
        return ""
    place = tuple(int(k) for k in np.argwhere(is_wrong)[0])
    return f"{count} of {is_wrong.size} differ, at {place}: {ours[place]}, not {theirs[place]}"
