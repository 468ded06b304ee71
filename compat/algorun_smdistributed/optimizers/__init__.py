"""Optimizers that torch does not have, in torch's own operations."""
