"""Our calls of the real CuPy, NCCL and nvmath, without a GPU: see ``fake_cuda/stand_in.py``.

Programs run in processes of their own, on ``fake_cuda.c`` in the place of CUDA, and names and
arguments are compared with the wheels'. Nothing here says how fast anything is.
"""

import contextlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_tools import requires_cuda_tools
from fake_cuda import elf_patch

from gpuflow.targets.cuda.library.blas.gemm import find_cublas
from gpuflow.targets.cuda.runtime.driver import graph_api

HERE = Path(__file__).parent
MEMORY = 256 << 20


def _why_not():
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    if shutil.which("gcc") is None:
        return "there is no gcc"
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return "CuPy's functions are redirected by instructions of x86-64, on Linux"
    return None if elf_patch.headers() else "CUDA's headers are not installed"


pytestmark = requires_cuda_tools
needs_cupy = pytest.mark.skipif(_why_not() is not None, reason=str(_why_not()))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return elf_patch.build(tmp_path_factory.mktemp("fake_cuda"))


def run(library, *arguments, **variables):
    """Run a program on the stand-in."""
    environment = {
        **os.environ,
        "GPUFLOW_PLATFORM": "cuda",
        "FAKE_CUDA_LATE": "1",
        "FAKE_CUDA_LOG": "1",
        "FAKE_CUDA_MEMORY": str(MEMORY),
        "CUPY_CACHE_DIR": str(library.parent / "cupy"),
        "CUPY_COMPILE_WITH_PTX": "1",  # CuPy's own kernels run too
        "CUPY_ACCELERATORS": "",  # but not those that are compiled into it
        **variables,
    }
    command = [sys.executable, str(HERE / "fake_cuda" / "start.py"), str(library), *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, cwd=HERE.parents[2]
    )


@needs_cupy
@pytest.mark.parametrize("devices", ["1", "2"])
def test_programs_on_real_cupy(devices, library):
    """Allocation, launches, graphs, copies, events and threads; the queues run late."""
    tests = str(HERE / "fake_cuda" / "on_cupy.py")
    done = run(
        library, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests, FAKE_CUDA_DEVICES=devices
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 17
    assert "skipped" not in done.stdout


@needs_cupy
def test_the_page_names_what_cupy_refuses(library):
    """All other calls of ops that are no kernels are made by CuPy, as far as they run here."""
    done = run(library, str(HERE / "fake_cuda" / "every_call.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"calls (\d+)", done.stdout)[1]) >= 40
    refused = {*re.findall(r"refused (\w+) (\w+)", done.stdout)}
    # Kernels have those of real numbers: ``Library.on_gpu`` of scatters.
    assert {name for name, _ in refused} == {"scatter_mul"}
    page = (HERE.parents[2] / "docs" / "gpu.md").read_text()
    refusal = r"that CuPy cannot make: CuPy [\d.]+ refuses only `scatter_mul` of complex numbers"
    assert re.search(refusal, page)


@needs_cupy
@pytest.mark.parametrize("check", ["0", "1"])
def test_a_kernel_that_fails(check, library):
    done = run(library, str(HERE / "fake_cuda" / "fault.py"), GPUFLOW_CHECK=check)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stdout + done.stderr


@needs_cupy
def test_graphs_with_products_beside_other_threads(library):
    """Products alone are captured, at a side stream; a changed batch costs no capture."""
    cublas = str(library.parent / "libcublas.so")
    done = run(library, str(HERE / "fake_cuda" / "products.py"), cublas)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stdout + done.stderr


@needs_cupy
def test_a_call_that_waits_lets_the_thread_of_another_gpu_launch(library):
    """With ctypes.PyDLL a call of cuBLAS or of graphs kept the lock, and peers never came."""
    cublas = str(library.parent / "libcublas.so")
    program = str(HERE / "fake_cuda" / "peers.py")
    done = run(library, program, cublas, FAKE_CUDA_DEVICES="2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "missed\nwith Python's lock\n", done.stdout


def test_calls_for_graphs_are_those_of_the_headers():
    """By name and number of arguments; fake_cuda.c is compiled with the headers' signatures."""
    folder = elf_patch.headers()
    if folder is None:
        pytest.skip("CUDA's headers are not installed")
    text = (folder / "cuda.h").read_text()
    for name, signature in graph_api._SIGNATURES.items():
        # A macro gives versions of a function its plain name; the first one is today's.
        macro = re.search(rf"#define (\w+)\s+(?:__CUDA_API_PTSZ\()?{name}\b", text)
        plain = name if macro is None else macro[1]
        arguments = re.search(rf"\bCUDAAPI\s+{plain}\((.*?)\);", text, re.DOTALL)[1]
        assert len(arguments.split(",")) == len(signature), name


@needs_cupy
def test_doctor_finds_the_devices(library):
    done = run(library, "-m", "gpuflow.cli.main", "doctor", FAKE_CUDA_DEVICES="2")
    assert re.search(r"GPUs +stand-in GPU 0 \(compute capability 9.0\), stand-in", done.stdout)
    driver = r"CUDA driver +runs CUDA up to 13\.0 \(needed: 13\.0, of driver 580\)\n"
    assert re.search(driver, done.stdout), done.stdout
    assert re.search(r"CuPy +cupy-cuda13x 14\.\d+\.\d+ \(needed: >=14,<15\)\n", done.stdout)


@needs_cupy
@pytest.mark.parametrize("name", ["matrix product", "FFT", "Cholesky solve"])
def test_doctor_says_what_runs_on_the_host(name, library):
    """The stand-in has no library but CUDA's own."""
    with contextlib.suppress(OSError):
        pytest.skip(f"{find_cublas()} is installed, and runs on GPUs only")
    done = run(library, "-m", "gpuflow.cli.doctor_trials", name)
    assert re.fullmatch(r"right, but on the host: \w+\(.*\): ImportError: .*\n", done.stdout)
    assert done.returncode == 0


# --- names and arguments of the wheels ---

# What parallel/collectives/nccl.py calls, with the arguments in its order.
NCCL_CALLS = {
    "allReduce": "sendbuf recvbuf count datatype op stream",
    "allGather": "sendbuf recvbuf count datatype stream",
    "reduceScatter": "sendbuf recvbuf recvcount datatype op stream",
    "send": "sendbuf count datatype peer stream",
    "recv": "recvbuf count datatype peer stream",
    "broadcast": "sendbuff recvbuff count datatype root stream",
    "rank_id": "",
    "size": "",
    "abort": "",
    "destroy": "",
    "check_async_error": "",
}


def _arguments(function):
    """The names in a signature that Cython wrote into a docstring."""
    inside = re.search(r"\((.*?)\)", function.__doc__.split("\n")[0])[1]
    names = [part.split("=")[0].split()[-1] for part in inside.split(",") if part.strip()]
    return [name for name in names if name != "self"]


def test_nccl_has_what_we_call():
    pytest.importorskip("cupy", reason="CuPy is not installed")
    nccl = pytest.importorskip("cupy.cuda.nccl", reason="NCCL is not installed")
    if not nccl.available:
        pytest.skip("NCCL is not installed")
    for name, wanted in NCCL_CALLS.items():
        assert _arguments(getattr(nccl.NcclCommunicator, name)) == wanted.split(), name
    assert _arguments(nccl.NcclCommunicator.commSplit)[:2] == ["color", "key"]
    assert _arguments(nccl.NcclCommunicator)[:3] == ["ndev", "commId", "rank"]
    assert callable(nccl.groupStart) and callable(nccl.groupEnd)
    assert issubclass(nccl.NcclError, RuntimeError)
    text = (HERE.parents[2] / "gpuflow/parallel/collectives/nccl.py").read_text()
    for name in {*re.findall(r'"([A-Z]+\d*)"', text), "SUM", "MAX", "MIN"}:
        assert isinstance(getattr(nccl, f"NCCL_{name}"), int), name
    assert isinstance(nccl.get_unique_id(), bytes | tuple)


LT_CALLS = {
    "create": "",
    "matmul_desc_create": "compute_type scale_type",
    "matrix_layout_create": "type rows cols ld",
    "matmul_preference_create": "",
    "matmul_desc_destroy": "matmul_desc",
    "matrix_layout_destroy": "mat_layout",
    "matmul_preference_destroy": "pref",
    "matmul_desc_set_attribute": "matmul_desc attr buf size_in_bytes",
    "matmul_preference_set_attribute": "pref attr buf size_in_bytes",
    "matmul_algo_get_heuristic": "light_handle operation_desc adesc bdesc cdesc ddesc preference "
    "requested_algo_count heuristic_results_array return_algo_count",
    "matmul": "light_handle compute_desc alpha a adesc b bdesc beta c cdesc d ddesc algo workspace "
    "workspace_size_in_bytes stream",
}


def test_cublaslt_has_what_we_call():
    pytest.importorskip("nvmath.bindings", reason="nvmath is not installed")
    from nvmath.bindings import cublasLt as lt

    from gpuflow.targets.cuda.library.blas import gemm_lt

    assert {*LT_CALLS} == {*gemm_lt._CREATING, *gemm_lt._OTHER}
    for name, wanted in LT_CALLS.items():
        assert _arguments(getattr(lt, name)) == wanted.split(), name
    desc, preference = lt.MatmulDescAttribute, lt.MatmulPreferenceAttribute
    names = desc.TRANSA, desc.TRANSB, desc.EPILOGUE, desc.BIAS_POINTER
    names += desc.EPILOGUE_AUX_POINTER, desc.EPILOGUE_AUX_LD
    assert names == (
        gemm_lt._TRANSA,
        gemm_lt._TRANSB,
        gemm_lt._EPILOGUE,
        gemm_lt._BIAS_POINTER,
        gemm_lt._AUX_POINTER,
        gemm_lt._AUX_LD,
    )
    assert preference.MAX_WORKSPACE_BYTES == gemm_lt._MAX_WORKSPACE_BYTES
    assert preference.REDUCTION_SCHEME_MASK == gemm_lt._REDUCTION_SCHEMES
    aligned = [getattr(preference, f"MIN_ALIGNMENT_{x}_BYTES") for x in "ABCD"]
    assert tuple(aligned) == gemm_lt._MIN_ALIGNMENTS
    schemes = lt.ReductionScheme
    assert schemes.INPLACE | schemes.COMPUTE_TYPE == gemm_lt._INPLACE_OR_FLOAT32
    epilogues = {
        lt.Epilogue.BIAS: gemm_lt.Epilogue(bias=True),
        lt.Epilogue.RELU_AUX_BIAS: gemm_lt.Epilogue("relu", bias=True, keeps=True),
        lt.Epilogue.GELU_AUX_BIAS: gemm_lt.Epilogue("gelu", bias=True, keeps=True),
        lt.Epilogue.RELU_BIAS: gemm_lt.Epilogue("relu", bias=True),
        lt.Epilogue.GELU: gemm_lt.Epilogue("gelu"),
        lt.Epilogue.DRELU_BGRAD: gemm_lt.Epilogue("relu", bias=True, gradient=True),
        lt.Epilogue.DGELU: gemm_lt.Epilogue("gelu", gradient=True),
        lt.Epilogue.DGELU_BGRAD: gemm_lt.Epilogue("gelu", bias=True, gradient=True),
    }
    for number, epilogue in epilogues.items():
        assert gemm_lt._epilogue_code(epilogue) == number, epilogue
    assert lt.matmul_heuristic_result_dtype.itemsize == gemm_lt._RESULT_BYTES
