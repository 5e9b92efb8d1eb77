"""``jax._src.distributed``: which of several processes this one is."""

from __future__ import annotations

from typing import Any

from gpuflow.runtime.device import process


class State:
    """Information about the processes.

    Attributes:
        client: a client of JAX's coordination service, which there is not: processes find each
            other by ``gpuflow.distributed``.
    """

    client: Any = None
    service: Any = None
    coordinator_address: str | None = None

    @property
    def process_id(self) -> int:
        """This process's number."""
        return process.index

    @property
    def num_processes(self) -> int:
        """How many there are."""
        return process.count


global_state = State()
