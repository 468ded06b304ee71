"""What a rank of a job holds at the peak of a step, before anybody pays for one.

`live_bytes` counts tensors, `step_memory` makes a step without memory, `stage_memory` does so for a
model in stages, `fit` is the program that `algorun plan --fit` starts.
"""
