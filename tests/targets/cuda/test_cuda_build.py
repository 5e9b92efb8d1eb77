"""From printed source to PTX and a cubin: normalising, linking, and what goes wrong."""

import hashlib
import subprocess
import sys

import cuda_zoo
import pytest
from cuda_harness import build, requires_cuda_tools

from gpuflow.compiler.cache.kernel_cache import KernelCache
from gpuflow.core.blocks import CudaText
from gpuflow.targets.cuda.codegen.build import (
    _link_once,
    _ptx_with_lineinfo,
    build_cuda,
    compile_ptx,
    link_ptx,
    normalize_ptx,
    read_link_report,
)
from gpuflow.targets.cuda.codegen.printing.printers import print_cuda
from gpuflow.targets.cuda.codegen.toolchain import CudaBuildError, load_numba_cuda
from gpuflow.targets.cuda.codegen.user_kernels import ArrayType, build_user_kernel

SOURCE = """
import numpy as np

def double(x, n):
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if i < n:
        x[i] = x[i] + x[i]
"""
SIGNATURE = ("*float32", "int64")


@requires_cuda_tools
@pytest.mark.parametrize("name", ["map", "full"])
def test_two_builds_are_equal_byte_by_byte(name):
    """Numba numbers what it compiles, and mangles memory addresses into names; none may remain."""
    kernel = cuda_zoo.zoo()[name]
    source = print_cuda(kernel)
    for architecture in ((9, 0), (10, 0)):  # the two dialects of PTX that NVVM writes
        _, first = build(kernel, True, architecture)
        second = build_cuda(
            source.text, source.entry, source.signature, architecture, source.launch.max_threads
        )
        assert first == second


@requires_cuda_tools
def test_another_process_builds_the_same_bytes():
    program = (
        "import hashlib; from gpuflow.targets.cuda.codegen.build import build_cuda;"
        f"built = build_cuda({SOURCE!r}, 'double', {SIGNATURE!r}, (9, 0));"
        "print(hashlib.sha256(built.ptx.encode() + built.cubin).hexdigest())"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    built = build_cuda(SOURCE, "double", SIGNATURE, (9, 0))
    assert found.stdout.split() == [hashlib.sha256(built.ptx.encode() + built.cubin).hexdigest()]


@requires_cuda_tools
def test_the_report_and_the_entry():
    built = build_cuda(SOURCE, "double", SIGNATURE, (9, 0), launch_bounds=(128, 4))
    assert built.entry == "double" and ".visible .entry double(" in built.ptx
    assert ".maxntid 128" in built.ptx and ".minnctapersm 4" in built.ptx
    assert "NumbaEnv" not in built.ptx and "//" not in built.ptx
    assert built.registers > 0 and built.spill_bytes == built.shared_bytes == 0
    assert b"double" in built.cubin
    _, row = build(cuda_zoo.zoo()["row"], True, (9, 0))
    assert row.shared_bytes == 32 * 4


@requires_cuda_tools
@pytest.mark.parametrize("architecture", [(9, 0), (10, 0)])
def test_ptx_names_source_lines_and_machine_code_does_not_change(architecture):
    built = build_cuda(SOURCE, "double", SIGNATURE, architecture)
    assert built.ptx.endswith('.file\t1 "double.py"\n')
    line = 1 + SOURCE.splitlines().index("        x[i] = x[i] + x[i]")
    after = built.ptx[built.ptx.index(f".loc\t1 {line} 1") :]
    assert "add.f32" in after or "add.rn.f32" in after
    lines = [x for x in built.ptx.splitlines() if not x.strip().startswith((".loc\t", ".file"))]
    bare = "\n".join(lines)
    _, cubin, _ = link_ptx(bare, f"sm_{architecture[0]}{architecture[1]}")
    assert cubin == built.cubin


@requires_cuda_tools
def test_an_older_linker_is_given_the_version_that_it_names(monkeypatch):
    """NVVM 13.4 writes PTX 9.4; nvJitLink 13.0 takes 9.0 at most, and the kernels need less."""
    ptx = normalize_ptx(compile_ptx(SOURCE, "double", SIGNATURE, (9, 0)), "double")
    seen = []

    def older(ptx, architecture):
        seen.append(ptx.split(".version ")[1].split()[0])
        if seen[-1] != "9.0":
            raise RuntimeError(f"ptxas: Unsupported .version {seen[-1]}; current version is '9.0'")
        return _link_once(ptx, architecture)

    monkeypatch.setattr("gpuflow.targets.cuda.codegen.build._link_once", older)
    used, cubin, _ = link_ptx(ptx.replace(".version 9.0", ".version 9.4"), "sm_90")
    assert seen[1:] == ["9.0"] and ".version 9.0" in used and cubin


@requires_cuda_tools
def test_ptx_that_does_not_assemble_is_an_error():
    with pytest.raises(CudaBuildError, match="nvJitLink must accept the kernel for sm_90"):
        link_ptx(".version 8.0\n.target sm_90\n.address_size 64\n.entry k() { nonsense; }", "sm_90")


def test_old_gpus_are_refused():
    with pytest.raises(CudaBuildError, match=r"must be at least 8\.0; got 7\.5\. Fix: "):
        build_cuda(SOURCE, "double", SIGNATURE, (7, 5))


def test_calls_of_functions_that_are_not_there_are_refused():
    ptx = ".extern .func (.param .b32 out) _Zml6__half\n(\n.param .b32 a\n);\n.entry k() { ret; }"
    with pytest.raises(CudaBuildError, match=r"must be self-contained; got a call of .*Zml6"):
        normalize_ptx(ptx, "k")


def test_ptx_without_an_entry_is_refused():
    with pytest.raises(CudaBuildError, match="PTX must have an entry; got none"):
        normalize_ptx(".version 8.0\n", "k")


def test_a_log_without_a_report_is_refused():
    with pytest.raises(CudaBuildError, match="log must report registers and spills; got ''"):
        read_link_report("")
    log = (
        "ptxas info : 16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info : Used 40 registers, used 1 barriers, 128 bytes smem"
    )
    assert read_link_report(log) == (40, 20, 128)


SHARED = """extern "C" __global__ void k(float* x) {
  SPACE float s[LENGTH];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[31 - threadIdx.x];
}"""


@requires_cuda_tools
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0), (12, 0)])
@pytest.mark.parametrize(
    "space, length, wanted",
    [
        ("extern __shared__", "", 0),
        ("__shared__", "32", 128),
        ("__shared__", "12288", 48 << 10),
    ],
)
def test_static_shared_memory_is_the_kernels_own(space, length, wanted, capability):
    """Of sm_90 the linker's log has 1024 bytes that CUDA reserves, and code may not be less."""
    pytest.importorskip("cuda.bindings.nvrtc")
    text = SHARED.replace("SPACE", space).replace("LENGTH", length)
    code, types = CudaText(text, "k"), (ArrayType("float32", 1),)
    cache = KernelCache(None)
    kernel = build_user_kernel("k", code, types, 32, cache, capability)
    assert kernel.built.shared_bytes == wanted


@requires_cuda_tools
def test_an_architecture_that_numba_would_clamp_is_refused():
    with pytest.raises(CudaBuildError, match=r"PTX must be for sm_130; got sm_"):
        compile_ptx(SOURCE, "double", SIGNATURE, (13, 0))


@requires_cuda_tools
def test_the_device_question_is_answered_only_during_a_build(monkeypatch):
    dispatcher = load_numba_cuda().dispatcher
    before = dispatcher.get_current_device
    with pytest.raises(SyntaxError):
        compile_ptx("def (", "double", SIGNATURE, (9, 0))
    assert dispatcher.get_current_device is before
    monkeypatch.delattr(dispatcher, "get_current_device")
    with pytest.raises(CudaBuildError, match="must have get_current_device"):
        compile_ptx(SOURCE, "double", SIGNATURE, (9, 0))


def test_printing_does_not_import_numba():
    program = (
        "import sys; import gpuflow.targets.cuda.codegen.printing.printers;"
        "import gpuflow.targets.cuda.codegen.build;"
        "print([name for name in ('numba', 'cuda', 'cupy') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout.strip() == "[]", found.stderr


class _Unit:
    """As numba-cuda's compilation unit: the error says little, the log says what."""

    def __init__(self, log):
        self.log = log

    def get_log(self):
        return self.log

    def compile(self):
        raise RuntimeError("ERROR_COMPILATION (9)")


@pytest.mark.parametrize(
    "log, is_built",
    [
        ("error: Symbol name with unsupported characters: <gpuflow k>", True),
        ("error: other", False),
    ],
)
def test_lines_are_left_out_only_where_nvvm_refuses_their_names(log, is_built):
    asked = []

    def compile_text(lineinfo):
        asked.append(lineinfo)
        if lineinfo:
            _Unit(log).compile()
        return ("ptx",)

    if is_built:
        assert _ptx_with_lineinfo(compile_text) == "ptx" and asked == [True, False]
    else:
        with pytest.raises(RuntimeError, match="ERROR_COMPILATION"):
            _ptx_with_lineinfo(compile_text)
        assert asked == [True]


_LOST = "@%p1 bra $L__BB0_2;\n$L__BB0_3:\nbra.uni $L__BB0_3;\n"


@pytest.mark.parametrize("without_lines", [_LOST.replace("0_3:", "0_2:\n$L__BB0_3:"), _LOST])
def test_lines_are_left_out_where_nvvm_loses_a_label_over_them(without_lines):
    def compile_text(lineinfo):
        return (_LOST if lineinfo else without_lines,)

    if without_lines == _LOST:
        with pytest.raises(CudaBuildError, match=r"a label to go to; NVVM left out \$L__BB0_2\."):
            _ptx_with_lineinfo(compile_text)
    else:
        assert _ptx_with_lineinfo(compile_text) == without_lines


# --- device functions of several kernels ----------------------------------------------------

_DEVICE = """import math

SCALE = {scale}


@device_function
def scaled(x):
    return x * float32(SCALE)


@device_function
def twice(x):
    return scaled(x) + scaled(x)


def kernel(a, n):
    i = int32(cuda.threadIdx.x)
    if i < n:
        a[i] = math.sqrt(twice(a[i]) + float32({offset}))
"""


def _ptx(scale, offset, capability=(9, 0), kind="*float32"):
    text = _DEVICE.format(scale=scale, offset=offset)
    return normalize_ptx(compile_ptx(text, "kernel", (kind, "int64"), capability), "kernel")
