"""Cache of traced signatures of one jitted function, with a fast lookup for known pytrees.

A lookup in ``Signatures`` needs the flattened arguments. A ``Form`` has generated code that reads
leaves and key of one pytree structure directly.

Tests: tests/control/test_signatures.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gpuflow.base import tree
from gpuflow.base.config import Settings
from gpuflow.base.recent import Recent
from gpuflow.base.records import record
from gpuflow.base.tree_text import Read, reader
from gpuflow.control.entry import Entry, Placement
from gpuflow.core.aval import ShapedArray

# A signature takes some 10 kB. Without a bound, calls with ever new shapes would fill the memory.
MAX_SIGNATURES = 4096
# Number of new signatures after which fast lookups are cleared. A fast lookup does not update the
# order of recent use. After clearing, the next call takes the slow lookup, which does.
_AGE = MAX_SIGNATURES // 8
# Structures of arguments with a fast lookup; a function finds further ones by flattening.
_MAX_FORMS = 4
# Placements of one entry.
_MAX_PLACEMENTS = 64


class Signature(NamedTuple):
    """Key of a traced program, with names; any tuple of the same values is an equal key.

    Calls look up a plain tuple, because creating one takes 0.2 us less.

    Attributes:
        treedef: structure of the dynamic ``(args, kwargs)``.
        avals: the types of their leaves.
        statics: the position or name of each static argument, its type and its value.
        settings: the settings that affect tracing.
    """

    treedef: tree.TreeDef
    avals: tuple[ShapedArray, ...]
    statics: tuple[Any, ...]
    settings: Settings


# The structure of the dynamic ``(args, kwargs)``; positions and names of static arguments.
Shape = tuple[tree.TreeDef, tuple[Any, ...]]


@record
class Form:
    """The fast lookup of one structure of arguments.

    Attributes:
        shape: the structure of ``(args, kwargs)``, and the positions of static arguments.
        read: generated code that returns the leaves and the key, or None if the arguments have
            another structure.
        entries: from settings, types of the leaves and static arguments to the traced program. It
            is a Placement if leaves have shardings, or the program requests shardings.
    """

    shape: Shape
    read: Read
    entries: dict[tuple[Any, ...], Entry | Placement]


@record
class _Cached:
    """An entry of the cache.

    Attributes:
        entry: the traced signature.
        short: the structure and the key of its fast lookup; None if it has none.
    """

    entry: Entry
    short: tuple[Shape, tuple[Any, ...]] | None


class Signatures(Recent[tuple[Any, ...], _Cached]):
    """Entries by signature.

    Attributes:
        forms: fast lookups, for calls with Arrays in known structures.
    """

    def __init__(self) -> None:
        super().__init__(MAX_SIGNATURES)
        self.forms: list[Form] = []
        self._added = 0

    def find(self, key: tuple[Any, ...]) -> Entry | None:
        """The entry of a signature; None if there is none.

        Raises:
            TypeError: if the key cannot be hashed.
        """
        cached = self._values.get(key)
        if cached is None:
            return None
        if self._added >= _AGE:
            self.get(key)  # counts as a use
            self._add_fast_lookup(cached)
        return cached.entry

    def add(
        self, key: tuple[Any, ...], entry: Entry, short: tuple[Shape, tuple[Any, ...]] | None
    ) -> None:
        """Cache an entry; ``short`` is the structure of its arguments and its key in a Form."""
        self._added += 1
        if self._added % _AGE == 0:
            for form in self.forms:
                form.entries.clear()
        cached = _Cached(entry, short)
        self.put(key, cached)
        self._add_fast_lookup(cached)

    def clear(self) -> None:
        """Remove all entries and fast lookups."""
        super().clear()
        self.forms.clear()

    def add_placement(self, form: Form, key: tuple[Any, ...], placement: Placement) -> None:
        """Add the fast lookup of a Placement, for Arrays of these types and shardings."""
        keys = placement.entry.placed_keys
        if len(keys) >= _MAX_PLACEMENTS:
            self._drop_placements(placement.entry)
        keys.append(key)
        form.entries[key] = placement

    def _drop_placements(self, entry: Entry) -> None:
        for form in self.forms:
            for key in entry.placed_keys:
                form.entries.pop(key, None)
        entry.placed_keys.clear()

    def _add_fast_lookup(self, cached: _Cached) -> None:
        """Add the fast lookup of an entry, if it may have one and a Form is available."""
        if cached.short is None:
            return
        shape, key = cached.short
        form = next((form for form in self.forms if form.shape == shape), None)
        if form is None:
            read = reader(*shape) if len(self.forms) < _MAX_FORMS else None
            if read is None:
                return
            form = Form(shape, read, {})
            self.forms.append(form)
        if not cached.entry.asks:  # a program that requests shardings runs as a Placement
            form.entries[key] = cached.entry

    def drop(self, cached: _Cached) -> None:
        """Remove the fast lookup of a dropped entry."""
        if cached.short is not None:
            for form in self.forms:
                form.entries.pop(cached.short[1], None)
            self._drop_placements(cached.entry)
