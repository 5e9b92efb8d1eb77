"""The exception classes users may want to catch."""

from gpuflow.base.errors import CacheWarning as CacheWarning
from gpuflow.base.errors import ConcretizationTypeError as ConcretizationTypeError
from gpuflow.base.errors import DeletedArrayError as DeletedArrayError
from gpuflow.base.errors import NonConcreteBooleanIndexError as NonConcreteBooleanIndexError
from gpuflow.base.errors import TracerArrayConversionError as TracerArrayConversionError
from gpuflow.base.errors import TracerBoolConversionError as TracerBoolConversionError
from gpuflow.base.errors import TracerIntegerConversionError as TracerIntegerConversionError
from gpuflow.base.errors import TypePromotionError as TypePromotionError
from gpuflow.base.errors import UnexpectedTracerError as UnexpectedTracerError
