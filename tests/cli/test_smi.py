"""`gpuflow smi`, what processes publish for it, and lines of arrays in the memory profile."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow.base.config import config
from gpuflow.base.garbage import collect_garbage
from gpuflow.cli import main, smi
from gpuflow.profiler import memory, publishing
from gpuflow.runtime.origins import Origins

PROGRAM = """
import sys, time
import numpy as np
import gpuflow as gf
import gpuflow.numpy as jnp

def make():
    return jnp.ones((300, 200))

a = make()
b = jnp.asarray(np.ones((400, 100), np.float32))
c = gf.jit(lambda x: x @ x.T)(a)
small = jnp.ones(3)
gf.profiler.save_device_memory_profile(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of running processes, for this process and its children."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setitem(config.environment.__dict__, "runtime_folder", tmp_path / "gpuflow")
    return tmp_path / "gpuflow"


@pytest.fixture
def process(folder, tmp_path):
    """A process that publishes, and waits for a line."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    environment = {**os.environ, "GPUFLOW_SMI": "1", "GPUFLOW_PLATFORM": "cpu"}
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "memory.prof")],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as running:
        assert running.stdout.readline() == "ready\n"
        yield running
        if running.poll() is None:
            running.communicate("\n", timeout=60)


def test_processes_show_their_arrays_and_lines(process, folder, capsys):
    assert not (folder / f"{process.pid}.json").exists()  # nobody has looked
    text, end = "", time.monotonic() + 60  # the machine may be busy
    while f"process {process.pid}: " not in text and time.monotonic() < end:
        assert main.main(["smi", "--once"]) == 0
        text = capsys.readouterr().out
    assert f"process {process.pid}: " in text and "train.py" in text
    assert "cpu:0 " in text and " in use, at most " in text
    rows = {re.search(r"f32\S+", line)[0]: line for line in text.splitlines() if "f32[" in line}
    assert rows["f32[300,200]"].endswith("train.py:8 (make)")
    assert rows["f32[400,100]"].endswith("train.py:11 (<module>)")
    assert rows["f32[300,300]"].endswith("train.py:12 (<module>)")
    assert rows["f32[3]"].endswith("not known")
    process.communicate("\n", timeout=60)
    assert process.returncode == 0
    assert not list(folder.glob("*.json"))  # it has taken its file with it


def test_a_process_that_was_killed_is_gone(process, folder):
    publishing.request(folder)
    path = folder / f"{process.pid}.json"
    end = time.monotonic() + 30
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert [state["pid"] for state in publishing.processes(folder)] == [process.pid]
    process.kill()
    process.wait()
    assert path.exists() and publishing.processes(folder) == [] and not path.exists()


def test_the_memory_profile_knows_lines(process, tmp_path):
    text = gzip.decompress((tmp_path / "memory.prof").read_bytes())
    for name in (b"train.py", b"make", b"f32[300,200]", b"cpu"):
        assert name in text


def test_without_the_variable_nothing_is_published(folder):
    code = "import gpuflow, threading; print([t.name for t in threading.enumerate()])"
    environment = {k: v for k, v in os.environ.items() if k != "GPUFLOW_SMI"}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert run.stdout.strip() == "['MainThread']" and not folder.exists()


def test_nobody_is_there(folder, capsys):
    assert main.main(["smi", "--once"]) == 0
    assert "start yours with GPUFLOW_SMI=1" in capsys.readouterr().out


def test_folders_of_others_are_refused(folder, capsys):
    folder.mkdir()
    folder.chmod(0o777)
    assert main.main(["smi", "--once"]) == 2
    assert "must be this user's alone" in capsys.readouterr().err


def test_files_that_are_no_states(folder):
    folder.mkdir(mode=0o700)
    number = os.getpid()
    for name, text in (
        ("other.json", "{}"),
        ("1x.json", "{}"),
        (f"{number}.json", '{"pid": 1}'),
    ):
        (folder / name).write_text(text)
    assert publishing.processes(folder) == []
    (folder / f"{number}.json").write_text("[" * 100)
    assert publishing.processes(folder) == []
    state = publishing.state_of_process()
    (folder / f"{number}.json").write_text(json.dumps(state))
    assert publishing.processes(folder) == [state]
    # What is missing or of another type is shown as nothing.
    strange = {"pid": number, "groups": [3], "devices": {"cpu:0": 3}, "bytes": "x", "time": None}
    assert f"process {number}" in smi.report([strange], 5)


def test_files_of_users_stay(folder):
    """Any file of digits was removed, where no process had the number."""
    folder.mkdir(mode=0o700)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    number = ended.pid
    state = {**publishing.state_of_process(), "pid": number}
    path = folder / f"{number}.json"
    stays = [
        '{"notes": 1}',
        "[]",
        "text",
        "",
        json.dumps({"pid": number}),
        json.dumps({**state, "more": 1}),
        json.dumps({**state, "groups": 3}),
        json.dumps({**state, "pid": number + 1}),
    ]
    for text in stays:
        path.write_text(text)
        assert publishing.processes(folder) == [] and path.read_text() == text
    negative = folder / "-1.json"
    negative.write_text(json.dumps({**state, "pid": -1}))
    path.write_text(json.dumps(state))
    assert publishing.processes(folder) == [] and not path.exists() and negative.exists()


def test_a_process_does_not_touch_the_file_of_another(folder):
    """A file that has its name already is neither replaced nor removed at its end."""
    folder.mkdir(mode=0o700)
    code = f"""
import os, pathlib, time
folder = pathlib.Path({str(folder)!r})
own = folder / f"{{os.getpid()}}.json"
own.write_text("notes")
own.chmod(0o600)
(folder / "watched").touch()
import gpuflow
time.sleep(1.5)
print(own)
"""
    environment = {**os.environ, "GPUFLOW_SMI": "1"}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert Path(run.stdout.strip()).read_text() == "notes"


def test_a_terminal_obeys_nothing_that_is_shown():
    state = {**publishing.state_of_process(), "command": "a\x1b[2Jb\n"}
    text = smi.report([state], 5)
    assert "a?[2Jb?" in text and "\x1b" not in text


def test_the_state_of_this_process():
    kept = [jnp.zeros((211, 17)) for _ in range(3)]
    state = publishing.state_of_process()
    (group,) = [group for group in state["groups"] if group["type"] == "f32[211,17]"]
    assert group["count"] == 3 and group["bytes"] == sum(array.nbytes for array in kept)
    assert state["pid"] == os.getpid() and state["devices"][str(kept[0].device)]["bytes_in_use"] > 0
    assert json.loads(json.dumps(state)) == state


def test_lines_are_those_of_arrays_that_live():
    origins = Origins()
    data = np.ones(100)
    origins.note(data)
    line = origins.of(data)
    assert line.file == __file__ and origins.of(data.reshape(10, 10)[2:]) is line
    assert origins.of(np.ones(100)) is None
    del data
    collect_garbage()
    assert not origins._sources


def test_lines_that_are_not_remembered():
    array = jnp.ones((300, 300))
    assert array.device.driver.made_at(array.data) is None
    groups = [group for group in memory.live_groups() if group.type == "f32[300,300]"]
    assert groups and all(group.line is None for group in groups)
    assert gf.profiler.device_memory_profile()
