"""Networks as pairs of functions, under the names of jax.example_libraries.stax.

A layer is ``(init_fun, apply_fun)``: ``init_fun(rng, input_shape) -> (output_shape, params)`` and
``apply_fun(params, inputs, rng=None) -> outputs``. A size of -1 represents a batch of any size.

Tests: tests/test_stax.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from gpuflow import lax, random
from gpuflow import numpy as jnp
from gpuflow.api.programs import ShapeDtypeStruct as _ShapeDtypeStruct
from gpuflow.api.programs import eval_shape as _eval_shape
from gpuflow.base.names import public_names, publish
from gpuflow.nn import (
    elu,
    gelu,
    leaky_relu,
    log_softmax,
    relu,
    selu,
    sigmoid,
    softmax,
    softplus,
    standardize,
)
from gpuflow.nn.initializers import glorot_normal, normal, ones, zeros

Shape = tuple[int, ...]
Layer = tuple[Callable[..., tuple[Any, Any]], Callable[..., Any]]

# Short names of initializers and activations, which older programs import from here.
glorot = glorot_normal
randn = normal
logsoftmax = log_softmax


# --- layers with parameters ----------------------------------------------------------------


_DENSE_WEIGHTS = glorot()
_DENSE_BIAS = normal()


def Dense(
    out_dim: int,
    W_init: Callable[..., Any] = _DENSE_WEIGHTS,
    b_init: Callable[..., Any] = _DENSE_BIAS,
) -> Layer:
    """Fully connected layer: ``inputs @ W + b``.

    Args:
        out_dim: size of the last dimension of the outputs.
        W_init: initializer of the weights, of shape ``(in, out_dim)``.
        b_init: initializer of the bias, of shape ``(out_dim,)``.
    """

    def init_fun(rng: Any, input_shape: Shape) -> tuple[Shape, Any]:
        weight_key, bias_key = random.split(rng)
        weights = W_init(weight_key, (input_shape[-1], out_dim))
        return (*input_shape[:-1], out_dim), (weights, b_init(bias_key, (out_dim,)))

    def apply_fun(params: Any, inputs: Any, **kwargs: Any) -> Any:
        weights, bias = params
        return jnp.dot(inputs, weights) + bias

    return init_fun, apply_fun


def BatchNorm(
    axis: int | Sequence[int] = (0, 1, 2),
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
    beta_init: Callable[..., Any] = zeros,
    gamma_init: Callable[..., Any] = ones,
) -> Layer:
    """Batch normalization layer with the statistics of the batch (Ioffe and Szegedy 2015).

    Args:
        axis: dimensions over which mean and variance are computed.
        epsilon: added to the variance.
        center: whether to add a learned ``beta``.
        scale: whether to multiply by a learned ``gamma``.
        beta_init: initializer of ``beta``.
        gamma_init: initializer of ``gamma``.
    """
    axes = (axis,) if isinstance(axis, int) else tuple(axis)

    def init_fun(rng: Any, input_shape: Shape) -> tuple[Shape, Any]:
        shape = tuple(size for k, size in enumerate(input_shape) if k not in axes)
        beta_key, gamma_key = random.split(rng)
        beta = beta_init(beta_key, shape) if center else ()
        return input_shape, (beta, gamma_init(gamma_key, shape) if scale else ())

    def apply_fun(params: Any, x: Any, **kwargs: Any) -> Any:
        missing = tuple(k for k in range(jnp.ndim(x)) if k in axes)
        beta, gamma = params
        result = standardize(x, axes, epsilon=epsilon)
        if scale:
            result = jnp.expand_dims(gamma, missing) * result
        return result + jnp.expand_dims(beta, missing) if center else result

    return init_fun, apply_fun


# --- layers without parameters -------------------------------------------------------------


def elementwise(fun: Callable[..., Any], **fun_kwargs: Any) -> Layer:
    """Layer that applies ``fun(inputs, **fun_kwargs)``, which preserves shapes."""
    return (
        lambda rng, input_shape: (input_shape, ()),
        lambda params, inputs, **kwargs: fun(inputs, **fun_kwargs),
    )


Tanh = elementwise(jnp.tanh)
Relu = elementwise(relu)
Exp = elementwise(jnp.exp)
LogSoftmax = elementwise(log_softmax, axis=-1)
Softmax = elementwise(softmax, axis=-1)
Softplus = elementwise(softplus)
Sigmoid = elementwise(sigmoid)
Elu = elementwise(elu)
LeakyRelu = elementwise(leaky_relu)
Selu = elementwise(selu)
Gelu = elementwise(gelu)
Identity = elementwise(lambda inputs: inputs)


def _flatten_init(rng: Any, input_shape: Shape) -> tuple[Shape, tuple[()]]:
    return (input_shape[0], prod(input_shape[1:])), ()


def _flatten_apply(params: Any, inputs: Any, **kwargs: Any) -> Any:
    return jnp.reshape(inputs, (inputs.shape[0], prod(inputs.shape[1:])))


Flatten = (_flatten_init, _flatten_apply)


def Dropout(rate: float, mode: str = "train") -> Layer:
    """Dropout layer: keep each element with probability ``rate``, scaled by ``1 / rate``.

    Args:
        rate: the probability to keep an element.
        mode: ``"train"``; any other mode returns inputs unchanged.
    """

    def init_fun(rng: Any, input_shape: Shape) -> tuple[Shape, tuple[()]]:
        return input_shape, ()

    def apply_fun(params: Any, inputs: Any, **kwargs: Any) -> Any:
        rng = kwargs.get("rng")
        if rng is None:
            raise ValueError(
                "[Dropout] the layer must be given a random key; got none. Fix: "
                "apply_fun(params, inputs, rng=key), or Dropout(rate, mode='test')."
            )
        if mode != "train":
            return inputs
        retained = random.bernoulli(rng, rate, inputs.shape)
        return jnp.where(retained, inputs / rate, 0)

    return init_fun, apply_fun


# --- combinators ---------------------------------------------------------------------------


def FanOut(num: int) -> Layer:
    """Layer that returns its input ``num`` times, for ``parallel``."""
    return (
        lambda rng, input_shape: ([input_shape] * num, ()),
        lambda params, inputs, **kwargs: [inputs] * num,
    )


FanInSum = (
    lambda rng, input_shape: (input_shape[0], ()),
    lambda params, inputs, **kwargs: sum(inputs),
)


def FanInConcat(axis: int = -1) -> Layer:
    """Layer that concatenates its inputs along ``axis``."""

    def init_fun(rng: Any, input_shape: Sequence[Shape]) -> tuple[Shape, tuple[()]]:
        position = axis % len(input_shape[0])
        total = sum(shape[position] for shape in input_shape)
        return (*input_shape[0][:position], total, *input_shape[0][position + 1 :]), ()

    def apply_fun(params: Any, inputs: Any, **kwargs: Any) -> Any:
        return jnp.concatenate(inputs, axis)

    return init_fun, apply_fun


def _keys(rng: Any, count: int) -> Any:
    return random.split(rng, count) if rng is not None else (None,) * count


def serial(*layers: Layer) -> Layer:
    """Compose layers sequentially."""
    init_funs, apply_funs = zip(*layers, strict=True) if layers else ((), ())

    def init_fun(rng: Any, input_shape: Any) -> tuple[Any, list[Any]]:
        params = []
        for init in init_funs:
            rng, layer_rng = random.split(rng)
            input_shape, layer_params = init(layer_rng, input_shape)
            params.append(layer_params)
        return input_shape, params

    def apply_fun(params: Any, inputs: Any, **kwargs: Any) -> Any:
        keys = _keys(kwargs.pop("rng", None), len(apply_funs))
        for apply, layer_params, key in zip(apply_funs, params, keys, strict=True):
            inputs = apply(layer_params, inputs, rng=key, **kwargs)
        return inputs

    return init_fun, apply_fun


def parallel(*layers: Layer) -> Layer:
    """Compose layers in parallel; each takes one of a sequence of inputs, as from FanOut."""
    init_funs, apply_funs = zip(*layers, strict=True)

    def init_fun(rng: Any, input_shape: Sequence[Any]) -> tuple[Any, Any]:
        keys = random.split(rng, len(init_funs))
        inits = zip(init_funs, keys, input_shape, strict=True)
        shapes, params = zip(*[init(key, shape) for init, key, shape in inits], strict=True)
        return shapes, params

    def apply_fun(params: Any, inputs: Any, **kwargs: Any) -> list[Any]:
        keys = _keys(kwargs.pop("rng", None), len(apply_funs))
        return [
            apply(p, x, rng=key, **kwargs)
            for apply, p, x, key in zip(apply_funs, params, inputs, keys, strict=True)
        ]

    return init_fun, apply_fun


def shape_dependent(make_layer: Callable[[Shape], Layer]) -> Layer:
    """Layer that ``make_layer(input_shape)`` creates when the shape of its input is known."""

    def init_fun(rng: Any, input_shape: Shape) -> tuple[Any, Any]:
        return make_layer(input_shape)[0](rng, input_shape)

    def apply_fun(params: Any, inputs: Any, **kwargs: Any) -> Any:
        return make_layer(inputs.shape)[1](params, inputs, **kwargs)

    return init_fun, apply_fun


# --- windows: convolutions and pooling -----------------------------------------------------


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


Conv = functools.partial(GeneralConv, ("NHWC", "HWIO", "NHWC"))
ConvTranspose = functools.partial(GeneralConvTranspose, ("NHWC", "HWIO", "NHWC"))
Conv1DTranspose = functools.partial(GeneralConvTranspose, ("NHC", "HIO", "NHC"))


def _output_shape(
    function: Callable[..., Any], batch_axes: tuple[int, int], input_shape: Shape, *others: Shape
) -> Shape:
    """The shape of a result, where the batch may be -1; ``batch_axes``: of input and result."""
    before, after = batch_axes
    sizes = [1 if axis == before else size for axis, size in enumerate(input_shape)]
    shapes = [tuple(sizes), *others]
    result = list(_eval_shape(function, *(_ShapeDtypeStruct(s, jnp.float32) for s in shapes)).shape)
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


publish(globals(), "stax", public_names(globals()))
