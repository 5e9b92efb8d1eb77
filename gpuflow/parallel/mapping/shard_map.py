"""``ShardMapFunction``: map a program over blocks of arrays, one for each device of a mesh.

Devices that share a driver are a batch (docs/design/0016-many-devices.md). Mesh axes become leading
batch axes of blocks, the program is mapped over each of them, and batching rules implement the
collectives. Over several memories the program of one is a separate op, see shard_map_call.py.

Tests: tests/parallel/test_shard_map.py, tests/parallel/test_shard_map_forms.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from typing import Any

from gpuflow.base import tree
from gpuflow.base.cached import cached_property
from gpuflow.base.config import config, expand_names, extend_axes
from gpuflow.base.errors import check
from gpuflow.base.records import record
from gpuflow.base.util import safe_zip
from gpuflow.control.jit import operand_avals
from gpuflow.control.jit_function import JitFunction
from gpuflow.control.jit_options import JitOptions
from gpuflow.control.mapped_axes import equal_element, first_element, output_name
from gpuflow.core.aval import aval_of
from gpuflow.core.jaxpr import ClosedJaxpr
from gpuflow.core.rules import AxisData
from gpuflow.core.sharding import NamedSharding, PartitionSpec
from gpuflow.core.trace import Tracer, eval_trace, thread_state
from gpuflow.ops.collectives.named_axes import repeat_in_front
from gpuflow.ops.effects.device_put import sharding_constraint
from gpuflow.ops.layout.transpose import move_axis
from gpuflow.parallel.mapping.mapped_function import (
    MappedFunction,
    MappedOutputs,
    OutputLayout,
    has_no_tracers,
    in_one_memory,
    trace_outputs,
)
from gpuflow.parallel.mapping.pmap_axes import is_inside
from gpuflow.parallel.mapping.shard_map_call import bind_shard_map, local_aval
from gpuflow.parallel.mapping.shard_map_options import ShardMapOptions, check_inputs, counts_of
from gpuflow.parallel.partition.array_blocks import all_names, into_blocks, out_of_blocks, specs_of
from gpuflow.runtime.array import Array
from gpuflow.runtime.memories import Memories, memories_of
from gpuflow.runtime.sharded import check_same_devices, whole_of, with_sharding
from gpuflow.transforms.batching import batch_flat


@record(frozen=False)
class _Blocks:
    """The program for one signature.

    Attributes:
        memories: the memories that run it; None if there is only one.
        within: from a mesh axis to its number of elements in a memory.
        names: from a mesh axis to the name of its factor within a memory.
        run: ``(*leaves) -> MappedOutputs``, on the shards of a memory.
        jitted: ``run`` as a jitted function, if there is one memory.
        traced, consts, layout: the program of one of several memories, its captured values, and
            its outputs.
    """

    memories: Memories | None
    within: Mapping[Any, int]
    names: dict[Any, Any]
    run: Callable[..., MappedOutputs] = field(init=False)
    jitted: JitFunction[..., Any] = field(init=False)
    traced: ClosedJaxpr = field(init=False)
    consts: Sequence[Any] = ()
    layout: OutputLayout = field(init=False)

    def scope(self) -> AbstractContextManager[None]:
        """Alias the user's axes to their factors across memories and within one."""
        memories = self.memories
        if memories is None:
            return nullcontext()
        names = [name for name in self.names if name in memories.names]
        split_axes = {name: memories.local_names(name) for name in names}
        across = [(split[0], memories.between[name]) for name, split in split_axes.items()]
        return extend_axes(*across, aliases=split_axes)


class ShardMapFunction(MappedFunction[ShardMapOptions, _Blocks]):
    """A function of whole arrays that runs on blocks; see ``shard_map``."""

    def __call__(self, *args: Any) -> Any:
        options = self._options
        leaves, in_tree = tree.flatten(args)
        specs = specs_of("in_specs", options.in_specs, args, self.name)
        check_inputs(self._function, self.name, options, args, leaves, specs)
        check_same_devices("shard_map", leaves, [self._sharding(PartitionSpec())])
        memories = self._memories
        if memories is not None and is_inside():
            raise NotImplementedError(
                f"[shard_map] a shard_map over several memories must not be inside of another "
                f"one; got {self.name} over {options.mesh}. Fix: use one shard_map over all axes."
            )
        if memories is None:
            leaves = [in_one_memory(leaf) for leaf in leaves]
        avals = operand_avals(leaves)
        # Programs of several memories are traced here, not in jit, so settings are part of the key.
        settings = None if memories is None else config.trace_context()
        blocks = self._find(
            (in_tree, tuple(specs), avals, settings),
            lambda: self._make(in_tree, specs, avals, memories),
            lambda program: has_no_tracers(program.consts),
        )
        if memories is not None:
            return tree.unflatten(blocks.layout.tree, self._bind(blocks, leaves, specs, memories))
        if thread_state.trace is eval_trace:
            outputs, put = blocks.jitted(*leaves), self._placed
        else:
            outputs, put = blocks.run(*map(self._constrained, leaves, specs)), self._constrained
        layout = outputs.layout
        return tree.unflatten(layout.tree, list(map(put, outputs.values, layout.mapped)))

    def _bind(
        self,
        blocks: _Blocks,
        leaves: Sequence[Any],
        specs: Sequence[PartitionSpec],
        memories: Memories,
    ) -> list[Any]:
        return bind_shard_map(
            blocks.traced,
            leaves,
            blocks.consts,
            name=self.name,
            memories=memories,
            in_shardings=tuple(map(self._sharding, specs)),
            out_shardings=tuple(map(self._sharding, blocks.layout.mapped)),
        )

    @cached_property
    def _memories(self) -> Memories | None:
        return memories_of(self._options.mesh)

    @cached_property
    def _sharding(self) -> Callable[[PartitionSpec], NamedSharding]:
        """A cached function from a spec to its sharding: one object for equal specs."""
        mesh = self._options.mesh
        return functools.cache(lambda spec: NamedSharding(mesh, spec))

    def _constrained(self, value: Any, spec: PartitionSpec) -> Any:
        """Constrain a traced value to the sharding of a spec."""
        sharding = self._sharding(spec)
        return sharding_constraint(value, sharding) if isinstance(value, Tracer) else value

    def _placed(self, out: Any, spec: PartitionSpec) -> Any:
        whole = whole_of(out)
        return with_sharding(whole, self._sharding(spec)) if type(whole) is Array else out

    def _make(
        self,
        in_tree: Any,
        specs: Sequence[PartitionSpec],
        avals: Sequence[Any],
        memories: Memories | None,
    ) -> _Blocks:
        options = self._options
        if memories is None:
            blocks = _Blocks(None, options.sizes, {name: name for name in options.axes})
        else:
            inner_names = {name: memories.local_names(name)[-1] for name in options.axes}
            blocks = _Blocks(memories, memories.within, inner_names)
        blocks.run = run = functools.partial(self._run, blocks, specs, in_tree)
        if memories is None:
            blocks.jitted = JitFunction(run, JitOptions())
            return blocks
        shardings = map(self._sharding, specs)
        pairs = safe_zip(avals, shardings)
        local = [local_aval(aval, sharding, memories) for aval, sharding in pairs]
        blocks.traced, blocks.consts, blocks.layout = trace_outputs(run, local, self.name)
        return blocks

    def _user(self, layouts: list[OutputLayout], in_tree: Any, *values: Any) -> list[Any]:
        """Call the user's function on leaves; appends the layout of its outputs."""
        result = self._function(*tree.unflatten(in_tree, values))
        outs, out_tree = tree.flatten(result)
        specs = specs_of("out_specs", self._options.out_specs, result, self.name)
        for k, (out, spec) in enumerate(safe_zip(outs, specs)):
            counts_of(
                self._options,
                spec,
                aval_of(out).shape,
                "out_specs",
                lambda k=k: output_name(out_tree, k, self.name),
            )
        layouts.append(OutputLayout(out_tree, tuple(specs)))
        return outs

    def _level(
        self,
        depth: int,
        blocks: _Blocks,
        specs: Sequence[PartitionSpec],
        in_tree: Any,
        layouts: list[OutputLayout],
    ) -> Callable[..., list[Any]]:
        """The program for blocks at one index along the first ``depth`` axes.

        The recursion wraps the user's function in one batching level per mesh axis.
        """
        axes = self._options.axes
        if depth == len(axes):
            return functools.partial(self._user, layouts, in_tree)
        name, inner = axes[depth], self._level(depth + 1, blocks, specs, in_tree, layouts)
        axis = AxisData(
            blocks.names[name],
            blocks.within[name],
            has_devices=True,
            varies=name if self._options.check_vma else None,
        )
        dims = [0 if name in all_names(spec) else None for spec in specs]

        def mapped(*values: Any) -> list[Any]:
            uniform: list[bool] = []
            outs, out_dims = batch_flat(inner, axis, values, dims, uniform)
            return [
                self._gathered(out, dim, name, blocks.within[name], layouts[0], uniform[k], k)
                for k, (out, dim) in enumerate(safe_zip(outs, out_dims))
            ]

        return mapped

    def _run(
        self,
        blocks: _Blocks,
        specs: Sequence[PartitionSpec],
        in_tree: Any,
        *leaves: Any,
    ) -> MappedOutputs:
        """Run the program on whole arrays, or on the shards of a memory."""
        axes, sizes = self._options.axes, blocks.within
        layouts: list[OutputLayout] = []
        program = self._level(0, blocks, specs, in_tree, layouts)
        operands = [into_blocks(leaf, spec, axes, sizes) for leaf, spec in safe_zip(leaves, specs)]
        with blocks.scope():
            checked = expand_names(axes) if self._options.check_vma else ()
            varying = config.override("varying_axes", checked)
            with varying, config.override("mesh", self._options.inner_mesh):
                outs = program(*operands)
        (layout,) = layouts
        pairs = safe_zip(outs, layout.mapped)
        return MappedOutputs([out_of_blocks(out, spec, axes) for out, spec in pairs], layout)

    def _gathered(
        self,
        out: Any,
        dim: int | None,
        name: Any,
        size: int,
        layout: OutputLayout,
        is_uniform: bool,
        k: int,
    ) -> Any:
        """Move the axis of output ``k`` to the front if its spec names it, else remove it."""
        spec = layout.mapped[k]
        if name in all_names(spec):
            return _in_front(out, dim, size)
        if dim is None:
            return out
        check(
            is_uniform or not self._options.check_vma,
            lambda: (
                f"[shard_map] an output that out_specs does not split over mesh axis "
                f"{name!r} must be equal along it; got {spec} for "
                f"{output_name(layout.tree, k, self.name)}, which may vary. Fix: name the axis "
                f"in out_specs, reduce over it with lax.psum, or pass check_vma=False."
            ),
            ValueError,
        )
        # Without check_vma each device has a separate cotangent.
        return first_element(out, dim) if self._options.check_vma else equal_element(out, dim)


def _in_front(out: Any, dim: int | None, size: int) -> Any:
    return repeat_in_front(out, size) if dim is None else move_axis(out, dim, 0)
