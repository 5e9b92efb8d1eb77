"""Records behave as the dataclasses that they stand for."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import threading
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any

import pytest

from gpuflow.base.records import record


def three(decorate):
    """A class of each kind of field, its subclass, and one without fields."""

    @decorate
    class Point:
        x: int
        names: tuple[str, ...] = ()
        found: dict[str, int] = field(default_factory=dict, compare=False)
        note: str = field(default="none", kw_only=True, repr=False)
        late: list[int] = field(default_factory=list, init=False, compare=False)
        count = 3

    @decorate
    class Place(Point):
        """A point on a map."""

        height: float = 1.5

    @decorate
    class Nothing:
        pass

    return Point, Place, Nothing


KINDS = {
    "frozen": (record, dataclass(frozen=True)),
    "mutable": (record(frozen=False), dataclass),
    "by identity": (record(eq=False), dataclass(frozen=True, eq=False)),
    "plain repr": (record(repr=False), dataclass(frozen=True, repr=False)),
}


def answers(decorate) -> list[Any]:
    Point, Place, Nothing = three(decorate)
    a, b, c = Point(1, ("n",)), Point(1, names=("n",), found={"k": 2}), Place(1, ("n",), height=2)
    result: list[Any] = [
        a == b, a == c, a != c, a == 1, Nothing() == Nothing(), c == copy.copy(c),
        a == copy.deepcopy(a), Point.count, Point.names, c.height, a.note, a.late, a.found,
        a.found is b.found, Point(2, note="new").note, dataclasses.asdict(c),
        dataclasses.replace(c, x=5).x, [f.name for f in dataclasses.fields(Place)],
        str(inspect.signature(Point)), str(inspect.signature(Place)), Point.__match_args__,
        dataclasses.is_dataclass(Place), Place.__doc__,
    ]  # fmt: skip
    if Point.__repr__ is not object.__repr__:
        result += [repr(a), repr(c), repr(Nothing())]
    result.append(Point.__hash__ is None)
    if Point.__hash__ not in (None, object.__hash__):
        result += [hash(a) == hash(b), len({a, b, c, Nothing(), Nothing()})]
    for wrong in (lambda: Point(), lambda: Point(1, 2, 3, 4), lambda: Point(1, where=2)):
        with pytest.raises(TypeError) as error:
            wrong()
        result.append(str(error.value).split(".")[-1])
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_as_dataclasses(kind):
    ours, theirs = KINDS[kind]
    expected = answers(theirs)
    assert answers(ours) == expected


def test_frozen():
    Point, Place, _ = three(record)
    for made in (Point(1), Place(1)):
        with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
            made.x = 2
        with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
            del made.x
        assert made.x == 1
    point = three(record(frozen=False))[0](1)
    point.x = 2
    assert point.x == 2


def test_own_methods_stay():
    @record
    class Own:
        x: int

        def __init__(self, x):
            object.__setattr__(self, "x", x + 1)

        def __repr__(self):
            return "own"

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 7

    assert Own(1).x == 2
    assert (repr(Own(1)), Own(1) == 5, hash(Own(1))) == ("own", True, 7)


def test_post_init_sees_the_fields():
    @record
    class Checked:
        x: int

        def __post_init__(self):
            if self.x < 0:
                raise ValueError(f"x must not be negative; got {self.x}")

    assert Checked(1).x == 1
    with pytest.raises(ValueError, match="got -1"):
        Checked(-1)


def test_subclasses_that_are_no_records():
    """The first object may be made by a subclass, through ``super``."""

    @record
    class Base:
        x: int

    class Derived(Base):
        def __init__(self, x):
            super().__init__(x * 2)

    assert (Derived(2).x, Base(2).x, Derived(3).x) == (4, 2, 6)
    assert Derived(2) == Derived(2) != Base(4)


def test_a_record_within_itself_prints():
    @record(frozen=False)
    class Node:
        next: Any = None

    node = Node()
    node.next = node
    assert repr(node).endswith("Node(next=...)")


@record
class Kept:
    x: int
    y: str = "y"


def test_pickle():
    assert pickle.loads(pickle.dumps(Kept(3))) == Kept(3)


def test_first_objects_of_many_threads():
    for _ in range(20):
        Point, Place, _ = three(record)
        start, made = threading.Barrier(4), []

        def make(kind, start=start, made=made):
            start.wait()
            made.append(kind(1, note="n"))

        threads = [threading.Thread(target=make, args=(k,)) for k in (Point, Place) * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [m.note for m in made] == ["n"] * 4
