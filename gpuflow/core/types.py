"""The names that annotations of functions of arrays use.

Type checkers read their types in the stub next to this file, which may import upwards: an op
returns an ``Array``, whose class is the runtime's. Programs never import it. See
docs/design/0038-types.md.
"""

from typing import Any

# Results of functions, and arguments: an array, a NumPy array or a scalar.
Array = ArrayLike = Any
# Several of them: a sequence, or an array of them along its first axis.
ArraysLike = Any
# Arguments for a dtype, for sizes, and for axes.
DTypeLike = ShapeLike = Axes = Any
# An index in brackets.
IndexLike = Any
# The treatment of indices out of bounds.
ModeLike = Any
# The location of a result: a device, or a sharding over several.
DeviceLike = ShardingLike = Any
# The precision of products, and of elementary functions.
PrecisionLike = AccuracyLike = Any
# Files: paths, or objects that are open.
FileLike = Any
# Elementwise functions of one and of two arrays.
Unary = Binary = BinaryOp = Any
# Such functions as ufuncs, which have methods.
UnaryUfunc = BinaryUfunc = Any
