"""The collectives of programs over a mesh whose devices need not exist, by ``gpuflow.explain``."""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gpuflow as gf
from gpuflow import P
from gpuflow.errors import UnpartitionedWarning
from gpuflow.explaining.mesh_explanation import MeshExplanation
from gpuflow.sharding import AbstractMesh

COUNT = int(os.environ.get("MESH_DEVICES", "8"))


@dataclass
class Counted:
    """The program of one device.

    Attributes:
        explanation: its plan.
        warnings: texts of those about operands that are gathered.
        seconds: tracing, partitioning and planning took.
    """

    explanation: MeshExplanation
    warnings: list[str]
    seconds: float

    @property
    def times(self) -> Counter[str]:
        """How often each collective runs."""
        found: Counter[str] = Counter()
        for one in self.explanation.collectives:
            found[one.operation] += one.times
        return found

    @property
    def bytes_sent(self) -> int:
        """Bytes that the device that sends most sends in all."""
        return self.explanation.bytes_sent()

    @property
    def peak_bytes(self) -> int:
        """The largest memory of a device."""
        return self.explanation.peak_bytes


def mesh(shape: Sequence[int], names: Sequence[str]) -> AbstractMesh:
    """A mesh without devices."""
    return AbstractMesh(tuple(shape), tuple(names))


def count(
    function: Callable[..., Any], args: Any, specs: Any, over: AbstractMesh, out_specs: Any = None
) -> Counted:
    """Explain a function over a mesh.

    Args:
        function: of ``args``.
        args: arrays or ShapeDtypeStructs, in any tree.
        specs: a PartitionSpec or None for each leaf.
        over: the mesh.
        out_specs: the same for results; None follows the arguments.
    """
    leaves, structure = gf.tree.flatten(args)
    pairs = zip(leaves, _specs(specs), strict=True)
    given = [gf.ShapeDtypeStruct(x.shape, x.dtype, sharding=s or P()) for x, s in pairs]
    jitted = gf.jit(function, out_shardings=out_specs)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.perf_counter()
        found = gf.explain(jitted, *gf.tree.unflatten(structure, given), mesh=over)
        seconds = time.perf_counter() - start
    assert isinstance(found, MeshExplanation)
    texts = [str(one.message) for one in caught if issubclass(one.category, UnpartitionedWarning)]
    return Counted(found, texts, seconds)


def _specs(specs: Any) -> list[Any]:
    return gf.tree.leaves(specs, is_leaf=lambda x: isinstance(x, P) or x is None)
