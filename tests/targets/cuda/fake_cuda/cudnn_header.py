"""What cuDNN's headers say of what gpuflow calls, by a C program that is made of them.

``python cudnn_header.py FOLDER > cudnn_header.json`` takes the folder of the headers.
``test_cudnn_header.py`` compares gpuflow's table with the file. Of CUDA they need three types only.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

# Of graphs.py, and what they are in the header.
GRAPH_NUMBERS = {
    **{name: f"CUDNN_BACKEND_{text}_DESCRIPTOR" for name, text in {
        "ENGINE": "ENGINE", "ENGINE_CONFIG": "ENGINECFG", "HEURISTIC": "ENGINEHEUR",
        "PLAN": "EXECUTION_PLAN", "OPERATION_GRAPH": "OPERATIONGRAPH", "PACK": "VARIANT_PACK",
        "TENSOR": "TENSOR", "DEVICE_PROPERTIES": "DEVICEPROP",
        "ATTENTION": "OPERATION_SDPA_FWD", "BAND_MASK": "OPERATION_DIAGONAL_BAND_MASK",
    }.items()},
    **{name: f"CUDNN_ATTR_{text}" for name, text in {
        "HEURISTIC_MODE": "ENGINEHEUR_MODE", "HEURISTIC_GRAPH": "ENGINEHEUR_OPERATION_GRAPH",
        "HEURISTIC_RESULTS": "ENGINEHEUR_RESULTS", "HEURISTIC_PROPERTIES": "ENGINEHEUR_DEVICEPROP",
        "CONFIG_ENGINE": "ENGINECFG_ENGINE", "PLAN_CONFIG": "EXECUTION_PLAN_ENGINE_CONFIG",
        "PLAN_WORKSPACE": "EXECUTION_PLAN_WORKSPACE_SIZE",
        "PLAN_PROPERTIES": "EXECUTION_PLAN_DEVICEPROP", "GRAPH_OPERATIONS": "OPERATIONGRAPH_OPS",
        "TENSOR_ALIGNMENT": "TENSOR_BYTE_ALIGNMENT", "TENSOR_TYPE": "TENSOR_DATA_TYPE",
        "TENSOR_DIMS": "TENSOR_DIMENSIONS", "TENSOR_STRIDES": "TENSOR_STRIDES",
        "TENSOR_ID": "TENSOR_UNIQUE_ID", "TENSOR_IS_VIRTUAL": "TENSOR_IS_VIRTUAL",
        "TENSOR_IS_BY_VALUE": "TENSOR_IS_BY_VALUE", "PACK_IDS": "VARIANT_PACK_UNIQUE_IDS",
        "PACK_POINTERS": "VARIANT_PACK_DATA_POINTERS", "PACK_WORKSPACE": "VARIANT_PACK_WORKSPACE",
        "ENGINE_NUMERICAL_NOTES": "ENGINE_NUMERICAL_NOTE",
        "PROPERTIES_HANDLE": "DEVICEPROP_HANDLE",
        "PROPERTIES_JSON": "DEVICEPROP_JSON_REPRESENTATION",
        "ATTENTION_QUERY": "OPERATION_SDPA_FWD_QDESC", "ATTENTION_KEY": "OPERATION_SDPA_FWD_KDESC",
        "ATTENTION_VALUE": "OPERATION_SDPA_FWD_VDESC", "ATTENTION_OUT": "OPERATION_SDPA_FWD_ODESC",
        "ATTENTION_SUMS": "OPERATION_SDPA_FWD_STATSDESC",
        "ATTENTION_SCALE": "OPERATION_SDPA_FWD_SCALEDESC",
        "ATTENTION_SUBGRAPH": "OPERATION_SDPA_FWD_SUBGRAPH",
        "ATTENTION_SUBGRAPH_INPUT": "OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID",
        "ATTENTION_SUBGRAPH_OUTPUT": "OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID",
        "MASK_INPUT": "OPERATION_DIAGONAL_BAND_MASK_XDESC",
        "MASK_FILL": "OPERATION_DIAGONAL_BAND_MASK_BDESC",
        "MASK_OUTPUT": "OPERATION_DIAGONAL_BAND_MASK_YDESC",
        "MASK_COMPARISON": "OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE",
    }.items()},
    **{name: f"CUDNN_TYPE_{text}" for name, text in {
        "HANDLE": "HANDLE", "DTYPE": "DATA_TYPE", "BOOL": "BOOLEAN", "INT64": "INT64",
        "POINTER": "VOID_PTR", "MODE": "HEUR_MODE", "NOTE": "NUMERICAL_NOTE",
        "POINTWISE": "POINTWISE_MODE", "DESCRIPTOR": "BACKEND_DESCRIPTOR", "CHAR": "CHAR",
    }.items()},
    "MODE_A": "CUDNN_HEUR_MODE_A", "NONDETERMINISTIC": "CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC",
    "GREATER_EQUAL": "CUDNN_POINTWISE_CMP_GE",
}  # fmt: skip
STRUCTS = (
    "cudnnConvolutionFwdAlgoPerf_t", "cudnnConvolutionBwdDataAlgoPerf_t",
    "cudnnConvolutionBwdFilterAlgoPerf_t",
)  # fmt: skip
FIELDS = ("algo", "status", "time", "memory", "determinism", "mathType", "reserved")
NUMBERS = (
    "CUDNN_MAJOR", "CUDNN_VERSION", "CUDNN_DATA_FLOAT", "CUDNN_DATA_DOUBLE", "CUDNN_DATA_HALF",
    "CUDNN_DATA_BFLOAT16", "CUDNN_TENSOR_NCHW", "CUDNN_TENSOR_NHWC", "CUDNN_CONVOLUTION",
    "CUDNN_CROSS_CORRELATION", "CUDNN_DEFAULT_MATH", "CUDNN_TENSOR_OP_MATH",
    "CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION", "CUDNN_FMA_MATH", "CUDNN_NON_DETERMINISTIC",
    "CUDNN_DETERMINISTIC", "CUDNN_STATUS_SUCCESS", "CUDNN_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED", "CUDNN_STATUS_BAD_PARAM",
    "CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE", "CUDNN_STATUS_NOT_SUPPORTED",
    "CUDNN_STATUS_NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE", "CUDNN_STATUS_INTERNAL_ERROR",
    "CUDNN_STATUS_EXECUTION_FAILED",
    *GRAPH_NUMBERS.values(),
)  # fmt: skip


_CUDA = (
    "typedef struct CUstream_st *cudaStream_t; typedef struct CUgraph_st *cudaGraph_t; "
    "typedef enum { MAJOR_VERSION } libraryPropertyType;"
)


def facts(headers: str, functions: Sequence[str]) -> dict[str, dict[str, object]]:
    """Numbers, layouts of structs, kinds of functions' parameters, and which arrays are described.

    Args:
        headers: the folder of cuDNN's.
        functions: names of functions.
    """
    with tempfile.TemporaryDirectory() as folder:
        flags = [f"-I{headers}", f"-I{folder}"]
        for name in ("cuda_runtime.h", "cuda_runtime_api.h", "library_types.h"):
            Path(folder, name).write_text(f"#pragma once\n#include <stddef.h>\n{_CUDA}\n")
        source, program = Path(folder) / "facts.c", Path(folder) / "facts"
        source.write_text("#include <cudnn.h>\n")
        done = subprocess.run(["gcc", "-E", "-P", *flags, str(source)], capture_output=True,
                              text=True, check=True)  # fmt: skip
        source.write_text(_program(done.stdout, functions))
        subprocess.run(["gcc", "-w", *flags, str(source), "-o", str(program)], check=True)
        output = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    parts = ("numbers", "structs", "functions", "arrays")
    found: dict[str, dict[str, object]] = {part: {} for part in parts}
    for line in output.splitlines():
        part, name, *values = line.split()
        found[part][name] = int(values[0]) if part == "numbers" else values
    return found


def _program(text: str, functions: Sequence[str]) -> str:
    """A C program that prints what the compiler knows."""
    body = [f'printf("numbers {name} %ld\\n", (long){name});' for name in NUMBERS]
    for name in STRUCTS:
        parts = " ".join(f"{field}:%zu" for field in FIELDS)
        offsets = ", ".join(f"offsetof({name}, {field})" for field in FIELDS)
        body.append(f'printf("structs {name} size:%zu {parts}\\n", sizeof({name}), {offsets});')
    for name in functions:
        body += _function(text, name)
    return "\n".join([
        "#include <cudnn.h>", "#include <stdio.h>", "#include <stddef.h>",
        "static const char *kind(int class, size_t size) {",
        '  return class == 5 ? "pointer" : size == 8 ? "size_t" : "int"; }',
        "int main(void) {", *body, "return 0; }",
    ])  # fmt: skip


def _function(text: str, name: str) -> list[str]:
    """Lines that print the kinds of a function's parameters, and do not compile for another."""
    found = re.search(rf"([\w ]*?[\w*]+)\s+\**{name}\s*\(([^)]*)\)\s*;", text)
    assert found is not None, name
    given = [re.sub(r"(\w+)\s*\[\]", r"*\1", one.strip()) for one in found[2].split(",")]
    given = [one for one in given if one != "void"]
    names = [re.search(r"(\w+)$", one)[1] for one in given]
    fields = " ".join(f"{one};" for one in given)
    kinds = [f"kind(__builtin_classify_type(p.{n}), sizeof p.{n})" for n in names]
    prototype = f"cudnnStatus_t (*)({', '.join(given)})"
    lines = [f"{{ struct {{ {fields} }} p; (void)p;"]
    lines.append(
        f"_Static_assert(__builtin_types_compatible_p(__typeof__(&{name}), {prototype}), "
        f'"{name}");'
    )
    arrays = [kind for one in given for kind in re.findall(r"cudnn(Tensor|Filter)Desc", one)]
    lines.append(f'printf("arrays {name} {" ".join(arrays)}\\n");')
    lines.append(f'printf("functions {name}{" %s" * len(kinds)}\\n", {", ".join(kinds)}); }}')
    return lines


if __name__ == "__main__":
    from gpuflow.targets.cuda.dnn.cudnn import SIGNATURES

    print(json.dumps(facts(sys.argv[1], list(SIGNATURES)), indent=1))
