"""smdistributed.dataparallel.torch: import `torch_smddp` and use torch.distributed with the backend `smddp`."""
