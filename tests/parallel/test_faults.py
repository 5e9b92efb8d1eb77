"""What goes wrong in a group of processes: it ends in time, and says which rank it was.

Each test starts real processes, has a limit of its own, and leaves no process behind.
"""

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cuda_tools import requires_cuda_tools
from process_groups import (
    children_of,
    environment,
    finish,
    free_port,
    kill_group,
    left_behind,
    mpiexec,
    run_group,
    start,
)

from gpuflow.cli.launch_keeper import descendants

PROGRAM = Path(__file__).with_name("faulty_program.py")
HAS_MPI = importlib.util.find_spec("mpi4py") is not None and mpiexec() is not None
LIMIT = 90.0  # seconds, of which starting takes the most on a busy machine


def launched(*arguments, limit=LIMIT, **values):
    """Run the launcher; returns how it ended, and how long that took."""
    process = start([sys.executable, "-m", "gpuflow.cli.main", "launch", *arguments], values)
    begin = time.monotonic()
    (ended,) = finish([process], limit)
    assert not children_of(process.pid)
    return ended, time.monotonic() - begin


@pytest.fixture(autouse=True)
def no_orphans():
    yield
    until = time.monotonic() + 30
    while left_behind() and time.monotonic() < until:
        time.sleep(0.02)
    assert not left_behind()


@pytest.mark.parametrize(
    ("mode", "status", "text"),
    [
        ("kill", 128 + 9, "rank 1 failed first, with signal SIGKILL"),
        ("raise", 1, "ValueError: the data of rank 1 are bad"),
    ],
)
def test_a_rank_ends_in_a_step(mode, status, text):
    ended, _ = launched("-n", "3", str(PROGRAM), mode)
    assert ended.status == status, ended.output
    after = ended.output.partition("[launch] rank 1 failed first")
    assert after[1] and text in after[1] + after[2]
    # The traceback of the rank that failed first is what is read last.
    assert all(line.startswith("[1]") for line in after[2].splitlines()[1:])


def test_a_module_is_started_as_python_does(tmp_path, monkeypatch):
    """`__main__` of a package in the working folder, with options that the launcher has too."""
    package = tmp_path / "my_training"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "rates.py").write_text("RATE = 0.25")
    (package / "__main__.py").write_text(
        "import sys\nimport gpuflow as gf\nfrom .rates import RATE\n"
        "print(gf.process_count(), RATE, __name__, sys.argv[0][-12:], *sys.argv[1:])"
    )
    monkeypatch.chdir(tmp_path)
    ended, _ = launched("-n", "2", "-m", "my_training", "-n", "5", "-m", "x")
    assert ended.status == 0, ended.output
    for rank in range(2):
        assert f"[{rank}] 2 0.25 __main__ /__main__.py -n 5 -m x" in ended.output


@pytest.mark.parametrize("bad", [0, 1])
def test_others_name_the_rank_without_a_launcher(bad):
    """Also when it is rank 0, which is the one that tells the others."""
    ended = run_group(PROGRAM, 3, "kill", timeout=LIMIT, TEST_BAD_RANK=str(bad))
    assert ended[bad].status == -9
    for rank in {0, 1, 2} - {bad}:
        assert ended[rank].status == 1
        assert f"rank {bad} ended without a goodbye" in ended[rank].output


@requires_cuda_tools
@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("kill", "rank 1 ended without a goodbye"),
        ("raise", "rank 1 raised ValueError: the data of the last device are bad"),
    ],
)
def test_a_memory_of_several_of_a_process_goes_wrong(mode, text):
    """Its thread ends the others of its process, and this process those of the others."""
    values = {"GPUFLOW_PLATFORM": "cuda_sim", "GPUFLOW_SIM_DEVICES": "2"}
    program = PROGRAM.with_name("faulty_memories_program.py")
    good, bad = run_group(program, 2, mode, timeout=LIMIT, **values)
    assert "a step is done" in good.output and bad.status == (-9 if mode == "kill" else 1)
    assert good.status == 1 and text in good.output, good.output
    assert mode == "kill" or "ValueError: the data of the last device are bad" in bad.output


def test_a_stalled_rank_ends_the_wait_of_the_others():
    """Without a watchdog the others give up after the timeout, and say for whom they waited."""
    processes = [
        start(
            [sys.executable, str(PROGRAM), str(rank), "2", port, "stall"],
            {"GPUFLOW_TOKEN": "t", "TEST_COLLECTIVE": "4"},
        )
        for port in [str(free_port())]
        for rank in range(2)
    ]
    try:
        output, _ = processes[0].communicate(timeout=LIMIT)
        assert processes[0].returncode == 1
        assert "must reach all_reduce number 7 (sum) of float32[4]; got nothing from" in output
        assert "got nothing from rank 1 on rank 0 for 4 s" in output
    finally:
        for process in processes:
            kill_group(process)


def test_a_stopped_process_is_missed_by_its_heartbeats():
    processes = [
        start(
            [sys.executable, str(PROGRAM), str(rank), "2", port, "stop"],
            {"GPUFLOW_TOKEN": "t", "TEST_HEARTBEAT": "4"},
        )
        for port in [str(free_port())]
        for rank in range(2)
    ]
    try:
        output, _ = processes[0].communicate(timeout=LIMIT)
        assert processes[0].returncode == 1 and "rank 1 has shown no life for 4 s" in output
    finally:
        for process in processes:
            kill_group(process)


def test_the_watchdog_shows_all_stacks():
    ended, _ = launched("-n", "2", "--watchdog", "2", str(PROGRAM), "stall")
    assert ended.status == 75, ended.output
    assert "rank 1 started the fewest collectives" in ended.output
    stacks = [line for line in ended.output.splitlines() if "in go_wrong" in line]
    assert len(stacks) == 1 and stacks[0].startswith("[1]")
    assert any(line.startswith("[0]") and "in _wait" in line for line in ended.output.splitlines())
    assert ended.output.rstrip().endswith("because rank 1 made no progress for 2 s.")


def test_a_wrong_token():
    port = str(free_port())
    processes = [
        start(
            [sys.executable, str(PROGRAM), str(rank), "2", port, "none"],
            {"GPUFLOW_TOKEN": token, "TEST_INITIALIZATION": "6"},
        )
        for rank, token in enumerate(["right", "wrong"])
    ]
    right, wrong = finish(processes, LIMIT)
    assert right.status == wrong.status == 1
    assert "the token must be that of the group" in wrong.output
    assert "got none from rank 1 (one caller was refused" in right.output


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = start([sys.executable, str(PROGRAM), "0", "2", port, "none"])
        (ended,) = finish([process], LIMIT)
    assert ended.status == 1
    assert f"must be able to listen on 127.0.0.1:{port}; got Address already in use" in ended.output


@pytest.mark.parametrize("checked", ["1", "0"])
def test_ranks_that_do_different_things(checked):
    """Both ranks call all_reduce for the seventh time: one for a sum, one for a maximum."""
    ended = run_group(
        PROGRAM, 2, "order", timeout=LIMIT, GPUFLOW_CHECK=checked, TEST_COLLECTIVE="3"
    )
    assert all(one.status == 1 for one in ended)
    if checked == "1":
        text = ended[0].output
        assert "all_reduce number 7 of float32[4] sum on rank 0" in text
        assert "all_reduce number 7 of float32[4] max on rank 1" in text
    else:
        text = "".join(one.output for one in ended)
        assert "all_reduce number 7 (sum) of float32[4] with 16 bytes on rank" in text
        assert "all_reduce number 7 (max) of float32[4] with 16 bytes on rank" in text


def test_a_rank_that_skips_a_step():
    first, second = run_group(PROGRAM, 2, "skip", timeout=LIMIT, TEST_COLLECTIVE="3")
    assert first.status == 1 and second.status == 0
    assert "all ranks must reach all_reduce number 11" in first.output
    assert "rank 1 ended" in first.output


@pytest.mark.skipif(not HAS_MPI, reason="needs mpi4py and mpiexec")
@pytest.mark.parametrize("mode", ["raise", "stall", "exit", "order"])
def test_over_mpi(mode):
    """A rank that fails ends the job, though MPI's own end would wait for the others."""
    limit = {"GPUFLOW_COLLECTIVE_TIMEOUT": "3"} if mode == "stall" else {}
    if mode == "order":
        limit = {"GPUFLOW_CHECK": "1"}
    ended, _ = launched("--mpi", "-n", "2", str(PROGRAM), mode, **limit)
    assert ended.status not in (0, None)
    if mode == "raise":
        after = ended.output.partition("[launch] rank 1 failed first")[2]
        assert "ValueError: the data of rank 1 are bad" in after
    elif mode == "exit":
        assert ended.status == 3, ended.output
    elif mode == "order":
        after = ended.output.partition("failed first, mpiexec with status 1")[2]
        assert "float32[4] sum on rank 0 and all_reduce number 7 of float32[4] max" in after
    else:
        assert "must reach all_reduce number 8; rank 0 has waited for 3 s" in ended.output


def test_restarts_and_logs(tmp_path):
    ended, _ = launched(
        "-n",
        "2",
        "--max-restarts",
        "2",
        "--log-dir",
        str(tmp_path),
        str(PROGRAM),
        "once",
        limit=2 * LIMIT,  # the group starts twice
    )
    assert ended.status == 0, ended.output
    log = (tmp_path / "rank-1.log").read_text()
    assert "attempt 0 fails" in log and "[launch] restart 1" in log and "restart 2" not in log
    assert "[launch] restart 1 of 2." in ended.output
    assert (tmp_path / "rank-0.log").read_text().count("rank 0 is done") == 2


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_signals_are_forwarded(name, status):
    command = [sys.executable, "-m", "gpuflow.cli.main", "launch", "-n", "2", str(PROGRAM), "sleep"]
    process = start(command)
    seen = ""
    for line in process.stdout:
        seen += line
        if seen.count("sleeping") == 2:
            break
    begin = time.monotonic()
    os.kill(process.pid, getattr(signal, name))
    (ended,) = finish([process], LIMIT)
    assert ended.status == status, seen + ended.output
    assert f"[launch] {name}: ending the group." in ended.output
    assert time.monotonic() - begin < 30  # they sleep for 1000
    if name == "SIGINT":
        assert "KeyboardInterrupt" in ended.output


def test_ranks_end_when_the_launcher_is_killed():
    command = [sys.executable, "-m", "gpuflow.cli.main", "launch", "-n", "2", str(PROGRAM), "sleep"]
    process = start(command)
    for line in process.stdout:
        if "sleeping" in line:
            break
    kill_group(process)
    process.stdout.close()


WITH_CHILDREN = """
import os, signal, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
subprocess.Popen(sleep)
subprocess.Popen(sleep, start_new_session=True)
print("sleeping", flush=True)
time.sleep(1000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="descendants are found in /proc")
@pytest.mark.parametrize("victim", ["the command", "its launcher"])
def test_what_ranks_started_ends_when_the_launcher_is_killed(victim, tmp_path):
    """Ranks ended, and processes that they had started went on for ever."""
    (tmp_path / "script.py").write_text(WITH_CHILDREN)
    command = [sys.executable, "-m", "gpuflow.cli.main", "launch", "-n", "2", "script.py"]
    process = subprocess.Popen(
        command,
        env=environment(),
        cwd=tmp_path,
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        seen = ""
        for line in process.stdout:
            seen += line
            if seen.count("sleeping") == 2:
                break
        running = descendants(process.pid)
        assert len(running) == 1 + 2 * 3, seen
        os.kill(process.pid if victim == "the command" else running[0], signal.SIGKILL)
        output, _ = process.communicate(timeout=LIMIT)
        if victim == "its launcher":
            assert process.returncode == 128 + 9
            assert "the launcher was ended by SIGKILL; killed its processes." in output
        until = time.monotonic() + 30
        while left_behind() and time.monotonic() < until:
            time.sleep(0.02)
        assert not left_behind()
    finally:
        for pid in left_behind():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


SLOW_END = """
import signal, sys, time
def save(number, frame):
    time.sleep(1.5)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("sleeping", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize(("grace", "count"), [("20", 2), ("0.2", 0)])
def test_ranks_have_time_to_end(grace, count, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SLOW_END)
    process = start(
        [
            sys.executable,
            "-m",
            "gpuflow.cli.main",
            "launch",
            "-n",
            "2",
            "--grace",
            grace,
            str(script),
        ]
    )
    seen = ""
    for line in process.stdout:
        seen += line
        if seen.count("sleeping") == 2:
            break
    os.kill(process.pid, signal.SIGTERM)
    (ended,) = finish([process], LIMIT)
    assert ended.status == 128 + 15 and ended.output.count("saved") == count, ended.output
