"""The work behind smdistributed.modelparallel.torch: everything here gets the job's Context, nothing here is global."""
