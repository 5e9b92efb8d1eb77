"""cuDNN's calls, answered in NumPy on the memory of a simulated GPU, by cuDNN's documentation.

Arguments come as ctypes would pass them, and are checked against the signatures. Work is given to
the stream of the handle. A call overwrites its workspace with NaN first, so that memory which is
anybody's but its own is found.
"""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from itertools import product
from math import prod

import ml_dtypes
import numpy as np

from gpuflow.targets.cuda.dnn.convolutions import CudnnConvolutions
from gpuflow.targets.cuda.dnn.cudnn import SIGNATURES, Performance

DTYPES = {
    0: np.dtype(np.float32), 1: np.dtype(np.float64), 2: np.dtype(np.float16),
    9: np.dtype(ml_dtypes.bfloat16),
}  # fmt: skip
BAD_PARAM, NOT_SUPPORTED, EXECUTION_FAILED, NOT_INITIALIZED = 2000, 3000, 5000, 1001
NAMES = {
    2000: b"CUDNN_STATUS_BAD_PARAM", 3000: b"CUDNN_STATUS_NOT_SUPPORTED",
    5000: b"CUDNN_STATUS_EXECUTION_FAILED", 1001: b"CUDNN_STATUS_NOT_INITIALIZED",
}  # fmt: skip
HANDLE = 4321
# Algorithms of the heuristic in order: number, workspace bytes, whether results are the same in
# every run, how products are made.
ALGORITHMS = ((5, 1 << 40, 1, 0), (0, 3000, 0, 0), (1, 1000, 1, 1), (4, 700, 1, 3))


class FakeCudnn:
    """The library.

    Args:
        api: of the simulated GPU.

    Attributes:
        calls: what was run: function, algorithm, math, stream and dims of each array.
        workspaces: address and bytes that each call had.
        statuses: what a function returns in place of 0.
    """

    def __init__(self, api):
        self.api, self.calls, self.workspaces = api, [], []
        self.statuses, self.descriptors, self.stream = {}, {}, None
        self.alive = 0
        # ctypes would set the result's type on the function.
        self.cudnnGetVersion = type("Version", (), {"__call__": lambda self: 92801})()

    def __getattr__(self, name):
        if name not in SIGNATURES:
            raise AttributeError(name)

        def call(*given):
            assert len(given) == len(SIGNATURES[name]), name
            for value, kind in zip(given, SIGNATURES[name], strict=True):
                if kind is not ctypes.c_void_p:
                    assert kind(value).value == value, (name, given)
            status = self.statuses.get(name, 0)
            return status if status else self._answer(name, *given)

        return call

    def cudnnGetErrorString(self, status):
        return NAMES[status]

    def cudnnGetLastErrorString(self, place, count):
        ctypes.memmove(place, b"because\0", 8)

    def _answer(self, name, *given):
        if name == "cudnnCreate":
            given[0]._obj.value = HANDLE
        elif name == "cudnnSetStream":
            assert given[0] == HANDLE
            self.stream = given[1]
        elif name.startswith("cudnnCreate"):
            self.alive += 1
            given[0]._obj.value = 100 + len(self.descriptors)
            self.descriptors[100 + len(self.descriptors)] = {}
        elif name.startswith("cudnnDestroy"):
            assert self.descriptors[given[0]] is not None
            self.descriptors[given[0]], self.alive = None, self.alive - 1
        elif name.startswith("cudnnSet"):
            return self._set(name, *given)
        elif name.endswith("Algorithm_v7"):
            return self._heuristic(*given)
        elif name.endswith("WorkspaceSize"):
            sizes = {number: count for number, count, *_ in ALGORITHMS}
            ctypes.c_size_t.from_address(given[6]).value = sizes[given[5]] + 24  # it may be more
        else:
            return self._convolve(name, *given)
        return 0

    def _set(self, name, made, *given):
        one = self.descriptors[made]
        if name == "cudnnSetTensorNdDescriptor":
            kind, count, dims, strides = given
            assert count >= 4 and count == len(dims) == len(strides)
            one.update(dtype=DTYPES[kind], dims=tuple(dims), strides=tuple(strides))
        elif name == "cudnnSetFilterNdDescriptor":
            kind, layout, count, dims = given
            assert count >= 4 and count == len(dims)
            # The dims are in one order whatever the layout is.
            order = list(range(count)) if layout == 0 else [0, *range(2, count), 1]
            steps = np.cumprod([1, *[dims[d] for d in order][:0:-1]])[::-1]
            strides = [int(steps[order.index(d)]) for d in range(count)]
            one.update(dtype=DTYPES[kind], dims=tuple(dims), strides=tuple(strides))
        elif name == "cudnnSetConvolutionNdDescriptor":
            count, pads, strides, gaps, mode, wide = given
            assert count >= 2 and count == len(pads) == len(strides) == len(gaps)
            if min(pads) < 0 or min(strides) < 1 or min(gaps) < 1:
                return BAD_PARAM
            one.update(pads=tuple(pads), steps=tuple(strides), gaps=tuple(gaps), mode=mode,
                       wide=wide)  # fmt: skip
        elif name == "cudnnSetConvolutionGroupCount":
            one["groups"] = given[0]
        else:
            assert name == "cudnnSetConvolutionMathType"
            one["math"] = given[0]
        return 0

    def _heuristic(self, handle, first, second, convolution, third, most, count, results):
        assert handle == HANDLE
        assert {"dims"} <= set(self.descriptors[first]) & set(self.descriptors[third])
        assert {"groups", "math", "mode"} <= set(self.descriptors[convolution])
        found = (Performance * most).from_address(results)
        for one, (number, memory, same, math) in zip(found, ALGORITHMS, strict=False):
            one.algo, one.status, one.memory = number, 0, memory
            one.determinism, one.mathType = same, math
        ctypes.c_int.from_address(count).value = len(ALGORITHMS)
        return 0

    def _convolve(self, name, handle, alpha, first, a, second, b, convolution, algorithm,
                  workspace, count, beta, third, c):  # fmt: skip
        assert handle == HANDLE
        how, arrays = self.descriptors[convolution], []
        wide = {0: ctypes.c_float, 1: ctypes.c_double}[how["wide"]]
        assert wide.from_address(alpha).value == 1 and wide.from_address(beta).value == 0
        for descriptor, place in ((first, a), (second, b), (third, c)):
            arrays.append(dict(self.descriptors[descriptor], place=place))
        dtypes = {one["dtype"] for one in arrays}
        assert len(dtypes) == 1 and (how["wide"] == 1) == (dtypes == {DTYPES[1]})
        order = {"cudnnConvolutionForward": "xwy", "cudnnConvolutionBackwardData": "wyx",
                 "cudnnConvolutionBackwardFilter": "xyw"}[name]  # fmt: skip
        named = dict(zip(order, arrays, strict=True))
        dims = {key: named[key]["dims"] for key in "xwy"}
        check_sizes(how, **dims)
        self.calls.append((name, algorithm, how["math"], self.stream, dims))
        self.workspaces.append((workspace, count))
        how, memory = dict(how), self.api.memory

        def work():
            memory.view(workspace, count)[:] = 0xFF
            views = {key: view_of(memory, one, key != order[2]) for key, one in named.items()}
            views[order[2]][...] = computed(order[2], how, views)

        self.api._give(self.stream, work)
        return 0


def view_of(memory, one, is_read):
    """The array that a descriptor describes."""
    size = one["dtype"].itemsize
    count = 1 + sum((n - 1) * s for n, s in zip(one["dims"], one["strides"], strict=True))
    assert count == prod(one["dims"])  # packed
    data = memory.view(one["place"], count * size, writes=not is_read)
    return np.ndarray(one["dims"], one["dtype"], data, 0, [s * size for s in one["strides"]])


def check_sizes(how, x, w, y):
    """cuDNN's formula for the sizes of the output."""
    assert (y[0], y[1]) == (x[0], w[0]) and x[1] == w[1] * how["groups"]
    assert w[0] % how["groups"] == 0
    for d, (pad, step, gap) in enumerate(zip(how["pads"], how["steps"], how["gaps"], strict=True)):
        assert y[2 + d] == 1 + (x[2 + d] + 2 * pad - ((w[2 + d] - 1) * gap + 1)) // step


def computed(wanted, how, views):
    """``wanted`` of the other two, tap by tap, in float64."""
    x, w, y = (views[key].astype(np.float64) for key in "xwy")
    groups, pads, steps, gaps = how["groups"], how["pads"], how["steps"], how["gaps"]
    if how["mode"] == 0:  # CUDNN_CONVOLUTION counts taps from the other end
        w = w[(..., *[slice(None, None, -1)] * len(pads))]
    taps, places = w.shape[2:], y.shape[2:]
    margin = [p + g * t + s * n for p, g, t, s, n in
              zip(pads, gaps, taps, steps, places, strict=True)]  # fmt: skip
    around = [(0, 0), (0, 0), *[(m, m) for m in margin]]
    padded = np.pad(x if wanted != "x" else np.zeros(x.shape), around)
    inputs = padded.reshape(x.shape[0], groups, -1, *padded.shape[2:])
    filters = w.reshape(groups, -1, *w.shape[1:])
    filters = filters if wanted != "w" else np.zeros(filters.shape)
    outputs = y if wanted != "y" else np.zeros(y.shape)
    outputs = outputs.reshape(y.shape[0], groups, -1, *places)
    for tap in product(*map(range, taps)):
        first = [m - p + t * g for m, p, t, g in zip(margin, pads, tap, gaps, strict=True)]
        read = (..., *[slice(f, f + s * n, s) for f, s, n in
                       zip(first, steps, places, strict=True)])  # fmt: skip
        one = filters[(..., *tap)]  # group, output, channel
        if wanted == "y":
            outputs += np.einsum("ngc...,gkc->ngk...", inputs[read], one)
        elif wanted == "x":
            inputs[read] += np.einsum("ngk...,gkc->ngc...", outputs, one)
        else:
            both = inputs[read].reshape(*inputs.shape[:3], -1), outputs.reshape(
                *outputs.shape[:3], -1
            )
            one += np.einsum("ngcs,ngks->gkc", *both)
    if wanted == "y":
        return outputs.reshape(y.shape)
    if wanted == "w":
        result = filters.reshape(w.shape)
        return result[(..., *[slice(None, None, -1)] * len(pads))] if how["mode"] == 0 else result
    inner = tuple(slice(m, m + n) for m, n in zip(margin, x.shape[2:], strict=True))
    return padded[(..., *inner)]


def install(monkeypatch, device):
    """Let a device of a simulated platform have the library."""
    api = device.driver.api
    fake = FakeCudnn(api)
    library = CudnnConvolutions(lambda: fake, nullcontext)
    for name in ("convolutions", "chooser"):
        monkeypatch.setattr(api, name, library)
    return fake
