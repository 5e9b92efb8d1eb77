"""What runs on a rented GPU: kernels that were built before, rows side by side, and going on."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from cuda_tools import requires_cuda_tools

from gpuflow.base.config import config
from gpuflow.cli import doctor, doctor_checks, doctor_trials

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
        ("hangs", "no result within the time that a row has"),
        ("dies", "the process died of it, with status -6"),
        ("loses", "a fault"),
        ("is not for it", None),
    ],
)
def test_a_rival_that_fails_at_a_row_has_the_others(perf, rows, tmp_path, how, says):
    """And everybody else has all of them."""
    limits = (10.0, 1.0 if how == "hangs" else 10.0, 10.0)
    racers = [
        perf.race.Racer(name, ["-c", CHILD, what], tmp_path / f"{name}.err", limits)
        for name, what in (("gpuflow", "works"), ("jax", how))
    ]
    records = {}
    until = time.perf_counter() + 60
    done = perf.race.race(
        rows, racers, until, lambda row, name, record: records.update({(row, name): record}),
        lambda row, name: (row, name) == ("c", "gpuflow"),
    )  # fmt: skip
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
    until = time.perf_counter() + 60
    perf.race.race(
        rows, [racer], until, lambda row, name, record: records.update({row: record}),
        lambda row, name: False,
    )  # fmt: skip
    assert racer.is_out and set(records) == {"a", "b"}
    assert "did not start, with status 1: no module named that" in records["a"]["error"]
    # Where no time is left no row begins.
    assert not perf.race.race(rows, [racer], 0.0, records.update, lambda row, name: False)


def test_who_takes_a_row(perf):
    rows, takes = {row.name: row for row in perf.rows.all_rows()}, perf.race.takes
    names = [perf.race.OURS, *perf.parts.RIVALS, *perf.rows.OFF]
    assert [name for name in names if takes(name, rows["chain float32"])] == [
        "gpuflow", "jax", "torch.compile", "torch", "cupy",
    ]  # fmt: skip
    assert [name for name in names if takes(name, rows["host: plan of 3 kernels"])] == [
        "gpuflow", "jax", "without graphs",
    ]  # fmt: skip
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
        "sort": 1.0, "chain": 2.0,
    }  # fmt: skip
    assert report["tree"] == "a"

    for other in ({"tree": "b"}, {"tiny": True}, {"platform": "cuda_sim"}):
        assert not perf.records.Records(here, {**head, **other}, [brought]).rows
    assert perf.records.Records(here, head).has_row("chain", "gpuflow")


def test_check_stops_at_the_first_thing_that_is_wrong(perf, tmp_path, capsys):
    section = perf.processes.Section

    def groups():
        return [
            [section("first", ["-c", "print('fine')"], 30)],
            [section("second", ["-c", "import sys; print('no optree'); sys.exit(1)"], 30)],
            [section("third", ["-c", "pass"], 30)],
        ]

    arguments = ["check", "--tiny", "--out", str(tmp_path / "out")]
    one = perf.acceptance.Acceptance(perf.acceptance.options_of(arguments), tmp_path)
    assert not one.groups(groups(), stops=True)
    said = capsys.readouterr().out
    assert "first: 0" in said and "no optree" in said and "STOPPED" in said and "third" not in said
    arguments.append("--go-on")
    two = perf.acceptance.Acceptance(perf.acceptance.options_of(arguments), tmp_path)
    assert not two.groups(groups(), stops=True)
    said = capsys.readouterr().out
    assert "first: done before" in said and "third: 0" in said
    with pytest.raises(SystemExit):
        perf.acceptance.options_of(["tests"])


# --- kernels that were built before ----------------------------------------------------------


def test_what_is_not_covered_is_said(perf):
    import prebuild  # beside the others, which the fixture finds

    fine = {"walk": "gpuflow", "row": "chain", "called": True, "built": 0, "loaded": 1}
    assert prebuild.failures([fine], may_build=False) == []
    records = [
        fine, {**fine, "built": 2}, {"walk": "gpuflow", "row": "sort", "error": "boom"},
        {"walk": "gpuflow", "row": "slice", "called": False, "built": 0},
        {"walk": "with atomic sums", "row": "chain", "called": False, "built": 0},
    ]  # fmt: skip
    assert prebuild.failures(records, may_build=False) == [
        "sort (gpuflow): boom", "chain (gpuflow): 2 kernels were not there",
        "slice: no setting calls it",
    ]  # fmt: skip
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


def run_kit(part, folder, *options, **environment):
    """The shell script, with folders of its own."""
    variables = {
        **os.environ, "RENTED_GPU_FOLDER": str(folder / "bring"), "PYTHON": sys.executable,
        "RENTED_GPU_WORK": str(folder / "work"), **environment,
    }  # fmt: skip
    command = ["bash", str(PERF / "rented_gpu.sh"), part, *options]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)


def test_the_script_refuses_other_words(tmp_path):
    done = run_kit("everything", tmp_path)
    assert done.returncode == 2 and "usage: perf/rented_gpu.sh prepare" in done.stderr


def test_an_interpreter_without_the_packages_is_refused(tmp_path):
    bare = tmp_path / "python"  # which starts with none of them
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    done = run_kit("check", tmp_path, "--tiny", PYTHON=str(bare))
    assert done.returncode == 2 and "has no numpy (No module named" in done.stderr
    assert "optree (No module" in done.stderr and "prepare --wheel" in done.stderr


@requires_cuda_tools
def test_kernels_built_without_a_gpu_are_those_that_a_gpu_asks_for(perf, tmp_path, monkeypatch):
    """prepare, then a part on the simulated GPU, which builds nothing for the rows prepared."""
    # The attention is kernels there, and so it must be where nothing runs.
    rows = "chain float32,sorts of rows,column sum,host: eager add,loop over 60"
    rows += ",causal"
    monkeypatch.setattr(perf.prepare, "download", lambda names, python, site: site.mkdir())
    bring = tmp_path / "bring"
    arguments = ["--bring", str(bring), "--tiny", "--capability", "9.0", "--rows", rows]
    assert perf.prepare.main(arguments) == 0
    assert (bring / "stubs" / "numba_cuda-0.30.4.dist-info" / "METADATA").exists()
    built = {path.name for path in (tmp_path / "kernels").rglob("*.cubin")}
    assert len(built) >= 6

    done = run_kit("times", tmp_path, "--tiny", "--only", rows, OUT=str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "kernels built here" not in done.stdout
    assert "times ended with status 0" in done.stdout and "Platform: cuda_sim" in done.stdout
    asked = {path.name for path in (tmp_path / "work" / "kernels").rglob("*.cubin")}
    assert asked == built
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {"times.log", "gpu-records.jsonl"} <= {path.name for path in files} and len(files) == 4


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
    monkeypatch.setattr(perf.prepare, "download", lambda names, python, site: site.mkdir())
    monkeypatch.setattr(perf.prepare, "tree_bytes", lambda: 63_000_000)
    assert perf.prepare.main(["--bring", str(tmp_path / "bring")]) == 1
    assert "NOT COVERED: 64.0 MB are more than the 64 MB" in capsys.readouterr().out


# --- limits of time --------------------------------------------------------------------------


def test_doctor_may_take_as_long_as_its_trials(perf):
    """Each of them may hang: that is then entered, within check's time."""
    first, second = perf.parts.check_groups("cuda", tiny=False)[:2]
    most = len(doctor_trials.TRIALS) * doctor_checks.TRIAL_SECONDS
    (seconds,) = re.findall(r"check\) limit=(\d+)", (PERF / "rented_gpu.sh").read_text())
    assert second[0].name == "doctor" and most + 15 <= second[0].seconds
    assert first[0].seconds + second[0].seconds <= int(seconds)


def test_whether_a_kernel_can_be_built_is_told_alone(perf, monkeypatch, capsys):
    rows = iter([[("CUDA compiler", "built a kernel")], [("CUDA compiler", "MISSING: no NVVM")]])
    monkeypatch.setattr(doctor, "cuda_compiler", lambda: next(rows))
    assert perf.environment.main(["--toolchain"]) == 0
    assert "built a kernel" in capsys.readouterr().out
    assert perf.environment.main(["--toolchain"]) == 1
    assert "WRONG: MISSING: no NVVM" in capsys.readouterr().out
