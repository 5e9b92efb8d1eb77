"""``Topology``: the links and rates of the devices of a mesh, for predictions.

Times are those of hierarchical ring algorithms: data cross the network once per node, shared by the
network cards of its devices, while they circulate inside of nodes. Both run at the same time, and
the slower one counts (Thakur, Rabenseifner and Gropp, 2005, has the costs of the flat algorithms).
Sums have the latency of trees if that is less than the rings'.

Tests: tests/explaining/test_topology.py.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.core.communication import Communication


@record
class Topology:
    """Nodes of equal devices, their links, and the rates of a device.

    Devices of a mesh fill node after node, in the order of ``mesh.devices.flat``. The defaults are
    figures of data sheets, of a node of 8 H100 SXM; latencies are those of a ring's step in NCCL's
    tuning tables. Times are estimates: no real system reaches its data sheet.

    Args:
        node: devices in a node.
        nvlink: bytes per second that a device sends to others in its node.
        nic: bytes per second that a device sends to other nodes.
        latency: seconds of a message inside of a node.
        nic_latency: seconds of a message between nodes.
        flops: FLOP per second in products of 16-bit floats, and narrower.
        float32_flops: FLOP per second of all other operations.
        memory_bandwidth: bytes per second that a device reads and writes.

    Raises:
        ValueError: if a rate is not positive, or a latency is negative.

    Example:
        >>> gf.Topology(nvlink=450e9, nic=50e9, node=8).node
        8
    """

    node: int = 8
    nvlink: float = 450e9
    nic: float = 50e9
    latency: float = 3.4e-6
    nic_latency: float = 14e-6
    flops: float = 989e12
    float32_flops: float = 67e12
    memory_bandwidth: float = 3.35e12

    def __post_init__(self) -> None:
        for name in ("node", "nvlink", "nic", "flops", "float32_flops", "memory_bandwidth"):
            value = getattr(self, name)
            kinds = int if name == "node" else int | float
            check(
                isinstance(value, kinds) and not isinstance(value, bool) and value > 0,
                lambda name=name, value=value: (
                    f"[Topology] {name} must be a positive number; got {value!r}. "
                    "Fix: devices in a node (an int), or bytes or FLOP per second."
                ),
                ValueError,
            )
        for name in ("latency", "nic_latency"):
            value = getattr(self, name)
            check(
                value >= 0,
                lambda name=name, value=value: (
                    f"[Topology] {name} must not be negative; got {value}. Fix: seconds."
                ),
                ValueError,
            )

    def links(self, communication: Communication) -> str:
        """The slowest links that a collective crosses: "nvlink" or "nic"."""
        sent = [self._on_wire(communication, group).nic for group in communication.groups]
        return "nic" if any(sent) else "nvlink"

    def seconds(self, communication: Communication) -> float:
        """The time of a collective, if no other one uses its links."""
        return max(self._group_seconds(communication, g) for g in communication.groups)

    def _group_seconds(self, communication: Communication, group: tuple[int, ...]) -> float:
        wire = self._on_wire(communication, group)
        moving = max(wire.nvlink / self.nvlink, wire.nic / self.nic)
        return moving + wire.messages * self.latency + wire.nic_messages * self.nic_latency

    def _on_wire(self, communication: Communication, group: tuple[int, ...]) -> _OnWire:
        """The bytes and messages of the busiest device of a group."""
        method, size, n = communication.method, communication.nbytes, len(group)
        if method == "permute":
            pairs = [(group[a], group[b]) for a, b in communication.pairs if a != b]
            crosses = any(a // self.node != b // self.node for a, b in pairs)
            is_local = any(a // self.node == b // self.node for a, b in pairs)
            return _OnWire(size * is_local, size * crosses, int(is_local), int(crosses))
        nodes = Counter(rank // self.node for rank in group)
        k, m = len(nodes), min(nodes.values())  # nodes, and devices in the smallest of them
        if method == "all_to_all":
            return _OnWire(size * (m - 1) / n, size * (n - m) / n, int(m > 1), int(k > 1))
        if method == "broadcast":
            return _OnWire(size * (m > 1), size * (k > 1), m - 1, k - 1)
        whole = size * n if method == "all_gather" else size
        inside, across = whole * (m - 1) / m, whole * (k - 1) / k / m
        if method != "all_reduce":
            return _OnWire(inside, across, m - 1, k - 1)
        return _OnWire(2 * inside, 2 * across, 2 * (m - 1).bit_length(), 2 * (k - 1).bit_length())


class _OnWire(NamedTuple):
    """Bytes and messages of a device in one collective.

    Attributes:
        nvlink, nic: bytes sent inside of the node, and to other nodes.
        messages, nic_messages: the number of messages that follow each other.
    """

    nvlink: float
    nic: float
    messages: int
    nic_messages: int
