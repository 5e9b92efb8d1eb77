"""The names that annotations of functions of arrays use.

Type checkers read their types in the stub next to this file, which may import upwards: an op
returns an ``Array``, whose class is the runtime's. Programs never import it. See
docs/design/0038-types.md.
"""

from typing import Any

# What functions return, and what they take: an array, a NumPy array or a number.
Array = ArrayLike = Any
# Several of them: a sequence, or an array along whose first axis they lie.
ArraysLike = Any
# What they take for a dtype, for sizes, and for axes.
DTypeLike = ShapeLike = Axes = Any
# What stands in brackets behind an array.
IndexLike = Any
# What happens with places outside of an array.
ModeLike = Any
# Where a result lies: on a device, or spread over several.
DeviceLike = ShardingLike = Any
# How exactly products are computed, and elementary functions.
PrecisionLike = AccuracyLike = Any
# Files: paths, or objects that are open.
FileLike = Any
# Elementwise functions of one and of two arrays.
Unary = Binary = BinaryOp = Any
# Such functions as ufuncs, which have methods.
UnaryUfunc = BinaryUfunc = Any
