"""Training: the entrypoints `ddp`, `pipeline`, `mpi-basics` and `measure`, and the library `parallel` for models in stages.

Any launcher starts an entrypoint: `python -m algorun_train.jobs.ddp --key value ..`.
Rooms, upper ones import lower ones: `jobs`; `checkpoint`; `loop`; `data`, `models`; `options`; `parallel`; `ranks`; `common`.
The root holds no module.
"""
