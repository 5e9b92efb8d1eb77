"""Which call of a library a convolution becomes: random ones, done in NumPy as they are planned."""

import numpy as np
import pytest
from fake_cudnn import check_sizes, computed

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import lax
from gpuflow.compiler.pipeline import compile_plan
from gpuflow.compiler.planning.plan import CallStep
from gpuflow.core.lowering import block_of
from gpuflow.targets.cuda.library.cudnn_convolutions import plan_of
from gpuflow.targets.cuda.library.dnn.calls import (
    DATA,
    FILTER,
    FORWARD,
    PlannedCall,
    packed_strides,
)
from gpuflow.targets.cuda.library.launch_sequence import LibraryLaunch
from gpuflow.targets.cuda.library.target import GpuTarget

ARRAYS = {FORWARD: "xwy", DATA: "ywx", FILTER: "xyw"}  # left, right and out
LAYOUTS = {
    1: [("NCH", "OIH", "NCH"), ("NHC", "HIO", "NHC"), ("NHC", "OHI", "NHC"), ("CNH", "OIH", "NCH")],
    2: [
        ("NCHW", "OIHW", "NCHW"),
        ("NHWC", "HWIO", "NHWC"),
        ("NHWC", "OIHW", "NHWC"),
        ("NHWC", "OHWI", "NHWC"),
        ("NCHW", "IOHW", "NCHW"),
        ("NHWC", "HWIO", "NCHW"),
    ],
    3: [("NCDHW", "OIDHW", "NCDHW"), ("NDHWC", "DHWIO", "NDHWC")],
}


class TakesAll:
    """A library that takes every call."""

    def plan_call(self, call, deterministic):
        how = {
            "pads": call.padding,
            "steps": call.strides,
            "gaps": call.dilation,
            "groups": call.groups,
        }
        check_sizes(how, call.x, call.w, call.y)
        return PlannedCall(call, deterministic, 0)


def _case(seed):
    rng = np.random.default_rng(seed)
    space = int(rng.choice([1, 2, 2, 3]))
    draw = lambda choices: tuple(int(n) for n in rng.choice(choices, space))  # noqa: E731
    groups, batch_groups = (int(rng.choice(some)) for some in ([1, 1, 2, 3], [1, 1, 1, 2]))
    if groups > 1:
        batch_groups = 1
    channels, outputs = int(rng.choice([1, 2, 3])), int(rng.choice([1, 2, 3]))
    taps, gaps, strides = draw([1, 2, 3]), draw([1, 1, 2]), draw([1, 1, 2, 3])
    holes = draw([1, 1, 1, 2]) if rng.random() < 0.3 else (1,) * space
    low, more = draw([0, 1, 2]), draw([0, 0, 0, 1])
    sizes = tuple(int(n) for n in rng.integers(5, 8, space))
    plain = LAYOUTS[space][0]
    layout = LAYOUTS[space][rng.integers(len(LAYOUTS[space]))]
    shapes = (
        (2 * batch_groups, channels * groups, *sizes),
        (outputs * groups * batch_groups, channels, *taps),
    )
    operands = [
        np.transpose(rng.normal(size=shape), [own.index(letter) for letter in spec]).copy()
        for shape, own, spec in zip(shapes, plain, layout, strict=False)
    ]
    pads = [(n, n + m) for n, m in zip(low, more, strict=True)]

    def convolve(x, w):
        return lax.conv_general_dilated(
            x, w, strides, pads, holes, gaps, layout, groups, batch_groups
        )

    return convolve, *operands


def _view(buffer, offset, shape, strides):
    return np.lib.stride_tricks.as_strided(
        buffer[offset:], shape, [stride * buffer.itemsize for stride in strides]
    )


def _done(plan, operands, shape):
    """The result of a planned call on flat buffers."""
    call, names = plan.call, ARRAYS[plan.call.kind]
    flat = [x.ravel() for x in operands]
    if plan.right_copy is not None:
        right = _view(flat[1], plan.offsets[1], plan.right_copy.shape, plan.right_copy.strides)
        places = [(flat[0], plan.offsets[0]), (right.ravel().copy(), 0)]
    else:
        places = list(zip(flat, plan.offsets, strict=True))
    written = np.full(int(np.prod(shape)), np.nan)
    places.append((written, 0))
    dims = {"x": call.x, "w": call.w, "y": call.y}
    views = {
        name: _view(buffer, offset, dims[name], packed_strides(dims[name], call.channels_last))
        for name, (buffer, offset) in zip(names, places, strict=True)
    }
    how = {
        "pads": call.padding,
        "steps": call.strides,
        "gaps": call.dilation,
        "groups": call.groups,
        "mode": 1,
    }
    out = names[2]
    views[out][...] = computed(out, how, views)
    if plan.out_copy is None:
        return written.reshape(shape)
    return _view(written, 0, plan.out_copy.shape, plan.out_copy.strides)


def _plans(function, *operands):
    """The calls that the library makes, and how."""
    target = GpuTarget(dnn_library=TakesAll())
    with gf.enable_x64():
        plan, values = compile_plan(gf.make_jaxpr(function)(*operands), target=target)
    assert not values
    calls = [step for step in plan.steps if isinstance(step, CallStep)]
    plans = [plan_of(block_of(step.eqn), step, target) for step in calls]
    for step, plan in zip(calls, plans, strict=True):
        is_library = [isinstance(one, LibraryLaunch) for one in step.implementation.launches]
        assert any(is_library) == (plan is not None)
    return [pair for pair in zip(calls, plans, strict=True) if pair[1] is not None]


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_random_convolutions(first):
    """Each result, and both gradients; many are calls of the library, of all three kinds."""
    kinds, count, uneven = [], 0, set()
    for seed in range(first, first + 20):
        convolve, x, w = _case(seed)
        with gf.enable_x64():
            ct = np.random.default_rng(seed).normal(size=gf.eval_shape(convolve, x, w).shape)
            if 0 in ct.shape:
                continue
            _, pull = gf.vjp(convolve, jnp.asarray(x), jnp.asarray(w))
            results = [np.asarray(one) for one in (convolve(x, w), *pull(jnp.asarray(ct)))]
        functions = (
            (convolve, x, w),
            (lambda ct, w, call=convolve, x=x: gf.vjp(lambda x: call(x, w), x)[1](ct), ct, w),
            (lambda x, ct, call=convolve, w=w: gf.vjp(lambda w: call(x, w), w)[1](ct), x, ct),
        )
        for (function, *operands), want in zip(functions, results, strict=True):
            calls = _plans(function, *operands)
            count += 1
            if not calls:
                continue
            ((step, plan),) = calls
            kinds.append(plan.call.kind)
            if any(low != high for low, high in plan.call.padding):
                uneven.add(plan.call.kind)
            # Operands of the call are the program's, in some order.
            buffers = [operands[one.buffer] for one in step.operands]
            got = _done(plan, buffers, step.eqn.outputs[0].aval.shape)
            np.testing.assert_allclose(got, want.reshape(got.shape), atol=1e-10)
    assert set(kinds) == {FORWARD, DATA, FILTER} and len(kinds) >= 9, (kinds, count)
    assert uneven  # some of them have other zeros behind than in front
