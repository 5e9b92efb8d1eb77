"""Traces that are read back: what is not one is refused, at once and in one way."""

import gzip
import json
import os

import pytest

from gpuflow.profiler import ProfileData


def test_a_fifo_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.trace.json.gz")
    with pytest.raises(OSError, match="a FIFO, not a regular file"):
        ProfileData.from_file(tmp_path / "x.trace.json.gz")
    with pytest.raises(OSError, match="a folder, not a regular file"):
        ProfileData.from_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        ProfileData.from_file(tmp_path / "none")


EVENT = {"ph": "X", "pid": 1, "tid": 2, "name": "add", "ts": 3.0, "dur": 4.0}
REFUSED = {
    "deep": b"[" * 100_000,
    "deep within": b'{"traceEvents": ' + b'{"a":' * 100_000,
    "text": b"text",
    "not UTF-8": b"\xff\xfe",
    "empty": b"",
    "a list": b"[]",
    "events that are a number": b'{"traceEvents": 3}',
    "an event that is a number": b'{"traceEvents": [3]}',
    "an event without its process": b'{"traceEvents": [{"ph": "X"}]}',
    "a process that is a list": json.dumps({"traceEvents": [{**EVENT, "pid": []}]}).encode(),
    "a time that is a text": json.dumps({"traceEvents": [{**EVENT, "ts": "3"}]}).encode(),
    "a duration that is a list": json.dumps({"traceEvents": [{**EVENT, "dur": [1]}]}).encode(),
    "arguments that are a list": json.dumps({"traceEvents": [{**EVENT, "args": [1]}]}).encode(),
    "half of it": gzip.compress(json.dumps({"traceEvents": [EVENT] * 99}).encode())[:60],
    "damaged": gzip.compress(b"x" * 99)[:10] + b"\xff" * 40,
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_files_are_refused(name, tmp_path):
    path = tmp_path / "x.trace.json.gz"
    path.write_bytes(REFUSED[name])
    with pytest.raises(ValueError, match=r"\[ProfileData\] the file must be a trace .* Fix: pass"):
        ProfileData.from_file(path)


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_events_are_read(compress, tmp_path):
    path = tmp_path / "x.trace.json.gz"
    path.write_bytes(compress(json.dumps({"traceEvents": [EVENT]}).encode()))
    ((line,),) = [plane.lines for plane in ProfileData.from_file(path).planes]
    assert [(e.name, e.start_ns, e.end_ns) for e in line.events] == [("add", 3000.0, 7000.0)]
