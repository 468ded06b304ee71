"""smdistributed.dataparallel.tensorflow is not offered; an import says so, that of a submodule too."""

raise ImportError(
    "smdistributed.dataparallel.tensorflow is not offered: algorun trains with PyTorch; "
    "use smdistributed.dataparallel.torch, or Horovod in an image with TensorFlow",
    name=__name__,
)
