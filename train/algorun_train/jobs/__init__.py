"""The bundled training jobs: `python -m algorun_train.jobs.ddp --key value ..` under any launcher.

- `ddp`, `pipeline`: the programs. They start without torch (`start`): SIGTERM and --help must not wait for its import
- `ddp_job`, `pipeline_job`: what each job does differently; `skeleton`: what all jobs do, in order
- `pipeline_task`: the models and data of `pipeline`; `explain`: its option --explain
- `mpi_basics`: a program of its own, without torch
- `check`: checks options before any rank starts
"""
