"""NVIDIA's frontend of cuDNN, in NumPy on the memory of a simulated GPU, by its documentation.

Work is given to the stream of the handle. A call overwrites its workspace with NaN first, so that
memory which is anybody's but its own is found.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import product
from math import prod
from types import SimpleNamespace

import ml_dtypes
import numpy as np

from gpuflow.targets.cuda.library.dnn.calls import DATA, FILTER, FORWARD
from gpuflow.targets.cuda.library.dnn.cudnn import Cudnn

DTYPES = {
    "FLOAT": np.dtype(np.float32),
    "DOUBLE": np.dtype(np.float64),
    "HALF": np.dtype(np.float16),
    "BFLOAT16": np.dtype(ml_dtypes.bfloat16),
}
HANDLE = 4321
NOTES = ("NONDETERMINISTIC", "TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION")
# The plans of the heuristic in order: name, notes, bytes of its workspace.
PLANS = (
    ("large", (), 1 << 40),
    ("narrow", ("DOWN_CONVERT_INPUTS",), 500),
    ("varies", ("NONDETERMINISTIC", "TENSOR_CORE"), 3000),
    ("tensor cores", ("TENSOR_CORE",), 1000),
    ("exact", (), 700),
)
MASKS = {
    "right": lambda t, s: np.tri(t, s, dtype=bool),
    "strict": lambda t, s: np.tri(t, s, -1, dtype=bool) | (np.arange(s) == 0),
    "from the end": lambda t, s: np.tri(t, s, s - t, dtype=bool) | (np.arange(s) == 0),
    "none": lambda t, s: np.ones((t, s), bool),
}


def _names(*names):
    return SimpleNamespace(**{name: name for name in names})


class NotSupported(RuntimeError):
    """As cudnnGraphNotSupportedError."""


class Tensor:
    """A tensor of a graph."""

    def __init__(self, dim=None, stride=None, data_type=None, uid=None):
        self.dim, self.stride, self.data_type, self.uid = dim, stride, data_type, uid
        self.is_output = False

    def set_output(self, is_output):
        self.is_output = is_output
        return self

    def set_uid(self, uid):
        self.uid = uid
        return self

    def set_data_type(self, data_type):
        self.data_type = data_type
        return self

    def set_dim(self, dim):
        assert type(dim) is list
        self.dim = dim
        return self

    def set_stride(self, stride):
        assert type(stride) is list and len(stride) == len(self.dim)
        self.stride = stride
        return self


class Graph:
    """A graph of one operation."""

    def __init__(
        self,
        frontend,
        io_data_type,
        intermediate_data_type,
        compute_data_type,
        handle,
        device_property,
    ):
        assert handle == HANDLE and device_property is None
        assert intermediate_data_type == compute_data_type
        assert (compute_data_type == "DOUBLE") == (io_data_type == "DOUBLE")
        self.frontend, self.steps, self.refused, self.most = frontend, [], (), 0
        self.tensors, self.operation = {}, None

    def tensor(self, dim, stride, data_type, uid):
        assert uid not in self.tensors and len(dim) == len(stride)
        made = self.tensors[uid] = Tensor(dim, stride, data_type, uid)
        return made

    def _convolution(self, kind, image, weight, loss, **how):
        self.frontend.fail(kind)
        how["padding"] = list(zip(how["pre_padding"], how["post_padding"], strict=True))
        assert len(how["padding"]) == len(how["stride"]) == len(how["dilation"]) >= 2
        assert min(map(min, how["padding"])) >= 0 and min(how["stride"]) >= 1
        outs = [Tensor()]
        named = {"x": image, "w": weight, "y": loss}
        (missing,) = [name for name, tensor in named.items() if tensor is None]
        named[missing] = outs[0]
        self.operation = lambda: self._convolve(kind, missing, named, how)
        return outs[0]

    def conv_fprop(self, image, weight, **how):
        return self._convolution(FORWARD, image, weight, None, **how)

    def conv_dgrad(self, loss, filter, **how):
        return self._convolution(DATA, None, filter, loss, **how)

    def conv_wgrad(self, image, loss, **how):
        return self._convolution(FILTER, image, None, loss, **how)

    def _convolve(self, kind, missing, named, how):
        dims = {name: tuple(tensor.dim) for name, tensor in named.items()}
        groups = dims["x"][1] // dims["w"][1]
        told = {
            "pads": how["padding"],
            "steps": how["stride"],
            "gaps": how["dilation"],
            "groups": groups,
            "mode": 1,
        }
        check_sizes(told, **dims)
        assert {tensor.uid for tensor in named.values()} == {1, 2, 3}
        assert named[missing].uid == 3 and named[missing].is_output

        def work(views):
            arrays = {name: views[tensor.uid] for name, tensor in named.items()}
            arrays[missing][...] = computed(missing, told, arrays)

        return kind, dims, [3], work

    def sdpa(
        self,
        q,
        k,
        v,
        generate_stats,
        attn_scale,
        diagonal_alignment=None,
        diagonal_band_right_bound=None,
    ):
        self.frontend.fail("sdpa")
        assert generate_stats and (diagonal_alignment == "TOP_LEFT") == (
            diagonal_band_right_bound == 0
        )
        out, sums = Tensor(), Tensor()
        causal = diagonal_alignment is not None

        def work(views):
            weights, logs, value = self._weights(views, attn_scale, causal)
            views[4][...] = np.einsum("bnts,bnsd->bntd", weights, value)
            views[5][..., 0] = logs / np.log(self.frontend.base)

        self.operation = lambda: (
            ("causal " if causal else "") + "attention",
            self._dims(),
            [4, 5],
            work,
        )
        return [out, sums]

    def sdpa_backward(
        self,
        q,
        k,
        v,
        o,
        dO,
        stats,
        attn_scale,
        use_deterministic_algorithm,
        diagonal_alignment=None,
        diagonal_band_right_bound=None,
    ):
        self.frontend.fail("sdpa_backward")
        assert (o.uid, dO.uid, stats.uid) == (4, 5, 6) and stats.data_type == "FLOAT"
        causal = diagonal_alignment is not None

        def work(views):
            query, key, _, out, cotangent = (views[n].astype(np.float64) for n in range(1, 6))
            weights, logs, value = self._weights(views, attn_scale, causal)
            if self.frontend.mask == "right":
                np.testing.assert_allclose(views[6][..., 0], logs, atol=1e-3)
            each = query.shape[1] // key.shape[1]
            slopes = np.einsum("bntd,bnsd->bnts", cotangent, value)
            if self.frontend.uses_out:
                slopes -= (out * cotangent).sum(-1)[..., None]
            slopes *= weights * attn_scale * self.frontend.slope
            grouped = (key.shape[0], key.shape[1], each, *key.shape[2:])
            views[7][...] = np.einsum("bnts,bnsd->bntd", slopes, np.repeat(key, each, 1))
            dkey, dvalue = (
                np.einsum("bnts,bntd->bnsd", one, other).reshape(grouped).sum(2)
                for one, other in ((slopes, query), (weights, cotangent))
            )
            views[8][...], views[9][...] = dkey, dvalue

        name = "gradients of " + ("causal " if causal else "") + "attention"
        if use_deterministic_algorithm:
            self.frontend.deterministic.append(name)
        self.operation = lambda: (name, self._dims(), [7, 8, 9], work)
        return [Tensor(), Tensor(), Tensor()]

    def _dims(self):
        return {n: tuple(self.tensors[n].dim) for n in (1, 2)}

    def _weights(self, views, scale, causal):
        query, key, value = (views[n].astype(np.float64) for n in (1, 2, 3))
        each = query.shape[1] // key.shape[1]
        key, value = (np.repeat(one, each, 1) for one in (key, value))
        scores = np.einsum("bntd,bnsd->bnts", query, key) * scale
        if causal:
            seen = MASKS[self.frontend.mask](query.shape[2], key.shape[2])
            scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores)
        total = weights.sum(-1, keepdims=True)
        return weights / total, np.log(total[..., 0]), value

    # What planning calls, in this order.

    def _step(self, name, *before):
        self.frontend.fail(name)
        assert set(before) <= set(self.steps), (name, self.steps)
        self.steps.append(name)

    def validate(self):
        self._step("validate")
        self.kind, self.dims, self.writes, self.work = self.operation()

    def build_operation_graph(self):
        self._step("build_operation_graph", "validate")

    def create_execution_plans(self, modes):
        assert modes == ["A", "FALLBACK"]
        self._step("create_execution_plans", "build_operation_graph")

    def deselect_numeric_notes(self, notes):
        self._step("deselect_numeric_notes", "create_execution_plans")
        self.refused = tuple(notes)

    def deselect_workspace_greater_than(self, most):
        self._step("deselect_workspace_greater_than", "create_execution_plans")
        self.most = most

    def check_support(self):
        self._step("check_support", "deselect_numeric_notes")

    def build_plans(self):
        self._step("build_plans", "check_support")
        plans = [
            plan for plan in PLANS if plan[2] <= self.most and not set(plan[1]) & set(self.refused)
        ]
        if not plans:
            raise NotSupported("[cudnn_frontend] Error: No execution plans support the graph.")
        self.plan = plans[0]

    def get_workspace_size(self):
        return self.plan[2] + self.frontend.more

    def execute(self, places, workspace, handle):
        self.frontend.fail("execute")
        assert handle == HANDLE and sorted(places) == list(range(1, len(places) + 1))
        frontend, memory, count = self.frontend, self.frontend.api.memory, self.get_workspace_size()
        frontend.calls.append((self.kind, self.plan[0], frontend.stream, self.dims))
        frontend.workspaces.append((workspace, count))
        outputs = {tensor.uid: tensor for tensor in self.outputs()}

        def work():
            memory.view(workspace, count)[:] = 0xFF
            views = {
                uid: view_of(
                    memory, outputs.get(uid) or self.tensors[uid], place, uid not in self.writes
                )
                for uid, place in places.items()
            }
            self.work(views)

        frontend.api._enqueue(frontend.stream, work)

    def outputs(self):
        return [one for one in self.made if one.is_output]


class FakeFrontend:
    """The package ``cudnn``.

    Args:
        api: of a simulated device.

    Attributes:
        failing: errors by the name of a function, or of a kind of convolution.
        calls: kind, plan, stream and dims of each execution.
        workspaces: address and bytes of each execution.
        more: bytes that a plan needs more than the heuristic says.
        mask, base, slope, uses_out: how attention is wrong, if it is.
        deterministic: gradients that were asked to be so.
    """

    cudnnGraphNotSupportedError = NotSupported

    def __init__(self, api):
        self.api, self.failing, self.calls, self.workspaces = api, {}, [], []
        self.more, self.stream, self.deterministic = 0, None, []
        self.mask, self.base, self.slope, self.uses_out = "right", np.e, 1.0, True
        self.data_type = _names(*DTYPES)
        self.numerical_note = _names(*NOTES)
        self.heur_mode = _names("A", "FALLBACK")
        self.diagonal_alignment = _names("TOP_LEFT")

    def fail(self, name):
        if name in self.failing:
            raise self.failing[name]

    def backend_version(self):
        return 92801

    def create_handle(self):
        self.fail("create_handle")
        return HANDLE

    def set_stream(self, handle, stream):
        self.fail("set_stream")
        assert handle == HANDLE
        self.stream = stream

    def pygraph(self, **options):
        graph = Graph(self, **options)
        graph.made = made = []
        for name in ("conv_fprop", "conv_dgrad", "conv_wgrad", "sdpa", "sdpa_backward"):
            function = getattr(graph, name)

            def recorded(*arguments, function=function, **named):
                outs = function(*arguments, **named)
                made.extend(outs if isinstance(outs, list) else [outs])
                return outs

            setattr(graph, name, recorded)
        return graph


def view_of(memory, tensor, place, is_read):
    """The array of a tensor."""
    dtype = DTYPES[tensor.data_type]
    size = dtype.itemsize
    count = 1 + sum((n - 1) * s for n, s in zip(tensor.dim, tensor.stride, strict=True))
    assert count == prod(tensor.dim)  # packed
    data = memory.view(place, count * size, writes=not is_read)
    return np.ndarray(tensor.dim, dtype, data, 0, [s * size for s in tensor.stride])


def check_sizes(how, x, w, y):
    """cuDNN's formula for the sizes of the output."""
    assert (y[0], y[1]) == (x[0], w[0]) and x[1] == w[1] * how["groups"]
    assert w[0] % how["groups"] == 0
    for d, (pad, step, gap) in enumerate(zip(how["pads"], how["steps"], how["gaps"], strict=True)):
        assert y[2 + d] == 1 + (x[2 + d] + sum(pad) - ((w[2 + d] - 1) * gap + 1)) // step


def computed(wanted, how, views):
    """``wanted`` of the other two, tap by tap, in float64."""
    x, w, y = (views[key].astype(np.float64) for key in "xwy")
    groups, pads, steps, gaps = how["groups"], how["pads"], how["steps"], how["gaps"]
    if how["mode"] == 0:  # CUDNN_CONVOLUTION counts taps from the other end
        w = w[(..., *[slice(None, None, -1)] * len(pads))]
    taps, places = w.shape[2:], y.shape[2:]
    pads = [low for low, _ in pads]
    margin = [
        p + g * t + s * n for p, g, t, s, n in zip(pads, gaps, taps, steps, places, strict=True)
    ]
    around = [(0, 0), (0, 0), *[(m, m) for m in margin]]
    padded = np.pad(x if wanted != "x" else np.zeros(x.shape), around)
    inputs = padded.reshape(x.shape[0], groups, -1, *padded.shape[2:])
    filters = w.reshape(groups, -1, *w.shape[1:])
    filters = filters if wanted != "w" else np.zeros(filters.shape)
    outputs = y if wanted != "y" else np.zeros(y.shape)
    outputs = outputs.reshape(y.shape[0], groups, -1, *places)
    for tap in product(*map(range, taps)):
        first = [m - p + t * g for m, p, t, g in zip(margin, pads, tap, gaps, strict=True)]
        read = (
            ...,
            *[slice(f, f + s * n, s) for f, s, n in zip(first, steps, places, strict=True)],
        )
        one = filters[(..., *tap)]  # group, output, channel
        if wanted == "y":
            outputs += np.einsum("ngc...,gkc->ngk...", inputs[read], one)
        elif wanted == "x":
            inputs[read] += np.einsum("ngk...,gkc->ngc...", outputs, one)
        else:
            both = (
                inputs[read].reshape(*inputs.shape[:3], -1),
                outputs.reshape(*outputs.shape[:3], -1),
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
    fake = FakeFrontend(api)
    library = Cudnn(lambda: fake, nullcontext)
    for name in ("dnn_library", "planning_library"):
        monkeypatch.setattr(api, name, library)
    return fake
