"""smdistributed.modelparallel.torch.patches: where the documentation has activation checkpointing."""
