"""A folder of checkpoints: one for each step, the last ones and the best one kept.

Tests: tests/checkpointing/test_manager.py.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from gpuflow.base.errors import check
from gpuflow.checkpointing import files, ownership, saving
from gpuflow.checkpointing.reading import path_of, read_tree
from gpuflow.checkpointing.restoring import restore
from gpuflow.checkpointing.schema import metrics_of
from gpuflow.runtime.device import process

_STEP = re.compile(r"step_(\d{8,18})", re.ASCII)


class Manager:
    """Manages checkpoints of a training run in a folder, and finds the step to resume from.

    One process writes to the folder, process 0 of a group; all of them write if arrays have shards
    in several processes. Incomplete saves of a killed process are ignored, and the next save
    deletes them.

    Args:
        folder: the folder of the checkpoints; it is created if needed.
        keep: number of most recent steps to keep; None keeps all.
        best: the name of a metric; the step with its best value is kept too.
        mode: "min" or "max": whether small or large values of the metric are better.
        asynchronous: whether a background thread writes while training continues.

    Raises:
        ValueError: if ``keep`` is below 1, ``mode`` is unknown, or the path is empty.

    Example:
        >>> import tempfile
        >>> import gpuflow.numpy as jnp
        >>> from gpuflow import checkpointing
        >>> with checkpointing.Manager(tempfile.mkdtemp(), keep=2, best="loss") as manager:
        ...     for step, loss in enumerate([3.0, 1.0, 2.0, 2.5]):
        ...         manager.save(step, {"w": jnp.full(2, step)}, {"loss": loss})
        >>> manager.steps(), manager.latest_step(), manager.best_step()
        ([1, 2, 3], 3, 1)
        >>> manager.restore()
        {'w': Array([3, 3], dtype=int32, weak_type=True)}
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int | None = 3,
        best: str | None = None,
        mode: str = "min",
        asynchronous: bool = True,
    ) -> None:
        check(
            keep is None or (type(keep) is int and keep >= 1),
            lambda: f"[Manager] keep must be at least 1, or None; got {keep!r}. Fix: keep=3.",
            ValueError,
        )
        check(
            mode in ("min", "max"),
            lambda: f"[Manager] mode must be 'min' or 'max'; got {mode!r}. Fix: mode='min'.",
            ValueError,
        )
        self.folder = path_of("Manager", folder)
        self.keep, self.best, self.mode, self.asynchronous = keep, best, mode, asynchronous

    def __enter__(self) -> Manager:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.wait()

    def path(self, step: int) -> Path:
        """Return the folder of a step's checkpoint, which may not exist."""
        return self.folder / f"step_{step:08d}"

    def steps(self) -> list[int]:
        """Return the steps with a complete checkpoint, in order.

        Returns:
            The numbers of the steps, without a step that is still being saved.
        """
        return [step for step, path in self._folders() if ownership.has_checkpoint(path)]

    def _folders(self) -> list[tuple[int, Path]]:
        """All folders of steps, complete or not, in order."""
        if not self.folder.is_dir():
            return []
        matches = [(_STEP.fullmatch(path.name), path) for path in self.folder.iterdir()]
        found = sorted((int(match[1]), path) for match, path in matches if match)
        return [(step, path) for step, path in found if path == self.path(step) and path.is_dir()]

    def latest_step(self) -> int | None:
        """Return the most recent complete step, or None."""
        steps = self.steps()
        return steps[-1] if steps else None

    def best_step(self) -> int | None:
        """Return the complete step with the best metric (the last of equal ones), or None.

        Raises:
            ValueError: if the manager was created without ``best=``.
        """
        name = self.best
        if name is None:
            raise ValueError(
                "[best_step] the manager must know the metric; got none. "
                "Fix: Manager(folder, best='loss')."
            )
        sign = 1 if self.mode == "min" else -1
        values = [(self.metrics(step).get(name, math.nan), step) for step in self.steps()]
        rated = [(sign * value, -step) for value, step in values if not math.isnan(value)]
        return -min(rated)[1] if rated else None

    def metrics(self, step: int) -> dict[str, float]:
        """Return the metrics that were saved with a step.

        Raises:
            FileNotFoundError: if the step has no complete checkpoint.
        """
        return metrics_of(read_tree(self.path(step)))

    def save(self, step: int, tree: Any, metrics: Mapping[str, Any] | None = None) -> None:
        """Save the state after a step, and delete steps that are not to be kept.

        Args:
            step: number of the step, not below existing ones; the most recent step is replaced if
                it is saved again.
            tree: the pytree to save, as for ``checkpointing.save``.
            metrics: metrics by name, such as a loss; scalar arrays are allowed.

        Raises:
            ValueError: if the step is below the newest one, or containers are nested more than 100
                deep.
            TypeError: if a leaf cannot be saved, or a metric is not a number.
            Exception: if an earlier save failed and its error was not raised yet. Nothing is saved
                then.
        """
        self.wait()
        latest = self.latest_step()
        check(
            type(step) is int and step >= (latest or 0),
            lambda: (
                f"[save] steps must be increasing integers; got {step!r} after {latest}. Fix: "
                "delete(step) of the later ones, or use another folder."
            ),
            ValueError,
        )
        numbers = _numbers(metrics or {})
        snapshot = saving.snapshot_of(tree, {"step": step, "metrics": json.dumps(numbers)})

        def job() -> None:
            saving.write(self.path(step), snapshot)
            if process.index == 0 or not snapshot.is_shared:
                self._tidy()

        if self.asynchronous:
            saving.start(self.path(step), job)
        else:
            job()

    def _tidy(self) -> None:
        """Delete steps that are not to be kept, and files of killed processes."""
        complete = self.steps()
        stay: set[int | None] = {*(complete if self.keep is None else complete[-self.keep :])}
        if self.best is not None:
            stay.add(self.best_step())
        for step, path in self._folders():
            if step not in stay and not path.is_symlink():
                with suppress(OSError):  # the new step counts; a later save tries again
                    files.delete(path)

    def delete(self, step: int) -> None:
        """Delete a step; files in its folder that ``save`` did not write are not deleted.

        Raises:
            FileNotFoundError: if the file does not exist, or is a link.
        """
        self.wait()
        path = self.path(step)
        check(
            path.is_dir() and not path.is_symlink() and not ownership.has_foreign_tree(path),
            lambda: f"[delete] the step must be one of {self.steps()}; got {step}. Fix: steps().",
            FileNotFoundError,
        )
        files.delete(path)

    def wait(self) -> None:
        """Wait until everything that was passed to ``save`` is on disk.

        Raises:
            Exception: if the writing thread failed and its error was not raised yet.
        """
        saving.wait_for_last()

    def restore(self, step: int | None = None, like: Any = None, *, sharding: Any = None) -> Any:
        """Restore the tree of a step with ``checkpointing.restore``.

        Args:
            step: number of the step; the newest complete one by default.
            like, sharding: as for ``checkpointing.restore``.

        Returns:
            The tree.

        Raises:
            FileNotFoundError: if the step, or any step, does not exist.
            CheckpointError, ValueError: as for ``checkpointing.restore``.
        """
        self.wait()
        steps = self.steps()
        check(
            bool(steps) if step is None else step in steps,
            lambda: (
                f"[restore] the step must be a complete one, of {steps}; got {step} in "
                f"{self.folder}. Fix: call latest_step() first; it returns None for a new folder."
            ),
            FileNotFoundError,
        )
        return restore(self.path(steps[-1] if step is None else step), like, sharding=sharding)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics as floats.

    Raises:
        TypeError: if a name is not a text, or a value not a number.
    """
    floats = {}
    for name, value in metrics.items():
        try:
            if not isinstance(name, str):
                raise TypeError("its name is not a str")
            floats[name] = float(value)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"[save] metrics must be numbers by name; got {name!r}: {value!r} ({error}). "
                "Fix: {'loss': float(loss)}."
            ) from None
    return floats
