"""Sharded data parallelism: every rank of a replica holds a share of each weight, its gradient and its moments (FSDP2)."""
