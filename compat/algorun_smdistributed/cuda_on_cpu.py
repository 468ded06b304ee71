"""ALGORUN_CUDA_ON_CPU under the name that scripts know: a thread that a script starts enters CudaOnCpu() of its own."""

from algorun_train.ranks.cuda_on_cpu import CudaOnCpu, install

__all__ = ["CudaOnCpu", "install"]
