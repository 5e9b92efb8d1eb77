"""Forks, Ctrl-C and cache folders that go wrong: right answers, at most a warning, never a hang."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from hashlib import sha256
from pathlib import Path

import llvmlite.binding as llvm
import pytest

PACKAGE = str(Path(__file__).resolve().parents[2])
POSIX = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and signals")

START = """
import os, shutil, signal, sys, threading, time, traceback, warnings
warnings.simplefilter("always")
import numpy as np
import gpuflow as gf
import gpuflow.numpy as jnp

x = np.random.default_rng(0).standard_normal((300, 300)).astype(np.float32)
OPS = [jnp.sin, jnp.cos, jnp.exp, jnp.tanh, jnp.arctan, jnp.abs]

def fresh(number, outputs=1):
    '''A function that no other number has.'''
    def f(x):
        results = []
        for place in range(outputs):
            y = x
            for digit in range(6):
                y = OPS[(number + 7 * place) // 6**digit % 6](y) + y * 0.5
            results.append(y.sum(place % 2) + place)
        return results
    return gf.jit(f)

step = gf.jit(lambda x: ((jnp.tanh(x) @ x).sum(0) + x.mean(1), jnp.cumsum(x, 1)))
first = [np.asarray(out) for out in step(x)]

def check():
    for got, want in zip(step(x), first):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_allclose(gf.jit(lambda x: x * 2 + 1)(x), x * 2 + 1, rtol=1e-6)
"""


def run(body, folder, seconds=120, **variables):
    """What a program printed after START, and its errors."""
    environment = {**os.environ, "GPUFLOW_CACHE_DIR": str(folder), "PYTHONPATH": PACKAGE}
    process = subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(body)],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout, process.stderr


# --- forks ---------------------------------------------------------------------------------


@POSIX
def test_forks_while_other_threads_build_and_run(tmp_path):
    """One child in forty waited for llvmlite's lock, which a thread of its parent had held."""
    body = """
        stopped = False

        def build():
            number = 0
            while not stopped:
                number += 1
                fresh(number)(x[:7])

        def call():
            while not stopped:
                step(x)

        threads = [threading.Thread(target=f, daemon=True) for f in (build, call)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        for number in range(20):
            child = os.fork()
            if child == 0:
                try:
                    check()
                    fresh(10_000 + number)(x[:7])
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)
            end = time.time() + 20
            while True:
                found, status = os.waitpid(child, os.WNOHANG)
                if found:
                    break
                if time.time() > end:
                    os.kill(child, signal.SIGKILL)
                time.sleep(0.002)
            assert status == 0, (number, status)
        stopped = True
        for thread in threads:
            thread.join()
        check()
    """
    run(body, tmp_path)


@POSIX
def test_processes_of_multiprocessing_that_are_forked(tmp_path):
    body = """
        import multiprocessing

        def work(number):
            check()
            return float(fresh(number)(x)[0].sum())

        with multiprocessing.get_context("fork").Pool(3) as pool:
            got = pool.map_async(work, range(9)).get(60)
        np.testing.assert_allclose(got, [work(number) for number in range(9)], rtol=1e-6)
        check()
    """
    run(body, tmp_path)


# --- Ctrl-C --------------------------------------------------------------------------------

CALLS = {
    "a kernel": "gf.jit(lambda x: sum(jnp.sin(jnp.exp(x * k)) for k in range(20)))(big)",
    "a product": "gf.jit(lambda x: x @ x)(big)",
    "a build": "number += 1; fresh(number, 20)(x[:9])",
    "a trace": "number += 1; gf.jit(lambda x: fresh(number, 60)(x)).lower(x)",
    "eager": "jnp.sin(x) @ x",
    "a loop": "gf.jit(lambda x: gf.lax.fori_loop(0, 100_000, lambda k, y: jnp.sin(y) + k, x))(x)",
}


@POSIX
@pytest.mark.parametrize("call", CALLS)
def test_an_interrupt_arrives_and_leaves_nothing_broken(call, tmp_path):
    """At two moments each; at the latest when the kernel ends."""
    body = f"""
        # Whoever started the tests in the background made them ignore it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        number = 0
        big = np.tile(x, (4, 4))

        def interrupt(seconds):
            time.sleep(seconds)
            os.kill(os.getpid(), signal.SIGINT)

        for seconds in (0.05, 0.47):
            thread = threading.Thread(target=interrupt, args=(seconds,))
            start = time.time()
            try:
                thread.start()
                while time.time() < start + 30:
                    {CALLS[call]}
            except KeyboardInterrupt:
                print("interrupted")
            thread.join()
            check()
            fresh(50_000 + int(100 * seconds))(x)
    """
    output, errors = run(body, tmp_path)
    assert output.split() == ["interrupted"] * 2
    # What an interrupted process stored is good, or is not there.
    _, errors = run("check(); [fresh(number, 20)(x[:9]) for number in range(1, 4)]", tmp_path)
    assert "CacheWarning" not in errors


# --- cache folders -------------------------------------------------------------------------

BUILDS = "check(); print(sum(float(fresh(n)(x)[0].sum()) for n in range(3)))"


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    return run(BUILDS, tmp_path_factory.mktemp("good"))[0]


@POSIX
def test_a_disk_that_takes_no_more(tmp_path, answer):
    """Files may have 2,000 bytes: descriptions are stored, code is not."""
    body = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
    output, errors = run(body + BUILDS, tmp_path)
    assert output == answer and errors.count("CacheWarning") == 1
    again, errors = run(BUILDS, tmp_path)
    assert again == answer and "CacheWarning" not in errors


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a file system of Linux")
def test_a_full_file_system(tmp_path, answer):
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("may not mount")
    try:
        output, errors = run(BUILDS, tmp_path)
        assert output == answer and errors.count("CacheWarning") == 1
        assert not list(tmp_path.rglob(".new-*"))
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
        output, errors = run(BUILDS, tmp_path)
        assert output == answer and errors.count("CacheWarning") == 1
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a folder that nobody may write into")
def test_a_folder_that_cannot_be_made(answer):
    output, errors = run(BUILDS, "/proc/gpuflow")
    assert output == answer and errors.count("CacheWarning") == 1


def test_a_folder_that_is_removed_again_and_again(tmp_path, answer):
    body = """
        folder = os.environ["GPUFLOW_CACHE_DIR"]
        stopped = False

        def remove():
            while not stopped:
                shutil.rmtree(folder, ignore_errors=True)
                time.sleep(0.003)

        thread = threading.Thread(target=remove)
        thread.start()
        for number in range(20, 30):
            fresh(number)(x[:7])
    """
    end = "\nstopped = True\nthread.join()\n"
    output, _ = run(textwrap.dedent(body) + BUILDS + end, tmp_path / "cache")
    assert output == answer
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    output, errors = run(BUILDS, tmp_path / "cache")
    assert output == answer and "CacheWarning" not in errors


def test_four_processes_that_build_the_same_kernels(tmp_path, answer):
    environment = {**os.environ, "GPUFLOW_CACHE_DIR": str(tmp_path), "PYTHONPATH": PACKAGE}
    command = [sys.executable, "-c", START + BUILDS]
    processes = [
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for process in processes:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0 and output == answer and "CacheWarning" not in errors
    output, errors = run(BUILDS, tmp_path)
    assert output == answer and "CacheWarning" not in errors


def foreign_objects():
    """Object files that no x86 or ARM process can run: of the other one, of Windows, and noise."""
    text = "define void @kernel(ptr %0, i64 %1, i64 %2) {\n  ret void\n}\n"
    objects = {"noise": bytes(range(256)) * 20, "nothing": b""}
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    for triple in ("aarch64-unknown-linux-gnu", "x86_64-unknown-linux-gnu", "x86_64-pc-windows"):
        try:
            machine = llvm.Target.from_triple(triple).create_target_machine()
        except RuntimeError:
            continue  # llvmlite may have been built without it
        module = llvm.parse_assembly(text)
        module.triple = triple
        objects[triple] = machine.emit_object(module)
    return objects


@pytest.mark.parametrize("kind", foreign_objects())
def test_entries_that_are_another_machines(kind, tmp_path, answer):
    """With a good checksum, as if a key of theirs were ours."""
    code = foreign_objects()[kind]
    run(BUILDS, tmp_path)
    for path in tmp_path.glob("??/*.json"):
        record = json.loads(path.read_text())
        if record["imports"] or "kernel" not in record["entry"]:
            continue
        path.with_suffix(f".{record['suffix']}").write_bytes(code)
        path.write_text(json.dumps({**record, "checksum": sha256(code).hexdigest()}))
    output, errors = run(BUILDS, tmp_path)
    assert output == answer and errors.count("CacheWarning") == 1


# --- limits of the address space and of threads ------------------------------------------------

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]) << 20,) * 2)
import gpuflow as gf
import gpuflow.numpy as jnp
try:
    x = gf.jit(lambda x: jnp.tanh(x) @ x + jnp.fft.fft(x).real)(jnp.ones((300, 300)))
except MemoryError as error:
    print(error)
else:
    print("made", x.shape)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
def test_a_limit_of_the_address_space_is_named(is_warm, tmp_path):
    """LLVM and OpenBLAS end the process, or say that a file of theirs could not be found."""
    variables = {
        **os.environ,
        "GPUFLOW_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": PACKAGE,
        "GPUFLOW_NUM_THREADS": "2",
        "OPENBLAS_NUM_THREADS": "1",
    }

    def outcome(megabytes):
        process = subprocess.run(
            [sys.executable, "-c", LIMITED, str(megabytes)],
            env=variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    if is_warm:
        assert outcome(4000) == "made (300, 300)\n"
    outcomes = [outcome(megabytes) for megabytes in (290, 420, 450, 700, 4000)]
    assert outcomes[-1] == "made (300, 300)\n" and "[memory]" in outcomes[0]
    for text in outcomes:
        assert text == "made (300, 300)\n" or ("MB of address space" in text and "Fix: " in text)


@POSIX
def test_fewer_threads_than_were_asked_for(tmp_path):
    """The second worker cannot be started."""
    body = """
        starts, start = [], threading.Thread.start

        def refuse(thread):
            if thread.name == "gpuflow-worker":
                starts.append(thread)
                if len(starts) > 1:
                    raise RuntimeError("can't start new thread")
            start(thread)

        from gpuflow.targets.cpu.runtime.native import pool
        pool.pool().stop()
        pool.pool().reset_after_fork()
        threading.Thread.start = refuse
        pool.pool().start()
        check()
        print(len(starts), pool.pool().threads)
    """
    output, errors = run(body, tmp_path, GPUFLOW_NUM_THREADS="4")
    assert output.split() == ["2", "2"]
    assert "[threads] the system must let 4 threads run; got 2" in errors
