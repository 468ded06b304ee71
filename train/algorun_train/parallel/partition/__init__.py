"""Which segments each pipeline stage gets, within the device memory of a rank. `layers_to_stages.choose_stages` decides.

profiling          measures each segment: seconds, bytes
costs              the results as types: SegmentProfile, Partition
memory             bytes that a stage and a rank need
cost_model         seconds and bytes of one partition
exact_search       the best partition where each rank has one stage
simulated_search   a good partition where ranks have several stages
layers_to_stages   picks the search, keeps the memory limit, says why a model does not fit
partition_file     the JSON file: written, read, edited by hand, reused
"""
