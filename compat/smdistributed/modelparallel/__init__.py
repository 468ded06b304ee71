"""smdistributed.modelparallel: the model parallel library of scripts for `distribution={"smdistributed": ..}`."""
