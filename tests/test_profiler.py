"""gpuflow.profiler: what is on which row, when, and that nothing is left when a trace ends."""

from __future__ import annotations

import doctest
import gzip
import io
import itertools
import json
import threading
import time

import numpy as np
import pytest
import rich.console

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import profiler
from gpuflow.base.recording import Recording, span, state
from gpuflow.compiler.cache.kernel_cache import CacheEntry, KernelCache
from gpuflow.profiler.tables import own_times
from gpuflow.profiler.traces import chrome_trace
from gpuflow.runtime import program_text

pytestmark = pytest.mark.usefixtures("loops_of_steps")


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert state.recording is None
    with pytest.raises(RuntimeError):
        profiler.stop_trace()


def rows_of(folder):
    """Row: its events, from the only trace in a folder."""
    (path,) = folder.glob("plugins/profile/*/*.trace.json.gz")
    (plane,) = profiler.ProfileData.from_file(path).planes
    return {line.name: line.events for line in plane.lines}


def names(events):
    return [event.name for event in events]


@gf.jit
def program(x):
    """A kernel, a product, a loop, a copy and a host function."""
    y = jnp.sin(x) @ x.T
    total, sums = gf.lax.scan(lambda c, row: (jnp.tanh(c + row), c.sum()), x[0], x)
    host = gf.pure_callback(lambda v: np.asarray(v) * 2, gf.ShapeDtypeStruct((8,), "float32"), sums)
    return gf.nn.softmax(y), total, host, x[::2]


X = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)


def test_steps_of_programs_are_on_rows_of_their_kind(tmp_path):
    program(X)  # traced and built before
    with profiler.trace(tmp_path):
        program(X)
    rows = rows_of(tmp_path)
    assert any(name.startswith("map_sin") for name in names(rows["kernels"]))
    assert names(rows["libraries"]) == ["dot_general"]
    assert names(rows["loops"]) == ["scan"]
    assert names(rows["copies"]) == ["copy", "copy"]  # one is what the loop starts from
    assert names(rows["host functions"]) == ["pure_callback"]
    sine = next(event for event in rows["kernels"] if event.name.startswith("map_sin"))
    details = dict(sine.stats)
    assert details["ops"] == "sin" and details["flops"] == X.size
    assert details["bytes"] == 2 * X.nbytes
    assert "test_profiler.py" in details["source"]


def test_steps_run_one_by_one(tmp_path):
    with profiler.trace(tmp_path):
        for _ in range(3):
            program(X)
    steps = sorted(
        (event.start_ns, event.end_ns)
        for row in ("kernels", "libraries", "loops", "copies", "host functions")
        for event in rows_of(tmp_path)[row]
    )
    assert len(steps) >= 15
    assert all(start <= end for start, end in steps)
    # A microsecond in a float of the file is exact to a thousandth.
    assert all(before[1] <= after[0] + 1 for before, after in itertools.pairwise(steps))


def test_loops_that_call_the_host_show_their_steps(tmp_path):
    def body(carry, row):
        carry = gf.pure_callback(lambda v: np.asarray(v) / 2, carry, carry)
        return jnp.tanh(carry + row), None

    with profiler.trace(tmp_path):
        gf.jit(lambda x: gf.lax.scan(body, x[0], x)[0])(X)
    rows = rows_of(tmp_path)
    (loop,) = rows["loops"]
    assert loop.name == "scan" and len(rows["host functions"]) == len(X)
    assert all(loop.start_ns <= event.start_ns <= loop.end_ns for event in rows["kernels"])


def test_results_are_the_same(tmp_path):
    before = program(X)
    with profiler.trace(tmp_path):
        during = program(X)
    for left, right in zip(before, during, strict=True):
        np.testing.assert_array_equal(left, right)


def test_drivers_have_no_marks_without_a_trace(tmp_path, monkeypatch):
    texts = []
    monkeypatch.setattr(program_text, "show", lambda level, title, text: texts.append(text()))
    f = gf.jit(lambda x: jnp.cos(x) + 1.5)
    f(X)
    with profiler.trace(tmp_path):
        f(X)
    f(X)
    f(X)
    plain, marked, again = [text for text in texts if "map_cos" in text or "clock" in text]
    assert "clock" in marked and "clock" not in plain
    assert again == plain


def test_compilations_and_builds(tmp_path):
    with profiler.trace(tmp_path):
        gf.jit(lambda x: x * 2 + 1)(X)
        cache = KernelCache(tmp_path / "cache")
        cache.get("ab" * 32, lambda: CacheEntry(b"code", "o", "", "a_kernel"))
        cache.get("ab" * 32, lambda: CacheEntry(b"code", "o", "", "a_kernel"))  # found, not built
    builds = names(rows_of(tmp_path)["builds"])
    assert "compile a program" in builds
    assert builds.count("build a_kernel") == 1


def test_eager_ops(tmp_path):
    x = jnp.asarray(X)
    with profiler.trace(tmp_path):
        gf.lax.tanh(x)
    (event,) = [e for e in rows_of(tmp_path)["eager ops"] if e.name == "tanh"]
    assert dict(event.stats) == {"output": "f32[8,5]"}


def test_levels_leave_rows_out(tmp_path):
    options = profiler.ProfileOptions()
    options.host_tracer_level = 0
    with profiler.trace(tmp_path / "steps", profiler_options=options):
        program(X)
        gf.lax.tanh(jnp.asarray(X))
    rows = rows_of(tmp_path / "steps")
    assert "eager ops" not in rows and "kernels" in rows
    options = profiler.ProfileOptions(device_tracer_level=0)
    program(X)
    with profiler.trace(tmp_path / "host", profiler_options=options):
        program(X)
        gf.lax.tanh(jnp.asarray(X))
    rows = rows_of(tmp_path / "host")
    assert "eager ops" in rows and "kernels" not in rows


def test_annotations(tmp_path):
    @profiler.annotate_function
    def work():
        return 3

    named = profiler.annotate_function(work, name="other", size=2)
    assert not profiler.TraceAnnotation.is_enabled()
    with profiler.TraceAnnotation("before"):
        pass
    with profiler.trace(tmp_path):
        assert profiler.TraceAnnotation.is_enabled()
        with profiler.StepTraceAnnotation("train", step_num=4) as step:
            step.set_metadata(loss=0.5)
            assert work() == named() == 3
            with gf.named_scope("part"):
                gf.named_call(lambda: None, name="called")()
    events = rows_of(tmp_path)["host"]
    by_name = {event.name: event for event in events}
    assert "before" not in by_name
    assert {"train 4", "other", "part", "called"} < set(by_name)
    assert dict(by_name["train 4"].stats) == {"step_num": 4, "loss": 0.5}
    assert dict(by_name["other"].stats) == {"size": 2}
    outer, inner = by_name["train 4"], by_name["called"]
    assert outer.start_ns <= inner.start_ns and inner.end_ns <= outer.end_ns


def test_every_thread_has_rows_of_its_own(tmp_path):
    with profiler.trace(tmp_path):
        program(X)
        other = threading.Thread(target=program, args=(X,))
        other.start()
        other.join()
    rows = rows_of(tmp_path)
    assert names(rows["kernels"]) == names(rows["kernels (thread 1)"])


def test_the_file_is_chromes_format(tmp_path):
    with profiler.trace(tmp_path, create_perfetto_trace=True):
        program(X)
    files = sorted(tmp_path.glob("plugins/profile/*/*"))
    assert len(files) == 2 and "perfetto_trace.json.gz" in [path.name for path in files]
    left, right = (json.loads(gzip.decompress(path.read_bytes())) for path in files)
    assert left == right
    named = {e["tid"] for e in left["traceEvents"] if e["name"] == "thread_name"}
    for event in left["traceEvents"]:
        assert event["ph"] in "MXC"
        if event["ph"] == "X":
            assert event["tid"] in named and event["ts"] >= 0 and event["dur"] >= 0


def test_two_traces_in_a_second_have_a_folder_each(tmp_path):
    for _ in range(3):
        with profiler.trace(tmp_path):
            pass
    assert len(list(tmp_path.glob("plugins/profile/*/*.trace.json.gz"))) == 3


def test_an_exception_ends_the_trace(tmp_path):
    with pytest.raises(ZeroDivisionError), profiler.trace(tmp_path), span("host", "a part"):
        raise ZeroDivisionError
    assert names(rows_of(tmp_path)["host"]) == ["a part"]


def test_details_of_any_type_are_written():
    recording = Recording()
    recording.add("host", "x", recording.start, {"array": np.zeros(2), "size": 3})
    event = chrome_trace(recording)["traceEvents"][-1]
    assert event["args"] == {"array": "[0. 0.]", "size": 3}
    json.dumps(chrome_trace(recording))


# --- memory --------------------------------------------------------------------------------


def fields(message):
    """Pairs of number and content of a protocol buffer."""

    def varint():
        value = shift = 0
        while True:
            byte = message[place[0]]
            place[0] += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    place, parts = [0], []
    while place[0] < len(message):
        tag = varint()
        if tag & 7 == 0:
            parts.append((tag >> 3, varint()))
        else:
            size = varint()
            parts.append((tag >> 3, message[place[0] : place[0] + size]))
            place[0] += size
    return parts


def sizes_by_type(profile):
    """Type: count and bytes, from a profile of pprof."""
    parts = fields(gzip.decompress(profile))
    strings = [content.decode() for number, content in parts if number == 6]
    assert strings[0] == ""
    functions = {}
    for number, content in parts:
        if number == 5:
            (_, identity), (_, name) = fields(content)
            functions[identity] = strings[name]
    sizes = {}
    for number, content in parts:
        if number == 2:
            values = fields(content)
            stack = [functions[value] for field, value in values if field == 1]
            sizes[tuple(stack)] = tuple(value for field, value in values if field == 2)
    return sizes


def test_the_memory_profile_counts_live_arrays(tmp_path):
    kept = [jnp.zeros((173, 19)) for _ in range(3)]
    deleted = jnp.zeros((173, 19))
    deleted.delete()
    profile = sizes_by_type(profiler.device_memory_profile())
    assert profile["f32[173,19]", "cpu"] == (3, sum(array.nbytes for array in kept))
    assert not sizes_by_type(profiler.device_memory_profile(backend="gpu"))
    profiler.save_device_memory_profile(tmp_path / "memory.prof")
    saved = sizes_by_type((tmp_path / "memory.prof").read_bytes())
    assert saved["f32[173,19]", "cpu"] == profile["f32[173,19]", "cpu"]


def test_memory_over_time_is_a_counter(tmp_path):
    with profiler.trace(tmp_path):
        program(X)
        time.sleep(0.5)
    (samples,) = [events for row, events in rows_of(tmp_path).items() if row == "memory"]
    assert len(samples) >= 3 and all(dict(event.stats)["bytes"] > 1 << 20 for event in samples)
    assert [event.start_ns for event in samples] == sorted(event.start_ns for event in samples)
    options = profiler.ProfileOptions(device_tracer_level=0)
    with profiler.trace(tmp_path / "host", profiler_options=options):
        time.sleep(0.03)
    assert "memory" not in rows_of(tmp_path / "host")
    assert not [thread for thread in threading.enumerate() if "_sample" in thread.name]


# --- tables --------------------------------------------------------------------------------


def test_the_table_adds_up_by_operation_and_line(tmp_path):
    @gf.jit
    def step(x):
        y = jnp.sort(x, 1)
        return jnp.sort(y + 1, 0) @ x.T

    step(X)
    with profiler.trace(tmp_path):
        for _ in range(3):
            step(X)
    found = profiler.table()
    assert found.path.is_relative_to(tmp_path)
    by_name = {op.name: op for op in found.ops}
    assert by_name["sort"].calls == 6 and by_name["sort"].row == "libraries"
    assert by_name["dot_general"].flops == 3 * 2 * 8 * 8 * 5
    assert sum(op.share for op in found.ops) == pytest.approx(1)
    assert sum(line.share for line in found.lines) == pytest.approx(1)
    seconds = [op.seconds for op in found.ops]
    assert seconds == sorted(seconds, reverse=True)
    first = step.__wrapped__.__code__.co_firstlineno + 2
    calls = {line.line.rpartition(":")[2]: line.calls for line in found.lines}
    assert calls[f"{first} (step)"] == 3 and f"{first + 1} (step)" in calls
    assert found.seconds == pytest.approx(sum(seconds))
    text = str(found)
    assert "by operation" in text and "test_profiler.py:" in text and "memory over" in text
    assert repr(found) == text and str(profiler.table(tmp_path)) == text
    assert found._repr_html_().count("<table>") == 2
    out = io.StringIO()
    rich.console.Console(file=out, width=150).print(found)
    assert "dot_general" in out.getvalue()
    assert len(profiler.table(found.path, top=1).tables()[0].rows) == 1


def test_what_runs_inside_of_a_loop_is_not_counted_twice(tmp_path):
    def body(carry, row):
        carry = gf.pure_callback(lambda v: np.asarray(v) / 2, carry, carry)
        return jnp.tanh(carry + row), None

    f = gf.jit(lambda x: gf.lax.scan(body, x[0], x)[0])
    f(X)
    with profiler.trace(tmp_path):
        f(X)
    found = profiler.table()
    (loop,) = [event for event in rows_of(tmp_path)["loops"]]
    by_name = {op.name: op for op in found.ops}
    assert by_name["pure_callback"].calls == len(X)
    assert by_name["scan"].seconds < loop.duration_ns / 1e9
    outer = [e for row in ("loops", "copies") for e in rows_of(tmp_path).get(row, ())]
    # Microseconds of the file have three digits.
    steps = [op for op in found.ops if op.row != "builds"]
    assert sum(op.seconds for op in steps) <= sum(e.duration_ns for e in outer) / 1e9 + 1e-6


def test_own_times():
    def event(name, start, duration):
        return "kernels", profiler.ProfileEvent(name, start, duration, ())

    events = [event("b", 20, 30), event("a", 0, 100), event("c", 25, 10), event("d", 100, 5)]
    works = {work.event.name: work.nanoseconds for work in own_times(events)}
    assert works == {"a": 70, "b": 20, "c": 10, "d": 5}


@pytest.mark.parametrize("size", [0, 1, 10**3, 10**9, 10**18])
@pytest.mark.parametrize("seconds", [0.0, 3e-10, 0.9996e-3, 0.034, 5e5])
def test_figures_of_the_table_are_readable(tmp_path, size, seconds):
    """A step that moved a kilobyte in 35 ms showed 2.87e-05 GB/s."""
    op = profiler.tables.OpTime("name", "row", 10**7, seconds, 1e-9, size, size)
    memory = (profiler.tables.MemorySample(seconds, size),)
    line = profiler.tables.LineTime("file.py:1 (f)", 10**7, seconds, 1.0)
    table = profiler.tables.TraceTable(tmp_path, seconds, (op,), (line,), memory)
    figures = [cell for part in table.tables() for cell in part.rows[0][1:]]
    assert not any("e-" in text or "e+" in text for text in [*figures, str(table)])
    rates = figures[-5:-3]
    assert rates[0] == rates[1] and bool(rates[0]) == bool(size and seconds)


def test_there_must_be_a_trace(tmp_path):
    with pytest.raises(ValueError, match=r"\[table\] there must be a trace; got .*Fix: with"):
        profiler.table(tmp_path)
    with profiler.trace(tmp_path, profiler_options=profiler.ProfileOptions(device_tracer_level=0)):
        pass
    found = profiler.table()
    assert found.ops == () and found.seconds == 0 and "too short for a sample" in str(found)


def test_examples_of_docstrings():
    names = {"gf": gf, "jnp": jnp}
    owners = (profiler.table, profiler.device_memory_profile, profiler.save_device_memory_profile)
    for owner in owners:
        (test,) = doctest.DocTestFinder(recurse=False).find(owner, "example", globs=dict(names))
        assert test.examples
        assert not doctest.DocTestRunner().run(test).failed


# --- errors --------------------------------------------------------------------------------


def test_one_trace_at_a_time(tmp_path):
    with profiler.trace(tmp_path), pytest.raises(RuntimeError, match=r"\[start_trace\] one trace"):
        profiler.start_trace(tmp_path)
    with pytest.raises(RuntimeError, match=r"\[stop_trace\] a trace must be under way"):
        profiler.stop_trace()


def test_what_is_not_there(tmp_path):
    with pytest.raises(NotImplementedError, match=r"\[start_trace\] create_perfetto_link"):
        profiler.start_trace(tmp_path, create_perfetto_link=True)
    with pytest.raises(NotImplementedError, match=r"\[start_server\].*port 9999"):
        profiler.start_server(9999)
    with pytest.raises(ValueError, match=r"\[stop_server\] a server must be running"):
        profiler.stop_server()
    with pytest.raises(NotImplementedError, match=r"\[register_subprocess\].*process 12"):
        profiler.register_subprocess(12, 3)


def test_the_folder_of_a_trace_is_checked_at_its_start(tmp_path, monkeypatch):
    """An empty name would be the current folder; a file would lose the trace at its end."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").write_text("text")
    for name, got in (("", r"''\."), ("notes", r"'notes', a file\.")):
        match = rf"\[start_trace\] log_dir must be the path of a folder; got {got} Fix: start_trace"
        with pytest.raises(ValueError, match=match), profiler.trace(name):
            raise AssertionError("the block must not run")
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]
    with profiler.trace("new"):
        pass
    assert (tmp_path / "new" / "plugins").is_dir()


def test_names_must_be_strings():
    with pytest.raises(TypeError, match=r"\[TraceAnnotation\] the name must be a string; got 3"):
        profiler.TraceAnnotation(3)
    with pytest.raises(TypeError, match=r"\[named_scope\] the name must be a string; got None"):
        gf.named_scope(None)


def test_files_that_are_no_traces(tmp_path):
    path = tmp_path / "x.trace.json.gz"
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"\[ProfileData\] the file must be a trace"):
        profiler.ProfileData.from_file(path)
