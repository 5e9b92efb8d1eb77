"""``jax.interpreters.pxla``: the current mesh, and arrays of the shards of devices.

Tests: tests/test_as_jax_names.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.core.aval import ShapedArray
from gpuflow.core.mesh import Mesh as Mesh
from gpuflow.parallel.meshes import get_mesh
from gpuflow.parallel.placement import make_array_from_single_device_arrays


class ResourceEnv:
    """The mesh that ``with mesh:`` or ``set_mesh`` chose."""

    @property
    def physical_mesh(self) -> Mesh:
        """That mesh; one that is ``empty`` without it."""
        return get_mesh()


class ThreadResources:
    """The current mesh of this thread."""

    env = ResourceEnv()


thread_resources = ThreadResources()


@record
class ResultsHandler:
    """Makes arrays of their shards on devices.

    Attributes:
        handlers: for each result ``shards -> array``.
        out_shardings, out_avals: the shardings and types of the results.
    """

    handlers: Sequence[Callable[[Sequence[Any]], Any]]
    out_shardings: Sequence[Any]
    out_avals: Sequence[ShapedArray]

    def __call__(self, out_bufs: Sequence[Sequence[Any]]) -> list[Any]:
        return [handler(shards) for handler, shards in safe_zip(self.handlers, out_bufs)]


def global_aval_to_result_handler(
    aval: ShapedArray, out_sharding: Any, committed: bool
) -> Callable[[Sequence[Any]], Any]:
    """A function that makes an array of its shards, in the order of the sharding's devices."""
    return global_result_handlers[type(aval)](aval, out_sharding, committed)


def _array_handler(aval: ShapedArray, sharding: Any, committed: bool) -> Any:
    del committed
    return lambda shards: make_array_from_single_device_arrays(
        aval.shape, sharding, shards, dtype=aval.dtype
    )


global_result_handlers: dict[type, Callable[..., Any]] = {ShapedArray: _array_handler}


def global_avals_to_results_handler(
    global_out_avals: Sequence[ShapedArray], shardings: Sequence[Any], committed: bool = True
) -> ResultsHandler:
    """A function that makes the arrays of several results of their shards."""
    handlers = [
        global_aval_to_result_handler(aval, sharding, committed)
        for aval, sharding in safe_zip(global_out_avals, shardings)
    ]
    return ResultsHandler(handlers, shardings, global_out_avals)
