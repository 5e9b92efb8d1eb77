"""Saves in another thread: what was there when they began, errors, and how processes end."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from pathlib import Path

import numpy as np
import pytest

import gpuflow as gf
import gpuflow.numpy as jnp
from gpuflow import checkpointing
from gpuflow.checkpointing import files, saving

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def gate(monkeypatch):
    """Keeps threads that write from the first byte until it is set."""
    event, write = threading.Event(), files.write_arrays

    def wait_and_write(*arguments):
        assert event.wait(30)
        return write(*arguments)

    monkeypatch.setattr(files, "write_arrays", wait_and_write)
    yield event
    event.set()
    saving.wait_for_last()


@pytest.fixture
def failing(monkeypatch):
    """Lets writing fail."""

    def write(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_arrays", write)


def test_the_snapshot_is_that_of_the_call(gate, tmp_path):
    """Donated arrays large and small, updates in place, deleted arrays, NumPy's own."""
    host = np.arange(5.0)
    large = np.random.default_rng(0).random((300, 300), np.float32)
    tree = {
        "donated": jnp.asarray(large),
        "small": jnp.arange(3.0),
        "updated": jnp.asarray(large),
        "deleted": jnp.asarray(large),
        "host": host,
        "key": gf.random.key(4),
    }
    begun = checkpointing.save_async(tmp_path / "c", tree)
    step = gf.jit(lambda *xs: [-x * 2 for x in xs], donate_argnums=(0, 1))
    update = gf.jit(lambda x: x.at[3].set(7), donate_argnums=0)
    step(tree["donated"], tree["small"])
    update(tree["updated"])
    tree["deleted"].delete()
    host[:] = -1
    # What is freed and written again must be other memory.
    others = [jnp.full((300, 300), 5.0) for _ in range(8)]
    assert tree["donated"].is_deleted() and not begun.is_done() and others
    gate.set()
    begun.wait()
    assert begun.is_done()
    got = checkpointing.restore(tmp_path / "c")
    for name in ("donated", "updated", "deleted"):
        np.testing.assert_array_equal(got[name], large)
    np.testing.assert_array_equal(got["small"], np.arange(3))
    np.testing.assert_array_equal(got["host"], np.arange(5))
    np.testing.assert_array_equal(gf.random.key_data(got["key"]), [0, 4])


def test_there_is_one_save_at_a_time(gate, tmp_path):
    first = checkpointing.save_async(tmp_path / "a", 1)
    order = []

    def second():
        checkpointing.save(tmp_path / "b", 2)
        order.append(first.is_done())

    thread = threading.Thread(target=second)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive() and not order
    gate.set()
    thread.join(30)
    assert order == [True]
    assert checkpointing.restore(tmp_path / "a") == 1
    assert checkpointing.restore(tmp_path / "b") == 2


def test_wait_raises_what_stopped_the_thread(failing, tmp_path):
    begun = checkpointing.save_async(tmp_path / "c", {"x": 1})
    with pytest.raises(OSError, match="No space left") as caught:
        begun.wait()
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-1] == "write" and "_run" in names
    checkpointing.saving.wait_for_last()  # nobody is told twice


def test_the_next_save_raises_what_nobody_was_told(failing, tmp_path, monkeypatch):
    checkpointing.save_async(tmp_path / "c", {"x": 1})
    with pytest.raises(OSError, match="No space left"):
        checkpointing.save_async(tmp_path / "d", {"x": 2})
    monkeypatch.undo()
    checkpointing.save(tmp_path / "d", {"x": 3})
    assert checkpointing.restore(tmp_path / "d") == {"x": 3}
    assert not (tmp_path / "c" / "tree.json").exists()


def test_a_failed_save_leaves_the_earlier_checkpoint(tmp_path, monkeypatch):
    checkpointing.save(tmp_path / "c", np.ones(3))
    for name in ("begin", "checksum", "write_tree"):
        before = sorted(os.listdir(tmp_path / "c"))
        with monkeypatch.context() as patch:
            patch.setattr(files, name, lambda *arguments: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                checkpointing.save(tmp_path / "c", np.zeros(3))
        assert sorted(os.listdir(tmp_path / "c")) == before
        np.testing.assert_array_equal(checkpointing.restore(tmp_path / "c"), np.ones(3))


def test_ctrl_c_behind_the_last_step_keeps_the_new_checkpoint(tmp_path, monkeypatch):
    checkpointing.save(tmp_path / "c", np.ones(3))
    replace = os.replace

    def interrupted(*paths):
        replace(*paths)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            checkpointing.save(tmp_path / "c", np.zeros(3))
    np.testing.assert_array_equal(checkpointing.restore(tmp_path / "c"), np.zeros(3))
    checkpointing.save(tmp_path / "c", np.ones(3))
    assert len(os.listdir(tmp_path / "c")) == 2


def test_children_do_not_keep_the_lock(tmp_path):
    read, write = os.pipe()
    with files.locked(tmp_path):
        child = os.fork()
        if child == 0:
            os.close(write)
            select.select([read], [], [], 20)  # until the parent is done
            os._exit(0)
    os.close(read)
    start = time.monotonic()
    checkpointing.save(tmp_path, 1)
    assert time.monotonic() - start < 10
    os.close(write)
    os.waitpid(child, 0)
    assert checkpointing.restore(tmp_path) == 1


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "c").write_text("a file")
    with pytest.raises(NotADirectoryError, match=r"\[save\] a checkpoint is a folder; got .*Fix:"):
        checkpointing.save(tmp_path / "c", 1)


def test_another_process_makes_the_folder_meanwhile(tmp_path, monkeypatch):
    """It appears between the look at it and the call that makes it."""
    folder, is_dir = tmp_path / "run" / "step", Path.is_dir

    def others_are_faster(path):
        seen = is_dir(path)
        if path == folder:
            os.makedirs(folder, exist_ok=True)
        return seen

    monkeypatch.setattr(Path, "is_dir", others_are_faster)
    folder.parent.mkdir()
    files.make_folder(folder)
    assert is_dir(folder)


def test_the_interpreter_ends_behind_a_save(tmp_path):
    """It writes its file, and an error that nobody waited for is printed."""
    code = """
        import sys, time, numpy as np
        from gpuflow import checkpointing
        from gpuflow.checkpointing import files
        write = files.write_arrays
        def slowly(folder, *rest):
            time.sleep(0.3)
            write(folder, *rest)
            (folder / "written").touch()
            raise OSError("of the disk")
        files.write_arrays = slowly
        checkpointing.save_async(sys.argv[1], {"x": np.arange(4)})
    """
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), str(tmp_path / "c")],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (tmp_path / "c" / "written").exists() and "OSError: of the disk" in ended.stderr


def test_a_forked_child_does_not_wait_for_its_parents_save(gate, tmp_path):
    checkpointing.save_async(tmp_path / "c", 1)
    child = os.fork()
    if child == 0:
        try:
            saving.wait_for_last()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
