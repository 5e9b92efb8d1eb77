"""The files of docs/recipes: their form, and what their loops do."""

import os
import re
import shlex
import stat
import subprocess
from pathlib import Path

import pytest

from gpuflow.cli.main import build_parser
from gpuflow.parallel.processes.detection import detect

DOCS = Path(__file__).resolve().parents[1] / "docs"
RECIPES = DOCS / "recipes"
SCRIPTS = {"slurm.sbatch": "srun", "mpi.sh": "mpiexec"}
# What stands for the starter of processes: it fails in the first attempts.
STARTER = """#!/bin/bash
echo "$GPUFLOW_RESTART|${GPUFLOW_TOKEN:-none}|$*" >> "$STARTS"
[ "$GPUFLOW_RESTART" -ge "$FAILURES" ]
"""


def text_of(name):
    return (RECIPES / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["slurm.sbatch", "mpi.sh", "jobset.yaml"])
def test_what_is_named_is_there(name):
    text = text_of(name)
    known = (DOCS / "env_vars.md").read_text(encoding="utf-8")
    for variable in set(re.findall(r"\bGPUFLOW_[A-Z_]+", text)):
        assert f"`{variable}`" in known, variable
    for path in set(re.findall(r"docs/[\w./]+\w", text)):
        assert (DOCS.parent / path).is_file(), path
    assert f"]({name})" in text_of("README.md")


def run(name, tmp_path, failures, **values):
    """How a script ends, and each start: the attempt, the token and the arguments."""
    starter, starts = tmp_path / SCRIPTS[name], tmp_path / "starts"
    starter.write_text(STARTER)
    starter.chmod(starter.stat().st_mode | stat.S_IXUSR)
    variables = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "STARTS": str(starts),
        "USER": "me",
        "FAILURES": str(failures),
        "SLURM_SUBMIT_DIR": "/shared",
        "SLURM_CPUS_PER_TASK": "8",
    }
    done = subprocess.run(
        ["bash", str(RECIPES / name)], env={**variables, **values}, capture_output=True, text=True
    )
    assert not done.stderr or "ended with status 1" in done.stderr, done.stderr
    return done.returncode, [line.split("|") for line in starts.read_text().splitlines()]


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_start_again_as_often_as_they_say(name, tmp_path):
    status, starts = run(name, tmp_path, failures=2)
    assert status == 0 and [start[0] for start in starts] == ["0", "1", "2"]
    assert len({tuple(start[1:]) for start in starts}) == 1  # one group each time
    arguments = shlex.split(starts[0][2])
    launch = arguments[arguments.index("gpuflow") + 1 :]
    options = build_parser().parse_args(launch)
    assert options.command == "launch" and options.script == "docs/examples/restarts.py"
    (tmp_path / "starts").unlink()
    status, starts = run(name, tmp_path, failures=99, MAX_RESTARTS="1")
    assert status == 1 and len(starts) == 2


def test_the_batch_script_of_slurm(tmp_path):
    directives = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", text_of("slurm.sbatch"), re.M))
    assert directives["gres"] == f"gpu:{directives['ntasks-per-node']}"  # one GPU for each
    assert {"nodes", "time", "requeue", "open-mode", "cpus-per-task"} <= set(directives)
    assert text_of("slurm.sbatch").count("#SBATCH") == len(directives)
    _, ((_, token, _),) = run("slurm.sbatch", tmp_path, failures=0)
    assert re.fullmatch("[0-9a-f]{32}", token)
    said = {
        "SLURM_PROCID": "5",
        "SLURM_NTASKS": "8",
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "gpu[03-04]",
        "SLURM_LOCALID": "1",
        "GPUFLOW_TOKEN": token,
        "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    }
    cluster = detect(said)
    assert (cluster.kind, cluster.rank, cluster.size) == ("slurm", 5, 8)
    assert (cluster.local_rank, cluster.local_size, cluster.token) == (1, 4, token)


def test_the_hosts_of_mpi(tmp_path):
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("a\nb\n")
    _, ((_, _, arguments),) = run("mpi.sh", tmp_path, failures=0, HOSTS=str(hosts), RANKS="4")
    assert arguments.startswith("-hosts a,b -prepend-rank -n 4 gpuflow launch ")
    (tmp_path / "starts").unlink()
    _, ((_, _, arguments),) = run("mpi.sh", tmp_path, failures=0)
    assert arguments.startswith("-prepend-rank -n 8 ")


@pytest.mark.jax_libraries("yaml")
def test_the_job_set():
    import yaml

    job_set = yaml.safe_load(text_of("jobset.yaml"))
    assert (job_set["apiVersion"], job_set["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert job_set["spec"]["failurePolicy"] == {"maxRestarts": 3}
    (workers,) = job_set["spec"]["replicatedJobs"]
    job, pod = workers["template"]["spec"], workers["template"]["spec"]["template"]["spec"]
    assert job["completionMode"] == "Indexed" and job["backoffLimit"] == 0
    assert pod["restartPolicy"] == "Never"
    (container,) = pod["containers"]
    assert container["command"] == ["bash", "-c"]
    (line,) = container["args"]
    words = shlex.split(line.replace("$JOB_COMPLETION_INDEX", "2"))
    assert words[:2] == ["exec", "gpuflow"]
    options = build_parser().parse_args(words[2:])
    assert int(options.nnodes) == job["parallelism"] == job["completions"]
    assert int(options.node_rank) == 2
    # <job set>-<job>-<number of the job>-<number of the pod>.<job set>
    name = job_set["metadata"]["name"]
    port = container["ports"][0]["containerPort"]
    assert options.coordinator == f"{name}-{workers['name']}-0-0.{name}:{port}"
    assert workers["replicas"] == 1 and job_set["spec"]["network"]["enableDNSHostnames"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
    assert options.arguments == [mounts["run-folder"]]
    assert container["env"][0]["name"] == "GPUFLOW_TOKEN" and "value" not in container["env"][0]
