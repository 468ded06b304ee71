"""The bundled training jobs: `python -m algorun_train.jobs.ddp --key value ..` under any launcher.

- `ddp`, `pipeline`: the programs. They start without torch (`start`): SIGTERM and --help must not wait for its import
- `skeleton`: what all jobs do, in order; `ddp_job`, `pipeline_job`: what differs between them
- `pipeline_task`: the models and data of `pipeline`; `explain`: its option --explain
- `user_pipeline`: what `pipeline` does with a bundled model, for the model of a user's own script (`algorun.pipeline`)
- `mpi_basics`: a program without torch
- `check`: checks options before any rank starts
"""
