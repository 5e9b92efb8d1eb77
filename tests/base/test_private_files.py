"""Files of this user alone, and JSON from outside."""

import json
import os
import stat

import pytest

from gpuflow.base.private_files import (
    _is_deep,
    folder_problem,
    parse_json,
    read_private,
    replace_file,
    whose,
)


def test_what_is_written_is_read_and_is_private(tmp_path):
    path = tmp_path / "a" / "b"
    replace_file(path, b"content")
    assert read_private(path) == b"content"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_what_others_may_have_written_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x")
    for mode in (0o620, 0o602):
        path.chmod(mode)
        with pytest.raises(PermissionError, match="may be written by others"):
            read_private(path)
    path.chmod(0o644)
    assert read_private(path) == b"x"


def test_a_file_of_somebody_else_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"x")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(PermissionError, match=f"belongs to user {owner}, not to user {owner + 1}"):
        read_private(path)
    assert "belongs to" in folder_problem(tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/null", path)])
def test_what_is_no_file_is_refused_at_once(tmp_path, make):
    make(tmp_path / "thing")
    with pytest.raises(OSError, match=r"no file|symbolic link"):
        read_private(tmp_path / "thing")


def test_folders(tmp_path):
    assert folder_problem(tmp_path / "missing") == ""
    for mode, refused in ((0o700, False), (0o755, False), (0o775, True), (0o1777, True)):
        tmp_path.chmod(mode)
        assert bool(folder_problem(tmp_path)) == refused
    tmp_path.chmod(0o700)
    (tmp_path / "file").write_text("")
    assert folder_problem(tmp_path / "file") == ""  # nothing can be in it


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_link_of_somebody_else_to_a_folder_of_ours_is_refused(tmp_path):
    """They would choose the folder of ours in which old files are deleted."""
    (tmp_path / "ours").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "ours")
    assert folder_problem(tmp_path / "link") == ""
    os.chown(tmp_path / "link", 12345, 12345, follow_symlinks=False)
    # Root would follow its own links and those of the user: here both are root.
    assert "is a link that belongs to user 12345" in folder_problem(tmp_path / "link")
    os.chown(tmp_path / "ours", 12345, 12345)
    assert "belongs to user 12345" in whose(os.stat(tmp_path / "ours"))


@pytest.mark.parametrize(
    ("text", "is_deep"),
    [
        (b"[" * 200, True),
        (b"[" * 64, False),
        (b"[" * 65, True),
        (b"[]" * 100, False),
        (b'{"a":' * 100, True),
        (b'"' + b"[" * 200 + b'"', False),
        (b'["\\"[[' + b"[" * 200, False),
        (b'["\\\\",' + b"[" * 200, True),
        (b"", False),
    ],
)
def test_depth_is_counted_without_parsing(text, is_deep):
    assert _is_deep(text) == is_deep


def test_deep_text_is_refused_before_it_is_parsed():
    assert parse_json(b"[" * 64 + b"]" * 64)
    for text in (b"[" * 65 + b"]" * 65, b"[" * 10**6, b'{"a":' * 10**5):
        with pytest.raises(ValueError, match="nested deeper than 64"):
            parse_json(text)
    value = {"a": ["[[[" * 100, {"b": 1}]}
    assert parse_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize("text", [b"\xff", b"{", b"1" * 10_000, "[1]".encode("utf-16"), b"\x00"])
def test_what_is_no_json_is_a_value_error(text):
    with pytest.raises(ValueError):
        parse_json(text)
