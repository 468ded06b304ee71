"""smdistributed.modelparallel.tensorflow is not offered; an import says so, that of a submodule too."""

raise ImportError(
    "smdistributed.modelparallel.tensorflow is not offered: algorun trains with PyTorch; "
    "use smdistributed.modelparallel.torch, or algorun.pipeline",
    name=__name__,
)
