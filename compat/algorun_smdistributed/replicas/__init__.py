"""Replicas of a model that need more than one reduction a step: uneven numbers of batches, gradients reduced on use."""
