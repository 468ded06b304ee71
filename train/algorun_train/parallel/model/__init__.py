"""What all rooms above know of a model, and of a call of it.

segments       what a model is cut into: segments, and the tensors that cross between them
model_stages   a cut model, and the segment at which each stage begins (`ModelStages`)
trees          tensors inside arguments and results: tuples, lists, dictionaries and dataclasses of them
precision      precisions by name, and the type that autocast computes in
recompute      activations that are computed again instead of kept
"""
