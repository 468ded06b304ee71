"""smdistributed.modelparallel: the model parallel library of scripts for `distribution={"smdistributed": ..}`."""

from algorun_smdistributed.cuda_switch import cuda_on_cpu_where_asked

__version__ = "1.15.0"  # the last one that AWS documents with this interface; libraries such as transformers ask for it

cuda_on_cpu_where_asked()
