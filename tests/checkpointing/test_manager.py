"""Steps of a run: which stay, which is the best, and where to go on."""

from __future__ import annotations

import math

import numpy as np
import pytest

import gpuflow.numpy as jnp
from gpuflow import checkpointing
from gpuflow.checkpointing import Manager, files, ownership


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_last_ones_and_the_best_one_stay(asynchronous, tmp_path):
    manager = Manager(tmp_path, keep=2, best="loss", asynchronous=asynchronous)
    assert manager.latest_step() is None and manager.best_step() is None and manager.steps() == []
    for step, loss in enumerate([math.nan, 0.5, jnp.float32(0.25), 0.5, 0.25, 1.0, 2.0, 3.0]):
        manager.save(10 * step, {"step": step}, {"loss": loss, "other": step})
        manager.wait()
        assert manager.latest_step() == 10 * step
    assert manager.steps() == [40, 60, 70] and manager.best_step() == 40
    assert manager.metrics(40) == {"loss": 0.25, "other": 4.0}
    assert manager.restore() == {"step": 7} and manager.restore(40) == {"step": 4}
    assert Manager(tmp_path, best="loss", mode="max").best_step() == 70


def test_all_may_stay(tmp_path):
    with Manager(tmp_path, keep=None) as manager:
        for step in range(6):
            manager.save(step, step)
    assert manager.steps() == list(range(6))


def test_a_step_without_the_metric_need_not_stay(tmp_path):
    with Manager(tmp_path, keep=1, best="loss") as manager:
        for step in range(3):
            manager.save(step, step)
    assert manager.steps() == [2] and manager.best_step() is None


def test_what_is_half_written_does_not_count(tmp_path):
    with Manager(tmp_path, keep=2) as manager:
        manager.save(1, {"x": np.ones(2)})
    half = manager.path(2)
    half.mkdir()
    token = "0123456789abcdef"
    ownership.write_journal(half, token)
    (half / ownership.arrays_name(token, 0)).write_text("half")
    (tmp_path / "step_notes").mkdir()  # somebody else's
    again = Manager(tmp_path, keep=2)
    assert again.latest_step() == 1
    np.testing.assert_array_equal(again.restore()["x"], np.ones(2))
    again.save(3, 3)
    again.wait()
    assert not half.exists() and again.steps() == [1, 3] and (tmp_path / "step_notes").exists()


def test_going_on_and_replacing_the_last_step(tmp_path):
    for start in (0, 3, 5):
        with Manager(tmp_path, keep=3) as manager:
            latest = manager.latest_step()
            assert latest == (None if start == 0 else start)
            state = {"total": 0} if latest is None else manager.restore(like={"total": 0})
            for step in range((latest or 0) + 1, {0: 4, 3: 6, 5: 8}[start]):
                state = {"total": state["total"] + step}
                manager.save(step, state)
            manager.wait()
            manager.save(manager.latest_step(), state)
    assert manager.restore() == {"total": 28} and manager.steps() == [5, 6, 7]


def test_wrong_calls_say_what_to_write(tmp_path):
    manager = Manager(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"\[restore\] the step must .*of \[\]; got None.*"):
        manager.restore()
    manager.save(5, 1)
    for step in (4, -1, 5.5):
        with pytest.raises(ValueError, match=rf"\[save\] steps must .*got {step} after .*5\. Fix"):
            manager.save(step, 1)
    with pytest.raises(FileNotFoundError, match=r"of \[5\]; got 3 in .*Fix: call latest_step\(\)"):
        manager.restore(3)
    with pytest.raises(FileNotFoundError, match=r"\[delete\] the step must be one of \[5\]; got 6"):
        manager.delete(6)
    with pytest.raises(ValueError, match=r"\[best_step\] .*Fix: Manager\(folder, best='loss'\)"):
        manager.best_step()
    with pytest.raises(ValueError, match=r"\[Manager\] keep must be at least 1.*got 0"):
        Manager(tmp_path, keep=0)
    with pytest.raises(ValueError, match=r"\[Manager\] mode must be 'min' or 'max'; got 'least'"):
        Manager(tmp_path, mode="least")
    manager.path(7).mkdir()
    (manager.path(7) / "tree.json").write_text("of a user")
    with pytest.raises(FileNotFoundError, match=r"\[delete\] the step must be one of \[5\]; got 7"):
        manager.delete(7)
    assert (manager.path(7) / "tree.json").read_text() == "of a user"
    manager.delete(5)
    assert manager.steps() == [] and not manager.path(5).exists()
    manager.save(2, 1)
    manager.wait()


def test_errors_of_the_thread_come_with_the_next_save(tmp_path, monkeypatch):
    manager = Manager(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_tree", lambda *arguments: 1 / 0)
        manager.save(1, 1)
        with pytest.raises(ZeroDivisionError):
            manager.save(2, 2)
    manager.save(2, 2)
    with pytest.raises(TypeError, match=r"\[save\] leaves must"):
        checkpointing.save(tmp_path / "x", object())
    manager.wait()
    assert manager.steps() == [2]
