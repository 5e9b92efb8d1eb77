"""Display of arrays and tracers in notebooks: types, and values or their distribution.

Tests: tests/numpy/test_notebook.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuflow.base import dtypes
from gpuflow.base.lazy import LazyModule
from gpuflow.core.aval import aval_of
from gpuflow.core.trace import Tracer

if TYPE_CHECKING:
    import html
else:
    html = LazyModule("html")

_MAX_SHOWN = 256  # elements; larger arrays show a histogram
_SAMPLE = 1 << 16  # elements that a histogram counts
_BINS, _BAR, _HEIGHT = 40, 6, 48  # bars, and their width and height in pixels


def repr_html(self: Any) -> str | None:
    """The array for a notebook; it waits for the values, as ``repr`` does.

    Returns:
        HTML: dtype and shape, device, values of small arrays, and of others the range, the number
        of values that are not finite, and a histogram of a regular sample of 65,536 elements. None
        for deleted arrays.
    """
    if isinstance(self, Tracer):
        return _page(self, self.describe(), "")
    if self.is_deleted():
        return None
    host, aval = self.host(), aval_of(self)
    body = f"<pre>{html.escape(str(self))}</pre>"
    if aval.size > _MAX_SHOWN and not dtypes.is_extended(aval.dtype):
        with np.errstate(all="ignore"):
            distribution = _distribution(host)
        body = f"{distribution}<details><summary>values</summary>{body}</details>"
    sharding = "" if self.sharding.num_devices == 1 else f", sharded as {self.sharding.spec}"
    return _page(self, f"{self.device}{sharding}", body)


def _page(self: Any, location: str, body: str) -> str:
    aval = aval_of(self)
    weak = ", weak type" if aval.weak_type else ""
    name = type(self).__name__ if isinstance(self, Tracer) else "Array"
    head = f"<b>{html.escape(name)}</b> <code>{html.escape(str(aval))}</code>{weak}"
    return f"<div>{head} <small>{html.escape(location)}</small>{body}</div>"


def _distribution(host: np.ndarray) -> str:
    """The range of the values and a histogram."""
    flat = host.reshape(-1)
    sample = flat[:: -(-flat.size // _SAMPLE)]
    what = "" if sample.size == flat.size else f" of a sample of {sample.size:,} of {flat.size:,}"
    if sample.dtype == np.bool_:
        return f"<p>True: {sample.mean():.1%}{what}</p>"
    if sample.dtype.kind == "c":
        sample, what = np.abs(sample), f" of magnitudes{what}"
    sample = sample.astype(np.float64)
    finite = sample[np.isfinite(sample)]
    bad = sample.size - finite.size
    summary = f", {bad:,} not finite" if bad else ""
    if not finite.size:
        return f"<p>no finite values{summary}{what}</p>"
    lowest, highest = finite.min(), finite.max()
    text = f"{lowest:.4g} to {highest:.4g}, mean {finite.mean():.4g}{summary}{what}"
    return f"<p>{text}</p>{_histogram(finite, lowest, highest)}"


def _histogram(values: np.ndarray, lowest: float, highest: float) -> str:
    if not np.isfinite(highest - lowest):  # float64 of both signs, near its end
        values, lowest, highest = values / 2, lowest / 2, highest / 2
    counts, _ = np.histogram(values, _BINS, (lowest, highest))
    bars = [
        f'<rect x="{k * _BAR}" y="{_HEIGHT - height:.1f}" width="{_BAR - 1}" '
        f'height="{height:.1f}"/>'
        for k, height in enumerate(counts * (_HEIGHT / counts.max()))
    ]
    size = f'width="{_BINS * _BAR}" height="{_HEIGHT}"'
    return f'<svg {size} fill="currentColor" role="img">{"".join(bars)}</svg>'
