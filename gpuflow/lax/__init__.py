"""The ops themselves, one Python function each, with exact dtypes and shapes.

Operands must have one dtype (Python numbers take that of the other operand) and one rank up to
scalars. gpuflow.numpy is the friendly surface over these.
"""

from gpuflow.base.names import missing_name as _missing_name
from gpuflow.base.names import public_names as _public_names
from gpuflow.control.associative import associative_scan as associative_scan
from gpuflow.control.branches import cond as cond
from gpuflow.control.branches import switch as switch
from gpuflow.control.fori import fori_loop as fori_loop
from gpuflow.control.fori import while_loop as while_loop
from gpuflow.control.loops import map as map
from gpuflow.control.loops import scan as scan
from gpuflow.ops.axes import broadcast_in_dim as broadcast_in_dim
from gpuflow.ops.axes import reduce_sum as reduce_sum
from gpuflow.ops.axes import reshape as reshape
from gpuflow.ops.axes import squeeze as squeeze
from gpuflow.ops.axes import transpose as transpose
from gpuflow.ops.bitcast import bitcast_convert_type as bitcast_convert_type
from gpuflow.ops.comparison import bitwise_and as bitwise_and
from gpuflow.ops.comparison import bitwise_not as bitwise_not
from gpuflow.ops.comparison import bitwise_or as bitwise_or
from gpuflow.ops.comparison import bitwise_xor as bitwise_xor
from gpuflow.ops.comparison import eq as eq
from gpuflow.ops.comparison import ge as ge
from gpuflow.ops.comparison import gt as gt
from gpuflow.ops.comparison import is_finite as is_finite
from gpuflow.ops.comparison import le as le
from gpuflow.ops.comparison import lt as lt
from gpuflow.ops.comparison import ne as ne
from gpuflow.ops.comparison import shift_left as shift_left
from gpuflow.ops.comparison import shift_right_arithmetic as shift_right_arithmetic
from gpuflow.ops.comparison import shift_right_logical as shift_right_logical
from gpuflow.ops.complex_numbers import abs as abs
from gpuflow.ops.complex_numbers import complex as complex
from gpuflow.ops.complex_numbers import conj as conj
from gpuflow.ops.complex_numbers import imag as imag
from gpuflow.ops.complex_numbers import real as real
from gpuflow.ops.complex_numbers import sign as sign
from gpuflow.ops.contractions import dot_general as dot_general
from gpuflow.ops.convert import convert_element_type as convert_element_type
from gpuflow.ops.convert import copy as copy
from gpuflow.ops.convert import stop_gradient as stop_gradient
from gpuflow.ops.cumulative import cumlogsumexp as cumlogsumexp
from gpuflow.ops.cumulative import cummax as cummax
from gpuflow.ops.cumulative import cummin as cummin
from gpuflow.ops.cumulative import cumprod as cumprod
from gpuflow.ops.cumulative import cumsum as cumsum
from gpuflow.ops.elementwise import RoundingMethod as RoundingMethod
from gpuflow.ops.elementwise import add as add
from gpuflow.ops.elementwise import ceil as ceil
from gpuflow.ops.elementwise import div as div
from gpuflow.ops.elementwise import floor as floor
from gpuflow.ops.elementwise import max as max
from gpuflow.ops.elementwise import min as min
from gpuflow.ops.elementwise import mul as mul
from gpuflow.ops.elementwise import neg as neg
from gpuflow.ops.elementwise import rem as rem
from gpuflow.ops.elementwise import round as round
from gpuflow.ops.elementwise import sub as sub
from gpuflow.ops.indexing import row_gather as row_gather
from gpuflow.ops.indexing import row_scatter_add as row_scatter_add
from gpuflow.ops.joining import concatenate as concatenate
from gpuflow.ops.layout import iota as iota
from gpuflow.ops.layout import pad as pad
from gpuflow.ops.layout import rev as rev
from gpuflow.ops.layout import slice_ as slice_
from gpuflow.ops.layout import slice_in_dim as slice_in_dim
from gpuflow.ops.powers import cbrt as cbrt
from gpuflow.ops.powers import integer_pow as integer_pow
from gpuflow.ops.powers import rsqrt as rsqrt
from gpuflow.ops.powers import sqrt as sqrt
from gpuflow.ops.powers import square as square
from gpuflow.ops.reductions import argmax as argmax
from gpuflow.ops.reductions import argmin as argmin
from gpuflow.ops.reductions import reduce_and as reduce_and
from gpuflow.ops.reductions import reduce_max as reduce_max
from gpuflow.ops.reductions import reduce_min as reduce_min
from gpuflow.ops.reductions import reduce_or as reduce_or
from gpuflow.ops.reductions import reduce_prod as reduce_prod
from gpuflow.ops.reductions import reduce_xor as reduce_xor
from gpuflow.ops.selection import clamp as clamp
from gpuflow.ops.selection import select as select
from gpuflow.ops.selection import select_n as select_n
from gpuflow.ops.sorting import sort as sort
from gpuflow.ops.sorting import sort_key_val as sort_key_val
from gpuflow.ops.sorting import top_k as top_k
from gpuflow.ops.special import erf as erf
from gpuflow.ops.special import erf_inv as erf_inv
from gpuflow.ops.special import erfc as erfc
from gpuflow.ops.special import logistic as logistic
from gpuflow.ops.transcendental import acos as acos
from gpuflow.ops.transcendental import acosh as acosh
from gpuflow.ops.transcendental import asin as asin
from gpuflow.ops.transcendental import asinh as asinh
from gpuflow.ops.transcendental import atan as atan
from gpuflow.ops.transcendental import atan2 as atan2
from gpuflow.ops.transcendental import atanh as atanh
from gpuflow.ops.transcendental import cos as cos
from gpuflow.ops.transcendental import cosh as cosh
from gpuflow.ops.transcendental import exp as exp
from gpuflow.ops.transcendental import exp2 as exp2
from gpuflow.ops.transcendental import expm1 as expm1
from gpuflow.ops.transcendental import log as log
from gpuflow.ops.transcendental import log1p as log1p
from gpuflow.ops.transcendental import pow as pow
from gpuflow.ops.transcendental import sin as sin
from gpuflow.ops.transcendental import sinh as sinh
from gpuflow.ops.transcendental import tan as tan
from gpuflow.ops.transcendental import tanh as tanh

slice = slice_
broadcasted_iota = iota

__getattr__ = _missing_name(__name__, "lax", _public_names(globals()))
