"""The kernel cache: hits, damage, folders that cannot be used, many processes and threads."""

import json
import os
import subprocess
import sys
import threading
import warnings
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from cpu_harness import argument_words
from test_cpu_kernels import unary_kernel

import gpuflow
from gpuflow.base.errors import CacheWarning
from gpuflow.compiler.cache import kernel_cache
from gpuflow.compiler.cache.kernel_cache import CacheEntry, KernelCache, cache_key, source_digest
from gpuflow.compiler.cache.versions import version_of
from gpuflow.kir.text import kernel_text
from gpuflow.targets.cpu.codegen import libm
from gpuflow.targets.cpu.codegen.image.loader import HAS_IMAGES
from gpuflow.targets.cpu.runtime.kernels import cache_key_inputs, compile_cpu, print_cpu
from gpuflow.targets.llvm import ir_values

KERNEL = unary_kernel("abs")
KEY = cache_key(kernel_text(KERNEL), cache_key_inputs())
CODE = f"{KEY}.{'image' if HAS_IMAGES else 'o'}"
FOLDER_OF_PACKAGE = os.path.dirname(os.path.dirname(gpuflow.__file__))


def check_result(loaded):
    x, out = np.array([-1, 2, -3], np.float32), np.zeros(3, np.float32)
    words = argument_words(KERNEL, {"x": x, "o": out}, {"i0": 3}, {})
    loaded.call(words.ctypes.data, 0, 3)
    np.testing.assert_array_equal(out, [1, 2, 3])


@pytest.fixture
def filled(tmp_path):
    """A folder that holds KERNEL."""
    compile_cpu(KERNEL, KernelCache(tmp_path))
    return tmp_path


def test_second_cache_loads_what_the_first_built(filled):
    cache = KernelCache(filled)
    check_result(compile_cpu(KERNEL, cache))
    assert (cache.stats.built, cache.stats.loaded) == (0, 1)
    assert compile_cpu(KERNEL, cache) is compile_cpu(KERNEL, cache)
    assert cache.stats.loaded == 1
    names = {path.name for path in (filled / KEY[:2]).iterdir()}
    assert names == {CODE, f"{KEY}.py", f"{KEY}.json"}
    assert cache.path(KEY, "py").read_text() == print_cpu(KERNEL).text


def test_built_kernels_are_counted_and_timed(tmp_path):
    cache = KernelCache(tmp_path)
    check_result(compile_cpu(KERNEL, cache))
    assert cache.stats.built == 1 and cache.stats.build_seconds > 0


def damage_code(folder):
    path = folder / KEY[:2] / CODE
    code = bytearray(path.read_bytes())
    code[len(code) // 2] ^= 1
    path.write_bytes(code)


def truncate_code(folder):
    path = folder / KEY[:2] / CODE
    path.write_bytes(path.read_bytes()[:100])


def remove_code(folder):
    (folder / KEY[:2] / CODE).unlink()


def truncate_description(folder):
    (folder / KEY[:2] / f"{KEY}.json").write_text('{"entry": "k')


def replace_description(folder):
    (folder / KEY[:2] / f"{KEY}.json").write_text(json.dumps([1, 2]))


def wrong_description(folder):
    (folder / KEY[:2] / f"{KEY}.json").write_text(json.dumps({"entry": 1}))


def changed_description(folder):
    # One flipped bit of a number in "info" would launch a GPU's kernel with other sizes.
    path = folder / KEY[:2] / f"{KEY}.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "info": {"changed": 1}}))


def description_of_another(folder):
    other = KEY[:2] + "0" * 62
    for file in list((folder / KEY[:2]).iterdir()):
        file.rename(file.with_name(file.name.replace(KEY, other)))
    KernelCache(folder)._write(KEY, CacheEntry(b"code", "o", "", "k"))
    (folder / KEY[:2] / f"{other}.json").rename(folder / KEY[:2] / f"{KEY}.json")


def deep_description(folder):
    # json gave up with a RecursionError, which ended the program.
    (folder / KEY[:2] / f"{KEY}.json").write_text("[" * 100_000)


def fifo_description(folder):
    # Opening it waited for somebody to write, for ever.
    path = folder / KEY[:2] / f"{KEY}.json"
    path.unlink()
    os.mkfifo(path)


def fifo_code(folder):
    (folder / KEY[:2] / CODE).unlink()
    os.mkfifo(folder / KEY[:2] / CODE)


def fifo_source(folder):
    (folder / KEY[:2] / f"{KEY}.py").unlink()
    os.mkfifo(folder / KEY[:2] / f"{KEY}.py")


def device_code(folder):
    (folder / KEY[:2] / CODE).unlink()
    (folder / KEY[:2] / CODE).symlink_to("/dev/zero")


def code_that_others_may_write(folder):
    (folder / KEY[:2] / CODE).chmod(0o666)


def linked_code(folder):
    path = folder / KEY[:2] / CODE
    path.rename(folder / "elsewhere")
    path.symlink_to(folder / "elsewhere")


DAMAGES = [
    damage_code,
    truncate_code,
    remove_code,
    truncate_description,
    replace_description,
    wrong_description,
    changed_description,
    description_of_another,
    deep_description,
    fifo_description,
    fifo_code,
    fifo_source,
    device_code,
    code_that_others_may_write,
    linked_code,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entry_costs_one_warning_and_a_rebuild(filled, damage):
    damage(filled)
    cache = KernelCache(filled)
    with pytest.warns(CacheWarning, match="(damaged|be read).*Fix: delete the folder") as caught:
        check_result(compile_cpu(KERNEL, cache))
    assert len(caught) == 1 and cache.stats.built == 1
    mended = KernelCache(filled)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_result(compile_cpu(KERNEL, mended))
    assert mended.stats.loaded == 1


@pytest.mark.parametrize("suffix", ["json", CODE.partition(".")[2]])
def test_a_folder_in_place_of_a_file_costs_one_warning(filled, suffix):
    path = filled / KEY[:2] / f"{KEY}.{suffix}"
    path.unlink()
    path.mkdir()
    cache = KernelCache(filled)
    with pytest.warns(CacheWarning, match="Fix: delete the folder") as caught:
        check_result(compile_cpu(KERNEL, cache))
    assert len(caught) == 1 and cache.stats.built == 1


def test_missing_source_file_does_not_matter(filled):
    (filled / KEY[:2] / f"{KEY}.py").unlink()
    cache = KernelCache(filled)
    check_result(compile_cpu(KERNEL, cache))
    assert cache.stats.loaded == 1


def test_folder_that_is_a_file_costs_one_warning(tmp_path):
    path = tmp_path / "cache"
    path.write_text("not a folder")
    cache = KernelCache(path)
    entry = CacheEntry(b"code", "o", "text", "k")
    with pytest.warns(CacheWarning, match="kernel cache folder must be usable") as caught:
        assert cache.get("0" * 64, lambda: entry) == entry
        assert cache.get("1" * 64, lambda: entry) == entry
    assert len(caught) == 1 and cache.stats.built == 2


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_folder_costs_one_warning(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.warns(CacheWarning, match="cannot be written"):
        check_result(compile_cpu(KERNEL, KernelCache(tmp_path / "cache")))
    tmp_path.chmod(0o700)


def test_write_errors_leave_no_temporary_files(tmp_path, monkeypatch):
    def refuse(source, target):
        raise PermissionError(f"may not write {target}")

    monkeypatch.setattr(os, "replace", refuse)
    entry = CacheEntry(b"code", "o", "text", "k")
    with pytest.warns(CacheWarning, match="cannot be written"):
        assert KernelCache(tmp_path).get("0" * 64, lambda: entry) == entry
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_stored_object_that_does_not_link_is_built_again(tmp_path):
    # Such an object, with a good checksum, once ended the program.
    check_result(compile_cpu(KERNEL, KernelCache(tmp_path)))
    (description,) = tmp_path.rglob("*.json")
    record = json.loads(description.read_text())
    record["entry"] = "no_such_symbol"
    code = (description.parent / CODE).read_bytes()
    record["checksum"] = kernel_cache._checksum(KEY, record, code)
    description.write_text(json.dumps(record))
    cache = KernelCache(tmp_path)
    with pytest.warns(CacheWarning, match="does not load"):
        check_result(compile_cpu(KERNEL, cache))
    assert cache.stats.built == 1


def test_forked_child_does_not_wait_for_lost_threads():
    # A child forked during another thread's build waited for it for ever.
    cache = KernelCache(None)
    cache._lock.acquire()
    slot = cache._slots.setdefault("0" * 64, kernel_cache._Slot())
    slot.lock.acquire()
    cache.reset_locks_after_fork()
    assert cache.load_once("0" * 64, lambda: 5) == 5
    assert cache.get("1" * 64, lambda: CacheEntry(b"", "o", "", "k")).entry == "k"


def test_without_a_folder_nothing_is_stored():
    cache = KernelCache(None)
    check_result(compile_cpu(KERNEL, cache))
    assert cache.stats.built == 1 and cache.path(KEY, "o") is None


def test_errors_of_a_build_pass_through_and_are_not_kept(tmp_path):
    cache = KernelCache(tmp_path)

    def fail():
        raise ValueError("no such function")

    for _ in range(2):
        with pytest.raises(ValueError, match="no such function"):
            cache.load_once("0" * 64, lambda: cache.get("0" * 64, fail))
    assert cache.load_once("0" * 64, lambda: 5) == 5


def test_the_key_depends_on_text_and_parts():
    parts = cache_key_inputs()
    assert parts[0] == "cpu" and version_of("llvmlite") in parts
    assert version_of("no-such-package") == "none"
    for name in ("numba", "llvmlite", "ML.dtypes"):
        assert version_of(name) == metadata.version(name)
    keys = {
        cache_key("a", ("cpu", "1")),
        cache_key("b", ("cpu", "1")),
        cache_key("a", ("cpu", "2")),
        cache_key("a", ("cpu1",)),
    }
    assert len(keys) == 4
    digests = {source_digest([ir_values]), source_digest([libm]), source_digest([])}
    assert len(digests) == 3 and source_digest([ir_values]) in digests


def test_threads_build_a_kernel_once(tmp_path):
    cache, found = KernelCache(tmp_path), []
    threads = [
        threading.Thread(target=lambda: found.append(compile_cpu(KERNEL, cache))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.stats.built == 1 and len({id(kernel) for kernel in found}) == 1


PROCESS = """
import sys
sys.path[:0] = {paths!r}
from test_cpu_cache import KERNEL, KernelCache, check_result, compile_cpu
cache = KernelCache({folder!r})
check_result(compile_cpu(KERNEL, cache, check=True))
print(cache.stats.built, cache.stats.loaded, "numba" in sys.modules, "cupy" in sys.modules)
"""


def start_process(folder):
    here = Path(__file__).parent
    paths = [str(here), str(here.parents[1]), FOLDER_OF_PACKAGE]
    text = PROCESS.format(paths=paths, folder=str(folder))
    return subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_second_process_loads_without_numba(filled):
    process = start_process(filled)
    output, errors = process.communicate(timeout=60)
    assert output.split() == ["0", "1", "False", "False"], errors


def test_processes_that_build_the_same_kernel_at_once_all_succeed(tmp_path):
    processes = [start_process(tmp_path) for _ in range(4)]
    results = [process.communicate(timeout=120) for process in processes]
    for process, (output, errors) in zip(processes, results, strict=True):
        assert process.returncode == 0 and "CacheWarning" not in errors, errors
        assert sum(map(int, output.split()[:2])) == 1
    names = {path.name for path in (tmp_path / KEY[:2]).iterdir()}
    assert names == {CODE, f"{KEY}.py", f"{KEY}.json"}
