"""The bundled training jobs: `python -m algorun_train.jobs.ddp --key value ..` under any launcher."""
