"""Visualization of shardings: boxes that show which device has which shard of an array.

Tests: tests/parallel/test_shardings.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any

from gpuflow.base.errors import check
from gpuflow.core.sharding import Sharding
from gpuflow.core.trace import Tracer
from gpuflow.runtime.array import Array

_COLORS = (
    "#393b79",
    "#637939",
    "#8c6d31",
    "#843c39",
    "#7b4173",
    "#3182bd",
    "#e6550d",
    "#31a354",
    "#756bb1",
    "#636363",
)
_DIMENSIONS = (1, 2)


def visualize_sharding(
    shape: Sequence[int],
    sharding: Sharding,
    *,
    use_color: bool = True,
    scale: float = 1.0,
    min_width: int = 9,
    max_width: int = 80,
    color_map: Any = None,
) -> None:
    """Print boxes that show which device has which shard of an array.

    Args:
        shape: shape of an array of rank 1 or 2.
        sharding: the sharding to draw.
        use_color: whether to color shards if the output is a terminal.
        scale: scale of the boxes.
        min_width, max_width: limits of the width of a box, in characters.
        color_map: ``number from 0 to 1 -> red, green, blue, alpha``, such as matplotlib's.

    Raises:
        ValueError: if the number of dimensions does not match.
        ImportError: if rich is not installed.
    """
    check(
        len(shape) in _DIMENSIONS,
        lambda: (
            f"[visualize_sharding] the array must have one or two dimensions; got shape "
            f"{tuple(shape)}. Fix: reshape it, or look at sharding.devices_indices_map(shape)."
        ),
        ValueError,
    )
    rich = _load_rich()
    labels = _labels(shape, sharding)
    rows, columns = len(labels), len(labels[0])
    colors = _colors(color_map, rows * columns) if use_color else None
    width = min(max(int(60 * scale) // columns, min_width), max_width)
    height = max(int(12 * scale) // rows, 1)
    height -= height % 2 == 0  # an odd height, so that a label is in the middle
    table = rich.table.Table(
        show_header=False, show_lines=True, padding=0, pad_edge=False, box=rich.box.SQUARE
    )
    for _ in range(columns):
        table.add_column(width=width)
    for row in labels:
        cells = []
        for label in row:
            color = next(colors) if colors is not None else None
            style = rich.style.Style(bgcolor=color, color="white") if color else ""
            above = "\n" * ((height - 1) // 2)
            below = "\n" * (height - 1 - len(above))
            cells.append(rich.text.Text(above + label + below, style=style, justify="center"))
        table.add_row(*cells)
    rich.console.Console(file=sys.stdout, width=max(80, columns * (width + 1) + 1)).print(
        table, end="\n"
    )


def visualize_array_sharding(arr: Any, **options: Any) -> None:
    """Print ``visualize_sharding`` of an array, with its ``options``.

    Raises:
        TypeError: if the argument is not a concrete array.
    """
    inspect_array_sharding(
        arr, callback=lambda sharding: visualize_sharding(arr.shape, sharding, **options)
    )


def inspect_array_sharding(value: Any, *, callback: Callable[[Sharding], None]) -> None:
    """Call a function with the sharding of an array.

    Raises:
        TypeError: if the argument is not a concrete array.
    """
    check(
        isinstance(value, Array) and not isinstance(value, Tracer),
        lambda: (
            f"[inspect_array_sharding] the value must be an Array outside of transformations; got "
            f"{value!r}. Fix: return it from the function and look at the result."
        ),
        TypeError,
    )
    callback(value.sharding)


def _load_rich() -> Any:
    try:
        import rich.box
        import rich.console
        import rich.style
        import rich.table
        import rich.text
    except ImportError:
        raise ImportError(
            "[visualize_sharding] rich must be installed; got none. Fix: pip install rich."
        ) from None
    return rich


def _labels(shape: Sequence[int], sharding: Sharding) -> list[list[str]]:
    """The label of each box by row and column: the devices that have its shard."""
    owners: dict[tuple[int, ...], list[Any]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        start = tuple(interval.start or 0 for interval in index)
        owners.setdefault((0,) * (2 - len(start)) + start, []).append(device)
    rows = sorted({row for row, _ in owners})
    columns = sorted({column for _, column in owners})

    def label(devices: Sequence[Any]) -> str:
        return f"{devices[0].platform.upper()} {','.join(str(device.id) for device in devices)}"

    return [[label(owners[row, column]) for column in columns] for row in rows]


def _colors(color_map: Any, count: int) -> Iterator[str]:
    if color_map is None:
        return cycle(_COLORS)
    rgba = [color_map(k / max(count - 1, 1)) for k in range(count)]
    return cycle(["#" + "".join(f"{round(255 * c):02x}" for c in color[:3]) for color in rgba])
