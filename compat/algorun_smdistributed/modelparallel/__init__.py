"""smdistributed.modelparallel: the model parallel library of scripts for `distribution={"smdistributed": ..}`."""

__version__ = "1.15.0"  # the last one that AWS documents with this interface; libraries such as transformers ask for it
