"""The layers of stax that slide a window: convolutions and pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpuflow import lax, random
from gpuflow import numpy as jnp
from gpuflow.api.programs import ShapeDtypeStruct, eval_shape
from gpuflow.nn.initializers import glorot_normal, normal

Shape = tuple[int, ...]
Layer = tuple[Callable[..., tuple[Any, Any]], Callable[..., Any]]

_BIAS = normal(1e-6)


def GeneralConv(
    dimension_numbers: tuple[str, str, str],
    out_chan: int,
    filter_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Any = "VALID",
    W_init: Callable[..., Any] | None = None,
    b_init: Callable[..., Any] = _BIAS,
) -> Layer:
    """Convolution layer with a bias.

    Args:
        dimension_numbers: dimensions of inputs, kernels and outputs, such as
            ``("NHWC", "HWIO", "NHWC")``.
        out_chan: number of output channels.
        filter_shape: spatial sizes of the kernel.
        strides: stride in each spatial dimension; 1 by default.
        padding: ``"VALID"``, ``"SAME"`` or pairs of sizes.
        W_init: initializer of the kernel; Glorot normal by default.
        b_init: initializer of the bias.
    """
    steps = tuple(strides or (1,) * len(filter_shape))

    def convolve(inputs: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(
            inputs,
            kernel,
            steps,
            padding,
            (1,) * len(steps),
            (1,) * len(steps),
            dimension_numbers=dimension_numbers,
        )

    return _convolution(convolve, dimension_numbers, out_chan, filter_shape, W_init, b_init)


def GeneralConvTranspose(
    dimension_numbers: tuple[str, str, str],
    out_chan: int,
    filter_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Any = "VALID",
    W_init: Callable[..., Any] | None = None,
    b_init: Callable[..., Any] = _BIAS,
) -> Layer:
    """Transposed convolution layer with a bias; arguments as for GeneralConv."""
    steps = tuple(strides or (1,) * len(filter_shape))

    def convolve(inputs: Any, kernel: Any) -> Any:
        return lax.conv_transpose(
            inputs, kernel, steps, padding, dimension_numbers=dimension_numbers
        )

    return _convolution(convolve, dimension_numbers, out_chan, filter_shape, W_init, b_init)


def _convolution(
    convolve: Callable[[Any, Any], Any],
    dimension_numbers: tuple[str, str, str],
    out_chan: int,
    filter_shape: Sequence[int],
    W_init: Callable[..., Any] | None,
    b_init: Callable[..., Any],
) -> Layer:
    inputs_spec, kernel_spec, outputs_spec = dimension_numbers
    make_kernel = W_init or glorot_normal(kernel_spec.index("I"), kernel_spec.index("O"))

    def init_fun(rng: Any, input_shape: Shape) -> tuple[Shape, Any]:
        spatial = iter(filter_shape)
        named = {"O": out_chan, "I": input_shape[inputs_spec.index("C")]}
        kernel_shape = tuple(named[c] if c in named else next(spatial) for c in kernel_spec)
        batch_axes = inputs_spec.index("N"), outputs_spec.index("N")
        output_shape = _output_shape(convolve, batch_axes, input_shape, kernel_shape)
        bias_shape = tuple(out_chan if c == "C" else 1 for c in outputs_spec)
        kernel_key, bias_key = random.split(rng)
        return output_shape, (make_kernel(kernel_key, kernel_shape), b_init(bias_key, bias_shape))

    def apply_fun(params: Any, inputs: Any, **kwargs: Any) -> Any:
        kernel, bias = params
        return convolve(inputs, kernel) + bias

    return init_fun, apply_fun


Conv = partial(GeneralConv, ("NHWC", "HWIO", "NHWC"))
ConvTranspose = partial(GeneralConvTranspose, ("NHWC", "HWIO", "NHWC"))
Conv1DTranspose = partial(GeneralConvTranspose, ("NHC", "HIO", "NHC"))


def _output_shape(
    function: Callable[..., Any], batch_axes: tuple[int, int], input_shape: Shape, *others: Shape
) -> Shape:
    """The shape of a result, where the batch may be -1; ``batch_axes``: of input and result."""
    before, after = batch_axes
    sizes = [1 if axis == before else size for axis, size in enumerate(input_shape)]
    shapes = [tuple(sizes), *others]
    result = list(eval_shape(function, *(ShapeDtypeStruct(s, jnp.float32) for s in shapes)).shape)
    result[after] = input_shape[before]
    return tuple(result)


def _pooling(reducer: Callable[..., Any], start: float, average: bool) -> Callable[..., Layer]:
    def pooling_layer(
        window_shape: Sequence[int],
        strides: Sequence[int] | None = None,
        padding: str = "VALID",
        spec: str | None = None,
    ) -> Layer:
        """Pooling layer.

        Args:
            window_shape: spatial sizes of the window.
            strides: stride in each spatial dimension; 1 by default.
            padding: ``"VALID"`` or ``"SAME"``.
            spec: dimensions of inputs and outputs; batch, spatial dimensions, channels by default.
        """
        last = len(window_shape) + 1
        unpooled = (0, last) if spec is None else (spec.index("N"), spec.index("C"))
        window, steps = list(window_shape), list(strides or (1,) * len(window_shape))
        for axis in sorted(unpooled):
            window.insert(axis, 1)
            steps.insert(axis, 1)

        def reduce(inputs: Any) -> Any:
            return lax.reduce_window(inputs, start, reducer, tuple(window), tuple(steps), padding)

        def init_fun(rng: Any, input_shape: Shape) -> tuple[Shape, tuple[()]]:
            return _output_shape(reduce, (unpooled[0], unpooled[0]), input_shape), ()

        def apply_fun(params: Any, inputs: Any, **kwargs: Any) -> Any:
            if not average:
                return reduce(inputs)
            # At an edge with padding a window covers fewer elements, so they are counted.
            sizes = [1 if k in unpooled else size for k, size in enumerate(inputs.shape)]
            return reduce(inputs) / reduce(jnp.ones(sizes, inputs.dtype))

        return init_fun, apply_fun

    return pooling_layer


MaxPool = _pooling(lax.max, -jnp.inf, False)
SumPool = _pooling(lax.add, 0.0, False)
AvgPool = _pooling(lax.add, 0.0, True)
