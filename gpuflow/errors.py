"""Exception classes that you may want to catch."""

from gpuflow.base.errors import CacheWarning as CacheWarning
from gpuflow.base.errors import CheckpointError as CheckpointError
from gpuflow.base.errors import CommunicationError as CommunicationError
from gpuflow.base.errors import ConcretizationTypeError as ConcretizationTypeError
from gpuflow.base.errors import DeletedArrayError as DeletedArrayError
from gpuflow.base.errors import ExportError as ExportError
from gpuflow.base.errors import InconclusiveDimensionOperation as InconclusiveDimensionOperation
from gpuflow.base.errors import JAXIndexError as JAXIndexError
from gpuflow.base.errors import JaxRuntimeError as JaxRuntimeError
from gpuflow.base.errors import JAXTypeError as JAXTypeError
from gpuflow.base.errors import KeyReuseError as KeyReuseError
from gpuflow.base.errors import NonConcreteBooleanIndexError as NonConcreteBooleanIndexError
from gpuflow.base.errors import OutOfMemoryError as OutOfMemoryError
from gpuflow.base.errors import TracerArrayConversionError as TracerArrayConversionError
from gpuflow.base.errors import TracerBoolConversionError as TracerBoolConversionError
from gpuflow.base.errors import TracerIntegerConversionError as TracerIntegerConversionError
from gpuflow.base.errors import TypePromotionError as TypePromotionError
from gpuflow.base.errors import UnexpectedTracerError as UnexpectedTracerError
from gpuflow.base.errors import UnpartitionedWarning as UnpartitionedWarning
from gpuflow.base.names import public_names as _public_names
from gpuflow.base.names import publish as _publish
from gpuflow.core.jaxpr import JaxprTypeError as JaxprTypeError

# As JAX's users also spell it.
JAXRuntimeError = JaxRuntimeError

_publish(globals(), "errors", _public_names(globals()))
