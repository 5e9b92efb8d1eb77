"""gpuflow's table of cuDNN's functions and numbers, beside the headers and the library."""

import contextlib
import ctypes
import importlib.util
import json
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from fake_cuda import cudnn_header

from gpuflow.base.dtypes import bfloat16
from gpuflow.targets.cuda.dnn import cudnn, graphs
from gpuflow.targets.cuda.dnn.calls import DATA, FILTER, FORWARD, ConvolutionCall
from gpuflow.targets.cuda.dnn.convolutions import _KINDS
from gpuflow.targets.cuda.dnn.descriptors import Descriptors

HERE = Path(__file__).parent
# Of nvidia-cudnn-cu13 9.28.1.4, by cudnn_header.py.
FACTS = json.loads((HERE / "fake_cuda" / "cudnn_header.json").read_text())
KINDS = {ctypes.c_void_p: "pointer", ctypes.c_int: "int", ctypes.c_size_t: "size_t"}


def test_functions_have_the_headers_parameters():
    assert set(FACTS["functions"]) == set(cudnn.SIGNATURES)
    for name, signature in cudnn.SIGNATURES.items():
        assert [KINDS[one] for one in signature] == FACTS["functions"][name], name


def test_arrays_come_in_the_headers_order():
    kinds = {"x": "Tensor", "w": "Filter", "y": "Tensor"}
    for functions in _KINDS.values():
        wanted = [kinds[name] for name in functions.arrays]
        for name in (functions.run, functions.heuristic, functions.workspace):
            assert FACTS["arrays"][name] == wanted, name


def test_results_of_heuristics_lie_as_the_headers_say():
    ours = {name: getattr(cudnn.Performance, name).offset for name, _ in cudnn.Performance._fields_}
    ours["size"] = ctypes.sizeof(cudnn.Performance)
    assert len(FACTS["structs"]) == 3
    for fields in FACTS["structs"].values():
        assert {name: int(at) for name, at in (one.split(":") for one in fields)} == ours


def test_numbers_are_the_headers():
    numbers = FACTS["numbers"]
    assert numbers["CUDNN_MAJOR"] == cudnn.VERSION
    types = {np.float32: "FLOAT", np.float64: "DOUBLE", np.float16: "HALF", bfloat16: "BFLOAT16"}
    for dtype, name in types.items():
        assert cudnn.TYPES[np.dtype(dtype)] == numbers[f"CUDNN_DATA_{name}"]
    assert len(types) == len(cudnn.TYPES)
    for name in ("FLOAT", "DOUBLE"):
        assert getattr(cudnn, name) == numbers[f"CUDNN_DATA_{name}"]
    for name in ("NCHW", "NHWC"):
        assert getattr(cudnn, name) == numbers[f"CUDNN_TENSOR_{name}"]
    for name in ("CONVOLUTION", "CROSS_CORRELATION", "DEFAULT_MATH", "TENSOR_OP_MATH",
                 "TENSOR_OP_MATH_ALLOW_CONVERSION", "FMA_MATH", "DETERMINISTIC"):  # fmt: skip
        assert getattr(cudnn, name) == numbers[f"CUDNN_{name}"]


def test_numbers_of_graphs_are_the_headers():
    ours = {name: value for name, value in vars(graphs).items() if isinstance(value, int)}
    del ours["_MOST_NOTES"]
    assert set(ours) == set(cudnn_header.GRAPH_NUMBERS)
    for name, text in cudnn_header.GRAPH_NUMBERS.items():
        assert ours[name] == FACTS["numbers"][text], name


def test_refusals_are_what_the_headers_call_so():
    refused = {
        name for name, status in FACTS["numbers"].items()
        if "STATUS" in name and cudnn.is_refusal(status)
    }  # fmt: skip
    assert refused == {
        "CUDNN_STATUS_BAD_PARAM", "CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE",
        "CUDNN_STATUS_NOT_SUPPORTED", "CUDNN_STATUS_NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE",
    }  # fmt: skip


def _headers():
    """The folder of cuDNN's headers, of its wheel."""
    found = importlib.util.find_spec("nvidia")
    for folder in [] if found is None else found.submodule_search_locations:
        if (Path(folder) / "cudnn" / "include" / "cudnn.h").exists():
            return Path(folder) / "cudnn" / "include"
    return None


def test_the_file_is_what_the_headers_say():
    folder = _headers()
    if folder is None or shutil.which("gcc") is None:
        pytest.skip("needs gcc and cuDNN's headers: pip install nvidia-cudnn-cu13")
    found = cudnn_header.facts(str(folder), list(cudnn.SIGNATURES))
    for one in (found, FACTS):
        one["numbers"].pop("CUDNN_VERSION", None)
    assert found == FACTS


@pytest.fixture(scope="module")
def library():
    """cuDNN itself, which needs no GPU to be told of a convolution."""
    with contextlib.suppress(OSError):
        return cudnn.open_cudnn(cudnn.find_cudnn())
    pytest.skip("cuDNN is not installed: pip install nvidia-cudnn-cu13")


def test_the_library_is_of_that_version(library):
    assert cudnn.version_of(library)[0] == cudnn.VERSION
    assert cudnn.status_text(library, 3000).startswith("CUDNN_STATUS_NOT_SUPPORTED (3000)")


@pytest.mark.parametrize("space", [2, 3])
@pytest.mark.parametrize("kind", [FORWARD, DATA, FILTER])
def test_the_library_understands_what_it_is_told(kind, space, library):
    """Its own formula for the output gives the output that it is told of."""
    many = product(cudnn.TYPES, (False, True), (1, 2), ((0, 1, 1), (1, 2, 1), (2, 2, 2)))
    for dtype, is_last, groups, (pad, step, gap) in many:
        sizes, taps = (9, 8, 7)[:space], (3, 2, 1)[:space]
        places = [
            (n + 2 * pad - ((k - 1) * gap + 1)) // step + 1
            for n, k in zip(sizes, taps, strict=True)
        ]
        call = ConvolutionCall(
            kind, (2, 4, *sizes), (6, 4 // groups, *taps), (2, 6, *places), is_last,
            (pad,) * space, (step,) * space, (gap,) * space, groups, False, np.dtype(dtype), True,
        )  # fmt: skip
        names = _KINDS[kind].arrays
        made = Descriptors(library, call, cudnn.DEFAULT_MATH, names)
        at = dict(zip(names, made.arrays, strict=True))
        out = (ctypes.c_int * (space + 2))()
        status = library.cudnnGetConvolutionNdForwardOutputDim(
            ctypes.c_void_p(made.convolution), ctypes.c_void_p(at["x"]), ctypes.c_void_p(at["w"]),
            space + 2, out,
        )  # fmt: skip
        assert status == 0 and tuple(out) == call.y
        for name, size in (("x", np.prod(call.x)), ("y", np.prod(call.y))):
            count = ctypes.c_size_t()
            library.cudnnGetTensorSizeInBytes(ctypes.c_void_p(at[name]), ctypes.byref(count))
            assert count.value == size * np.dtype(dtype).itemsize
