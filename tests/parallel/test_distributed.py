"""Who the processes are: launchers' variables, meeting at an address, and leaving."""

import importlib.util
import socket
import struct
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from process_groups import finish, free_port, mpiexec, start
from together import together

import gpuflow as gf
from gpuflow.errors import CommunicationError
from gpuflow.experimental import multihost_utils
from gpuflow.parallel.processes import messages
from gpuflow.parallel.processes.detection import (
    Cluster,
    detect,
    first_host,
    process_gpus,
    visible_gpus,
)
from gpuflow.parallel.processes.rendezvous import join

PROGRAM = Path(__file__).with_name("joining_program.py")
STARTED = Path(__file__).with_name("started_program.py")
HAS_MPI = importlib.util.find_spec("mpi4py") is not None and mpiexec() is not None

# --- launchers ------------------------------------------------------------------------------

SAID = {
    "launch": (
        {"GPUFLOW_PROCESS_ID": "1", "GPUFLOW_NUM_PROCESSES": "3", "GPUFLOW_COORDINATOR": "a:5",
         "GPUFLOW_TOKEN": "t", "GPUFLOW_LOCAL_ID": "1", "GPUFLOW_LOCAL_SIZE": "2"},
        Cluster("launch", 1, 3, 1, 2, "a:5", "t"),
    ),
    "torchrun": (
        {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2",
         "MASTER_ADDR": "node1", "MASTER_PORT": "29500", "GPUFLOW_TOKEN": "t"},
        Cluster("torchrun", 2, 4, 0, 2, "node1:29501", "t"),
    ),
    "slurm": (
        {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "100", "SLURM_STEP_ID": "2",
         "SLURM_LOCALID": "1", "SLURM_STEP_NODELIST": "gpu[03-05,9],login", "GPUFLOW_TOKEN": "t"},
        Cluster("slurm", 3, 8, 1, 0, "gpu03:61554", "t"),
    ),
    "mpich": (
        {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
        Cluster("mpi", 1, 2, 1, 2),
    ),
    "open mpi": (
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
         "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
        Cluster("mpi", 1, 2, 0, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_launchers(name):
    said, cluster = SAID[name]
    assert detect(said) == detect(said, cluster.kind) == cluster
    assert detect(said, "torchrun" if name != "torchrun" else "slurm") is None
    needed = {"GPUFLOW_PROCESS_ID", "RANK", "SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK"}
    for missing in needed & set(said):
        assert detect({k: v for k, v in said.items() if k != missing}) is None


NUMBERS = [
    (name, variable)
    for name in ("launch", "torchrun", "slurm", "mpich", "open mpi")
    for variable, value in SAID[name][0].items()
    if value.isdecimal()
]


@together()
@pytest.mark.parametrize(("name", "variable"), NUMBERS)
@pytest.mark.parametrize("value", ["two", "-1", "1.5", "1" + "0" * 5000])
def test_numbers_of_launchers_that_are_none(name, variable, value):
    """They were a ValueError of int, which names neither the variable nor a fix."""
    with pytest.raises(ValueError, match=r"\[config\] .* must be an integer.*Fix: ") as seen:
        detect({**SAID[name][0], variable: value})
    assert f"{variable} must" in str(seen.value) and f"got {value!r}" in str(seen.value)


def test_the_script_of_a_slurm_job_is_no_process_of_a_group():
    """Only srun numbers processes; in the job's own script these variables say something else."""
    assert detect({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"}) is None


def test_groups_without_a_token_are_kept_apart():
    first, second = ({**SAID["slurm"][0], "SLURM_JOB_ID": job} for job in ("1", "2"))
    for said in (first, second):
        del said["GPUFLOW_TOKEN"]
    assert detect(first).token != detect(second).token and detect(first).token


@pytest.mark.parametrize(
    ("nodes", "host"),
    [("a", "a"), ("a,b", "a"), ("n[1-4]", "n1"), ("n[007,9]", "n007"), ("n[2-3]x,m", "n2x")],
)
def test_first_host(nodes, host):
    assert first_host(nodes) == host


def test_which_gpus_are_ours():
    """Our launcher has chosen; where another leaves all to all processes, each takes its own."""
    four = Cluster("slurm", 6, 8, 2, 4)
    gpus = ["0", "1", "GPU-5", "3"]
    assert process_gpus(four, None, gpus) == ["GPU-5"]
    assert process_gpus(four, None, gpus[:2]) == ["0"]
    assert process_gpus(four, [0, 3], gpus) == ["0", "3"] and process_gpus(four, 1, gpus) == ["1"]
    assert process_gpus(four, None, ["7"]) is None and process_gpus(four, 3, []) is None
    assert process_gpus(Cluster("launch", 2, 4, 2, 4), None, gpus) is None
    assert process_gpus(Cluster("slurm", 1, 2, 0, 1), None, gpus) is None
    with pytest.raises(ValueError, match=r"local_device_ids must be numbers below 4.*got 4.*Fix"):
        process_gpus(four, 4, gpus)
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0, 2,"}) == ["0", "2"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "-1"}) == []
    said = {**SAID["slurm"][0], "SLURM_STEP_TASKS_PER_NODE": "4(x2)"}
    assert detect(said).local_size == 4


def test_an_unknown_launcher(monkeypatch):
    monkeypatch.setattr("gpuflow.parallel.processes.distributed.in_use.drivers", set())
    with pytest.raises(ValueError, match=r"must be one of launch, torchrun.*got 'k8s'.*Fix: "):
        gf.distributed.initialize(cluster_detection_method="k8s")


# --- arguments ------------------------------------------------------------------------------

ERRORS = [
    ({"num_processes": 2}, ValueError, r"coordinator_address, process_id must be given"),
    (
        {"coordinator_address": "a:1", "num_processes": 2, "process_id": 2},
        ValueError,
        r"process_id must be from 0 to num_processes - 1; got 2 of 2",
    ),
    (
        {"coordinator_address": "nowhere", "num_processes": 2, "process_id": 0},
        ValueError,
        r"an address must be host:port; got 'nowhere'",
    ),
    (
        {"coordinator_address": "10.1.2.3:99", "num_processes": 2, "process_id": 1},
        ValueError,
        r"must share a secret; got 10.1.2.3:99 and no GPUFLOW_TOKEN",
    ),
]


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_arguments(number, monkeypatch):
    arguments, error, text = ERRORS[number]
    monkeypatch.setattr("gpuflow.parallel.processes.distributed.in_use.drivers", set())
    monkeypatch.delenv("GPUFLOW_TOKEN", raising=False)
    with pytest.raises(error, match=rf"\[distributed\] .*{text}.*Fix: "):
        gf.distributed.initialize(**arguments)
    assert not gf.distributed.is_initialized()


def test_arrays_made_before():
    gf.numpy.ones(3).block_until_ready()
    with pytest.raises(RuntimeError, match=r"must be called before arrays are made.*Fix: "):
        gf.distributed.initialize("127.0.0.1:9", 1, 0)


def test_a_single_process():
    x = {"a": np.arange(3), "b": np.float32(2)}
    assert multihost_utils.process_allgather(x)["a"].shape == (1, 3)
    assert multihost_utils.process_allgather(x["a"], tiled=True).tolist() == [0, 1, 2]
    assert multihost_utils.broadcast_one_to_all(x)["b"] == 2
    multihost_utils.sync_global_devices("alone")
    multihost_utils.assert_equal(x)
    with pytest.raises(ValueError, match=r"\[process_allgather\] tiled=True needs arrays"):
        multihost_utils.process_allgather(np.float32(1), tiled=True)
    gf.distributed.shutdown()


# --- meeting --------------------------------------------------------------------------------


def meet(ranks, size=3, token="t", timeout=60.0, port=None):
    """``join`` in a thread for each rank; what each returned or raised."""
    address = f"127.0.0.1:{port or free_port()}"
    answers = {}

    def run(key, rank, own_size, own_token):
        try:
            answers[key] = join(address, rank, own_size, own_token, {"cpu": rank + 1}, timeout)
        except (CommunicationError, ValueError) as error:
            answers[key] = str(error)

    messages = [rank if isinstance(rank, tuple) else (rank, size, token) for rank in ranks]
    threads = [threading.Thread(target=run, args=(key, *one)) for key, one in enumerate(messages)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    for group in answers.values():
        if not isinstance(group, str):
            for connection in [*group.peers.values(), *group.members.values(), group.control]:
                if connection is not None:
                    connection.close()
    return answers


def test_all_meet():
    groups = meet([2, 0, 1])
    assert {key: group.rank for key, group in groups.items()} == {0: 2, 1: 0, 2: 1}
    for group in groups.values():
        assert group.devices == ({"cpu": 1}, {"cpu": 2}, {"cpu": 3})
        assert set(group.peers) == {0, 1, 2} - {group.rank}


def test_strangers_are_sent_away():
    """Whoever else connects, with garbage or in silence, does not keep the group from meeting."""
    port = free_port()
    done = threading.Event()

    def disturb():
        texts = [
            b"GET / HTTP/1.1\r\n\r\n",
            struct.pack("<I", 1 << 30),
            b"\x02\x00\x00\x00[]",
            struct.pack("<I", 2) + b"{}",
            b"",
        ]
        for text in texts:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                    connection.sendall(text)
            except OSError:
                done.wait(0.02)

    stranger = threading.Thread(target=disturb)
    timer = threading.Timer(0.05, stranger.start)
    timer.start()
    groups = meet([0, 1, 2], port=port)
    timer.join()
    stranger.join()
    assert all(not isinstance(group, str) for group in groups.values()), groups


def test_ranks_that_do_not_fit():
    answers = meet([0, (1, 3, "t"), (1, 3, "t"), (2, 4, "t")], timeout=4.0)
    texts = " ".join(text for text in answers.values() if isinstance(text, str))
    assert "process_id must differ; got 1 twice" in texts
    assert "num_processes must be equal everywhere; got 4, not 3" in texts
    assert "all 3 processes must report" in answers[0] and "got none from rank 2" in answers[0]


def test_nobody_is_there():
    answers = meet([1], timeout=0.5)
    assert "rank 1 must connect to rank 0 at 127.0.0.1" in answers[0] and "Fix: " in answers[0]


def test_a_host_without_the_token_is_not_believed():
    """Also who listens must prove that it knows the token."""
    near, far = socket.socketpair()
    until = time.monotonic() + 30

    def impostor():
        about = {"protocol": messages.PROTOCOL, "challenge": "00"}
        messages.send_message(far, about)
        messages.receive_message(far, until)
        messages.send_message(far, {"proof": "00" * 32, "table": []})

    thread = threading.Thread(target=impostor)
    thread.start()
    with pytest.raises(messages.WireError, match="does not know the token"):
        messages.greet(near, "t", {"rank": 1}, until)
    thread.join()
    near.close()
    far.close()


# --- whole programs -------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", ["torchrun", "slurm"])
def test_programs_of_other_launchers(launcher):
    port = free_port()
    common = {
        "torchrun": {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port - 1)},
        "slurm": {
            "SLURM_NTASKS": "2",
            "SLURM_JOB_ID": str(port),
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NODELIST": "127.0.0.1",
        },
    }[launcher]
    number = {"torchrun": "RANK", "slurm": "SLURM_PROCID"}[launcher]
    processes = [
        start([sys.executable, str(PROGRAM)], {**common, number: str(rank)}) for rank in range(2)
    ]
    for rank, ended in enumerate(finish(processes)):
        assert ended.status == 0 and f"rank {rank} of 2 has left" in ended.output, ended.output


def test_the_launcher_steps_aside_where_processes_are_numbered(tmp_path):
    """`srun gpuflow launch script.py` runs the script in the process that srun started."""
    said = {
        "SLURM_NTASKS": "1",
        "SLURM_JOB_ID": str(free_port()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_PROCID": "0",
    }
    script = tmp_path / "script.py"
    script.write_text(
        "import gpuflow as gf\ngf.distributed.initialize()\nprint('count', gf.process_count())"
    )
    command = [sys.executable, "-m", "gpuflow.cli.main", "launch", "-n", "5", str(script)]
    (ended,) = finish([start(command, said)])
    assert ended.status == 0 and ended.output.strip() == "count 1", ended.output


def test_two_machines():
    """Both are this one; each has a launcher of its own, and they share an address and a token."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "gpuflow.cli.main",
        "launch",
        "-n",
        "1",
        "--nnodes",
        "2",
        "--coordinator",
        f"127.0.0.1:{port}",
    ]
    launchers = [
        start([*command, "--node-rank", str(node), str(STARTED)], {"GPUFLOW_TOKEN": "t"})
        for node in range(2)
    ]
    for node, ended in enumerate(finish(launchers)):
        assert ended.status == 0, ended.output
        assert ended.output.strip() == f"[{node}] rank {node} of 2 sees 3", ended.output


@pytest.mark.skipif(not HAS_MPI, reason="needs mpi4py and mpiexec")
def test_the_launcher_steps_aside_under_mpiexec():
    command = [mpiexec(), "-n", "2", sys.executable, "-m", "gpuflow.cli.main", "launch"]
    (ended,) = finish([start([*command, str(STARTED)])])
    assert ended.status == 0, ended.output
    for rank in range(2):
        assert f"rank {rank} of 2 sees 3" in ended.output
