"""What `gpuflow launch` makes of its options; whole groups are in tests/parallel/test_faults.py."""

import argparse
import io
import os
import sys
import time

import pytest

from gpuflow.cli import launch, launch_output
from gpuflow.cli.launch_group import Group, Progress, Start
from gpuflow.cli.launch_output import Output, is_consequence, is_cut, last_traceback
from gpuflow.cli.main import main


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("")
    return str(path)


@pytest.fixture(autouse=True)
def no_launcher_around(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("SLURM_", "PMI_", "OMPI_", "GPUFLOW_TOKEN", "CUDA_VISIBLE")):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["-n", "0"], "-n must be an integer of at least 1; got 0. Fix: -n 1"),
        (["-n", "two"], "-n must be an integer of at least 1; got two. Fix: -n 1"),
        (["--nnodes", "1.5"], "--nnodes must be an integer of at least 1; got 1.5"),
        (["--node-rank", "-1"], "--node-rank must be an integer of at least 0; got -1"),
        (["--max-restarts", "x"], "--max-restarts must be an integer of at least 0; got x"),
        (["--grace", "long"], "--grace must be seconds, 0 or more; got long. Fix: --grace 30"),
        (["--grace", "inf"], "--grace must be seconds, 0 or more; got inf"),
        (["--nnodes", "2", "--node-rank", "2"], "--node-rank must be from 0 to 1; got 2"),
        (["--nnodes", "2"], "several machines need a coordinator"),
        (["--nnodes", "2", "--coordinator", "a:9"], "Fix: export GPUFLOW_TOKEN"),
        (["--nnodes", "2", "--mpi"], "--mpi starts on one machine"),
        (["--coordinator", "a"], "an address must be host:port; got 'a'"),
        (["--watchdog", "-3"], "--watchdog must be seconds, 0 or more; got -3"),
        (["--watchdog", "nan"], "--watchdog must be seconds, 0 or more; got nan"),
        (["--log-dir", "/dev/null/logs"], "--log-dir must be a folder that can be written; got "),
    ],
)
def test_bad_options(options, text, script, capsys):
    assert main(["launch", *options, script]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("name", ["GPUFLOW_COLLECTIVE_TIMEOUT", "PMI_RANK"])
def test_bad_variables(name, script, capsys, monkeypatch):
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "1")
    monkeypatch.setenv(name, "none")
    assert main(["launch", script]) == 2
    assert f"gpuflow launch: [config] {name} must be " in capsys.readouterr().err


def test_no_such_script(capsys):
    assert main(["launch", "nowhere.py"]) == 2
    assert "the script must be a file; got nowhere.py" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["nowhere.train", ".train"])
def test_no_such_module(name, capsys):
    assert main(["launch", "-m", name]) == 2
    assert f"-m must be followed by a module; found no {name}" in capsys.readouterr().err


def test_ranks_of_a_module():
    starts = launch._rank_starts(options(script="package.train", module=True), {}, attempt=0)
    assert starts[1].command[-5:] == ("gpuflow.cli.worker", "-m", "package.train", "--steps", "3")


def options(**values):
    given = {
        "procs": 2,
        "nnodes": 1,
        "node_rank": 0,
        "coordinator": None,
        "script": "s.py",
        "module": False,
        "arguments": ["--steps", "3"],
    }
    return argparse.Namespace(**given | values)


def test_environment_of_ranks(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.delenv("GPUFLOW_PLATFORM", raising=False)
    given = options(procs=3, nnodes=2, node_rank=1, coordinator="a:9")
    said = {"GPUFLOW_TOKEN": "t", "CUDA_VISIBLE_DEVICES": "4, 6"}
    starts = launch._rank_starts(given, said, attempt=2)
    assert [start.rank for start in starts] == [3, 4, 5]
    variables = starts[2].environment
    assert starts[2].command[-4:] == ("gpuflow.cli.worker", "s.py", "--steps", "3")
    assert variables["GPUFLOW_PROCESS_ID"] == "5" and variables["GPUFLOW_NUM_PROCESSES"] == "6"
    assert variables["GPUFLOW_LOCAL_ID"] == "2" and variables["GPUFLOW_LOCAL_SIZE"] == "3"
    assert variables["GPUFLOW_COORDINATOR"] == "a:9" and variables["GPUFLOW_TOKEN"] == "t"
    assert variables["GPUFLOW_RESTART"] == "2"
    assert variables["OMP_NUM_THREADS"] == "7"  # what the user says holds
    assert variables["MKL_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 3))


def test_each_rank_has_a_gpu(monkeypatch):
    monkeypatch.setattr(launch, "_gpus", lambda said: ["4", "6"])
    starts = launch._rank_starts(options(procs=3), {}, attempt=0)
    assert [start.environment["CUDA_VISIBLE_DEVICES"] for start in starts] == ["4", "6", "4"]
    tokens = {start.environment["GPUFLOW_TOKEN"] for start in starts}
    assert len(tokens) == 1 and len(tokens.pop()) == 32


# --- output ---------------------------------------------------------------------------------

CHAIN = """before
Traceback (most recent call last):
  File "a.py", line 1
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3
ValueError: bad
after"""


def test_last_traceback():
    lines = CHAIN.splitlines()
    assert last_traceback(lines) == lines[1:]
    separate = ["Traceback (most recent call last):", "KeyError: 1", *lines[7:]]
    assert last_traceback(separate) == lines[7:]
    assert last_traceback([str(k) for k in range(20)]) == [str(k) for k in range(10, 20)]
    assert not is_consequence(lines)
    assert is_consequence([lines[1], "gpuflow.base.errors.CommunicationError: [psum] ..."])


@pytest.mark.parametrize("rank", [3, None])
def test_lines_have_their_rank(rank, tmp_path):
    """From a rank's own pipe, and from that of mpiexec, which says of whom each line is."""
    reading, writing = os.pipe()
    target, output = io.StringIO(), Output(tmp_path)
    output.add(rank, os.fdopen(reading, "rb"), target)
    output.start()
    with os.fdopen(writing, "wb") as pipe:
        texts = [b"one\ntw", b"o\nno \xff end"]
        if rank is None:
            texts = [b"[3] one\n[3] tw", b"o\nnobody's\n[3] no \xff end"]
        for text in texts:
            pipe.write(text)
            pipe.flush()
            time.sleep(0.02)
    output.close(5.0)
    lines = target.getvalue().splitlines()
    assert [line for line in lines if line != "nobody's"] == [
        "[3] one",
        "[3] two",
        "[3] no \ufffd end",
    ]
    assert output.tail(3) == ["one", "two", "no \ufffd end"] and output.count() == 3
    assert (tmp_path / "rank-3.log").read_text() == "one\ntwo\nno \ufffd end\n"


# --- the watchdog ---------------------------------------------------------------------------


def test_who_holds_up_the_others(tmp_path):
    progress = Progress(tmp_path, limit=0.2)

    def at(**counts):
        for rank, count in counts.items():
            (tmp_path / rank.removeprefix("r")).write_text(f"{os.getpid()} {count}")

    assert progress.stalled([0, 1], 0) == []  # nobody has begun
    at(r0=5, r1=4)
    assert progress.stalled([0, 1], 0) == []
    time.sleep(0.25)
    assert progress.stalled([0, 1], 1) == []  # a line of output counts
    time.sleep(0.25)
    assert progress.stalled([0, 1], 1) == [1]
    assert progress.stalled([0], 1) == [0]  # rank 1 is done
    at(r0=6)
    assert progress.stalled([0, 1], 1) == []


# Rank 0 prints after rank 1, and ends before it, however long their starts take.
LATER = """
import os, sys, time
from pathlib import Path
rank, folder = sys.argv[1:]
said, ended = Path(folder, "said"), Path(folder, "ended")

def wait_for(condition):
    while not condition():
        time.sleep(0.01)

def is_gone():
    try:
        os.kill(int(ended.read_text() or os.getpid()), 0)
    except ProcessLookupError:
        return True

if rank == "0":
    wait_for(said.exists)
    time.sleep(0.3)  # until the launcher has read it
print("Traceback (most recent call last):\\n  here\\n{last} " + rank, flush=True)
if rank == "0":
    ended.write_text(str(os.getpid()))
else:
    said.touch()
    wait_for(ended.exists)
    wait_for(is_gone)
os._exit(1)
"""


def test_who_failed_first(tmp_path, capfd):
    """Rank 1 says first what is wrong, but rank 0, which was told so by it, ends before it does."""
    last = "gpuflow.base.errors.CommunicationError: said by rank"
    program = tmp_path / "program.py"
    program.write_text(LATER.format(last=last))
    starts = [
        Start(rank, (sys.executable, str(program), str(rank), str(tmp_path)), dict(os.environ))
        for rank in range(2)
    ]
    assert Group(starts, Output(None), 0, []).run() == 1
    said = capfd.readouterr().err.partition("[launch] rank 1 failed first, with status 1")
    assert said[1] and said[2].rstrip().endswith(f"[1] {last} 1")


TWICE = """
import os, sys, time
rank = sys.argv[1]
said = f"Traceback (most recent call last):\\n  here\\n{sys.argv[2]}: of rank {rank}"
print("started", flush=True)
print(said, file=sys.stderr, flush=True)
time.sleep(float(sys.argv[3]))
os._exit(int(sys.argv[4]))
"""


def group(tmp_path, *ranks):
    """The status of ranks that print a traceback: what it ends with, the pause, the status."""
    program = tmp_path / "program.py"
    program.write_text(TWICE)
    starts = [
        Start(rank, (sys.executable, str(program), str(rank), *map(str, values)), dict(os.environ))
        for rank, values in enumerate(ranks)
    ]
    return Group(starts, Output(None), 0, []).run()


def test_a_failure_is_printed_once(tmp_path, capfd):
    later = "gpuflow.base.errors.CommunicationError"
    assert group(tmp_path, (later, 0, 1), ("ValueError", 0, 3), (later, 0, 1)) == 3
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[0] started", "[1] started", "[2] started"]
    before, said, after = err.partition("[launch] rank 1 failed first, with status 3")
    assert sorted(before.splitlines()) == [f"[0] {later}: of rank 0", f"[2] {later}: of rank 2"]
    assert said and after.count("Traceback") == 1
    assert after.splitlines()[1:] == [
        "[1] Traceback (most recent call last):",
        "[1]   here",
        "[1] ValueError: of rank 1",
    ]


def test_tracebacks_of_programs_that_go_on_are_printed(tmp_path, capfd, monkeypatch):
    assert group(tmp_path, ("ValueError", 0, 0)) == 0  # at the end
    assert capfd.readouterr().err.count("[0] ValueError: of rank 0") == 1
    monkeypatch.setattr(launch_output, "HELD_SECONDS", 0.2)
    assert group(tmp_path, ("ValueError", 1.5, 2)) == 2  # when it came, and a line at the end
    before, said, after = capfd.readouterr().err.partition("[launch] rank 0 failed first")
    assert before.count("[0] ValueError: of rank 0") == 1 and "Traceback" in before
    assert said and after.splitlines()[1:] == ["[0] ValueError: of rank 0"]


def test_ranks_are_told_to_show_frames_of_users_quietly():
    assert launch._defaults(1)["GPUFLOW_TRACEBACK_FILTERING"] == "quiet_remove_frames"


def test_a_traceback_that_was_cut():
    assert is_cut(["Traceback (most recent call last):"])
    assert is_cut(["Traceback (most recent call last):", '  File "a.py", line 1, in f'])
    assert not is_cut(["Traceback (most recent call last):", "  here", "ValueError: x"])
