"""Bundled training entrypoints, started as `python -m algorun_train.jobs.ddp --key value ..` by any launcher."""
