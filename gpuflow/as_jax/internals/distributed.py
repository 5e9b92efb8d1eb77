"""``jax._src.distributed``: which of several processes this one is.

Tests: tests/test_as_jax_table.py.
"""

from __future__ import annotations

from typing import Any

from gpuflow.runtime.device import process


class State:
    """Information about the processes.

    Attributes:
        client: None: gpuflow has no client of a coordination service; processes find each other
            by ``gpuflow.distributed``.
    """

    client: Any = None
    service: Any = None
    coordinator_address: str | None = None

    @property
    def process_id(self) -> int:
        """The index of this process."""
        return process.index

    @property
    def num_processes(self) -> int:
        """The number of processes."""
        return process.count


global_state = State()
