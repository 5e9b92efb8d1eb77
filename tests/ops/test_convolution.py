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
                    rows = lhs[
                        (
                            slice(offset, offset + examples),
                            slice(first, first + rhs.shape[1]),
                            *place,
                        )
                    ]
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
    pads = zip(draw(-1, 3), draw(-1, 3), sizes, strict=True)
    pads = tuple((low, max(high, -low - size)) for low, high, size in pads)
    return (
        lhs.astype(np.float32),
        rhs.astype(np.float32),
        draw(1, 3),
        pads,
        draw(1, 3),
        draw(1, 3),
        groups,
        batch_groups,
    )


CASES = [_random_case(seed) for seed in range(60)]


def _call(lhs, rhs, strides, pads, lhs_dilation, rhs_dilation, groups, batch_groups, **kwargs):
    return lax.conv_general_dilated(
        lhs,
        rhs,
        strides,
        pads,
        lhs_dilation,
        rhs_dilation,
        feature_group_count=groups,
        batch_group_count=batch_groups,
        **kwargs,
    )


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
        lane = [
            x if axis is None else np.take(x, k, axis) for x, axis in zip(stacks, axes, strict=True)
        ]
        np.testing.assert_allclose(got[k], _call(*lane, *rest), rtol=1e-4, atol=1e-5)


# What JAX 0.10 makes of a precision, as the parameter of its convolution.
PRECISIONS = {
    None: "None",
    "fastest": "(Precision.DEFAULT, Precision.DEFAULT)",
    "bfloat16": "(Precision.DEFAULT, Precision.DEFAULT)",
    "tensorfloat32": "(Precision.HIGH, Precision.HIGH)",
    lax.Precision.HIGHEST: "(Precision.HIGHEST, Precision.HIGHEST)",
    ("high", "highest"): "(Precision.HIGH, Precision.HIGHEST)",
    "F32_F32_F32": "F32_F32_F32",
    lax.DotAlgorithmPreset.TF32_TF32_F32: "TF32_TF32_F32",
}


def _precisions(jaxpr):
    """The parameter of each convolution of a program, as it is printed."""
    return [
        str(eqn.params["precision"])
        for eqn in jaxpr.jaxpr.eqns
        if eqn.primitive.name == "conv_general_dilated"
    ]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_programs_carry_the_precision(precision):
    """Both gradients, their gradients, tangents and mapped convolutions have it too."""
    x, w = np.ones((2, 4, 6), np.float32), np.ones((6, 2, 3), np.float32)

    def call(x, w):
        return lax.conv_general_dilated(
            x, w, (1,), "SAME", feature_group_count=2, precision=precision
        )

    def slopes(x, w):
        return gf.vjp(call, x, w)[1](jnp.ones((2, 6, 6)))

    def second(x, w):
        return gf.grad(lambda x, w: jnp.sum(slopes(x, w)[0] ** 2), (0, 1))(x, w)

    mapped = gf.vmap(gf.vmap(call, (None, 0)), (0, None))
    programs = [
        gf.make_jaxpr(call)(x, w),
        gf.make_jaxpr(slopes)(x, w),
        gf.make_jaxpr(second)(x, w),
        gf.make_jaxpr(lambda x, w: gf.jvp(call, (x, w), (x, w)))(x, w),
        gf.make_jaxpr(mapped)(x[None], w[None]),
    ]
    for program, fewest in zip(programs, (1, 2, 3, 3, 1), strict=True):
        precisions = _precisions(program)
        assert len(precisions) >= fewest and set(precisions) == {PRECISIONS[precision]}
    # Parameters that are None are not printed.
    printed = f"precision={PRECISIONS[precision]}" in str(programs[0])
    assert printed == (precision is not None)
    want = (
        call(x, w)
        if precision is None
        else lax.conv_general_dilated(x, w, (1,), "SAME", feature_group_count=2)
    )
    # On the CPU a precision changes nothing.
    for got in (call(x, w), gf.jit(call)(x, w)):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("setting", ["tensorfloat32", "highest", "F32_F32_F32"])
def test_the_setting_counts_where_no_precision_is_named(setting):
    x, w = np.ones((1, 2, 5), np.float32), np.ones((3, 2, 2), np.float32)

    def call(x, w, precision=None):
        return lax.conv(x, w, (1,), "VALID", precision)

    traced = gf.jit(lambda x, w: call(x, w))
    before = traced(x, w)
    with gf.default_matmul_precision(setting):
        assert _precisions(gf.make_jaxpr(call)(x, w)) == [
            PRECISIONS.get(setting) or str((lax.Precision.HIGHEST,) * 2)
        ]
        named = gf.make_jaxpr(lambda x, w: call(x, w, "fastest"))(x, w)
        assert _precisions(named) == [PRECISIONS["fastest"]]
        np.testing.assert_array_equal(traced(x, w), before)
        assert traced._cache_size() == 2
    assert _precisions(gf.make_jaxpr(call)(x, w)) == ["None"]


def test_patches_have_the_precision_of_the_input():
    """The kernel of zeros and ones is exact with any, as in JAX; elements stay as they are."""
    x = np.ones((1, 2, 5), np.float32)

    def patches(x, precision):
        return lax.conv_general_dilated_patches(x, (2,), (1,), "VALID", precision=precision)

    exact = "(Precision.HIGHEST, Precision.HIGHEST)"
    for precision, want in ((None, exact), ("high", "(Precision.HIGH, Precision.DEFAULT)")):
        program = gf.make_jaxpr(lambda x, p=precision: patches(x, p))(x)
        assert _precisions(program) == [want]
    kernels = np.ones((3, 4, 4), np.float32)
    for precision, want in ((None, exact), ("high", "(Precision.HIGH, Precision.DEFAULT)")):
        program = gf.make_jaxpr(
            lambda x, w, p=precision: lax.conv_general_dilated_local(
                x, w, (1,), "VALID", (2,), precision=p
            )
        )(x, kernels)
        assert _precisions(program) == [want]


def test_layouts():
    x = np.random.default_rng(0).normal(size=(2, 7, 6, 3)).astype(np.float32)
    w = np.random.default_rng(1).normal(size=(3, 2, 3, 4)).astype(np.float32)
    got = lax.conv_general_dilated(x, w, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    assert got.shape == (2, 4, 6, 4)
    plain = lax.conv(x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1), (2, 1), "SAME")
    np.testing.assert_allclose(got, np.transpose(plain, (0, 2, 3, 1)), rtol=1e-4, atol=1e-5)
    pads = lax.padtype_to_pads((7, 6), (3, 2), (2, 1), "SAME")
    assert pads == [(1, 1), (0, 1)]
    assert lax.padtype_to_pads((7, 6), (3, 2), (2, 1), "SAME_LOWER") == [(1, 1), (1, 0)]
    numbers = lax.conv_dimension_numbers(x.shape, w.shape, ("NHWC", "HWIO", "NCHW"))
    assert numbers == ((0, 3, 1, 2), (3, 2, 0, 1), (0, 1, 2, 3))


@pytest.mark.parametrize("numbers", [("NHHC", "HHIO", "NHHC"), ("NHWC", "HWIO", "NHHC")])
def test_letters_of_dimensions_that_repeat_are_refused(numbers):
    with pytest.raises(ValueError, match="4 different letters"):
        lax.conv_dimension_numbers((1, 8, 8, 3), (3, 3, 3, 16), numbers)


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
        y.shape[1] * stride if padding == "SAME" else y.shape[1] * stride + max(3 - stride, 0)
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "complex64"])
def test_dtypes(dtype):
    lhs, rhs = jnp.ones((1, 300, 4)).astype(dtype), jnp.ones((2, 300, 2)).astype(dtype)
    got = lax.conv(lhs, rhs, (1,), "VALID")
    assert got.dtype == lhs.dtype and complex(got[0, 0, 0]) == 600
    if dtype in ("bfloat16", "float16"):
        wide = lax.conv(lhs, rhs, (1,), "VALID", preferred_element_type=jnp.float32)
        assert wide.dtype == np.float32
        slope = gf.grad(
            lambda w: lax.conv(lhs, w, (1,), "VALID", preferred_element_type=jnp.float32).sum()
        )(rhs)
        assert slope.dtype == rhs.dtype and slope[0, 0, 0] == 3


def test_bools():
    """Any of all, as in JAX; with a dtype to count in, how many."""
    generator = np.random.default_rng(0)
    x, w = generator.random((2, 3, 9)) < 0.4, generator.random((4, 3, 2)) < 0.4
    counts = _naive(x, w, (1,), ((0, 0),), (1,), (1,), 1)
    assert counts.max() > 2 and counts.min() == 0
    for call in (lax.conv, gf.jit(lax.conv, static_argnums=(2, 3))):
        out = call(x, w, (1,), "VALID")
        assert out.dtype == np.bool_
        np.testing.assert_array_equal(out, counts > 0)
    for dtype in ("int8", "float32"):
        out = lax.conv(x, w, (1,), "VALID", preferred_element_type=dtype)
        assert out.dtype == dtype
        np.testing.assert_array_equal(out, counts)


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
        (ValueError, "must not cut more", lambda: lax.conv_general_dilated(
            x, w, (1,), ((-4, -3),))),
        (ValueError, "must not cut more", lambda: lax.conv_general_dilated(
            x, w, (1,), ((-12, 0),), (2,))),
        (ValueError, "a name must be", lambda: lax.conv(x, w, (1,), "FULL")),
        (ValueError, "lhs_dilation", lambda: lax.conv_with_general_padding(
            x, w, (1,), "SAME", (2,), None)),
        (ValueError, "letter", lambda: lax.conv_general_dilated(
            x, w, (1,), "SAME", dimension_numbers=("NHX", "HIO", "NHC"))),
        *[(TypeError, "preferred_element_type must be", lambda a=a, b=b: lax.conv(
            x.astype(a), w.astype(a), (1,), "SAME", preferred_element_type=b))
          for a, b in (("float32", "int32"), ("float32", "bfloat16"), ("int8", "uint8"),
                       ("float32", "complex64"), ("complex64", "float32"), ("int32", "int8"))],
        *[(ValueError, "precision must be one of", lambda p=p: lax.conv(
            x, w, (1,), "SAME", precision=p)) for p in ("exact", 3, ("high",), ("high", 1, 2))],
        (ValueError, "precision must be a lax.Precision", lambda: lax.conv_general_dilated_local(
            x, jnp.ones((4, 12, 6)), (1,), "SAME", (3,), precision="F32_F32_F32")),
        (TypeError, "three strings", lambda: lax.conv_general_dilated(
            x, w, (1,), "SAME", dimension_numbers="NHC")),
    ]  # fmt: skip
    for error, pattern, call in cases:
        with pytest.raises(error, match=pattern) as caught:
            call()
        assert "Fix:" in str(caught.value)
