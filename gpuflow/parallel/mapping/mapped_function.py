"""Common code of pmap and shard_map: a callable that caches one program per signature.

Tests: tests/parallel/test_pmap.py, tests/parallel/test_shard_map.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from gpuflow.base import tree
from gpuflow.base.records import record
from gpuflow.control.jit_options import name_of
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.core.staging import hoist_consts, trace_to_jaxpr
from gpuflow.core.trace import Tracer
from gpuflow.runtime.distributed import DistributedArray, gathered
from gpuflow.runtime.sharded import ShardedArray

Options = TypeVar("Options")
Program = TypeVar("Program")


@record
class OutputLayout:
    """The outputs of a mapped function, as tracing found them.

    Attributes:
        tree: their structure.
        mapped: for each one its mapped axis (pmap) or its PartitionSpec (shard_map).
        unequal: names of outputs that may differ between devices although they are not mapped. The
            program returns all their elements as additional outputs, to compare them.
    """

    tree: tree.TreeDef
    mapped: tuple[Any, ...]
    unequal: tuple[str, ...] = ()


@record(eq=False)
class MappedOutputs:
    """A pytree that the program of a mapped function returns: outputs, with their layout."""

    values: Sequence[Any]
    layout: OutputLayout


tree.register_node(
    MappedOutputs,
    lambda outputs: (outputs.values, outputs.layout),
    lambda layout, values: MappedOutputs(list(values), layout),
)


class MappedFunction(Generic[Options, Program]):
    """A user's function, the options of its transformation, and the cached programs.

    Args:
        op: "pmap" or "shard_map", for messages.
        function: the user's function.
        options: the options of the transformation.
    """

    def __init__(self, op: str, function: Callable[..., Any], options: Options) -> None:
        wrapper: Any = self
        functools.update_wrapper(wrapper, function)
        self._op, self._function, self._options = op, function, options
        self._programs: dict[Any, Program] = {}
        self.name = name_of(function)

    def __repr__(self) -> str:
        return f"<{self._op} of {self.name}>"

    def clear_cache(self) -> None:
        """Forget all traced signatures."""
        self._programs.clear()

    def _find(
        self, key: Hashable, make: Callable[[], Program], keep: Callable[[Program], bool]
    ) -> Program:
        """The cached program of a signature; creates it if it is missing.

        Args:
            key: structure and types of arguments, and all else that the program depends on.
            make: creates the program.
            keep: whether the program may be cached: not if it closes over tracers.

        Raises:
            TypeError: if a component of the key is not hashable.
        """
        program = self._programs.get(key)
        if program is None:
            program = make()
            if keep(program):
                self._programs[key] = program
        return program


def trace_outputs(
    function: Callable[..., MappedOutputs], avals: Sequence[Any], name: str
) -> tuple[ClosedJaxpr, Sequence[Any], OutputLayout]:
    """Trace the program of one memory.

    Returns:
        The program, whose first inputs are the values that it captures; these values; its outputs.
    """
    layouts = []

    def listed(*values: Any) -> Sequence[Any]:
        outputs = function(*values)
        layouts.append(outputs.layout)
        return outputs.values

    jaxpr, consts = trace_to_jaxpr(listed, avals, (), name)
    return ClosedJaxpr(hoist_consts(jaxpr)), consts, layouts[0]


def in_one_memory(leaf: Any) -> Any:
    """Convert a sharded or distributed array to a plain Array; other leaves are unchanged."""
    kind = type(leaf)
    if kind is ShardedArray:
        return leaf.whole
    return gathered(leaf) if kind is DistributedArray else leaf


def has_no_tracers(values: Any) -> bool:
    """Whether values may be cached: a tracer must not outlive its trace."""
    return not any(isinstance(value, Tracer) for value in values)
