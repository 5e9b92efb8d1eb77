"""Recently used signatures of a jitted function."""

from __future__ import annotations

from typing import Any, NamedTuple

from gpuflow.base import tree
from gpuflow.base.config import Settings
from gpuflow.base.recent import Recent
from gpuflow.base.records import record
from gpuflow.base.tree_text import Read, reader
from gpuflow.control.entry import Entry, Placement
from gpuflow.core.aval import ShapedArray

# Each takes some 10 kB: a function that is called with ever new shapes would fill the memory.
MOST_SIGNATURES = 4096
# New ones after which the fast lookups are cleared. They do not count as uses; the next call of a
# signature that is in use then takes the slow lookup, which counts as a use.
_AGE = MOST_SIGNATURES // 8
# Functions that are called with more structures than this find them by flattening.
_MOST_FORMS = 4
# Of one entry.
_MOST_PLACEMENTS = 64


class Signature(NamedTuple):
    """Key of a traced program, with names; any tuple of the same values is an equal key.

    Calls look for a plain tuple: to make one takes 0.2 us less.

    Attributes:
        treedef: of the dynamic arguments, ``(args, kwargs)``.
        avals: the types of their leaves.
        statics: the position or name of each static argument, its type and its value.
        settings: those in force.
    """

    treedef: tree.TreeDef
    avals: tuple[ShapedArray, ...]
    statics: tuple[Any, ...]
    settings: Settings


# The structure of ``(args, kwargs)`` without static arguments; the positions and names of these.
Shape = tuple[tree.TreeDef, tuple[Any, ...]]


@record
class Form:
    """A structure of arguments and its traced programs.

    Attributes:
        shape: the structure of ``(args, kwargs)``, and the positions of static arguments.
        read: gives the leaves and the key; None if the arguments have another structure.
        entries: by the settings, the types of the leaves, and the static arguments; a Placement
            where leaves have shardings, or the program asks for them.
    """

    shape: Shape
    read: Read
    entries: dict[tuple[Any, ...], Entry | Placement]


@record
class _Cached:
    """An entry, and its fast lookup: a structure and a key; None: it has none."""

    entry: Entry
    short: tuple[Shape, tuple[Any, ...]] | None


class Signatures(Recent[tuple[Any, ...], _Cached]):
    """Entries by signature.

    Attributes:
        forms: fast lookups, for calls with Arrays in trees that were seen before.
    """

    def __init__(self) -> None:
        super().__init__(MOST_SIGNATURES)
        self.forms: list[Form] = []
        self._added = 0

    def find(self, key: tuple[Any, ...]) -> Entry | None:
        """The entry of a signature.

        Raises:
            TypeError: it cannot be hashed.
        """
        cached = self._values.get(key)
        if cached is None:
            return None
        if self._added >= _AGE:
            self.get(key)  # a use
            self._shorten(cached)
        return cached.entry

    def add(
        self, key: tuple[Any, ...], entry: Entry, short: tuple[Shape, tuple[Any, ...]] | None
    ) -> None:
        """Keep an entry; ``short``: the structure of its arguments and its key in a Form."""
        self._added += 1
        if self._added % _AGE == 0:
            for form in self.forms:
                form.entries.clear()
        cached = _Cached(entry, short)
        self.put(key, cached)
        self._shorten(cached)

    def clear(self) -> None:
        """Forget all."""
        super().clear()
        self.forms.clear()

    def add_placement(self, form: Form, key: tuple[Any, ...], placement: Placement) -> None:
        """Let calls with Arrays of these types and shardings find a Placement."""
        keys = placement.entry.placed_keys
        if len(keys) >= _MOST_PLACEMENTS:
            self._drop_placements(placement.entry)
        keys.append(key)
        form.entries[key] = placement

    def _drop_placements(self, entry: Entry) -> None:
        for form in self.forms:
            for key in entry.placed_keys:
                form.entries.pop(key, None)
        entry.placed_keys.clear()

    def _shorten(self, cached: _Cached) -> None:
        """Let calls with Arrays of these types find the entry without flattening."""
        if cached.short is None:
            return
        shape, key = cached.short
        form = next((form for form in self.forms if form.shape == shape), None)
        if form is None:
            read = reader(*shape) if len(self.forms) < _MOST_FORMS else None
            if read is None:
                return
            form = Form(shape, read, {})
            self.forms.append(form)
        if not cached.entry.asks:  # else only Placements run
            form.entries[key] = cached.entry

    def drop(self, cached: _Cached) -> None:
        """Remove the fast lookup of a dropped entry."""
        if cached.short is not None:
            for form in self.forms:
                form.entries.pop(cached.short[1], None)
            self._drop_placements(cached.entry)
