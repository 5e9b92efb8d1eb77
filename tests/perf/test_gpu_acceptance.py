"""The acceptance script for GPUs: its structure, its rows without a GPU, and its report."""

import sys
import types
from pathlib import Path

import numpy as np
import pytest
from cuda_tools import requires_cuda_tools

import gpuflow as gf
from gpuflow.base.config import config
from gpuflow.cli import doctor_checks, doctor_trials

PERF = Path(__file__).resolve().parents[2] / "perf"
# A process that hangs, dies or loses its device, as its first argument says.
TASKS = """
import json, os, sys, time
names = ["a", "b", "c", "d"]
behind = names.index(sys.argv[3]) + 1 if "--after" in sys.argv else 0
for name in names[behind:]:
    print(json.dumps({"begin": name}), flush=True)
    if name == "b" and sys.argv[1] == "hangs":
        time.sleep(60)
    if name == "b" and sys.argv[1] == "dies":
        os.abort()
    print(json.dumps({"row": name}), flush=True)
    print('{bad', flush=True)
    print(json.dumps({"end": name}), flush=True)
    if name == "c" and sys.argv[1] == "loses":
        sys.exit(70)
sys.exit(3 if sys.argv[1] == "fails" else 0)
"""


# --- processes -------------------------------------------------------------------------------


def test_the_parts_fit_into_their_time(perf):
    """Budgets of stages sum to at most a part's limit, and no section may take longer."""
    parts, limits = perf.parts, {"first": 480, "second": 300}
    script = (PERF / "rented_gpu.sh").read_text()
    for part, limit in limits.items():
        stages = parts.stages(part, "cuda", False)
        assert sum(stage.seconds for stage in stages) <= parts.SECONDS[part] == limit
        assert f"{part}) limit={limit} ;;" in script
        for stage in stages:
            assert bool(stage.sections) is not bool(stage.rows)
            for section in stage.sections:
                assert 0 < section.seconds <= stage.seconds
                assert section.task_seconds or section.task_key != "program"


def test_the_most_important_results_come_first(perf):
    parts, rows = perf.parts, {row.name: row for row in perf.rows.all_rows()}
    first, second = (parts.stages(part, "cuda", False) for part in parts.PARTS)
    assert [stage.name for stage in first] == [
        "environment",
        "ceilings",
        "programs",
        "faults",
        "rows beside torch",
        "sanitizer",
        "profiler",
    ]
    assert [stage.name for stage in second] == ["tests", "graph costs", "further rows", "JAX rows"]
    beside_torch, further = first[4].rows, second[2].rows
    assert len(beside_torch) == 25 and all(rows[name].torch is not None for name in beside_torch)
    assert sorted([*beside_torch, *further]) == sorted(rows)
    assert all(name in second[3].rows for name, row in rows.items() if "jax" in row.goal.rivals)
    names = [section.name for stage in (*first, *second) for section in stage.sections]
    assert {"programs 0", "programs 3", "fault: ormqr", "fault: batched LU"} <= set(names)
    assert {"doctor", "tests: test_cuda_device", "kernels: test_kernel_sort"} <= set(names)
    assert "kernels: test_kernels_offline" not in names  # it needs no GPU
    tools = [name.partition(":")[0] for name in names]
    counts = [tools.count(name) for name in ("memcheck", "racecheck", "ncu")]
    assert counts == [3, 1, 5] and len(set(names)) == len(names)
    # The rows and programs that tools are given exist.
    assert set(parts.PROFILED) <= set(rows)
    assert {*parts.MEMCHECKED, *parts.RACECHECKED} <= set(perf.checks.programs())


def test_doctor_may_take_as_long_as_its_trials(perf):
    """Each of them may hang: that is recorded, within the time of its stage."""
    (stage, *_) = perf.parts.stages("second", "cuda", False)
    doctor = stage.sections[0]
    most = len(doctor_trials.TRIALS) * doctor_checks.TRIAL_SECONDS
    assert doctor.name == "doctor" and most + 15 <= doctor.seconds <= stage.seconds


@requires_cuda_tools
@pytest.mark.parametrize(
    "name", ["static and dynamic shared memory", "float32 attention, D=48, mask"]
)
def test_programs_about_shared_memory_need_more_than_48_kb(perf, name):
    """The dynamic memory alone, which a launch has to announce above 48 KB, is less."""
    device = perf.planned.planned_device((9, 0))
    function, *operands = perf.faults.programs(tiny=False)[name]
    device.driver.api.launched.clear()
    with gf.default_device(device):
        gf.jit(perf.checks.exact(function))(*operands)
    (kernel,) = [launch.kernel for launch in device.driver.api.launched]
    assert kernel.shared_bytes <= 48 << 10 < kernel.shared_bytes + kernel.built.shared_bytes


def test_a_program_that_the_host_computes_has_not_passed(perf):
    found = {"cpu": {"difference": 0.0, "bits_equal": True}, "host": {"lu(f4)": "no routine"}}
    assert not perf.checks.has_passed("batched LU", found)
    assert perf.checks.has_passed("batched LU", {**found, "host": {}})
    assert perf.checks.has_passed("sort", found)
    assert not perf.checks.has_passed("sort", {**found, "cpu": {"difference": 1e-3}})
    assert perf.checks.has_passed("bfloat16", {**found, "cpu": {"difference": 1e-3}})
    assert not perf.checks.has_passed("sort", {**found, "cpu": {"error": "f4(3,) is not f4(2,)"}})


def test_tools_that_are_not_there_are_said_and_do_not_fail(perf, tmp_path, monkeypatch):
    monkeypatch.setattr(perf.parts.shutil, "which", lambda *name, **path: None)
    (section, *_) = perf.parts.profiler_sections("cuda")
    assert section.absent == "ncu is not on this machine"
    (entry,) = perf.processes.run([section], 10, tmp_path)
    assert entry["status"] == "skipped" and entry["note"] == section.absent
    records = perf.records.Records(tmp_path, {"tree": "a"})
    records.add_section(entry)
    assert records.has_section(section.name)
    says = "import sys; sys.exit('==ERROR== ERR_NVGPUCTRPERM - no permission')"
    refused = perf.processes.Section("ncu: row", ["-c", says], 30, tool=sys.executable)
    (entry,) = perf.processes.run([refused], 30, tmp_path)
    assert entry["status"] == "skipped" and "not allowed on this machine" in entry["note"]
    (section, *_) = perf.parts.sanitizer_sections("cuda_sim")
    assert section.absent == "compute-sanitizer is for real GPUs"


@pytest.mark.parametrize(
    "how, failed, rows, restarts",
    [("hangs", {"b"}, "abcd", 1), ("dies", {"b"}, "abcd", 1), ("loses", set(), "abcd", 1)],
)
def test_a_task_that_ends_its_process_is_entered_and_the_others_run(
    perf, tmp_path, how, failed, rows, restarts
):
    section = perf.processes.Section(how, ["-c", TASKS, how], 30, task_seconds=3)
    (entry,) = perf.processes.run([section], 100, tmp_path)
    by_row = {record["row"]: record for record in entry["records"]}
    assert "".join(sorted(by_row)) == rows and entry["status"] == 0
    assert {name for name, record in by_row.items() if "error" in record} == failed
    assert entry["note"] == f"began again {restarts} times"
    if failed:
        reason = {"hangs": "no result within 3 s", "dies": "died of it, with status -6"}[how]
        assert reason in by_row["b"]["error"]


def test_sections_at_the_same_time_keep_their_limits(perf, tmp_path):
    sections = [
        perf.processes.Section("hangs", ["-c", TASKS, "hangs"], 2),
        perf.processes.Section("fails", ["-c", TASKS, "fails"], 30, task_seconds=9),
        perf.processes.Section("no", ["-c", "import sys; print('no'); sys.exit(4)"], 30),
    ]
    hung, failed, broken = perf.processes.run(sections, 100, tmp_path)
    assert hung["status"] is None and hung["records"] == [{"row": "a"}]
    assert failed["status"] == 3 and len(failed["records"]) == 4
    assert broken["status"] == 4 and broken["tail"] == "no\n"
    late = perf.processes.run(sections[2:], 1, tmp_path)
    assert late[0]["status"] == "out of time"


def test_an_interrupted_section_goes_on_behind_its_last_task(perf, tmp_path):
    """Also in another process, which has the records of the first."""
    section = perf.processes.Section("slow", ["-c", TASKS, "fine"], 30, task_seconds=9)
    before = [{"row": "a"}, {"row": "b", "error": "no"}]
    (entry,) = perf.processes.run([section], 100, tmp_path, earlier={"slow": before})
    assert [record["row"] for record in entry["records"]] == ["a", "b", "c", "d"]
    assert entry["records"][1] == before[1] and entry["status"] == 0

    noted = []
    hanging = perf.processes.Section("hangs", ["-c", TASKS, "hangs"], 60)

    def late(*arguments):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(perf.processes.Running, "poll", late)
        perf.processes.run([hanging], 100, tmp_path, note=noted.append)
    assert [entry["status"] for entry in noted] == [None]


# --- rows ------------------------------------------------------------------------------------


def test_rows_make_their_inputs(perf):
    rows = perf.rows.all_rows()
    assert len({row.name for row in rows}) == len(rows) > 45
    for row in rows:
        inputs = perf.child.inputs_of(row, row.tiny, 0)
        assert all(isinstance(array, np.ndarray) and array.nbytes < 1 << 26 for array in inputs)
        assert set(row.without) <= set(perf.rows.OFF)
        # A comparison with something turned off is also measured.
        assert set(row.goal.rivals) & set(perf.rows.OFF) <= set(row.without)


def test_the_table_of_the_issue_is_there(perf):
    """Each with a goal: GPU performance that the project promises."""
    rows = {row.name: row for row in perf.rows.all_rows()}
    names = ["chain float32", "chain bfloat16", "full sum", "column sum", "MLP Adam step"]
    names += [f"{what} rows of {n}" for what in ("softmax", "layernorm") for n in (256, 32768)]
    names += ["normal, fused into a mean", "host: eager add", "host: jitted call of 2 arrays"]
    names += ["host: plan of 3 kernels", "host: plan of 100 kernels", "CNN step"]
    names += [f"attention forward and backward bf16 D={n}" for n in (64, 128)]
    names += ["transformer block step bf16"]
    assert all(rows[name].goal != perf.rows.Goal() for name in names)
    assert sum(row.group == "segment sum" for row in rows.values()) == 4
    assert perf.goals.MANY_SIZES_GOAL.times == 0.05


def test_torch_rows_compile_what_they_are_told_to(perf):
    """Each is given ``jit``; the functions themselves need torch, which tests do not."""
    compiled = [row for row in perf.rows.all_rows() if perf.rows.COMPILED in row.goal.rivals]
    assert len(compiled) >= 15 and all(row.torch is not None for row in compiled)
    for row in compiled:
        jitted = []
        row.torch(types.SimpleNamespace(nn=types.SimpleNamespace(functional=None)), jitted.append)
        assert jitted, row.name


def fake_cupy():
    """NumPy where CuPy is expected, with CuPy's events."""
    fake = types.ModuleType("cupy")
    fake.__dict__.update({name: getattr(np, name) for name in np.__all__})
    fake.__version__, fake.asnumpy = "0", np.asarray

    class Event:
        def record(self, stream=None):
            del stream

    device = types.SimpleNamespace(synchronize=lambda: None)
    fake.cuda = types.SimpleNamespace(
        Event=Event, Device=lambda: device, get_elapsed_time=lambda first, last: 2.0
    )
    return fake


def test_kernels_that_were_not_brought_are_counted(perf):
    """From before the first call to behind the last, for each row anew."""
    count = [5]

    def function(row):
        def call(*arrays):
            count[0] += row.name == "slice"
            return arrays

        return call if row.name != "transpose" else None

    framework = perf.frameworks.Framework(
        "1", function, lambda x: x, np.asarray, lambda out: None, list, built=lambda: count[0]
    )
    server = perf.child.Server(framework, True)
    first = server.answer({"do": "first", "row": "slice"})
    assert first["built"] == 1 and server.answer({"do": "time"})["built"] == 3
    assert "built" not in server.answer({"do": "first", "row": "concatenate"})
    assert server.answer({"do": "first", "row": "transpose"}) == {"none": True}


def test_rows_on_the_cpu(perf):
    """Each row runs, and is measured, at its tiny size."""
    before = {name: config.read(name) for name in ("default_matmul_precision", "default_device")}
    try:
        framework = perf.frameworks.load("gpuflow", "cpu")
        for row in perf.rows.all_rows():
            found = perf.child.prepared(row.name, framework, tiny=True).measure()
            assert found["seconds"] > 0 and found["check"], row.name
    finally:
        for name, value in before.items():
            config.update(name, value)


def test_rows_in_cupy(perf, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    framework = perf.frameworks.load("cupy", "cuda")
    prepared = {}
    for row in perf.rows.all_rows():
        prepared[row.name] = perf.child.prepared(row.name, framework, tiny=True)
    measured = {name: one.measure() for name, one in prepared.items() if one is not None}
    assert len(measured) >= 15 and "solve of 8 x 8" in measured
    assert measured["full sum"]["seconds"] == 2e-3  # as the events say


# --- limits of graphs ------------------------------------------------------------------------


def test_what_the_costs_of_graphs_say_of_their_limits(perf):
    """By made-up costs in microseconds: a launch 5, a replay 6 and 0.5 for each launch."""
    costs = perf.graph_costs
    found = {"launch": 5.0, "replay 4": 8.0, "replay 32": 22.0, "record 32": 690.0}
    found |= {"change one of 32": 7.5}
    found |= {f"copy {size} bytes": size / (1 << 17) for size in costs.COPIES}
    limits = {}
    for line in costs.advice(found):
        limits.setdefault(line["limit"], []).append(line["measured"])
    assert limits == {
        "LEAST_LAUNCHES": [pytest.approx(6 / 4.5)],
        "_WORTH_CHANGING": [1.5],
        "_REPLAYS_PER_RECORDING": [5.0],
        "_MAX_COPIED_BYTES": [1 << 20, 1 << 24],
    }
    slow = {**found, "replay 4": 30.0, "replay 32": 240.0}
    nothing = [line["measured"] for line in costs.advice(slow)]
    assert nothing == [None, 1.5, None, None, None]


# --- goals and report ------------------------------------------------------------------------


def test_verdicts(perf):
    goals, rows = perf.goals, {row.name: row for row in perf.rows.all_rows()}
    chain, copy = rows["chain float32"], 4e12
    best = 8 * chain.full / copy

    def of(row, seconds, copy=copy, **others):
        records = {name.replace("_", " "): {row.name: {"seconds": s}} for name, s in others.items()}
        records["gpuflow"] = {row.name: {"seconds": seconds, "size": row.full}}
        return goals.verdict(row.goal, row, row.name, records, copy)

    assert of(chain, best / 0.95, jax=best * 2) == "pass"
    assert of(chain, best / 0.5, jax=best) == "FAIL: 50 % of a copy; FAIL: 2.00 x jax"
    assert of(chain, best, copy=None).startswith("not measured: no copy bandwidth; not measured")
    assert of(rows["host: eager add"], 9e-6) == "FAIL: 1.50 x it"
    sort = rows["sort of a vector"]
    assert of(sort, 2.0, without_handwritten_kernels=1.0).startswith("DELETE the kernel: 2.00 x")
    assert of(sort, 0.5, without_handwritten_kernels=1.0) == "pass"
    assert goals.verdict(chain.goal, chain, chain.name, {}, copy) == "not measured"
    broken = {"gpuflow": {chain.name: {"error": "boom"}}}
    assert goals.verdict(chain.goal, chain, chain.name, broken, copy) == "FAIL: no time"
    plan = rows["host: plan of 3 kernels"]
    records = {"gpuflow": {plan.name: {"seconds": 1e-6, "kernels": 4}}}
    assert "4 kernels, not 3" in goals.verdict(plan.goal, plan, plan.name, records, copy)
    assert goals.wanted(sort.goal) == "not slower than without handwritten kernels"
    names = [name for name, row in rows.items() if row.group]
    records = {"gpuflow": {name: {"seconds": 1.0 + k} for k, name in enumerate(names)}}
    group, *others = goals.groups(rows.values(), records)
    assert group[2:] == ["4.00 x", "FAIL"] and all(one[3] == "not measured" for one in others)
    records["with atomic sums"] = {name: {"seconds": 2.0} for name in names}
    groups = {one[0]: one[2:] for one in goals.groups(rows.values(), records)}
    assert groups["segment sum float32, unsorted: atomic over ordered"] == ["0.50 x", "pass"]


def test_the_report_of_a_run_with_gaps(perf):
    row = next(row for row in perf.rows.all_rows() if row.name == "chain float32")
    ours = {"row": row.name, "seconds": 1e-3, "size": row.full, "check": [1.0, 2.0], "built": 3}
    theirs = {"row": row.name, "seconds": 2e-3, "size": row.full, "check": [1.0, 2.5]}
    sections = [
        {"name": "programs 0", "status": 1, "seconds": 1.0, "records": [
            {"program": "rows", "passed": True, "cpu": {"difference": 1e-7, "bits_equal": False}},
            {"program": "full", "passed": False, "error": "a | b"},
            {"memory_stats": {"bytes_in_use": 3}},
        ]},
        {"name": "fault: batched LU", "status": 1, "seconds": 1.0, "records": [
            {"program": "batched LU", "passed": False, "host": {"lu(f4)": "no routine"},
             "cpu": {"difference": 0.0, "bits_equal": True}},
        ]},
        {"name": "ceilings", "status": 0, "seconds": 1.0, "records": [
            {"ceiling": "copy", "bytes": 8, "per_second": 4.0e12}, {"ceiling": "x", "error": "no"},
        ]},
        {"name": "times: gpuflow", "status": None, "seconds": 1.0, "records": [
            {"row": "version", "version": "1"}, ours, {"row": "full sum", "error": "boom"},
        ]},
        {"name": "times: jax", "status": 0, "seconds": 1.0, "records": [theirs]},
    ]  # fmt: skip
    head = {"date": "today", "platform": "cuda", "tiny": False, "commit": "abc", "device": "gpu"}
    text = perf.report.markdown({**head, "versions": {"torch": "2"}, "sections": sections})
    assert "Device: gpu. Commit abc. torch 2." in text and "killed at its limit" in text
    assert "| copy | 4000.0 GB/s |" in text and "| rows | 1e-07 |  | ok |" in text
    assert "| batched LU | same bits | lu(f4) | FAILED" in text
    assert f"Not measured: {len(perf.rows.all_rows()) + 1 - 2} rows." in text
    assert perf.report.row_line("a", "us", ours) == "a: us 1.000 ms (3 kernels built here)"
    assert "| 1.000 ms (3 kernels built here) |" in text
    assert "2.000 ms (0.50x) RESULTS DIFFER" in text and "failed: boom" in text
    share = 2 * 4 * row.full / 1e-3 / 4.0e12
    assert f"({100 * share:.0f} % of a copy)" in text and "FAILED a / b" in text
