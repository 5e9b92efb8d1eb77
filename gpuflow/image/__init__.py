"""Image resizing with all methods of jax.image, and shifts by fractions of pixels."""

from gpuflow.base.names import public_names as _public_names
from gpuflow.base.names import publish as _publish
from gpuflow.image.resizing import resize as resize
from gpuflow.image.resizing import scale_and_translate as scale_and_translate
from gpuflow.image.weights import ResizeMethod as ResizeMethod

_publish(globals(), "image", _public_names(globals()))
