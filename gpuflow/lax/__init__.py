"""Primitive operations as Python functions, with exact dtypes and shapes.

Operands must have the same dtype, including Python scalars, and the same rank, except for scalars.
gpuflow.numpy is the convenient interface to these functions.
"""

from gpuflow.control.custom.implicit import custom_linear_solve as custom_linear_solve
from gpuflow.control.custom.implicit import custom_root as custom_root
from gpuflow.control.loops.associative import associative_scan as associative_scan
from gpuflow.control.loops.branches import cond as cond
from gpuflow.control.loops.branches import switch as switch
from gpuflow.control.loops.fori import fori_loop as fori_loop
from gpuflow.control.loops.fori import while_loop as while_loop
from gpuflow.control.loops.scan_and_map import map as map
from gpuflow.control.loops.scan_and_map import scan as scan
from gpuflow.control.platform_dependent import composite as composite
from gpuflow.control.platform_dependent import platform_dependent as platform_dependent
from gpuflow.control.reducing import reduce as reduce
from gpuflow.control.reducing import reduce_window as reduce_window
from gpuflow.control.scatter_apply import scatter_apply as scatter_apply
from gpuflow.control.select_and_scatter import select_and_scatter as select_and_scatter
from gpuflow.lax import linalg as linalg
from gpuflow.lax.one_dtype import add as add
from gpuflow.lax.one_dtype import atan2 as atan2
from gpuflow.lax.one_dtype import bitwise_and as bitwise_and
from gpuflow.lax.one_dtype import bitwise_or as bitwise_or
from gpuflow.lax.one_dtype import bitwise_xor as bitwise_xor
from gpuflow.lax.one_dtype import clamp as clamp
from gpuflow.lax.one_dtype import complex as complex
from gpuflow.lax.one_dtype import div as div
from gpuflow.lax.one_dtype import eq as eq
from gpuflow.lax.one_dtype import ge as ge
from gpuflow.lax.one_dtype import gt as gt
from gpuflow.lax.one_dtype import igamma as igamma
from gpuflow.lax.one_dtype import igammac as igammac
from gpuflow.lax.one_dtype import le as le
from gpuflow.lax.one_dtype import lt as lt
from gpuflow.lax.one_dtype import max as max
from gpuflow.lax.one_dtype import min as min
from gpuflow.lax.one_dtype import mul as mul
from gpuflow.lax.one_dtype import mulhi as mulhi
from gpuflow.lax.one_dtype import ne as ne
from gpuflow.lax.one_dtype import nextafter as nextafter
from gpuflow.lax.one_dtype import pad as pad
from gpuflow.lax.one_dtype import polygamma as polygamma
from gpuflow.lax.one_dtype import pow as pow
from gpuflow.lax.one_dtype import rem as rem
from gpuflow.lax.one_dtype import select as select
from gpuflow.lax.one_dtype import shift_left as shift_left
from gpuflow.lax.one_dtype import shift_right_arithmetic as shift_right_arithmetic
from gpuflow.lax.one_dtype import shift_right_logical as shift_right_logical
from gpuflow.lax.one_dtype import sub as sub
from gpuflow.lax.one_dtype import zeta as zeta
from gpuflow.lax.primitives import publish_with_primitives as _publish
from gpuflow.lax.programs import approx_max_k as approx_max_k
from gpuflow.lax.programs import approx_min_k as approx_min_k
from gpuflow.lax.programs import conv as conv
from gpuflow.lax.programs import conv_general_dilated as conv_general_dilated
from gpuflow.lax.programs import conv_general_dilated_patches as conv_general_dilated_patches
from gpuflow.lax.programs import conv_transpose as conv_transpose
from gpuflow.lax.programs import conv_with_general_padding as conv_with_general_padding
from gpuflow.lax.programs import gather as gather
from gpuflow.lax.programs import igamma_grad_a as igamma_grad_a
from gpuflow.lax.programs import ragged_dot as ragged_dot
from gpuflow.lax.programs import ragged_dot_general as ragged_dot_general
from gpuflow.lax.programs import random_gamma_grad as random_gamma_grad
from gpuflow.lax.programs import rng_bit_generator as rng_bit_generator
from gpuflow.lax.programs import scatter as scatter
from gpuflow.lax.programs import scatter_add as scatter_add
from gpuflow.lax.programs import scatter_max as scatter_max
from gpuflow.lax.programs import scatter_min as scatter_min
from gpuflow.lax.programs import scatter_mul as scatter_mul
from gpuflow.lax.programs import scatter_sub as scatter_sub
from gpuflow.lax.programs import top_k as top_k
from gpuflow.lax.section_primitives import split_p as split_p
from gpuflow.lax.section_primitives import stack_p as stack_p
from gpuflow.lax.section_primitives import tile_p as tile_p
from gpuflow.lax.section_primitives import unstack_p as unstack_p
from gpuflow.lax.shapes import asarray as asarray
from gpuflow.lax.shapes import batch_matmul as batch_matmul
from gpuflow.lax.shapes import broadcast as broadcast
from gpuflow.lax.shapes import broadcast_shapes as broadcast_shapes
from gpuflow.lax.shapes import collapse as collapse
from gpuflow.lax.shapes import dot as dot
from gpuflow.lax.shapes import dtype as dtype
from gpuflow.lax.shapes import empty as empty
from gpuflow.lax.shapes import expand_dims as expand_dims
from gpuflow.lax.shapes import full as full
from gpuflow.lax.shapes import full_like as full_like
from gpuflow.lax.shapes import reciprocal as reciprocal
from gpuflow.lax.shapes import split as split
from gpuflow.lax.shapes import stack as stack
from gpuflow.lax.shapes import tile as tile
from gpuflow.lax.sizes import broadcast_like as broadcast_like
from gpuflow.lax.sizes import broadcast_to_rank as broadcast_to_rank
from gpuflow.lax.sizes import conv_general_permutations as conv_general_permutations
from gpuflow.lax.sizes import conv_general_shape_tuple as conv_general_shape_tuple
from gpuflow.lax.sizes import conv_shape_tuple as conv_shape_tuple
from gpuflow.lax.sizes import conv_transpose_shape_tuple as conv_transpose_shape_tuple
from gpuflow.lax.sizes import reduce_window_shape_tuple as reduce_window_shape_tuple
from gpuflow.lax.sizes import shape_as_value as shape_as_value
from gpuflow.lax.windows import dynamic_index_in_dim as dynamic_index_in_dim
from gpuflow.lax.windows import dynamic_slice as dynamic_slice
from gpuflow.lax.windows import dynamic_slice_in_dim as dynamic_slice_in_dim
from gpuflow.lax.windows import dynamic_update_index_in_dim as dynamic_update_index_in_dim
from gpuflow.lax.windows import dynamic_update_slice as dynamic_update_slice
from gpuflow.lax.windows import dynamic_update_slice_in_dim as dynamic_update_slice_in_dim
from gpuflow.lax.windows import index_in_dim as index_in_dim
from gpuflow.lax.windows import index_take as index_take
from gpuflow.lax.windows import unstack as unstack
from gpuflow.ops.collectives.all_gather import all_gather as all_gather
from gpuflow.ops.collectives.all_gather import psum_scatter as psum_scatter
from gpuflow.ops.collectives.all_to_all import all_to_all as all_to_all
from gpuflow.ops.collectives.all_to_all import pswapaxes as pswapaxes
from gpuflow.ops.collectives.axis_index import axis_index as axis_index
from gpuflow.ops.collectives.axis_index import axis_size as axis_size
from gpuflow.ops.collectives.ppermute import pbroadcast as pbroadcast
from gpuflow.ops.collectives.ppermute import ppermute as ppermute
from gpuflow.ops.collectives.ppermute import pshuffle as pshuffle
from gpuflow.ops.collectives.ragged_all_to_all import ragged_all_to_all as ragged_all_to_all
from gpuflow.ops.collectives.reduce import pmax as pmax
from gpuflow.ops.collectives.reduce import pmean as pmean
from gpuflow.ops.collectives.reduce import pmin as pmin
from gpuflow.ops.collectives.reduce import psum as psum
from gpuflow.ops.collectives.varying import pcast as pcast
from gpuflow.ops.collectives.varying import pvary as pvary
from gpuflow.ops.contractions.convolution_calls import ConvDimensionNumbers as ConvDimensionNumbers
from gpuflow.ops.contractions.convolution_calls import (
    ConvGeneralDilatedDimensionNumbers as ConvGeneralDilatedDimensionNumbers,
)
from gpuflow.ops.contractions.convolution_calls import (
    conv_dimension_numbers as conv_dimension_numbers,
)
from gpuflow.ops.contractions.convolution_calls import padtype_to_pads as padtype_to_pads
from gpuflow.ops.contractions.dot_general import dot_general as dot_general
from gpuflow.ops.contractions.local_convolution import (
    conv_general_dilated_local as conv_general_dilated_local,
)
from gpuflow.ops.contractions.precision import DotAlgorithm as DotAlgorithm
from gpuflow.ops.contractions.precision import DotAlgorithmPreset as DotAlgorithmPreset
from gpuflow.ops.contractions.precision import DotDimensionNumbers as DotDimensionNumbers
from gpuflow.ops.contractions.precision import Precision as Precision
from gpuflow.ops.contractions.precision import PrecisionLike as PrecisionLike
from gpuflow.ops.contractions.ragged_dot import (
    RaggedDotDimensionNumbers as RaggedDotDimensionNumbers,
)
from gpuflow.ops.effects.barrier import optimization_barrier as optimization_barrier
from gpuflow.ops.effects.tokens import after_all as after_all
from gpuflow.ops.effects.tokens import create_token as create_token
from gpuflow.ops.effects.tokens import dce_sink as dce_sink
from gpuflow.ops.elementwise.accuracy import AccuracyMode as AccuracyMode
from gpuflow.ops.elementwise.accuracy import Tolerance as Tolerance
from gpuflow.ops.elementwise.arithmetic import RoundingMethod as RoundingMethod
from gpuflow.ops.elementwise.arithmetic import ceil as ceil
from gpuflow.ops.elementwise.arithmetic import floor as floor
from gpuflow.ops.elementwise.arithmetic import neg as neg
from gpuflow.ops.elementwise.arithmetic import round as round
from gpuflow.ops.elementwise.bitcast import bitcast_convert_type as bitcast_convert_type
from gpuflow.ops.elementwise.bits import clz as clz
from gpuflow.ops.elementwise.bits import population_count as population_count
from gpuflow.ops.elementwise.bits import reduce_precision as reduce_precision
from gpuflow.ops.elementwise.comparison import bitwise_not as bitwise_not
from gpuflow.ops.elementwise.comparison import is_finite as is_finite
from gpuflow.ops.elementwise.complex_numbers import abs as abs
from gpuflow.ops.elementwise.complex_numbers import conj as conj
from gpuflow.ops.elementwise.complex_numbers import imag as imag
from gpuflow.ops.elementwise.complex_numbers import real as real
from gpuflow.ops.elementwise.complex_numbers import sign as sign
from gpuflow.ops.elementwise.convert import convert_element_type as convert_element_type
from gpuflow.ops.elementwise.convert import copy as copy
from gpuflow.ops.elementwise.convert import stop_gradient as stop_gradient
from gpuflow.ops.elementwise.powers import cbrt as cbrt
from gpuflow.ops.elementwise.powers import integer_pow as integer_pow
from gpuflow.ops.elementwise.powers import rsqrt as rsqrt
from gpuflow.ops.elementwise.powers import sqrt as sqrt
from gpuflow.ops.elementwise.powers import square as square
from gpuflow.ops.elementwise.select import select_n as select_n
from gpuflow.ops.elementwise.transcendental import acos as acos
from gpuflow.ops.elementwise.transcendental import acosh as acosh
from gpuflow.ops.elementwise.transcendental import asin as asin
from gpuflow.ops.elementwise.transcendental import asinh as asinh
from gpuflow.ops.elementwise.transcendental import atan as atan
from gpuflow.ops.elementwise.transcendental import atanh as atanh
from gpuflow.ops.elementwise.transcendental import cos as cos
from gpuflow.ops.elementwise.transcendental import cosh as cosh
from gpuflow.ops.elementwise.transcendental import exp as exp
from gpuflow.ops.elementwise.transcendental import exp2 as exp2
from gpuflow.ops.elementwise.transcendental import expm1 as expm1
from gpuflow.ops.elementwise.transcendental import log as log
from gpuflow.ops.elementwise.transcendental import log1p as log1p
from gpuflow.ops.elementwise.transcendental import sin as sin
from gpuflow.ops.elementwise.transcendental import sinh as sinh
from gpuflow.ops.elementwise.transcendental import tan as tan
from gpuflow.ops.elementwise.transcendental import tanh as tanh
from gpuflow.ops.fft.transforms import FftType as FftType
from gpuflow.ops.fft.transforms import fft as fft
from gpuflow.ops.indexing.dimension_numbers import GatherDimensionNumbers as GatherDimensionNumbers
from gpuflow.ops.indexing.dimension_numbers import GatherScatterMode as GatherScatterMode
from gpuflow.ops.indexing.dimension_numbers import (
    ScatterDimensionNumbers as ScatterDimensionNumbers,
)
from gpuflow.ops.indexing.rows import row_gather as row_gather
from gpuflow.ops.indexing.rows import row_scatter_add as row_scatter_add
from gpuflow.ops.layout.axes import broadcast_in_dim as broadcast_in_dim
from gpuflow.ops.layout.axes import reduce_sum as reduce_sum
from gpuflow.ops.layout.axes import reshape as reshape
from gpuflow.ops.layout.axes import squeeze as squeeze
from gpuflow.ops.layout.concatenate import concatenate as concatenate
from gpuflow.ops.layout.iota import broadcasted_iota as broadcasted_iota
from gpuflow.ops.layout.iota import iota as iota
from gpuflow.ops.layout.rev import rev as rev
from gpuflow.ops.layout.slicing import slice_ as slice_
from gpuflow.ops.layout.slicing import slice_in_dim as slice_in_dim
from gpuflow.ops.layout.transpose import transpose as transpose
from gpuflow.ops.random.rng_bit_generator import RandomAlgorithm as RandomAlgorithm
from gpuflow.ops.random.rng_uniform import rng_uniform as rng_uniform
from gpuflow.ops.reductions.argmax import argmax as argmax
from gpuflow.ops.reductions.argmax import argmin as argmin
from gpuflow.ops.reductions.cumulative import cumlogsumexp as cumlogsumexp
from gpuflow.ops.reductions.cumulative import cummax as cummax
from gpuflow.ops.reductions.cumulative import cummin as cummin
from gpuflow.ops.reductions.cumulative import cumprod as cumprod
from gpuflow.ops.reductions.cumulative import cumsum as cumsum
from gpuflow.ops.reductions.reduce import reduce_and as reduce_and
from gpuflow.ops.reductions.reduce import reduce_max as reduce_max
from gpuflow.ops.reductions.reduce import reduce_min as reduce_min
from gpuflow.ops.reductions.reduce import reduce_or as reduce_or
from gpuflow.ops.reductions.reduce import reduce_prod as reduce_prod
from gpuflow.ops.reductions.reduce import reduce_xor as reduce_xor
from gpuflow.ops.sorting.sort import sort as sort
from gpuflow.ops.sorting.sort import sort_key_val as sort_key_val
from gpuflow.ops.special.bessel import bessel_i0e as bessel_i0e
from gpuflow.ops.special.bessel import bessel_i1e as bessel_i1e
from gpuflow.ops.special.error_functions import erf as erf
from gpuflow.ops.special.error_functions import erf_inv as erf_inv
from gpuflow.ops.special.error_functions import erfc as erfc
from gpuflow.ops.special.error_functions import logistic as logistic
from gpuflow.ops.special.gamma import digamma as digamma
from gpuflow.ops.special.gamma import lgamma as lgamma
from gpuflow.ops.special.incomplete_beta import betainc as betainc
from gpuflow.ops.windows.at_extremes import select_and_gather_add as select_and_gather_add
from gpuflow.ops.windows.at_extremes import select_and_scatter_add as select_and_scatter_add
from gpuflow.parallel.placement import with_sharding_constraint as with_sharding_constraint

slice = slice_
stage = asarray

_publish(globals(), "lax", ("linalg",))
