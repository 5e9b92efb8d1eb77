"""Convolutions and their gradients by handwritten kernels, in the PTX interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools
from schedule_run import gpu_device, on_gpu, run_schedule

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.base import dtypes
from gpuflow.base.util import row_major_strides
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.core.aval import ShapedArray
from gpuflow.core.blocks import Convolution
from gpuflow.core.views import View, contiguous
from gpuflow.kernels import convolution_reference as reference
from gpuflow.ops.contractions.convolution_calls import conv_dimension_numbers
from gpuflow.targets.cuda.library import convolutions, implicit_gemm
from gpuflow.targets.cuda.library.launch_sequence import ArrayLocation, LaunchSequence
from gpuflow.targets.cuda.library.target import gpu_target

pytestmark = requires_cuda_tools

# Operands of 16 bits are exact, sums are in float32, and results are rounded once.
TOLERANCES = {"float32": 2e-6, "bfloat16": 5e-3, "float16": 1e-3, "float64": 1e-14, "int32": 0}
LAYOUTS = {1: ("NCH", "OIH", "NCH"), 2: ("NCHW", "OIHW", "NCHW"), 3: ("NCDHW", "OIDHW", "NCDHW")}
NHWC = ("NHWC", "HWIO", "NHWC")


@pytest.fixture
def few_builds(monkeypatch):
    """One size of tiles, which always looks for margins, and splits sums that are short."""
    monkeypatch.setattr(convolutions, "TILE_SHAPES", ((1, 32),))
    monkeypatch.setattr(convolutions, "MIN_SLICES", 2)
    monkeypatch.setattr(implicit_gemm.ImplicitGemm, "reads_padding", True)


class Case:
    """A convolution as users write it: operands have batch, channels and space in front."""

    def __init__(
        self,
        lhs,
        rhs,
        *,
        strides=None,
        padding=None,
        holes=None,
        gaps=None,
        layout=None,
        features=1,
        batches=1,
        dtype="float32",
    ):
        count = len(lhs) - 2
        ones = (1,) * count
        layout = LAYOUTS[count] if layout is None else layout
        self.how = (strides or ones, padding or ((0, 0),) * count, holes or ones, gaps or ones)
        self.groups, self.layout, self.dtype = (features, batches), layout, dtype
        kind = np.dtype(getattr(dtypes, dtype, dtype))
        rng = np.random.default_rng(17)
        # Small numbers are exact in any dtype.
        self.lhs, self.rhs = (
            (rng.integers(-8, 9, shape) / (1 if kind.kind == "i" else 8)).astype(kind)
            for shape in (lhs, rhs)
        )
        self.numbers = conv_dimension_numbers(lhs, rhs, layout)

    @property
    def operands(self):
        """lhs and rhs in the layout."""
        lhs, rhs, _ = self.numbers
        pairs = ((self.lhs, lhs), (self.rhs, rhs))
        return [np.ascontiguousarray(x.transpose(np.argsort(spec))) for x, spec in pairs]

    def __call__(self, x, w, **more):
        strides, padding, holes, gaps = self.how
        return lax.conv_general_dilated(
            x, w, strides, padding, holes, gaps, self.layout, *self.groups, **more
        )

    def wanted(self):
        """The result in the layout."""
        out = reference.convolution(self.lhs, self.rhs, *self.how, *self.groups)
        return out.transpose(np.argsort(self.numbers.out_spec))

    def wanted_gradients(self, slope):
        """Gradients in the layout, for a slope in it."""
        slope = slope.transpose(self.numbers.out_spec)
        result = reference.convolution_gradients(self.lhs, self.rhs, slope, *self.how, *self.groups)
        specs = self.numbers[:2]
        return [x.transpose(np.argsort(s)) for x, s in zip(result, specs, strict=True)]

    def assert_near(self, got, want):
        """Compare, as exactly as the dtype allows."""
        assert got.shape == want.shape
        scale = max(np.abs(want).max(initial=0), 1)
        error = np.abs(got.astype(np.float64) - want).max(initial=0) / scale
        assert error <= TOLERANCES[self.dtype], error

    def check(self):
        """The result."""
        out = on_gpu(self, *self.operands)
        assert out.dtype == self.operands[0].dtype
        self.assert_near(out, self.wanted())

    def check_gradients(self):
        """The result and both gradients."""
        want, operands = self.wanted(), self.operands
        slope = np.random.default_rng(3).integers(-8, 9, want.shape) / 8
        slope = slope.astype(operands[0].dtype)

        def function(x, w):
            out, back = gf.vjp(self, x, w)
            return out, *back(slope)

        out, *gradients = on_gpu(function, *operands)
        assert out.dtype == operands[0].dtype
        self.assert_near(out, want)
        for got, own in zip(gradients, self.wanted_gradients(slope), strict=True):
            self.assert_near(got, own)


CASES = {
    "odd channels": dict(lhs=(2, 3, 9, 11), rhs=(5, 3, 3, 3), padding=((1, 1), (1, 1))),
    "channels last": dict(
        lhs=(2, 16, 7, 9), rhs=(32, 16, 3, 2), padding=((1, 1), (0, 1)), strides=(2, 1),
        layout=NHWC,
    ),
    "points": dict(lhs=(3, 8, 5, 7), rhs=(33, 8, 1, 1), layout=NHWC),
    "a line": dict(lhs=(2, 5, 31), rhs=(7, 5, 4), strides=(3,), padding=((2, 0),)),
    "a volume": dict(
        lhs=(1, 4, 5, 3, 7), rhs=(8, 4, 2, 3, 3), strides=(1, 2, 1), padding=((0, 1),) * 3,
    ),
    "no space": dict(lhs=(65, 12), rhs=(33, 12), layout=("NC", "OI", "NC")),
    "holes": dict(
        lhs=(2, 4, 5, 7), rhs=(8, 4, 3, 3), padding=((3, 1), (2, 4)), holes=(2, 3), gaps=(1, 2),
        layout=NHWC,
    ),
    "holes in everything": dict(
        lhs=(1, 3, 7, 6), rhs=(5, 3, 2, 3), padding=((4, 4), (3, 3)), strides=(3, 2), holes=(2, 4),
        gaps=(3, 2),
    ),
    "more holes than taps": dict(lhs=(2, 4, 5, 5), rhs=(8, 4, 1, 1), holes=(3, 3), strides=(1, 2)),
    "groups": dict(lhs=(2, 12, 5, 7), rhs=(24, 4, 3, 3), features=3, padding=((1, 1),) * 2),
    "depthwise": dict(
        lhs=(2, 7, 5, 9), rhs=(7, 1, 3, 3), features=7, padding=((1, 1),) * 2, strides=(2, 1),
    ),
    "depthwise, channels last": dict(
        lhs=(2, 7, 5, 9), rhs=(14, 1, 3, 3), features=7, layout=NHWC, padding=((2, 0),) * 2,
    ),
    "groups of examples": dict(lhs=(6, 4, 5, 7), rhs=(6, 4, 2, 3), batches=3),
    "margins that cut": dict(lhs=(2, 3, 9, 8), rhs=(9, 3, 2, 2), padding=((-2, 1), (1, -3))),
    "wide margins": dict(lhs=(1, 3, 4, 5), rhs=(9, 3, 2, 2), padding=((5, 6), (0, 7))),
    "ones": dict(lhs=(1, 1, 1, 1), rhs=(1, 1, 1, 1)),
    "another layout": dict(
        lhs=(3, 4, 7, 5), rhs=(8, 4, 3, 2), padding=((1, 1), (0, 1)),
        layout=("CWNH", "WIOH", "HNWC"),
    ),
    "bfloat16": dict(
        lhs=(2, 16, 7, 9), rhs=(32, 16, 3, 3), padding=((1, 1),) * 2, layout=NHWC,
        dtype="bfloat16",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name, few_builds):
    Case(**CASES[name]).check_gradients()


def test_half_precision(few_builds):
    Case((2, 24, 7, 9), (31, 24, 3, 3), padding=((1, 1),) * 2, dtype="float16").check()


def test_double_precision():
    with gf.enable_x64(True):
        Case((2, 3, 5, 7), (4, 3, 3, 3), padding=((1, 1),) * 2, dtype="float64").check_gradients()


def test_integers_wrap():
    case = Case((2, 3, 5, 7), (4, 3, 3, 3), dtype="int32")
    case.assert_near(on_gpu(case, *case.operands), case.wanted())
    large = np.full((1, 2, 3), 1 << 30, np.int32)
    out = on_gpu(Case(large.shape, (1, 2, 2)), large, np.full((1, 2, 2), 2, np.int32))
    np.testing.assert_array_equal(out, np.zeros((1, 1, 2), np.int32))


def test_sums_of_halves_in_float32(few_builds):
    """2049 is no float16, but a float32."""
    case = Case((1, 2049, 64), (16, 2049, 1))
    x, w = (np.ones(a.shape, np.float16) for a in case.operands)
    out = on_gpu(lambda x, w: case(x, w, preferred_element_type=np.float32), x, w)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, np.full((1, 16, 64), 2049))


# --- tensorfloat32 ---------------------------------------------------------------------------


def rounded(x):
    """float32 with 10 bits behind the point, ties away from zero."""
    return ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def normal_case(**how):
    """A case of float32 that tensorfloat32 does not hold."""
    case = Case(**how)
    rng = np.random.default_rng(23)
    case.lhs, case.rhs = (rng.normal(size=x.shape).astype(np.float32) for x in (case.lhs, case.rhs))
    return case


def convolved(case, lhs, rhs):
    """The convolution of other operands in float64, in the layout."""
    out = reference.convolution(lhs, rhs, *case.how, *case.groups)
    return out.transpose(np.argsort(case.numbers.out_spec))


REDUCED = {
    "vectors": dict(lhs=(2, 16, 7, 9), rhs=(40, 16, 3, 2), padding=((1, 1), (0, 1)), layout=NHWC),
    "one by one": dict(lhs=(2, 13, 9, 7), rhs=(33, 13, 3, 3), strides=(2, 1)),
    "points": dict(lhs=(3, 32, 5, 7), rhs=(31, 32, 1, 1), layout=NHWC),
    "groups": dict(lhs=(2, 48, 5, 7), rhs=(48, 24, 3, 3), features=2, padding=((1, 1),) * 2),
}


@pytest.mark.parametrize("name", REDUCED)
def test_tensorfloat32(name, few_builds):
    """Operands are rounded to nearest, products and sums are those of float32."""
    case = normal_case(**REDUCED[name])
    out = on_gpu(lambda x, w: case(x, w, precision="tensorfloat32"), *case.operands)
    exact, near = case.wanted(), convolved(case, rounded(case.lhs), rounded(case.rhs))
    sizes = convolved(case, np.abs(case.lhs), np.abs(case.rhs))
    assert out.dtype == np.float32
    # Some hundred sums in float32.
    np.testing.assert_array_less(np.abs(out - near), 1e-5 * sizes)
    errors = np.abs(out - exact) / sizes
    assert 1e-6 < errors.max() < 2.0**-10 + 2.0**-22 + 1e-5


@pytest.mark.parametrize("name", REDUCED)
def test_gradients_in_tensorfloat32(name, few_builds):
    """They have the precision of their convolution."""
    case = normal_case(**REDUCED[name])
    slope = np.random.default_rng(3).normal(size=case.wanted().shape).astype(np.float32)

    def gradients(x, w):
        return gf.vjp(lambda x, w: case(x, w, precision=lax.Precision.HIGH), x, w)[1](slope)

    result = on_gpu(gradients, *case.operands)
    exact = case.wanted_gradients(slope)
    own, case.lhs, case.rhs = (case.lhs, case.rhs), rounded(case.lhs), rounded(case.rhs)
    near = case.wanted_gradients(rounded(slope))
    case.lhs, case.rhs = (np.abs(x) for x in own)
    sizes = case.wanted_gradients(np.abs(slope))
    for got, want, rough, size in zip(result, exact, near, sizes, strict=True):
        np.testing.assert_array_less(np.abs(got - rough), 1e-5 * size + 1e-30)
        assert 1e-6 < (np.abs(got - want) / np.maximum(size, 1e-30)).max() < 2.0**-10 + 2e-5


@pytest.mark.parametrize("setting", [None, "highest", "tensorfloat32"])
@pytest.mark.parametrize(
    "precision, is_reduced",
    [
        (None, None),
        ("fastest", True),
        ("bfloat16", True),
        ("highest", False),
        ("high", True),
        (("high", "highest"), False),
        (("high", "high"), True),
        ("TF32_TF32_F32", True),
    ],
)
def test_float32_is_rounded_unless_highest(precision, is_reduced, setting):
    """As for products of matrices; the setting counts where nothing is asked for."""
    case = normal_case(**REDUCED["vectors"])
    with gf.default_matmul_precision(setting):
        calls = calls_of(
            lambda x, w: gf.vjp(lambda x, w: case(x, w, precision=precision), x, w)[1](
                jnp.ones(case.wanted().shape)
            ),
            *case.operands,
        )
    wanted = setting != "highest" if is_reduced is None else is_reduced
    for step in calls:
        for one in step.implementation.launches:
            if one.kernel.__name__ == "convolve_tiles":
                assert dict(one.constants)["REDUCED"] == wanted


def test_halves_have_no_tensorfloat32():
    case = Case(**CASES["bfloat16"])
    (call,) = calls_of(lambda x, w: case(x, w, precision="high"), *case.operands)
    (one,) = [
        one for one in call.implementation.launches if one.kernel.__name__ == "convolve_tiles"
    ]
    assert not dict(one.constants)["REDUCED"]


def test_nan_and_infinity_in_tensorfloat32(few_builds):
    case = normal_case(**REDUCED["points"])
    operands = case.operands
    operands[0][0, 0, 0, 0], operands[0][1, 1, 1, 1] = np.inf, np.nan
    out = on_gpu(lambda x, w: case(x, w, precision="high"), *operands)
    assert not np.isfinite(out[0, 0, 0]).any() and np.isinf(out[0, 0, 0]).any()
    assert np.isnan(out[1, 1, 1]).all()
    assert np.isfinite(out).sum() == out.size - 2 * out.shape[-1]


# --- large arrays ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["channels last", "holes in everything", "groups", "bfloat16"])
def test_numbers_of_64_bits(name, few_builds, monkeypatch):
    """Builds for arrays that span 2^31 elements; here, for all."""
    monkeypatch.setattr(convolutions, "MAX_LENGTH", 0)
    case = Case(**CASES[name])
    case.check_gradients()
    for step in calls_of(with_gradients(case), *case.operands):
        for one in step.implementation.launches:
            if one.kernel.__name__.startswith("convolve"):
                assert dict(one.constants)["LONG"]
                assert set(one.signature[3:]) == {"int64"}


def test_long_halves_across(few_builds, free_copies, monkeypatch):
    monkeypatch.setattr(convolutions, "MAX_LENGTH", 0)
    case = half_case("groups")
    case.check_gradients()
    assert ["ACROSS", "ACROSS"] in ways_of(with_gradients(case), *case.operands)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_what_needs_64_bits(dtype):
    """Operands or results of 2^31 elements, or margins that reach as far."""
    kind = np.dtype(getattr(dtypes, dtype, dtype))

    def is_long(lhs, rhs, padding=((0, 0),), strides=(1,)):
        def function(x, w):
            return lax.conv_general_dilated(x, w, strides, padding)

        avals = [gf.ShapeDtypeStruct(shape, kind) for shape in (lhs, rhs)]
        (call,) = calls_of(function, *avals)
        first, *_ = call.implementation.launches
        return dict(first.constants)["LONG"]

    most = 1 << 31
    assert not is_long((1, 1, most - 8), (1, 1, 2), strides=(4,))
    assert is_long((1, 1, most), (1, 1, 2), strides=(4,))
    assert is_long((2, 1, most >> 1), (1, 1, 1), strides=(4,))
    assert is_long((1, 1, 1 << 20), (1 << 12, 1, 1))
    assert is_long((1, 1, 8), (1, 1, 2), ((most, 0),), (1 << 20,))


# --- the rest ----------------------------------------------------------------------------------


def test_large_tiles_without_margins(monkeypatch):
    """Places and channels do not fill the last tiles."""
    monkeypatch.setattr(convolutions, "TILE_SHAPES", ((2, 64),))
    Case((1, 8, 13, 17), (70, 8, 3, 3), layout=NHWC).check()


@pytest.mark.parametrize(
    "lhs, rhs, padding",
    [
        ((0, 3, 5), (4, 3, 2), ((0, 0),)),
        ((2, 0, 5), (4, 0, 2), ((0, 0),)),
        ((2, 3, 0), (4, 3, 2), ((2, 2),)),
        ((2, 3, 5), (0, 3, 2), ((0, 0),)),
        ((2, 3, 5), (4, 3, 0), ((0, 0),)),
        ((2, 3, 2), (4, 3, 5), ((1, 1),)),
    ],
)
def test_nothing_to_sum(lhs, rhs, padding):
    case = Case(lhs, rhs, padding=padding)
    out = on_gpu(case, *case.operands)
    want = case.wanted()
    assert out.shape == want.shape and not out.any()


def calls_of(function, *operands):
    """Library calls of the plan for GPUs."""
    plan, _ = compile_plan(gf.make_jaxpr(function)(*operands), target=gpu_target())
    return [step for step in plan.steps if step.kind == "library"]


@pytest.mark.parametrize("layout, launches", [(None, 3), (NHWC, 3)])
def test_operands_are_read_where_they_lie(layout, launches):
    """Transposed and mirrored operands are not copied, nor are places with holes filled."""
    case = Case((8, 16, 12, 12), (32, 16, 3, 3), strides=(2, 2), layout=layout)

    def function(x, w):
        out, back = gf.vjp(case, x, w)
        return out, *back(jnp.ones_like(out))

    schedules = [step.implementation for step in calls_of(function, *case.operands)]
    kernels = [one.kernel.__name__ for sequence in schedules for one in sequence.launches]
    assert kernels.count("convolve_tiles") == launches
    assert set(kernels) <= {"convolve_tiles", "sum_partials"}


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (3, 1)])
def test_batched(axes, few_builds):
    """A mapped dimension is one more axis, of one operand or of all."""
    case = Case((2, 4, 5, 7), (8, 4, 3, 3), padding=((1, 1),) * 2)

    def several(array, axis):
        if axis is None:
            return array
        return np.stack([array, array[::-1], 2 * array], axis)

    x, w = (several(a, axis) for a, axis in zip(case.operands, axes, strict=True))
    function = gf.vmap(gf.grad(lambda x, w: jnp.sum(jnp.sin(case(x, w))), (0, 1)), axes)
    want = gf.jit(function)(x, w)
    for got, own in zip(on_gpu(function, x, w), want, strict=True):
        np.testing.assert_allclose(got, own, rtol=1e-4, atol=2e-5)


@pytest.fixture
def free_copies(monkeypatch):
    """Operands are copied wherever that makes vectors of them."""
    monkeypatch.setattr(convolutions, "LAUNCH", 0)
    monkeypatch.setattr(convolutions, "COPY", 0)


def kernels_of(function, *operands):
    """Names of the launches of a plan's calls."""
    launches = [step.implementation.launches for step in calls_of(function, *operands)]
    return [one.kernel.__name__ for each in launches for one in each]


@pytest.mark.parametrize("name", ["channels last", "holes", "groups"])
def test_copied_kernels(name, few_builds, free_copies):
    """Where many tiles read it, a kernel is copied with its depth innermost."""
    case = Case(**CASES[name])
    case.check_gradients()
    first, *_ = kernels_of(case, *case.operands)
    assert first in ("copy_strided", "copy_transposed")


# Halves with channels in front, whose both operands are vectors after copies, or without any.
HALVES = {
    "two dimensions": dict(
        lhs=(2, 24, 7, 9), rhs=(40, 24, 3, 2), padding=((1, 1), (0, 1)), strides=(2, 1)
    ),
    "groups": dict(lhs=(2, 48, 5, 7), rhs=(72, 16, 3, 3), features=3, padding=((1, 1),) * 2),
    "groups of examples": dict(lhs=(6, 16, 5, 7), rhs=(48, 16, 2, 3), batches=3),
    "holes": dict(
        lhs=(2, 16, 5, 7), rhs=(32, 16, 3, 3), padding=((3, 1), (2, 4)), holes=(2, 3), gaps=(1, 2)
    ),
    "margins that cut": dict(lhs=(2, 16, 9, 8), rhs=(40, 16, 2, 2), padding=((-2, 1), (1, -3))),
    "a line": dict(lhs=(3, 16, 33), rhs=(33, 16, 4), strides=(3,), padding=((2, 0),)),
    "a volume": dict(lhs=(1, 8, 5, 3, 7), rhs=(16, 8, 2, 3, 3), padding=((0, 1),) * 3),
    "prime channels": dict(lhs=(2, 31, 5, 7), rhs=(37, 31, 3, 3), padding=((1, 1),) * 2),
    "points": dict(lhs=(3, 32, 8, 9), rhs=(48, 32, 1, 1)),
    "points, strided": dict(lhs=(3, 32, 9, 31), rhs=(48, 32, 1, 1), strides=(2, 2)),
    "points that cut": dict(lhs=(2, 16, 8, 24), rhs=(32, 16, 1, 1), padding=((0, 0), (-8, -8))),
    "whole images": dict(lhs=(9, 16, 4, 4), rhs=(32, 16, 4, 4)),
    "channels last": dict(
        lhs=(8, 7, 9, 24), rhs=(3, 2, 24, 40), padding=((1, 1), (0, 1)), layout=NHWC
    ),
    "channels last, more rows": dict(
        lhs=(2, 9, 15, 8), rhs=(3, 3, 8, 16), gaps=(2, 1), layout=NHWC
    ),
}


def half_case(name, dtype="bfloat16"):
    """A case of HALVES; with channels last, shapes are those of that layout."""
    how = dict(HALVES[name])
    if how.get("layout") == NHWC:
        (n, h, w, c), (y, x, i, o) = how["lhs"], how["rhs"]
        how.update(lhs=(n, c, h, w), rhs=(o, i, y, x))
    return Case(**how, dtype=dtype)


@pytest.mark.parametrize("name", HALVES)
def test_halves_with_free_copies(name, few_builds, free_copies):
    """Transposed copies, and tiles that lie across, of operands of both gradients."""
    half_case(name).check_gradients()


@pytest.mark.parametrize("name", ["two dimensions", "points", "channels last", "prime channels"])
def test_halves_without_copies(name, few_builds):
    half_case(name, "float16").check_gradients()


def ways_of(function, *operands):
    """For each launch of tiles, how both operands are read."""
    ways = []
    for step in calls_of(function, *operands):
        for one in step.implementation.launches:
            constants = dict(one.constants)
            if one.kernel.__name__ == "convolve_tiles":
                ways.append(
                    [
                        next((k for k in ("VECTOR", "ACROSS") if constants[f"{side}_{k}"]), "")
                        for side in ("LEFT", "RIGHT")
                    ]
                )
    return ways


def with_gradients(case):
    """A function of operands: the result and both gradients."""

    def function(x, w):
        out, back = gf.vjp(case, x, w)
        return out, *back(jnp.ones_like(out))

    return function


def test_points_of_halves_are_vectors_where_they_lie():
    """Kernels of size 1 with channels in front are products of matrices, one of them across."""
    case = half_case("points")
    function = with_gradients(case)
    assert set(kernels_of(function, *case.operands)) <= {"convolve_tiles", "sum_partials"}
    assert all(all(ways) for ways in ways_of(function, *case.operands))


@pytest.mark.parametrize("layout", [None, NHWC])
def test_large_halves_are_vectors(layout):
    """No operand of a usual layer is read one by one; with channels in front it is copied."""
    shapes = ((64, 128, 56, 56), (128, 128, 3, 3))
    numbers = conv_dimension_numbers(*shapes, layout)
    x, w = (
        jax_like(tuple(np.array(shape)[np.argsort(spec)]))
        for shape, spec in zip(shapes, numbers, strict=False)
    )

    def case(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout)

    function = with_gradients(case)
    assert all(all(ways) for ways in ways_of(function, x, w))
    copies = [name for name in kernels_of(function, x, w) if name.startswith("copy")]
    assert set(copies) <= {"copy_transposed", "copy_strided"} and bool(copies) == (layout is None)


def jax_like(shape):
    """A shape and a dtype in place of an array."""
    return gf.ShapeDtypeStruct(shape, dtypes.bfloat16)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize(
    "shape, order",
    [
        ((65, 63), (1, 0)),
        ((3, 16, 130), (0, 2, 1)),
        ((2, 3, 17, 64), (0, 1, 3, 2)),
        ((17, 2, 3, 31), (3, 1, 2, 0)),
        ((33, 5, 16), (2, 1, 0)),
    ],
)
def test_transposed_copies(shape, order, size):
    """As NumPy transposes, at sizes around those of tiles."""
    dtype = np.dtype(f"u{size}")
    x = np.random.default_rng(2).integers(0, 256, (*shape, size)).astype(np.uint8)
    x = x.view(dtype).reshape(shape)
    strides = row_major_strides(shape)
    view = View(
        tuple(shape[d] for d in order), tuple(strides[d] for d in order), 0, (False,) * len(shape)
    )
    sequence = LaunchSequence(2)
    sequence.copy(ArrayLocation(0), ArrayLocation(1), view, dtype)
    (one,) = sequence.launches
    assert one.kernel.__name__ == "copy_transposed"
    copied = run_schedule(sequence, [x, np.zeros(view.shape, dtype)])[1]
    np.testing.assert_array_equal(copied, x.transpose(order))


def test_long_sums_are_split():
    """The gradient by a kernel has few results; its sum is made by many blocks."""
    case = Case((16, 8, 32, 32), (8, 8, 3, 3), padding=((1, 1),) * 2)

    def gradient(x, w):
        return gf.grad(lambda w: jnp.sum(case(x, w)))(w)

    schedules = [step.implementation for step in calls_of(gradient, *case.operands)]
    (launches,) = (one.launches for one in schedules)
    assert [one.kernel.__name__ for one in launches] == ["convolve_tiles", "sum_partials"]
    assert launches[0].grid[0] >= convolutions.ENOUGH_BLOCKS


@pytest.mark.parametrize("features", [1, 6])
def test_the_same_bits_in_every_run(features, few_builds):
    """Sums in parts: of tiles, and of threads."""
    case = Case((2, 6, 9, 11), (6, 6 // features, 3, 3), features=features)
    x, w = (np.random.default_rng(5).normal(size=a.shape) for a in case.operands)
    x, w = x.astype(np.float32), w.astype(np.float32)

    def gradient(x, w):
        return gf.grad(lambda w: jnp.sum(jnp.sin(case(x, w))))(w)

    calls = calls_of(gradient, x, w)
    names = [one.kernel.__name__ for step in calls for one in step.implementation.launches]
    assert "sum_partials" in names
    first, again = (on_gpu(gradient, x, w) for _ in range(2))
    np.testing.assert_array_equal(first.view(np.uint32), again.view(np.uint32))


def test_operands_at_any_address(few_builds):
    """Vectors are read one by one where they do not begin at multiples of 16 bytes."""
    case = Case((1, 8, 5, 7), (32, 8, 1, 1), layout=("NHWC", "HWOI", "NHWC"))
    x, w = case.operands
    roles = (((), (0,), (3,), (1, 2)), ((), (2,), (3,), (0, 1)), ((), (0,), (3,), (1, 2)))
    what = Convolution(*roles, (1, 1), ((0, 0),) * 2, (1, 1), (1, 1))
    sequence = LaunchSequence(3)
    aval = ShapedArray((1, 5, 7, 32), np.dtype(np.float32))
    assert convolutions.add_convolution(
        sequence,
        what,
        [ArrayLocation(0, 4), ArrayLocation(1)],
        [contiguous(x.shape), contiguous(w.shape)],
        [x.dtype, w.dtype],
        (ArrayLocation(2), aval),
    )
    assert dict(sequence.launches[0].constants)["LEFT_VECTOR"]
    moved = np.concatenate([np.zeros(1, np.float32), x.ravel()])
    out = run_schedule(sequence, [moved, w, np.zeros(aval.shape, np.float32)])[2]
    case.assert_near(out, case.wanted())


def test_halves_across_at_any_address(few_builds):
    case = half_case("points")
    x, w = case.operands
    roles = ((), (0,), (1,), (2, 3))
    what = Convolution(roles, roles, roles, (1, 1), ((0, 0),) * 2, (1, 1), (1, 1))
    sequence, aval = LaunchSequence(3), ShapedArray((3, 48, 8, 9), x.dtype)
    assert convolutions.add_convolution(
        sequence,
        what,
        [ArrayLocation(0, 2), ArrayLocation(1)],
        [contiguous(x.shape), contiguous(w.shape)],
        [x.dtype, w.dtype],
        (ArrayLocation(2), aval),
    )
    assert dict(sequence.launches[0].constants)["LEFT_ACROSS"]
    moved = np.concatenate([np.zeros(1, x.dtype), x.ravel()]).view(np.uint16)
    arrays = [moved, w.view(np.uint16), np.zeros(aval.shape, np.uint16)]
    case.assert_near(run_schedule(sequence, arrays)[2].view(x.dtype), case.wanted())


def test_what_stays_with_the_library():
    """More than three dimensions of space, and complex numbers."""
    four = np.ones((1, 2, 2, 2, 2, 2), np.float32)
    complex_numbers = np.ones((1, 1, 3), np.complex64)
    for x, count in ((four, 4), (complex_numbers, 1)):
        padding = [(1, 1)] * count
        (call,) = calls_of(lambda x, p=padding: lax.conv_general_dilated(x, x, (1,) * len(p), p), x)
        assert call.implementation is None


def network(params, x):
    """Two convolutions with pooling, and a mean."""
    for kernel in params:
        x = gf.nn.relu(lax.conv_general_dilated(x, kernel, (1, 1), "SAME"))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return jnp.mean(jnp.sin(x))


def network_operands():
    rng = np.random.default_rng(7)
    shapes = ((8, 3, 3, 3), (8, 8, 3, 3), (2, 3, 8, 8))
    *params, x = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    return params, x


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_library_is_left_in_plans_of_networks(dtype):
    """Training steps can be recorded as CUDA graphs."""
    kind = getattr(dtypes, dtype)
    params, x = gf.tree.map(lambda a: a.astype(kind), network_operands())
    calls = calls_of(lambda params, x: gf.value_and_grad(network)(params, x), params, x)
    # The input needs no gradient.
    assert len(calls) == 5
    for step in calls:
        assert step.implementation is not None
        assert all(operand.aval.dtype == kind for operand in step.operands)


def test_replayed_launches_give_the_same_bits(few_builds):
    """The third call records all launches, and later ones replay them."""
    params, x = network_operands()
    with gf.default_device(gpu_device()):
        params, x = gf.tree.map(jnp.asarray, (params, x))
        step = gf.jit(gf.grad(network))
        results = [gf.tree.map(np.asarray, step(params, x)) for _ in range(4)]
    for result in results[1:]:
        for one, first in zip(result, results[0], strict=True):
            np.testing.assert_array_equal(one.view(np.uint32), first.view(np.uint32))
    for got, want in zip(results[0], gf.jit(gf.grad(network))(*network_operands()), strict=True):
        # Sums of some hundred products, in another order.
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
