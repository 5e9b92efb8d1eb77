from collections.abc import Sequence
from os import PathLike
from types import EllipsisType
from typing import IO, Any, Protocol, SupportsIndex, TypeAlias

import numpy as np

from gpuflow.core.sharding import NamedSharding, PartitionSpec, Sharding
from gpuflow.numpy.placed_slices import Slice
from gpuflow.numpy.ufunc_class import ufunc
from gpuflow.ops.contractions.precision import PrecisionLike as PrecisionLike
from gpuflow.ops.elementwise.accuracy import AccuracyMode, Tolerance
from gpuflow.ops.indexing.dimension_numbers import GatherScatterMode
from gpuflow.runtime.array import Array as Array
from gpuflow.runtime.device import Device
from gpuflow.typing import ArrayLike as ArrayLike
from gpuflow.typing import DTypeLike as DTypeLike

ArraysLike: TypeAlias = Sequence[ArrayLike] | Array | np.ndarray[Any, Any]
ShapeLike: TypeAlias = SupportsIndex | Sequence[SupportsIndex] | np.ndarray[Any, Any]
_Entry: TypeAlias = (
    SupportsIndex | slice[Any, Any, Any] | EllipsisType | Array | np.ndarray[Any, Any] | np.bool_
    | Slice | None
)
Axes: TypeAlias = int | Sequence[int] | None
IndexLike: TypeAlias = _Entry | tuple[_Entry | list[Any], ...]  # a list alone is none
ModeLike: TypeAlias = str | GatherScatterMode | None
DeviceLike: TypeAlias = Device | Sharding | None
ShardingLike: TypeAlias = NamedSharding | PartitionSpec | None
AccuracyLike: TypeAlias = Tolerance | AccuracyMode | None
FileLike: TypeAlias = str | PathLike[str] | IO[bytes]

class Unary(Protocol):
    __name__: str
    def __call__(self, x: ArrayLike, /, *, out: None = None, where: None = None) -> Array: ...

class Binary(Protocol):
    __name__: str
    def __call__(
        self, x: ArrayLike, y: ArrayLike, /, *, out: None = None, where: None = None
    ) -> Array: ...

class BinaryOp(Protocol):
    __name__: str
    def __call__(self, x: ArrayLike, y: ArrayLike) -> Array: ...

class UnaryUfunc(ufunc):
    def __call__(self, x: ArrayLike, /, *, out: None = None, where: None = None) -> Array: ...  # pyright: ignore[reportIncompatibleMethodOverride]

class BinaryUfunc(ufunc):
    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: ArrayLike, y: ArrayLike, /, *, out: None = None, where: None = None
    ) -> Array: ...
