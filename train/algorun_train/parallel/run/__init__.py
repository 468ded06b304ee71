"""Runs the stages of this rank together with those of the other ranks: `pipeline.Pipeline`.

options            how the caller wants it (`RunOptions`)
pipeline           the object that a training loop uses; it only joins the parts below
process_groups     this rank's place in the grid, and its process groups (`Axes`)
stage              one stage: precision, recomputation, what crosses to other ranks
training_passes    forward and backward of all microbatches, in the order of torch's schedule
forward            forward passes alone, for evaluation
microbatches       a batch as microbatches
weights            parameters, buffers and state dict of this rank's stages
shared_weights     weights that several stages use: equal values, summed gradients
gradient_sum       gradients summed over the replicas
gradient_norm      the norm of the gradients of all stages
live_memory        bytes of a step, measured
"""
