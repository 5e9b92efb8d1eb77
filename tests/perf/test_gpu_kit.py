"""What runs on a rented GPU: kernels that were built before, rows side by side, and going on."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from cuda_tools import requires_cuda_tools

from gpuflow.base.config import config

ROOT = Path(__file__).resolve().parents[2]
PERF = ROOT / "perf"
# A framework's process that does what its argument says with the row "b".
CHILD = """
import json, os, sys, time
how = sys.argv[1]
if how == "absent":
    sys.exit("no module named that")
print(json.dumps({"version": how}), flush=True)
row = None
for line in sys.stdin:
    asked = json.loads(line)
    row = asked.get("row", row)
    if row == "b" and how == "hangs":
        time.sleep(60)
    if row == "b" and how == "dies" and asked["do"] == "time":
        os.abort()
    if row == "b" and how == "loses":
        print(json.dumps({"error": "a fault", "lost": True}), flush=True)
        sys.exit(70)
    if row == "b" and how == "is not for it":
        print(json.dumps({"none": True}), flush=True)
        continue
    found = {"size": 1, "check": [1.0]} if asked["do"] == "first" else {"seconds": 1e-3}
    print(json.dumps(found), flush=True)
"""


# --- rows side by side -----------------------------------------------------------------------


@pytest.fixture
def rows(perf):
    """Three rows that every rival takes."""
    copies = []
    for name in "abc":
        row = next(iter(perf.rows.all_rows()))
        copies.append((name, perf.rows.Row(name, row.inputs, row.make, 1, 1)))
    return copies


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("hangs", "no result within the time of a row"),
        ("dies", "the process died of it, with status -6"),
        ("loses", "a fault"),
        ("is not for it", None),
    ],
)
def test_a_rival_that_fails_at_a_row_has_the_others(perf, rows, tmp_path, how, says):
    """And everybody else has all of them."""
    # Only that of a row that hangs may be reached, however busy the machine is.
    limits = (120.0, 1.0 if how == "hangs" else 120.0, 120.0)
    racers = [
        perf.race.Racer(name, ["-c", CHILD, what], tmp_path / f"{name}.err", limits)
        for name, what in (("gpuflow", "works"), ("jax", how))
    ]
    records = {}
    until = time.perf_counter() + 300
    done = perf.race.race(
        rows,
        racers,
        until,
        lambda row, name, record: records.update({(row, name): record}),
        lambda row, name: (row, name) == ("c", "gpuflow"),
    )
    assert done and not any(one.is_running for one in racers)
    times = {key for key, record in records.items() if "seconds" in record}
    assert times == {("a", "gpuflow"), ("b", "gpuflow"), ("a", "jax"), ("c", "jax")}
    assert records["version", "jax"] == {"version": how}
    if says is None:
        assert ("b", "jax") not in records
    else:
        assert says in records["b", "jax"]["error"]


def test_a_framework_that_does_not_start_is_tried_twice(perf, rows, tmp_path):
    racer = perf.race.Racer("jax", ["-c", CHILD, "absent"], tmp_path / "log")
    records = {}
    until = time.perf_counter() + 300
    perf.race.race(
        rows,
        [racer],
        until,
        lambda row, name, record: records.update({row: record}),
        lambda row, name: False,
    )
    assert racer.is_out and set(records) == {"a", "b"}
    assert "did not start, with status 1: no module named that" in records["a"]["error"]
    # Where no time is left no row begins.
    assert not perf.race.race(rows, [racer], 0.0, records.update, lambda row, name: False)


def test_who_takes_a_row(perf):
    rows, takes = {row.name: row for row in perf.rows.all_rows()}, perf.race.takes
    names = [perf.race.OURS, *perf.parts.RIVALS, *perf.rows.OFF]
    assert [name for name in names if takes(name, rows["chain float32"])] == [
        "gpuflow",
        "jax",
        "torch.compile",
        "torch",
        "cupy",
    ]
    assert [name for name in names if takes(name, rows["host: plan of 3 kernels"])] == [
        "gpuflow",
        "jax",
        "without graphs",
    ]
    assert [name for name in names if takes(name, None)] == ["gpuflow", "jax"]


def test_frameworks_multiply_float32_alike(perf, monkeypatch):
    """Rows of products exist in float32 and in TF32; each sets how its framework multiplies."""
    before = {name: config.read(name) for name in ("default_matmul_precision", "default_device")}
    flags = SimpleNamespace(matmul=SimpleNamespace(), cudnn=SimpleNamespace())
    torch = SimpleNamespace(
        __version__="none", backends=SimpleNamespace(cuda=flags, cudnn=flags.cudnn)
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    rows = {row.name: row for row in perf.rows.all_rows()}
    settings = {}
    try:
        ours, theirs = (perf.frameworks.load(name, "cpu") for name in ("gpuflow", "torch"))
        for name, row in rows.items():
            ours.function(row)
            if row.torch is not None:
                theirs.function(replace(row, torch=lambda torch, jit: torch))
                assert flags.matmul.allow_tf32 is flags.cudnn.allow_tf32 is row.rounds
            settings[name] = config.default_matmul_precision
    finally:
        for name, value in before.items():
            config.update(name, value)
    rounded = {name for name, row in rows.items() if row.rounds}
    assert len(rounded) == 5 and {name.replace("TF32", "float32") for name in rounded} < set(rows)
    for name, setting in settings.items():
        assert setting == ("tensorfloat32" if name in rounded else "highest")
        assert (rows[name].unit == "TF32") is (name in rounded) is ("TF32" in name)


def test_the_most_important_rows_come_first(perf):
    names = [row.name for row in perf.rows.all_rows()]
    assert names[0].startswith("chain") and names.index("MLP Adam step") < 12
    assert names.index("eig of 16 x 16") > names.index("slice")
    asked = ["transpose", "slice", "concatenate", "batchnorm NCHW", "softmax of 8 rows of 128256"]
    asked += ["layernorm bfloat16 rows of 4096", "column sum bfloat16", "gradient of an embedding"]
    asked += ["scan of 1000 steps with 4 launches", "x @ w + b with gelu, bfloat16", "eager add"]
    asked += ["solve of 512 x 512", "loop over 60 cond steps"]
    asked += ["Lorenz by RK4, 10^6 lanes", "Lorenz by adaptive Tsit5, 10^6 lanes"]
    asked += ["scan of 100k scalar steps"]
    rows = {row.name: row for row in perf.rows.all_rows()}
    assert all(rows[name].goal != perf.rows.Goal() for name in asked)
    for text in perf.rows._FIRST:
        assert any(name.startswith(text) for name in names), text
    assert perf.rows.chosen("slice", "chain, sli") and perf.rows.chosen("slice", "")
    assert not perf.rows.chosen("slice", "chain,")


# --- going on --------------------------------------------------------------------------------


def test_what_is_done_is_not_done_again(perf, tmp_path):
    head = {"tree": "a", "platform": "cuda", "tiny": False}
    here, brought = tmp_path / "here", tmp_path / "brought"
    here.mkdir()
    brought.mkdir()
    first = perf.records.Records(brought, head)
    first.add_row("sort", "gpuflow", {"seconds": 1.0, "samples": [1.0]})
    first.add_row("chain", "gpuflow", {"error": "no result within 30 s"})
    first.add_section({"name": "doctor", "status": 0, "seconds": 1.0, "records": []})
    ended = {"name": "programs", "status": None, "seconds": 9.0, "records": [{"program": "rows"}]}
    first.add_section(ended)
    with (brought / perf.records.FILE).open("a") as file:
        file.write('{"row": "cut of')  # the machine went while it wrote

    again = perf.records.Records(here, head, [brought])
    assert again.has_row("sort", "gpuflow") and again.has_section("doctor")
    assert not again.has_row("chain", "gpuflow") and not again.has_section("programs")
    assert again.begun() == {"programs": [{"program": "rows"}]}
    again.add_row("chain", "gpuflow", {"seconds": 2.0})
    report = again.report()
    (times,) = [one for one in report["sections"] if one["name"] == "times: gpuflow"]
    assert times["status"] == 0 and {r["row"]: r["seconds"] for r in times["records"]} == {
        "sort": 1.0,
        "chain": 2.0,
    }
    assert report["tree"] == "a"

    for other in ({"tree": "b"}, {"tiny": True}, {"platform": "cuda_sim"}):
        assert not perf.records.Records(here, {**head, **other}, [brought]).rows
    assert perf.records.Records(here, head).has_row("chain", "gpuflow")


CRASHES = """
import os, signal, sys
print('{"version": "1"}', flush=True)
for line in sys.stdin:
    if "column sum bfloat16" in line:
        os.kill(os.getpid(), signal.SIGSEGV)
    print('{"size": 1, "seconds": 1e-3}', flush=True)
"""


def test_a_part_goes_on_after_sections_and_rows_that_fail(perf, tmp_path, monkeypatch, capsys):
    """A doctor that fails, a section that hangs, one that crashes, a row that crashes."""
    section, stage = perf.processes.Section, perf.parts.Stage
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    failing = (
        section("doctor", ["-c", "print('MISSING: numba'); raise SystemExit(1)"], 30),
        section("hangs", ["-c", "import time; time.sleep(60)"], 1),
        section("crashes", ["-c", crash], 30),
    )
    rows = ("column sum", "column sum bfloat16", "transpose")
    planned = [
        stage("tests", 120, failing),
        stage("rows", 120, rows=rows, frameworks=("gpuflow",)),
        stage("last", 120, (section("fine", ["-c", "print('fine')"], 30),)),
    ]
    child = tmp_path / "child.py"
    child.write_text(CRASHES)
    monkeypatch.setattr(perf.acceptance, "stages", lambda part, platform, tiny: planned)
    monkeypatch.setattr(perf.acceptance, "CHILD", child)
    arguments = ["second", "--tiny", "--out", str(tmp_path / "out")]
    assert perf.acceptance.main(arguments) == 1
    lines = (tmp_path / "out" / perf.records.FILE).read_text().splitlines()
    records = [json.loads(line) for line in lines]
    status = {r["section"]["name"]: r["section"]["status"] for r in records if "section" in r}
    assert status == {"doctor": 1, "hangs": None, "crashes": -11, "fine": 0}
    found = {r["row"]: r for r in records if "framework" in r}
    assert "died of it, with status -11" in found["column sum bfloat16"]["error"]
    assert "seconds" in found["column sum"] and "seconds" in found["transpose"]
    said = capsys.readouterr().out
    assert "| hangs | killed at its limit |" in said and "MISSING: numba" in said
    # What went well is not done again.
    assert perf.acceptance.main(arguments) == 1
    said = capsys.readouterr().out
    assert "fine: done before" in said and "doctor: 1" in said and "transpose: gpuflow" not in said


def test_a_stage_ends_at_its_time(perf, rows, tmp_path):
    """A row that takes longer than all that is left of a stage is given up."""
    racer = perf.race.Racer("gpuflow", ["-c", CHILD, "hangs"], tmp_path / "log", (120.0,) * 3)
    racer.start()
    while not racer.version:  # however long a start takes
        assert racer.answer() is None
        time.sleep(0.01)
    records, until = {}, time.perf_counter() + perf.race.ROW_RESERVE + 1
    done = perf.race.race(
        rows,
        [racer],
        until,
        lambda row, name, record: records.update({row: record}),
        lambda row, name: False,
    )
    assert not done and time.perf_counter() < until + 50 and not racer.is_running
    assert records["b"]["error"] == "no result within the time of the stage"
    assert "seconds" in records["a"] and "c" not in records


def test_time_that_a_stage_leaves_over_is_the_next_ones(perf, tmp_path, monkeypatch):
    stage = perf.parts.Stage
    planned = [stage("a", 10), stage("b", 20), stage("c", 30)]
    monkeypatch.setattr(perf.acceptance, "stages", lambda part, platform, tiny: planned)
    until = {}

    def note(self, stage, end):
        until[stage.name] = end
        return True

    monkeypatch.setattr(perf.acceptance.Acceptance, "stage", note)
    monkeypatch.setattr(perf.acceptance, "time", SimpleNamespace(perf_counter=lambda: 100.0))
    out = str(tmp_path / "out")
    assert perf.acceptance.main(["first", "--tiny", "--seconds", "45", "--out", out]) == 0
    assert until == {"a": 110, "b": 130, "c": 145}
    with pytest.raises(SystemExit):
        perf.acceptance.options_of(["check"])


# --- kernels that were built before ----------------------------------------------------------


def test_what_is_not_covered_is_said(perf):
    import prebuild  # beside the others, which the fixture finds

    fine = {"walk": "gpuflow", "row": "chain", "called": True, "built": 0, "loaded": 1}
    assert prebuild.failures([fine], may_build=False) == []
    records = [
        fine,
        {**fine, "built": 2},
        {"walk": "gpuflow", "row": "sort", "error": "boom"},
        {"walk": "gpuflow", "row": "slice", "called": False, "built": 0},
        {"walk": "with atomic sums", "row": "chain", "called": False, "built": 0},
    ]
    assert prebuild.failures(records, may_build=False) == [
        "sort (gpuflow): boom",
        "chain (gpuflow): 2 kernels were not there",
        "slice: no setting calls it",
    ]
    assert len(prebuild.failures(records, may_build=True)) == 2


def test_kernels_of_another_tree_are_stale(perf, tmp_path, monkeypatch, capsys):
    import prebuild

    tree = tmp_path / "tree"
    for name in ("gpuflow", "kernels", "perf"):
        (tree / name).mkdir(parents=True)
    (tree / "gpuflow" / "a.py").write_text("1")
    (tree / "perf" / "README.md").write_text("text")
    folder = tmp_path / "kernels"
    folder.mkdir()
    assert "prepare did not finish" in prebuild.stale(folder, tree)
    manifest = {"tree": perf.records.tree_digest(tree), "commit": "abc", "kernels": 3}
    (folder / prebuild.MANIFEST).write_text(json.dumps({**manifest, "capabilities": ["9.0"]}))
    assert prebuild.stale(folder, tree) == ""
    (tree / "perf" / "README.md").write_text("other text")
    assert prebuild.stale(folder, tree) == ""
    (tree / "gpuflow" / "a.py").write_text("2")
    assert "it was made at abc, and the tree has changed since" in prebuild.stale(folder, tree)
    monkeypatch.setenv("GPUFLOW_CACHE_DIR", str(folder))
    (wrong,) = perf.environment.wrong_with_kernels()
    assert "STALE" in wrong and "brought along: 3 kernels" in capsys.readouterr().out
    monkeypatch.setattr(perf.environment, "commit", lambda: "unknown")  # no git there
    assert perf.environment.tree_commit() == "abc and changes since"
    assert perf.environment.missing_packages("") == []


def variables(**further):
    """Environment variables without the settings of these tests."""
    ours = ("GPUFLOW_EXCESS_PRECISION", "OPENBLAS_NUM_THREADS", "GPUFLOW_CACHE_DIR")
    return {**{k: v for k, v in os.environ.items() if k not in ours}, **further}


def run_kit(part, folder, *options, **environment):
    """The shell script, with folders of its own."""
    named = {
        "RENTED_GPU_FOLDER": str(folder / "bring"),
        "PYTHON": sys.executable,
        "RENTED_GPU_WORK": str(folder / "work"),
    }
    command = ["bash", str(PERF / "rented_gpu.sh"), part, *options]
    environment = variables(**{**named, **environment})
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=490)


def test_the_script_refuses_other_words(tmp_path):
    done = run_kit("everything", tmp_path)
    assert done.returncode == 2 and "usage: perf/rented_gpu.sh prepare" in done.stderr


def test_an_interpreter_without_the_packages_is_refused(tmp_path):
    """Numba is one of them only where no kernels were brought along."""
    bare = tmp_path / "python"  # which starts with none of them
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    done = run_kit("first", tmp_path, "--tiny", PYTHON=str(bare))
    assert done.returncode == 2 and "has no numpy (No module named" in done.stderr
    assert "optree (No module" in done.stderr and "prepare --wheel" in done.stderr
    assert "numba (No module" in done.stderr
    (tmp_path / "bring" / "versions").write_text("numba=0.68.1")
    done = run_kit("second", tmp_path, "--tiny", PYTHON=str(bare))
    assert done.returncode == 2 and "numpy (No" in done.stderr and "numba" not in done.stderr
    # A package that was brought along is found.
    (tmp_path / "numpy.py").touch()
    with tarfile.open(tmp_path / "bring" / "site.tar.gz", "w:gz") as site:
        site.add(tmp_path / "numpy.py", "numpy.py")
    done = run_kit("second", tmp_path, "--tiny", PYTHON=str(bare))
    assert done.returncode == 2 and "numpy" not in done.stderr and "optree (No" in done.stderr


def test_the_frontend_that_travels_is_that_of_the_extra(perf):
    requirement = perf.prepare.frontend_requirement()
    assert re.fullmatch(r"nvidia-cudnn-frontend>=1\.\d+,<1\.\d+", requirement)


# A row or section of each stage, and the kernels that they ask for.
FIRST = "environment,ceilings,programs,ormqr,column sum,host: eager add,memcheck,ncu"
SECOND = "doctor,atomic_sums,nccl,graph costs,concatenate"
KERNELS = "program: elementwise,program: many outputs,program: rows,first result"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with what prepare makes for these; what it printed; the kernels."""
    folder = tmp_path_factory.mktemp("kit")
    (folder / "bring").mkdir(parents=True)
    names = ",".join([FIRST, SECOND, KERNELS])
    script = (
        "import sys, gpu_prepare; gpu_prepare.download = lambda names, python, archive: None; "
        "sys.exit(gpu_prepare.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "--bring", str(folder / "bring"), "--tiny"]
    command += ["--capability", "9.0", "--rows", names, "--processes", "1"]
    paths = os.pathsep.join([str(ROOT), str(PERF)])
    done = subprocess.run(
        command, env=variables(PYTHONPATH=paths), capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder, done.stdout


def walk_both_parts(folder, tmp_path, python, doctor):
    """Both parts with kernels that were brought along; what each printed, and all records."""
    out, said = tmp_path / "out", {}
    for part, only in (("first", FIRST), ("second", SECOND)):
        done = run_kit(
            part,
            folder,
            "--tiny",
            "--only",
            only,
            PYTHON=python,
            OUT=str(out),
            RENTED_GPU_WORK=str(tmp_path / "work"),
        )
        wanted = int(part == "second" and doctor != 0)
        assert done.returncode == wanted, done.stdout[-4000:] + done.stderr[-2000:]
        assert f"{part} ended with status {wanted}" in done.stdout
        assert "kernels built here" not in done.stdout and "STALE" not in done.stdout
        said[part] = done.stdout
    records = [json.loads(line) for line in (out / "gpu-records.jsonl").read_text().splitlines()]
    status = {r["section"]["name"]: r["section"]["status"] for r in records if "section" in r}
    assert status["environment"] == status["ceilings"] == status["programs 0"] == 0
    assert status["fault: ormqr"] == status["kernels: test_kernel_atomic_sums"] == 0
    assert status["doctor"] == doctor and status["graph costs"] == 0
    assert status["memcheck: rows"] == status["ncu: column sum"] == "skipped"
    ceilings = [r["section"] for r in records if r.get("section", {}).get("name") == "ceilings"]
    assert len(ceilings[0]["records"]) == 12
    assert all("error" not in record for record in ceilings[0]["records"])
    rows = {r["row"]: r for r in records if "framework" in r}
    assert {"column sum", "host: eager add", "concatenate"} <= set(rows)
    assert not any("error" in record for record in rows.values())
    files = [path.name for path in out.rglob("*") if path.is_file()]
    assert {"first.log", "second.log", "gpu-records.jsonl"} <= set(files) and len(files) == 5
    return said


@requires_cuda_tools
def test_both_parts_with_kernels_that_were_built_without_a_gpu(prepared, tmp_path):
    """The simulated GPU asks for the kernels that prepare built, and for no other."""
    folder, printed = prepared
    commands = [line.strip() for line in printed.splitlines() if "rented_gpu.sh" in line]
    assert [line.split("  ")[0] for line in commands] == [
        "bash perf/rented_gpu.sh first",
        "bash perf/rented_gpu.sh second",
    ]
    assert "numba-cuda=0.30.4" in (folder / "bring" / "versions").read_text()
    built = {path.name for path in (folder / "kernels").rglob("*.cubin")}
    said = walk_both_parts(folder, tmp_path, sys.executable, doctor=0)
    assert "Platform: cuda_sim" in said["first"]
    assert len(built) >= 20
    asked = {path.name for path in (tmp_path / "work" / "kernels").rglob("*.cubin")}
    assert asked == built
    # Where results are kept, a second run has nothing to do.
    again = run_kit(
        "first",
        folder,
        "--tiny",
        "--only",
        FIRST,
        OUT=str(tmp_path / "emptied"),
        RENTED_GPU_WORK=str(tmp_path / "work"),
    )
    assert again.returncode == 0 and "ceilings: done before" in again.stdout
    assert "column sum: gpuflow" not in again.stdout.partition("# GPU acceptance")[0]


def python_of_a_rented_gpu():
    """A Python 3.12 with gpuflow's dependencies and pytest, or None."""
    python = shutil.which("python3.12")
    needed = "numpy, optree, ml_dtypes, scipy, opt_einsum, llvmlite, pytest"
    command = [python or "", "-c", f"import {needed}"]
    fine = python and subprocess.run(command, capture_output=True, check=False).returncode == 0
    return python if fine else None


@requires_cuda_tools
@pytest.mark.skipif(
    python_of_a_rented_gpu() is None, reason="there is no python3.12 with gpuflow's dependencies"
)
def test_both_parts_with_python_3_12(prepared, tmp_path):
    """It needs no numba; without it doctor fails, which is recorded, and the others run."""
    python = python_of_a_rented_gpu()
    command = [python, "-c", "import numba_cuda"]
    has_numba = subprocess.run(command, capture_output=True, check=False).returncode == 0
    walk_both_parts(prepared[0], tmp_path, python, doctor=0 if has_numba else 1)


def test_more_than_may_travel_is_refused(perf, tmp_path, monkeypatch, capsys):
    import prebuild

    def build(arguments):
        kernels = tmp_path / "kernels"
        kernels.mkdir()
        (kernels / prebuild.MANIFEST).write_text(json.dumps({"versions": {"numba": "1.2"}}))
        prebuild.archive_of(kernels).write_bytes(bytes(1 << 20))
        return 0

    least = 4_000_000 if (ROOT / ".git").exists() else 0
    assert least <= perf.prepare.tree_bytes() < 40_000_000
    monkeypatch.setattr(prebuild, "main", build)
    monkeypatch.setattr(perf.prepare, "download", lambda names, python, archive: archive.touch())
    monkeypatch.setattr(perf.prepare, "tree_bytes", lambda: 63_000_000)
    assert perf.prepare.main(["--bring", str(tmp_path / "bring")]) == 1
    assert "NOT COVERED: 64.0 MB are more than the 64 MB" in capsys.readouterr().out
