"""Families of the names of large modules: each family is a page of the reference.

A family is a title and the modules that define its names. The longest prefix wins; "" is for values
without a module. A name without a family is an error, so that a new module is not forgotten.
"""

from __future__ import annotations

from typing import Any


def _numpy(*stems: str) -> tuple[str, ...]:
    return tuple(f"gpuflow.numpy.{stem}" for stem in stems)


FAMILIES: dict[str, dict[str, tuple[str, ...]]] = {
    "gpuflow": {
        "Arrays": ("gpuflow.runtime.array", "gpuflow.core.refs", "gpuflow.ref", ""),
        "Derivatives": (
            "gpuflow.api.derivatives", "gpuflow.api.jacobian", "gpuflow.api.passes",
            "gpuflow.control",
        ),
        "Compilation and vectorization": (
            "gpuflow.api.programs", "gpuflow.api.vmap", "gpuflow.callbacks",
            "gpuflow.control.stages", "gpuflow.runtime.kernel_cache", "gpuflow.scopes",
            "gpuflow.timing", "gpuflow.tree_util",
        ),
        "Kernels": ("gpuflow.api.kernel", "gpuflow.api.raw_kernel", "gpuflow.numpy"),
        "Devices and sharding": (
            "gpuflow.api.devices", "gpuflow.api.process", "gpuflow.core.sharding",
            "gpuflow.explaining.topology", "gpuflow.parallel", "gpuflow.runtime.device",
        ),
        "Settings": ("gpuflow.api.guards", "gpuflow.api.settings", "gpuflow.base.config"),
    },
    "gpuflow.numpy": {
        "Array creation": _numpy(
            "creation", "exports", "files", "filled", "grids", "index_tricks", "ranges", "spaces"
        ),
        "Arithmetic and elementary functions": (
            "gpuflow.numpy", *_numpy("elementary", "ufunc_class", "ufuncs")
        ),
        "Comparisons, parts of numbers and bits": _numpy(
            "bits", "equality", "float_components", "integers", "logic"
        ),
        "Reductions and statistics": _numpy(
            "correlations", "histograms", "nan_reductions", "quantiles", "reductions", "statistics"
        ),
        "Linear algebra": _numpy("contractions", "einsum", "matrices"),
        "Shapes and joining": _numpy("joining", "lengths", "padding", "ranks", "shaping", "tiling"),
        "Indexing and selection": (
            "numpy.lib", *_numpy("choices", "editing", "positions", "taking")
        ),
        "Sorting, searching and sets": _numpy(
            "partitions", "searching", "sets", "sorting", "unique_elements"
        ),
        "Polynomials, signals and calculus": _numpy(
            "convolutions", "differences", "fitting", "polynomials", "windows"
        ),
        "Mapping and printing": _numpy("mapping", "printing", "vectorizing"),
        "Dtypes and constants": ("gpuflow.numpy.scalar_types", "gpuflow.runtime", "numpy", ""),
    },
    "gpuflow.lax": {
        "Elementwise functions": ("gpuflow.ops.elementwise", "gpuflow.ops.special"),
        "Shapes, indexing and random bits": (
            "gpuflow.control.scatter_apply", "gpuflow.lax.shapes", "gpuflow.lax.sizes",
            "gpuflow.lax.windows", "gpuflow.ops.indexing", "gpuflow.ops.layout",
            "gpuflow.ops.random",
        ),
        "Reductions, sorting and windows": (
            "gpuflow.control.reducing", "gpuflow.control.select_and_scatter",
            "gpuflow.ops.reductions", "gpuflow.ops.sorting", "gpuflow.ops.windows",
        ),
        "Contractions and transforms": ("gpuflow.ops.contractions", "gpuflow.ops.fft"),
        "Control flow": ("gpuflow.control", "gpuflow.ops.effects"),
        "Collectives": ("gpuflow.ops.collectives", "gpuflow.parallel"),
        "Types": ("builtins", "types"),
    },
}  # fmt: skip


def family_of(module: str, name: str, value: Any) -> str:
    """The title of the family of a public name, or "" if the module is a single page.

    Raises:
        LookupError: if no family has the module that defines the name.
    """
    if module not in FAMILIES:
        return ""
    home = getattr(value, "__module__", None) or ""
    if home == module and isinstance(value, type):
        home = ""  # scalar types are in the public module itself, as are its ufuncs
    titles = {
        len(prefix): title
        for title, prefixes in FAMILIES[module].items()
        for prefix in prefixes
        if home == prefix or (prefix not in ("", module) and home.startswith(f"{prefix}."))
    }
    if not titles:
        raise LookupError(f"add {home!r}, which defines {module}.{name}, to {__file__}")
    return titles[max(titles)]
