"""smdistributed.dataparallel: the data parallel library of scripts for `distribution={"smdistributed": ..}`."""
