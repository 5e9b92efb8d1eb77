"""Attention by cuDNN on one device: an operation of its graph interface, a plan for each shape.

Causal masks are a graph inside of the operation that has one ``DIAGONAL_BAND_MASK`` without bounds.
The header does not define its comparison. NVIDIA's cudnn-frontend writes the same mask as pointwise
operations for versions before 9.21: scores are kept if ``row >= column``, and others become the
fill, which there is a large negative number. ``attention_trial.py`` compares it with NumPy before
it is used. Not measured on a GPU, and never run on one.

Source: NVIDIA, cuDNN 9: cudnn_graph.h; cudnn-frontend: node/diagonal_band_mask.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gpuflow.base.util import row_major_strides, warn
from gpuflow.targets.cuda.dnn import cudnn, graphs
from gpuflow.targets.cuda.dnn.attention_calls import Attend, AttentionCall, ChosenAttention
from gpuflow.targets.cuda.dnn.device import CudnnDevice, NotTaken
from gpuflow.targets.cuda.dnn.graphs import DESCRIPTOR, Graph

# The first version whose attention takes such a mask.
FIRST_VERSION = (9, 21, 0)
MOST_WORKSPACE = 1 << 28  # bytes; a guess, as for convolutions
_MOST_PLANS = 8
_ALIGNED = 16  # bytes
# Numbers of tensors: those of the call in order, scalars, scores before and behind a mask.
_QUERY, _KEY, _VALUE, _OUT, _SUMS, _SCALE, _FILL, _SCORES, _MASKED = range(1, 10)
_UNSEEN = float(np.finfo(np.float32).min)

# Puts the device's properties into a graph: the descriptor of ``DEVICE_PROPERTIES``.
Properties = Callable[[Graph], int]


class AttentionGraph:
    """The graph of a call, and the library's plan for it.

    Args:
        library: from ``open_cudnn``.
        call: the call to describe.
        properties: adds the device's.

    Raises:
        CudnnError: the library does not take it.
    """

    def __init__(self, library: Any, call: AttentionCall, properties: Properties) -> None:
        self._graph, self._call = Graph(library, call), call
        self._properties = properties(self._graph)
        operation = self._operation()
        whole = self._graph.finalized(
            graphs.OPERATION_GRAPH, (graphs.GRAPH_OPERATIONS, DESCRIPTOR, operation)
        )
        heuristic = self._graph.finalized(
            graphs.HEURISTIC,
            (graphs.HEURISTIC_GRAPH, DESCRIPTOR, whole),
            (graphs.HEURISTIC_MODE, graphs.MODE, graphs.MODE_A),
            (graphs.HEURISTIC_PROPERTIES, DESCRIPTOR, self._properties),
        )
        self.configs = self._graph.parts(
            heuristic, graphs.HEURISTIC_RESULTS, graphs.ENGINE_CONFIG, _MOST_PLANS
        )

    def chosen(self, deterministic: bool) -> ChosenAttention | None:
        """The first plan that may be taken; None: there is none."""
        for rank, config in enumerate(self.configs):
            if deterministic and graphs.NONDETERMINISTIC in self._graph.notes(config):
                continue
            try:
                _, count = self.plan(rank)
            except cudnn.CudnnError:
                continue  # the heuristic does not build what it names
            if count <= MOST_WORKSPACE:
                return ChosenAttention(self._call, rank, count)
        return None

    def plan(self, rank: int) -> tuple[int, int]:
        """The plan of that rank, and the bytes of its workspace."""
        return self._graph.plan(self.configs[rank], self._properties)

    def _operation(self) -> int:
        call = self._call
        one = cudnn.TYPES[call.dtype]
        rows, columns = (
            (call.batch, heads, length, call.size)
            for heads, length in ((call.heads, call.queries), (call.key_heads, call.keys))
        )
        tensors = [
            self._tensor(number, dims, _behind_heads(dims), one)
            for number, dims in ((_QUERY, rows), (_KEY, columns), (_VALUE, columns), (_OUT, rows))
        ]
        sums = (call.batch, call.heads, call.queries, 1)
        tensors.append(self._tensor(_SUMS, sums, row_major_strides(sums), cudnn.FLOAT))
        tensors.append(self._scalar(_SCALE))
        names = (
            graphs.ATTENTION_QUERY, graphs.ATTENTION_KEY, graphs.ATTENTION_VALUE,
            graphs.ATTENTION_OUT, graphs.ATTENTION_SUMS, graphs.ATTENTION_SCALE,
        )  # fmt: skip
        attributes: list[tuple[Any, ...]] = [
            (name, DESCRIPTOR, tensor) for name, tensor in zip(names, tensors, strict=True)
        ]
        if call.causal:
            attributes += [
                (graphs.ATTENTION_SUBGRAPH, DESCRIPTOR, self._mask()),
                (graphs.ATTENTION_SUBGRAPH_INPUT, graphs.INT64, _SCORES),
                (graphs.ATTENTION_SUBGRAPH_OUTPUT, graphs.INT64, _MASKED),
            ]
        return self._graph.finalized(graphs.ATTENTION, *attributes)

    def _mask(self) -> int:
        call = self._call
        dims = (call.batch, call.heads, call.queries, call.keys)
        scores, masked = (
            self._tensor(number, dims, row_major_strides(dims), cudnn.FLOAT, True)
            for number in (_SCORES, _MASKED)
        )
        mask = self._graph.finalized(
            graphs.BAND_MASK,
            (graphs.MASK_INPUT, DESCRIPTOR, scores),
            (graphs.MASK_FILL, DESCRIPTOR, self._scalar(_FILL)),
            (graphs.MASK_OUTPUT, DESCRIPTOR, masked),
            (graphs.MASK_COMPARISON, graphs.POINTWISE, graphs.GREATER_EQUAL),
        )
        return self._graph.finalized(
            graphs.OPERATION_GRAPH, (graphs.GRAPH_OPERATIONS, DESCRIPTOR, mask)
        )

    def _tensor(
        self, number: int, dims: tuple[int, ...], strides: tuple[int, ...], kind: int,
        is_virtual: bool = False, is_by_value: bool = False, alignment: int = _ALIGNED,
    ) -> int:  # fmt: skip
        flags: list[tuple[Any, ...]] = [
            (name, graphs.BOOL, True)
            for name, is_set in (
                (graphs.TENSOR_IS_VIRTUAL, is_virtual), (graphs.TENSOR_IS_BY_VALUE, is_by_value),
            )
            if is_set
        ]  # fmt: skip
        return self._graph.finalized(
            graphs.TENSOR,
            (graphs.TENSOR_ID, graphs.INT64, number),
            (graphs.TENSOR_TYPE, graphs.DTYPE, kind),
            (graphs.TENSOR_ALIGNMENT, graphs.INT64, alignment),
            (graphs.TENSOR_DIMS, graphs.INT64, *dims),
            (graphs.TENSOR_STRIDES, graphs.INT64, *strides),
            *flags,
        )

    def _scalar(self, number: int) -> int:
        return self._tensor(number, (1,) * 4, (1,) * 4, cudnn.FLOAT, False, True, 4)


def _behind_heads(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of batch, heads, length and size where heads lie behind lengths."""
    _, heads, length, size = dims
    return (heads * length * size, size, heads * size, 1)


class CudnnAttention(CudnnDevice[AttentionCall, ChosenAttention]):
    """cuDNN's attention on one device, from version 9.21 on."""

    def bind(self, chosen: ChosenAttention, stream: int) -> Attend:
        """A call of the chosen plan.

        Raises:
            CudnnError: if cuDNN does not support its choice of one device on another.
        """
        call, library, lock = chosen.call, self._opened(), self._lock
        handle = self._handle_of(call)
        with self._on_device():
            graph = AttentionGraph(library, call, partial(_properties, handle))
            plan, count = graph.plan(chosen.rank)
        if count > chosen.workspace_bytes:
            raise RuntimeError(
                f"[cudnn] the plan of a {call} must need at most {chosen.workspace_bytes} bytes, "
                f"as on the device that it was chosen on; got {count}. Fix: set GPUFLOW_CUDNN=0."
            )
        scalars = ctypes.c_float(call.scale), ctypes.c_float(_UNSEEN)
        ends = [ctypes.addressof(one) for one in scalars[: 1 + call.causal]]
        numbers = [_QUERY, _KEY, _VALUE, _OUT, _SUMS, _SCALE, _FILL][: 5 + len(ends)]
        check = partial(cudnn.checked, library, call)

        def attend(
            query: int, key: int, value: int, out: int, sums: int, workspace: int,
            recorded: int = stream,
        ) -> None:  # fmt: skip
            arrays = (query, key, value, out, sums)
            if any(place % _ALIGNED for place in arrays):
                raise ValueError(
                    f"[dot_product_attention] arrays must begin at multiples of {_ALIGNED} bytes "
                    f"for cuDNN; got {', '.join(map(hex, arrays))} for a {call}. Fix: copy arrays "
                    "of other libraries (jnp.array), or set GPUFLOW_CUDNN=0."
                )
            pack = Graph(library, call)
            operands = pack.finalized(
                graphs.PACK,
                (graphs.PACK_IDS, graphs.INT64, *numbers),
                (graphs.PACK_POINTERS, graphs.POINTER, *arrays, *ends),
                (graphs.PACK_WORKSPACE, graphs.POINTER, workspace),
            )
            with lock:
                check("cudnnSetStream", handle, recorded)
                check("cudnnBackendExecute", handle, plan, operands)

        attend.kept = graph, scalars  # type: ignore[attr-defined]
        return attend

    def _choice(self, call: AttentionCall, deterministic: bool) -> ChosenAttention:
        version = cudnn.version_of(self._library)
        if version < FIRST_VERSION:
            first, got = (".".join(map(str, one)) for one in (FIRST_VERSION, version))
            raise NotTaken(f"its attention is used from version {first} on; got {got}")
        handle = self._handle_of(call)
        with self._on_device():
            try:
                graph = AttentionGraph(self._library, call, partial(_properties, handle))
                chosen = graph.chosen(deterministic)
            except cudnn.CudnnError as error:
                if not cudnn.is_refusal(error.status):
                    warn(f"{error} Attention is left to gpuflow's own kernels.")
                raise NotTaken(str(error)) from error
        if chosen is None:
            raise NotTaken(f"none of its plans may be taken for a {call}")
        return chosen


def _properties(handle: int | None, graph: Graph) -> int:
    """Those of a handle's device."""
    return graph.finalized(
        graphs.DEVICE_PROPERTIES, (graphs.PROPERTIES_HANDLE, graphs.HANDLE, handle)
    )
