"""What LLVM says about the processor is remembered, for each processor and cache folder."""

import json
from dataclasses import replace

import llvmlite.binding as llvm
import pytest

from gpuflow.base.config import config
from gpuflow.targets.cpu.codegen import host
from gpuflow.targets.cpu.codegen.host import HostProcessor, processor_registers
from gpuflow.targets.cpu.codegen.image.loader import HAS_IMAGES

pytestmark = pytest.mark.skipif(not HAS_IMAGES, reason="asks x86-64 processors, on Linux")


def from_llvm():
    features = llvm.get_host_cpu_features()
    present = sorted(name for name, there in features.items() if there)
    return HostProcessor(llvm.get_host_cpu_name(), features.flatten(), tuple(present))


def asked():
    return host.host_processor.__wrapped__()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "environment", replace(config.environment, cache_folder=tmp_path))
    return tmp_path / "processors"


@pytest.fixture
def no_llvm(monkeypatch):
    """``forbid()``: from then on, LLVM must not be asked."""

    def refuse():
        raise AssertionError("LLVM was asked")

    return lambda: monkeypatch.setattr(host, "_query_llvm", refuse)


def test_the_answer_is_llvms_and_is_kept(folder, no_llvm):
    assert asked() == from_llvm()
    no_llvm()
    assert asked() == from_llvm()
    assert len(list(folder.iterdir())) == 1


def test_registers_are_those_of_the_processor_and_not_of_a_core():
    """Bits of leaf 1 that the system's own list, and LLVM's, name."""
    registers = processor_registers()
    assert registers == processor_registers()
    leaf = next(values for values in registers if values[:2] == [1, 0])
    ecx, features = leaf[3], from_llvm().features
    for bit, name in ((0, "sse3"), (12, "fma"), (13, "cx16"), (20, "sse4.2"), (23, "popcnt")):
        assert bool(ecx >> bit & 1) == (name in features)


def test_processors_that_share_a_folder_have_answers_of_their_own(folder, monkeypatch):
    other = HostProcessor("core2", "+sse3", ("sse3",))
    own = asked()
    registers = processor_registers()
    registers[1][-1] ^= 1
    with monkeypatch.context() as patch:
        patch.setattr(host, "processor_registers", lambda: registers)
        patch.setattr(host, "_query_llvm", lambda: other)
        assert asked() == other
    assert asked() == own and len(list(folder.iterdir())) == 2


def test_another_llvm_is_asked_again(folder, monkeypatch):
    own = asked()
    monkeypatch.setattr(host, "version_of", lambda package: "999")
    assert asked() == own and len(list(folder.iterdir())) == 2


def damages(text):
    record = json.loads(text)
    record["processor"]["flags"] += ",+avx512f"
    return {
        "empty": "",
        "cut": text[:50],
        "no record": "[1, 2]",
        "no fields": "{}",
        "changed": json.dumps(record),
        "null": "null",
        "bytes": "\x00\x01",
        "other": '{"processor": 1}',
    }


@pytest.mark.parametrize("kind", damages('{"processor": {"flags": ""}}'))
def test_damaged_answers_are_asked_for_again(kind, folder, no_llvm):
    asked()
    (path,) = folder.iterdir()
    path.write_text(damages(path.read_text())[kind])
    assert asked() == from_llvm()
    no_llvm()
    assert asked() == from_llvm()


def test_folders_that_cannot_be_used(folder, monkeypatch):
    folder.write_text("a file")
    assert asked() == from_llvm()
    monkeypatch.setattr(config, "environment", replace(config.environment, cache_folder=None))
    assert asked() == from_llvm()


def test_where_no_code_can_be_loaded_llvm_is_asked(folder, monkeypatch):
    def refuse():
        raise OSError("no executable memory")

    monkeypatch.setattr(host, "processor_registers", refuse)
    assert asked() == from_llvm() and not folder.exists()
    monkeypatch.setattr(host, "HAS_IMAGES", False)
    assert asked() == from_llvm()
