"""All ranks together decide how a model becomes stages: `model_partitioner.ModelPartitioner`.

model_partitioner   cuts the model, profiles its segments, chooses the stages, keeps the result in the partition file
on_one_rank         one rank searches for the cut, and all ranks apply it
model_hash          tells models apart by the names, shapes and types of their tensors
options             how the caller wants it (`PartitionOptions`)
"""
