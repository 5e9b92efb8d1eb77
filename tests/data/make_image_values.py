"""Writes image_values.json: what JAX makes of images.

usage: python make_image_values.py   (in an environment with JAX 0.10)
"""

import json
from pathlib import Path

import jax
import numpy as np

METHODS = ["nearest", "linear", "cubic", "cubic-pytorch", "lanczos3", "lanczos5", "area"]
SHAPES = [((2, 7, 5, 1), (2, 3, 11, 1)), ((6, 4), (6, 4)), ((6, 4), (13, 9)), ((1, 5), (4, 2))]
MOVES = [
    ((6, 5), (4, 8), (0, 1), (0.7, 1.9), (0.3, -1.2)),
    ((2, 6, 5), (2, 3, 5), (1,), (0.45,), (0.25,)),
    ((6, 5), (6, 5), (1, 0), (1.0, 1.0), (2.5, -3.0)),
]


def image(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def main() -> None:
    rows = []
    for method in METHODS:
        for antialias in (True, False):
            for old, new in SHAPES:
                out = jax.image.resize(image(old), new, method, antialias)
                rows.append(["resize", [old, new, method, antialias], np.ravel(out).tolist()])
            for old, new, axes, scale, shift in MOVES if method != "nearest" else []:
                out = jax.image.scale_and_translate(
                    image(old), new, axes, np.float32(scale), np.float32(shift), method, antialias
                )
                arguments = [old, new, axes, scale, shift, method, antialias]
                rows.append(["scale_and_translate", arguments, np.ravel(out).tolist()])
    for row in rows:
        row[2] = [round(v, 7) for v in row[2]]
    text = json.dumps(rows, separators=(",", ":"))
    (Path(__file__).parent / "image_values.json").write_text(text)


main()
