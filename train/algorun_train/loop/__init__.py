"""The training loop and what it needs: steps, learning rate, measurements, reports.

- `training_loop`: epochs of steps, evaluations, reports, checkpoints and the common stop; `progress`: how far it is
- `stepper`: what the loop asks of a way of computing steps; `data_parallel_steps` and `pipeline_steps` are the two
- `optimizer`, `learning_rate`: the optimizer, and the rate that every step gets
- `meter`: measures; `metrics`: the report lines; `sinks`: where reports go; `summary`: the file of a finished run
"""
