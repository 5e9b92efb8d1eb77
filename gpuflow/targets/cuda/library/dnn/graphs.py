"""Build cuDNN graphs for calls; the uids of tensors are 1, 2, ... in the order of ``arrays``.

``Cudnn.bind`` passes addresses by these uids.

Tests: tests/targets/cuda/test_cudnn_frontend.py, tests/targets/cuda/test_cudnn.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuflow.base.util import row_major_strides
from gpuflow.targets.cuda.library.dnn.calls import (
    DATA,
    FILTER,
    FORWARD,
    AttentionCall,
    ConvolutionCall,
    CudnnCall,
    Dims,
    packed_strides,
)
from gpuflow.targets.cuda.library.dnn.frontend import DATA_TYPE_NAMES

# The frontend's method for each kind, and its keywords for the operands.
_CONVOLUTIONS = {
    FORWARD: ("conv_fprop", "image", "weight"),
    DATA: ("conv_dgrad", "loss", "filter"),
    FILTER: ("conv_wgrad", "image", "loss"),
}


def graph_of(
    library: Any,
    call: CudnnCall,
    deterministic: bool,
    handle: Any = None,
    device_property: Any = None,
) -> Any:
    """Build the graph of a call, without a plan.

    Args:
        library: from ``load_frontend``.
        call: the call.
        deterministic: whether results must have the same bits in every run.
        handle: cuDNN handle of the device.
        device_property: properties of a device, to plan without one.

    Raises:
        Exception: if the library does not support the call; it raises several classes.
    """
    types = library.data_type
    data_type, accumulator_type = getattr(types, DATA_TYPE_NAMES[call.dtype]), types.FLOAT
    if call.dtype == np.float64:
        accumulator_type = types.DOUBLE
    graph = library.pygraph(
        io_data_type=data_type,
        intermediate_data_type=accumulator_type,
        compute_data_type=accumulator_type,
        handle=handle,
        device_property=device_property,
    )
    tensors = _Tensors(graph, data_type, accumulator_type)
    if isinstance(call, ConvolutionCall):
        _add_convolution(tensors, call)
    else:
        _add_attention(library, tensors, call, deterministic)
    return graph


class _Tensors:
    """Adds tensors to a graph, of the call's dtype or of the accumulator's (``is_wide``).

    Dims and strides are in the order of ``CudnnCall.arrays``; strides are in elements.
    """

    def __init__(self, graph: Any, data_type: Any, accumulator_type: Any) -> None:
        self.graph, self._data_type, self._accumulator_type = graph, data_type, accumulator_type

    def operand(self, uid: int, dims: Dims, strides: Dims, is_wide: bool = False) -> Any:
        """Add an operand; returns the frontend's tensor."""
        data_type = self._accumulator_type if is_wide else self._data_type
        return self.graph.tensor(dim=list(dims), stride=list(strides), data_type=data_type, uid=uid)

    def output(
        self, tensor: Any, uid: int, dims: Dims, strides: Dims, is_wide: bool = False
    ) -> None:
        """Declare a result of an operation as an output of the graph."""
        data_type = self._accumulator_type if is_wide else self._data_type
        tensor.set_output(True).set_uid(uid).set_data_type(data_type)
        tensor.set_dim(list(dims)).set_stride(list(strides))


def _add_convolution(tensors: _Tensors, call: ConvolutionCall) -> None:
    operation, *names = _CONVOLUTIONS[call.kind]
    strides = [packed_strides(dims, call.channels_last) for dims in call.arrays]
    *operands, out = list(zip(call.arrays, strides, strict=True))
    operand_tensors = {
        name: tensors.operand(uid, *operand)
        for uid, (name, operand) in enumerate(zip(names, operands, strict=True), 1)
    }
    result = getattr(tensors.graph, operation)(
        **operand_tensors,
        pre_padding=[low for low, _ in call.padding],
        post_padding=[high for _, high in call.padding],
        stride=list(call.strides),
        dilation=list(call.dilation),
    )
    tensors.output(result, len(call.arrays), *out)


def _add_attention(
    library: Any, tensors: _Tensors, call: AttentionCall, deterministic: bool
) -> None:
    options: dict[str, Any] = {"attn_scale": call.scale}
    if call.causal:
        # A diagonal band, unbounded on the left, which is aligned to the first query and key.
        options["diagonal_alignment"] = library.diagonal_alignment.TOP_LEFT
        options["diagonal_band_right_bound"] = 0
    rows, columns, _, _, *_ = call.arrays
    sums = (*rows[:3], 1)
    query, key, value = (
        tensors.operand(uid, dims, _strides_of_heads(dims))
        for uid, dims in enumerate((rows, columns, columns), 1)
    )
    if not call.gradient:
        out, logarithms = tensors.graph.sdpa(
            q=query, k=key, v=value, generate_stats=True, **options
        )
        tensors.output(out, 4, rows, _strides_of_heads(rows))
        tensors.output(logarithms, 5, sums, row_major_strides(sums), is_wide=True)
        return
    out, cotangent = (tensors.operand(uid, rows, _strides_of_heads(rows)) for uid in (4, 5))
    gradients = tensors.graph.sdpa_backward(
        q=query,
        k=key,
        v=value,
        o=out,
        dO=cotangent,
        stats=tensors.operand(6, sums, row_major_strides(sums), is_wide=True),
        use_deterministic_algorithm=deterministic,
        **options,
    )
    for uid, (gradient, dims) in enumerate(
        zip(gradients, (rows, columns, columns), strict=True), 7
    ):
        tensors.output(gradient, uid, dims, _strides_of_heads(dims))


def _strides_of_heads(dims: Dims) -> Dims:
    """Strides of batch, heads, length and size of an array ``[batch, length, heads, size]``."""
    _, heads, length, size = dims
    return (heads * length * size, size, heads * size, 1)
