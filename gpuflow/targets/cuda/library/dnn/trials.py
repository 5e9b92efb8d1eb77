"""Table of the self-checks of cuDNN, by class of calls.

Tests: tests/targets/cuda/test_cudnn.py, tests/targets/cuda/test_cudnn_attention.py.
"""

from __future__ import annotations

from gpuflow.targets.cuda.library.dnn import attention_trial, convolution_trial
from gpuflow.targets.cuda.library.dnn.calls import AttentionCall, ConvolutionCall

TRIALS = {ConvolutionCall: convolution_trial.TRIAL, AttentionCall: attention_trial.TRIAL}
