"""No call deletes or replaces a file that no save wrote; files of cut-off saves are deleted."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import checkpointing
from gpuflow.checkpointing import Manager, files, ownership, saving
from gpuflow.errors import CheckpointError

TOKEN, OTHER = "0123456789abcdef", "00000000deadbeef"
# Names like those of a save, of which some have exactly the form.
NAMES = [
    f"arrays-{TOKEN}-0.safetensors", f"arrays-{TOKEN}-12.safetensors", "arrays-1.safetensors",
    "arrays-mine.safetensors", "arrays-.safetensors", f"arrays-{TOKEN.upper()}-0.safetensors",
    f"Arrays-{TOKEN}-0.safetensors", f"arrays-{TOKEN}-0.safetensors.bak", f"arrays-{TOKEN}-0",
    f"tree-{TOKEN}.json", f"tree-{TOKEN}-1.json", f"tree-{TOKEN}.new", "tree-x", "tree-",
    "tree-old", "tree-of-life.txt", "Tree.json", "TREE.JSON", "tree.json.bak", "tree.json~",
    f"failed-{TOKEN}.json", "failed-run", "failed-tests.log", "saving-notes.json",
    f"saving-{OTHER}-00000000", "saving-.json", "step_1", "step_notes", "notes.txt", ".hidden",
    "x y",
]  # fmt: skip


def fill(folder: Path, k: int) -> None:
    """Look-alikes: files, folders, links, or FIFOs in turn, another kind for each ``k``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "target of links").write_text("of a user")
    for number, name in enumerate(NAMES):
        path = folder / name
        kind = (number + k) % 5
        if kind == 0:
            path.mkdir()
            (path / "inner").write_text(name)
        elif kind == 1:
            path.symlink_to(folder / "target of links")
        elif kind == 2:
            os.mkfifo(path)
        elif kind == 3:
            path.mkdir()
        else:
            path.write_text(f'{{"format": "mine", "token": "{TOKEN}"}}')


def open_full(space):
    """``open`` on a disk with so many bytes left for each file."""
    return lambda *a, **k: Full(open(*a, **k), space)


def everything(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        content: object = stat.S_IFMT(mode)
        if stat.S_ISLNK(mode):
            content = os.readlink(path)
        elif stat.S_ISREG(mode):
            content = path.read_bytes()
        found[str(path.relative_to(folder))] = content
    return found


def lost(before: dict[str, object], folder: Path) -> list[str]:
    after = everything(folder)
    return [name for name, content in before.items() if after.get(name) != content]


@pytest.mark.parametrize("k", range(5))
def test_saves_leave_files_of_users(k, tmp_path, monkeypatch):
    folder = tmp_path / "c"
    fill(folder, k)
    before = everything(folder)
    checkpointing.save(folder, {"x": np.arange(3)})
    checkpointing.save(folder, {"x": np.arange(4)})
    checkpointing.save_async(folder, {"x": np.arange(5)}).wait()
    for name in ("write_arrays", "write_tree", "sync"):
        with monkeypatch.context() as patch:
            patch.setattr(files, name, lambda *arguments: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                checkpointing.save(folder, {"x": np.arange(6)})
    assert not lost(before, folder)
    checkpointing.save(folder, {"x": np.arange(7)})
    assert not lost(before, folder)
    np.testing.assert_array_equal(checkpointing.restore(folder)["x"], np.arange(7))
    # Nothing of the saves is left but the last one.
    assert len(everything(folder)) == len(before) + 2


@pytest.mark.parametrize("k", range(5))
def test_managers_leave_files_of_users(k, tmp_path):
    fill(tmp_path, k)
    for name in ("step_1", "step_0000007", "step_000000005", "step_٠٠٠٠٠٠٠١"):
        (tmp_path / name).mkdir(exist_ok=True) if not os.path.lexists(tmp_path / name) else None
    for step in (2, 3):  # which the manager deletes
        fill(tmp_path / f"step_{step:08d}", k + step)
    (tmp_path / "step_00000000").mkdir()  # empty, and no manager's
    elsewhere = tmp_path / "elsewhere"
    checkpointing.save(elsewhere, "kept")
    (tmp_path / "step_00000001").symlink_to(elsewhere)
    before = everything(tmp_path)
    manager = Manager(tmp_path, keep=1, best="loss")
    for step in range(2, 6):
        manager.save(step, {"x": step}, {"loss": step})
    manager.wait()
    assert manager.steps() == [1, 2, 5] and not lost(before, tmp_path)
    manager.delete(2)
    assert manager.steps() == [1, 5] and not lost(before, tmp_path)
    assert (tmp_path / "step_00000003").is_dir() and not (tmp_path / "step_00000004").exists()
    with pytest.raises(
        FileNotFoundError, match=r"\[delete\] the step must be one of \[1, 5\]; got 1"
    ):
        manager.delete(1)
    assert checkpointing.restore(elsewhere) == "kept"


def test_a_folder_in_the_way_does_not_fail_a_save_that_counts(tmp_path):
    (tmp_path / "tree-x").mkdir()
    checkpointing.save(tmp_path, 1)
    checkpointing.save(tmp_path, 2)
    assert checkpointing.restore(tmp_path) == 2 and (tmp_path / "tree-x").is_dir()


@pytest.mark.parametrize("kind", ["text", "json", "empty", "folder", "fifo", "link", "dangling"])
def test_a_tree_json_of_a_user_is_not_replaced(kind, tmp_path):
    path = tmp_path / "c" / "tree.json"
    checkpointing.save(tmp_path / "other", 1)
    path.parent.mkdir()
    {
        "text": lambda: path.write_text("a birch"),
        "json": lambda: path.write_text('{"format": "trees", "kind": "birch"}'),
        "empty": lambda: path.write_text(""),
        "folder": path.mkdir,
        "fifo": lambda: os.mkfifo(path),
        "link": lambda: path.symlink_to(tmp_path / "other" / "tree.json"),
        "dangling": lambda: path.symlink_to(tmp_path / "nowhere"),
    }[kind]()
    before = everything(tmp_path)
    said = r"\[save\] a tree\.json that is replaced must .*/c/tree\.json, which no save wrote\. Fix"
    with pytest.raises(FileExistsError, match=said):
        checkpointing.save(path.parent, 2)
    with pytest.raises(FileExistsError, match=said):
        checkpointing.save_async(path.parent, 2).wait()
    assert everything(tmp_path) == before


def test_a_damaged_checkpoint_can_be_replaced(tmp_path):
    checkpointing.save(tmp_path, 1)
    text = (tmp_path / "tree.json").read_text()
    (tmp_path / "tree.json").write_text(text[: len(text) // 2])
    checkpointing.save(tmp_path, 2)
    assert checkpointing.restore(tmp_path) == 2


def cut_off(stage, moment):
    """A stage of a save before or after which the process ends at once."""

    def run(*arguments):
        if moment == "after":
            stage(*arguments)
        os._exit(7)

    return run


STAGES = ["write_arrays", "write_tree", "sync", "tidy"]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_next_save_deletes_files_of_one_that_was_cut_off(stage, moment, tmp_path):
    """Killed before and after each stage, over an earlier checkpoint, several times."""
    checkpointing.save(tmp_path, np.arange(3))
    for _ in range(3):
        child = os.fork()
        if child == 0:
            try:
                setattr(files, stage, cut_off(getattr(files, stage), moment))
                checkpointing.save(tmp_path, np.arange(4))
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert len(checkpointing.restore(tmp_path)) in (3, 4)
    checkpointing.save(tmp_path, np.arange(5))
    names = [name.partition("-")[0] for name in sorted(os.listdir(tmp_path))]
    assert names == ["arrays", "tree.json"] and len(checkpointing.restore(tmp_path)) == 5


def test_a_killed_deletion_is_finished_by_the_next_one(tmp_path, monkeypatch):
    manager = Manager(tmp_path, keep=1, asynchronous=False)
    manager.save(1, np.arange(3))
    with monkeypatch.context() as patch:
        patch.setattr(files, "tidy", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            manager.delete(1)
    assert manager.steps() == [] and any(manager.path(1).glob("arrays-*"))
    manager.save(2, 1)
    assert os.listdir(tmp_path) == ["step_00000002"]


def test_what_cannot_be_deleted_stays_for_the_next_save(tmp_path, monkeypatch):
    checkpointing.save(tmp_path, np.arange(3))
    with monkeypatch.context() as patch:

        def refused(path, **options):
            raise PermissionError(13, "Permission denied", str(path))

        patch.setattr(Path, "unlink", refused)
        checkpointing.save(tmp_path, np.arange(4))
    assert len(list(tmp_path.glob("arrays-*"))) == 2 and len(checkpointing.restore(tmp_path)) == 4
    checkpointing.save(tmp_path, np.arange(5))
    assert len(os.listdir(tmp_path)) == 2


def test_a_journal_counts_only_under_its_own_name(tmp_path):
    check = ownership.journal_name(OTHER)[-8:]
    (tmp_path / f"saving-{TOKEN}-{check}").touch()
    (tmp_path / f"arrays-{TOKEN}-0.safetensors").write_text("mine")
    (tmp_path / ownership.journal_name(OTHER)).write_text("notes of a user")
    (tmp_path / f"arrays-{OTHER}-0.safetensors").write_text("mine")
    before = everything(tmp_path)
    checkpointing.save(tmp_path, 1)
    assert not lost(before, tmp_path)


def test_paths_that_name_no_folder_are_refused(tmp_path, monkeypatch):
    """save("") worked in the current folder, and deleted files there."""
    monkeypatch.chdir(tmp_path)
    fill(tmp_path, 4)
    before = everything(tmp_path)
    calls = {
        "save": lambda path: checkpointing.save(path, 1),
        "save_async": lambda path: checkpointing.save_async(path, 1),
        "restore": checkpointing.restore,
        "Manager": Manager,
    }
    for op, call in calls.items():
        for path in ("", "a\0b"):
            with pytest.raises(
                ValueError, match=rf"\[{op}\] the path must name a folder; got '.*F"
            ):
                call(path)
        for path in (None, b"bytes", 3):
            with pytest.raises(TypeError, match=rf"\[{op}\] the path must be a str or .*; got a "):
                call(path)
    assert everything(tmp_path) == before
    checkpointing.save(".", 1)
    assert checkpointing.restore(".") == 1 and not lost(before, tmp_path)


# --- files that cannot be written ----------------------------------------------------------


class Full:
    """A file on a disk that has no space left after some bytes."""

    def __init__(self, file, space):
        self.file, self.space = file, space

    def write(self, content):
        self.space -= len(content)
        if self.space < 0:
            raise OSError(28, "No space left on device")
        return self.file.write(content)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()


@pytest.mark.parametrize("space", [0, 200, 5000])
def test_a_full_disk(space, tmp_path, monkeypatch):
    checkpointing.save(tmp_path, np.ones(3))
    before = everything(tmp_path)
    monkeypatch.setattr(files, "open", open_full(space), raising=False)
    with pytest.raises(CheckpointError) as caught:
        checkpointing.save(tmp_path, np.zeros(1000))
    monkeypatch.undo()
    error = caught.value
    assert isinstance(error, OSError) and error.errno == 28
    assert error.filename.startswith(str(tmp_path)) and str(error).startswith("[save] files of a")
    assert f"'No space left on device' for {error.filename}, which needs 8," in str(error)
    assert "are free. Fix: free some space" in str(error)
    assert everything(tmp_path) == before
    np.testing.assert_array_equal(checkpointing.restore(tmp_path), np.ones(3))


def test_a_limit_of_the_system_on_the_size_of_files(tmp_path):
    """RLIMIT_FSIZE: the write itself fails, without a stand-in."""
    checkpointing.save(tmp_path / "c", np.ones(3))
    child = os.fork()
    if child == 0:
        import resource

        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
            try:
                checkpointing.save(tmp_path / "c", np.zeros(100_000))
            except CheckpointError as error:
                assert isinstance(error, OSError) and error.errno == 27 and "800," in str(error)
                os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(os.listdir(tmp_path / "c")) == 2 and len(checkpointing.restore(tmp_path / "c")) == 3


def test_a_folder_that_cannot_be_made(tmp_path, monkeypatch):
    def refused(path, *arguments, **options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(CheckpointError, match=r"'Permission denied' for .*/new, which needs") as e:
        checkpointing.save(tmp_path / "new", 1)
    assert isinstance(e.value, OSError) and e.value.errno == 13


def test_errors_of_a_thread_keep_their_errno(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "open", open_full(0), raising=False)
    begun = checkpointing.save_async(tmp_path, np.ones(3))
    with pytest.raises(OSError, match="No space left") as caught:
        begun.wait()
    assert caught.value.errno == 28
    saving.wait_for_last()


# --- other calls that write ----------------------------------------------------------------


def test_pages_and_traces_leave_files_of_users(tmp_path):
    fill(tmp_path, 4)
    fill(tmp_path / "plugins", 2)
    fill(tmp_path / "plugins" / "profile", 3)
    before = everything(tmp_path)
    x = jnp.ones(3)
    gf.explain(jnp.sin, x).to_html(tmp_path / "page.html")
    for _ in range(2):
        with gf.profiler.trace(str(tmp_path)):
            jnp.sin(x).block_until_ready()
    gf.profiler.save_device_memory_profile(str(tmp_path / "memory.prof"))
    jnp.savez(tmp_path / "arrays.npz", x)
    assert not lost(before, tmp_path)
