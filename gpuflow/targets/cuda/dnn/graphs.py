"""cuDNN's graph interface: descriptors with attributes, and the plans of a graph.

Names are those of the header without prefixes such as ``CUDNN_ATTR_``. A descriptor does not keep
those that it refers to, so ``Graph`` keeps all that were made for one.

Source: NVIDIA, cuDNN 9: cudnn_graph.h.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any

from gpuflow.targets.cuda.dnn import cudnn

# cudnnBackendDescriptorType_t.
ENGINE, ENGINE_CONFIG, HEURISTIC, PLAN, OPERATION_GRAPH, PACK, TENSOR = 2, 3, 4, 5, 15, 16, 17
DEVICE_PROPERTIES, ATTENTION, BAND_MASK = 38, 41, 44
# cudnnBackendAttributeName_t.
HEURISTIC_MODE, HEURISTIC_GRAPH, HEURISTIC_RESULTS, HEURISTIC_PROPERTIES = 200, 201, 202, 204
CONFIG_ENGINE = 300
PLAN_CONFIG, PLAN_WORKSPACE, PLAN_PROPERTIES = 401, 402, 407
GRAPH_OPERATIONS = 801
TENSOR_ALIGNMENT, TENSOR_TYPE, TENSOR_DIMS, TENSOR_STRIDES = 900, 901, 902, 903
TENSOR_ID, TENSOR_IS_VIRTUAL, TENSOR_IS_BY_VALUE = 906, 907, 908
PACK_IDS, PACK_POINTERS, PACK_WORKSPACE = 1000, 1001, 1003
ENGINE_NUMERICAL_NOTES = 1303
PROPERTIES_HANDLE, PROPERTIES_JSON = 2701, 2702
ATTENTION_QUERY, ATTENTION_KEY, ATTENTION_VALUE, ATTENTION_OUT = 2800, 2801, 2802, 2803
ATTENTION_SUMS, ATTENTION_SCALE, ATTENTION_SUBGRAPH = 2804, 2805, 2811
ATTENTION_SUBGRAPH_INPUT, ATTENTION_SUBGRAPH_OUTPUT = 2812, 2813
MASK_INPUT, MASK_FILL, MASK_OUTPUT, MASK_COMPARISON = 3000, 3005, 3006, 3007
# cudnnBackendAttributeType_t, and what the values of each are.
HANDLE, DTYPE, BOOL, INT64, POINTER, MODE = 0, 1, 2, 3, 6, 8
NOTE, POINTWISE, DESCRIPTOR, CHAR = 11, 14, 15, 24
_VALUES: dict[int, Any] = {
    HANDLE: ctypes.c_void_p, DTYPE: ctypes.c_int, BOOL: ctypes.c_bool, INT64: ctypes.c_int64,
    POINTER: ctypes.c_void_p, MODE: ctypes.c_int, NOTE: ctypes.c_int, POINTWISE: ctypes.c_int,
    DESCRIPTOR: ctypes.c_void_p, CHAR: ctypes.c_char,
}  # fmt: skip
# Of cudnnBackendHeurMode_t, cudnnBackendNumericalNote_t and cudnnPointwiseMode_t.
MODE_A, NONDETERMINISTIC, GREATER_EQUAL = 3, 4, 303
_MOST_NOTES = 16


class Graph:
    """Descriptors of one graph.

    Args:
        library: from ``open_cudnn``.
        call: their purpose, for errors.
    """

    def __init__(self, library: Any, call: object) -> None:
        self._library, self._call = library, call
        self._made: list[int] = []

    def new(self, kind: int) -> int:
        """An empty descriptor."""
        made = ctypes.c_void_p()
        self._do("cudnnBackendCreateDescriptor", kind, ctypes.byref(made))
        self._made.append(made.value or 0)
        return made.value or 0

    def put(self, one: int, attribute: int, kind: int, *values: Any) -> None:
        """Set an attribute."""
        array = (_VALUES[kind] * len(values))(*values)
        place = ctypes.addressof(array)
        self._do("cudnnBackendSetAttribute", one, attribute, kind, len(values), place)

    def finalized(self, kind: int, *attributes: tuple[Any, ...]) -> int:
        """A descriptor with attributes: of each its name, kind and values."""
        one = self.new(kind)
        for name, value_kind, *values in attributes:
            self.put(one, name, value_kind, *values)
        self._do("cudnnBackendFinalize", one)
        return one

    def values(self, one: int, attribute: int, kind: int, most: int) -> list[Any]:
        """At most so many values of an attribute."""
        array, count = (_VALUES[kind] * most)(), ctypes.c_int64()
        self._do(
            "cudnnBackendGetAttribute", one, attribute, kind, most, ctypes.addressof(count),
            ctypes.addressof(array),
        )  # fmt: skip
        return list(array)[: min(count.value, most)]

    def parts(self, one: int, attribute: int, kind: int, most: int) -> list[int]:
        """At most so many descriptors of a kind, which cuDNN writes into ours."""
        array = (ctypes.c_void_p * most)(*[self.new(kind) for _ in range(most)])
        count = ctypes.c_int64()
        self._do(
            "cudnnBackendGetAttribute", one, attribute, DESCRIPTOR, most, ctypes.addressof(count),
            ctypes.addressof(array),
        )  # fmt: skip
        return list(array)[: min(count.value, most)]

    def notes(self, config: int) -> list[int]:
        """The numerical notes of a configuration's engine."""
        (engine,) = self.parts(config, CONFIG_ENGINE, ENGINE, 1)
        return self.values(engine, ENGINE_NUMERICAL_NOTES, NOTE, _MOST_NOTES)

    def plan(self, config: int, properties: int) -> tuple[int, int]:
        """A plan of a configuration, and the bytes of its workspace."""
        plan = self.finalized(
            PLAN, (PLAN_CONFIG, DESCRIPTOR, config), (PLAN_PROPERTIES, DESCRIPTOR, properties)
        )
        return plan, self.values(plan, PLAN_WORKSPACE, INT64, 1)[0]

    def _do(self, name: str, *arguments: Any) -> None:
        cudnn.checked(self._library, self._call, name, *arguments)

    def __del__(self) -> None:
        with suppress(Exception):  # the process ends
            for one in reversed(self._made):
                self._library.cudnnBackendDestroyDescriptor(one)
