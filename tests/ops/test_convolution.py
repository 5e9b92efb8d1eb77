"""Convolutions against their definition in float64, one product at a time."""

import itertools

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax


def _naive(lhs, rhs, strides, pads, lhs_dilation, rhs_dilation, groups, batch_groups=1):
    """Operands as (batch, channels, space) and (outputs, inputs, space)."""
    lhs, rhs = np.asarray(lhs, float), np.asarray(rhs, float)
    space = lhs.ndim - 2
    sizes = []
    for d in range(space):
        whole = max((lhs.shape[2 + d] - 1) * lhs_dilation[d] + 1, 0) + sum(pads[d])
        window = (rhs.shape[2 + d] - 1) * rhs_dilation[d] + 1
        sizes.append(max((whole - window) // strides[d] + 1, 0) if whole >= window else 0)
    examples = lhs.shape[0] // batch_groups
    out = np.zeros((examples, rhs.shape[0], *sizes))
    per_group = rhs.shape[0] // (groups * batch_groups)
    for o in range(rhs.shape[0]):
        group = o // per_group
        first = (group % groups) * rhs.shape[1] if groups > 1 else 0
        offset = group * examples if batch_groups > 1 else 0
        for s in itertools.product(*map(range, sizes)):
            for k in itertools.product(*map(range, rhs.shape[2:])):
                place = []
                for d in range(space):
                    at = s[d] * strides[d] + k[d] * rhs_dilation[d] - pads[d][0]
                    if at < 0 or at % lhs_dilation[d] or at // lhs_dilation[d] >= lhs.shape[2 + d]:
                        break
                    place.append(at // lhs_dilation[d])
                else:
                    rows = lhs[(slice(offset, offset + examples),
                                slice(first, first + rhs.shape[1]), *place)]
                    out[(slice(None), o, *s)] += rows @ rhs[(o, slice(None), *k)]
    return out


def _random_case(seed):
    generator = np.random.default_rng(seed)
    space = int(generator.integers(0, 4))
    groups = int(generator.choice([1, 1, 2, 3]))
    batch_groups = int(generator.choice([1, 2])) if groups == 1 else 1
    channels, outputs = int(generator.integers(1, 3)), int(generator.integers(1, 3))
    kernel = [int(n) for n in generator.integers(1, 4, space)]
    sizes = [int(n) for n in generator.integers(1, 6, space)]
    lhs = generator.normal(size=(2 * batch_groups, channels * groups, *sizes))
    rhs = generator.normal(size=(outputs * groups * batch_groups, channels, *kernel))
    draw = lambda low, high: tuple(int(n) for n in generator.integers(low, high, space))  # noqa: E731
    pads = tuple(zip(draw(-1, 3), draw(-1, 3), strict=True))
    return (lhs.astype(np.float32), rhs.astype(np.float32), draw(1, 3), pads, draw(1, 3),
            draw(1, 3), groups, batch_groups)  # fmt: skip


CASES = [_random_case(seed) for seed in range(60)]


def _call(lhs, rhs, strides, pads, lhs_dilation, rhs_dilation, groups, batch_groups, **kwargs):
    return lax.conv_general_dilated(
        lhs, rhs, strides, pads, lhs_dilation, rhs_dilation, feature_group_count=groups,
        batch_group_count=batch_groups, **kwargs,
    )  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)))
def test_values(number):
    case = CASES[number]
    want = _naive(*case)
    np.testing.assert_allclose(_call(*case), want, rtol=1e-4, atol=1e-5)
    got = gf.jit(lambda lhs, rhs: _call(lhs, rhs, *case[2:]))(*case[:2])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("number", range(0, len(CASES), 2))
def test_gradients(number):
    """The convolution is linear in each operand, so one product tests a whole cotangent."""
    lhs, rhs, *rest = CASES[number]
    generator = np.random.default_rng(number)
    with gf.enable_x64():
        lhs, rhs = lhs.astype(np.float64), rhs.astype(np.float64)
        out, pull = gf.vjp(lambda a, b: _call(a, b, *rest), lhs, rhs)
        ct = generator.normal(size=out.shape)
        by_lhs, by_rhs = pull(jnp.asarray(ct))
        for operand, cotangent, replaced in ((lhs, by_lhs, 0), (rhs, by_rhs, 1)):
            direction = generator.normal(size=operand.shape)
            args = [lhs, rhs]
            args[replaced] = direction
            want = np.sum(ct * _naive(*args, *rest))
            np.testing.assert_allclose(np.sum(cotangent * direction), want, rtol=1e-8, atol=1e-9)
        mixed = gf.jvp(lambda a: pull_rhs(a, rhs, rest, ct), (lhs,), (lhs,))[1]
        # The cotangent of the kernel is linear in the input.
        np.testing.assert_allclose(mixed, by_rhs, rtol=1e-8, atol=1e-9)


def pull_rhs(lhs, rhs, rest, ct):
    return gf.vjp(lambda b: _call(lhs, b, *rest), rhs)[1](jnp.asarray(ct))[0]


@pytest.mark.parametrize("number", range(1, len(CASES), 4))
@pytest.mark.parametrize("axes", [(0, None), (None, 1), (1, 0)])
def test_vmap(number, axes):
    lhs, rhs, *rest = CASES[number]
    stacks = [
        x if axis is None else np.stack([x, 2 * x, x[::-1]], axis)
        for x, axis in zip((lhs, rhs), axes, strict=True)
    ]
    got = gf.vmap(lambda a, b: _call(a, b, *rest), in_axes=axes)(*stacks)
    for k in range(3):
        own = [
            x if axis is None else np.take(x, k, axis)
            for x, axis in zip(stacks, axes, strict=True)
        ]
        np.testing.assert_allclose(got[k], _call(*own, *rest), rtol=1e-4, atol=1e-5)


def test_layouts():
    x = np.random.default_rng(0).normal(size=(2, 7, 6, 3)).astype(np.float32)
    w = np.random.default_rng(1).normal(size=(3, 2, 3, 4)).astype(np.float32)
    got = lax.conv_general_dilated(
        x, w, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    assert got.shape == (2, 4, 6, 4)
    plain = lax.conv(x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1), (2, 1), "SAME")
    np.testing.assert_allclose(got, np.transpose(plain, (0, 2, 3, 1)), rtol=1e-4, atol=1e-5)
    pads = lax.padtype_to_pads((7, 6), (3, 2), (2, 1), "SAME")
    assert pads == [(1, 1), (0, 1)]
    assert lax.padtype_to_pads((7, 6), (3, 2), (2, 1), "SAME_LOWER") == [(1, 1), (1, 0)]
    numbers = lax.conv_dimension_numbers(x.shape, w.shape, ("NHWC", "HWIO", "NCHW"))
    assert numbers == ((0, 3, 1, 2), (3, 2, 0, 1), (0, 1, 2, 3))


def test_patches_are_the_elements_under_the_kernel():
    x = np.random.default_rng(0).normal(size=(2, 3, 6, 5)).astype(np.float32)
    w = np.random.default_rng(1).normal(size=(4, 3, 3, 2)).astype(np.float32)
    patches = lax.conv_general_dilated_patches(x, (3, 2), (1, 2), "VALID")
    product = np.einsum("ok,nkhw->nohw", w.reshape(4, -1), np.asarray(patches))
    np.testing.assert_allclose(product, lax.conv(x, w, (1, 2), "VALID"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_transposed_convolution_is_the_gradient(padding, stride):
    """With transpose_kernel it is the gradient of the convolution with that kernel."""
    size = 6
    w = np.random.default_rng(0).normal(size=(3, 2, 4)).astype(np.float32)  # HIO

    def forward(x):
        return lax.conv_general_dilated(
            x, w, (stride,), padding, dimension_numbers=("NHC", "HIO", "NHC")
        )

    x = np.zeros((1, size, 2), np.float32)
    y, pull = gf.vjp(forward, x)
    ct = np.random.default_rng(1).normal(size=y.shape).astype(np.float32)
    got = lax.conv_transpose(ct, w, (stride,), padding, transpose_kernel=True)
    if got.shape == x.shape:
        np.testing.assert_allclose(got, pull(jnp.asarray(ct))[0], rtol=1e-4, atol=1e-5)
    assert got.shape[1] == (
        y.shape[1] * stride if padding == "SAME"
        else y.shape[1] * stride + max(3 - stride, 0)
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "complex64"])
def test_dtypes(dtype):
    lhs, rhs = jnp.ones((1, 300, 4)).astype(dtype), jnp.ones((2, 300, 2)).astype(dtype)
    got = lax.conv(lhs, rhs, (1,), "VALID")
    assert got.dtype == lhs.dtype and complex(got[0, 0, 0]) == 600
    if dtype in ("bfloat16", "float16"):
        wide = lax.conv(lhs, rhs, (1,), "VALID", preferred_element_type=jnp.float32)
        assert wide.dtype == np.float32
        slope = gf.grad(lambda w: lax.conv(
            lhs, w, (1,), "VALID", preferred_element_type=jnp.float32).sum())(rhs)  # fmt: skip
        assert slope.dtype == rhs.dtype and slope[0, 0, 0] == 3


def test_empty():
    assert lax.conv(jnp.ones((0, 2, 5)), jnp.ones((3, 2, 2)), (1,), "VALID").shape == (0, 3, 4)
    assert lax.conv(jnp.ones((2, 2, 1)), jnp.ones((3, 2, 4)), (1,), "VALID").shape == (2, 3, 0)
    assert not np.asarray(lax.conv(jnp.ones((2, 0, 5)), jnp.ones((3, 0, 2)), (1,), "VALID")).any()


def test_refusals():
    x, w = jnp.ones((2, 4, 6)), jnp.ones((4, 4, 3))
    cases = [
        (ValueError, "channels", lambda: lax.conv(x, jnp.ones((4, 3, 3)), (1,), "SAME")),
        (ValueError, "multiple of the groups", lambda: lax.conv_general_dilated(
            x, jnp.ones((3, 2, 3)), (1,), "SAME", feature_group_count=2)),
        (ValueError, "must divide", lambda: lax.conv_general_dilated(
            x, w, (1,), "SAME", batch_group_count=3)),
        (ValueError, "one of them 1", lambda: lax.conv_general_dilated(
            x, w, (1,), "SAME", feature_group_count=2, batch_group_count=2)),
        (TypeError, "one rank", lambda: lax.conv(x, w[0], (1,), "SAME")),
        (TypeError, "one dtype", lambda: lax.conv(x, w.astype(jnp.float16), (1,), "SAME")),
        (ValueError, "window_strides", lambda: lax.conv(x, w, (1, 1), "SAME")),
        (ValueError, "window_strides", lambda: lax.conv(x, w, (0,), "SAME")),
        (ValueError, "a name must be", lambda: lax.conv(x, w, (1,), "FULL")),
        (ValueError, "lhs_dilation", lambda: lax.conv_with_general_padding(
            x, w, (1,), "SAME", (2,), None)),
        (ValueError, "letter", lambda: lax.conv_general_dilated(
            x, w, (1,), "SAME", dimension_numbers=("NHX", "HIO", "NHC"))),
        *[(TypeError, "preferred_element_type must be", lambda a=a, b=b: lax.conv(
            x.astype(a), w.astype(a), (1,), "SAME", preferred_element_type=b))
          for a, b in (("float32", "int32"), ("float32", "bfloat16"), ("int8", "uint8"),
                       ("float32", "complex64"), ("complex64", "float32"), ("int32", "int8"))],
        (TypeError, "three strings", lambda: lax.conv_general_dilated(
            x, w, (1,), "SAME", dimension_numbers="NHC")),
    ]  # fmt: skip
    for error, pattern, call in cases:
        with pytest.raises(error, match=pattern) as caught:
            call()
        assert "Fix:" in str(caught.value)
