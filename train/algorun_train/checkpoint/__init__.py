"""Checkpoints, from which a job resumes, and the artifact, which is the trained model.

- `ddp_checkpoints`: what `ddp` calls; `sharded_state`: what each rank writes of a sharded model
- `single_file`: the files that `ddp` of version 0.1.0 wrote
- `pipeline_checkpoints`: what `pipeline` calls to write a checkpoint, and to read it into another number of stages
- `shards`: the files of such a checkpoint; `shard_saver` writes them while training continues, `shard_reader` reads them
- `state_file`: the format of a state; `optimizer_state`: an optimizer's state by parameter name
- `folder_check`: what is refused before training
- `finished`: which checkpoint is written as an artifact; `resumed`: what a job knows about the checkpoint it resumed from
- `artifact`: the trained model; `collect`: brings its stages to rank 0
"""
