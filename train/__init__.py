"""Bundled training entrypoints, started as `python -m train.ddp --key value ..` by any launcher."""
