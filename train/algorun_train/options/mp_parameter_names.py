"""The names of AWS's `mp_parameters`, each with what becomes of it here, and AWS's default values.

Source: "Parameters for modelparallel" of sagemaker-python-sdk, and AWS's guide to sharded data parallelism.
"""

SCHEDULES = {"interleaved": "1f1b", "simple": "gpipe"}  # AWS's "interleaved" puts backward passes first: 1F1B here
# Parameters with one accepted value, and what to use instead of any other value.
ONLY_DEFAULT: dict[str, tuple[bool | int | str, str]] = {
    "horovod": (False, "TensorFlow only; use ddp"),
    "tensor_parallel_degree": (
        1,
        "there is no tensor parallelism here; use more partitions, or --model FOLDER --tp N of ddp and pipeline (docs/models.md)",
    ),
    "offload_activations": (False, "use recompute True beside mp_parameters, or smp.set_activation_checkpointing"),
    "contiguous": (True, "stages are always contiguous"),
    "ddp_dist_backend": ("auto", "the backend is NCCL on GPUs and Gloo elsewhere"),
    "overlapping_allreduce": (True, "use smp.DistributedModel(.., overlapping_allreduce=False)"),
    # Not documented, but in the smp.init of AWS's example scripts, which leave them at these values.
    "static_mode": (False, "leave it out"),
    "fast_mode": (False, "leave it out"),
    "_match_weights": (False, "leave it out: without tensor parallelism weights are the model's own"),
    "_fp32_grad_accumulation": (False, "leave it out: gradients have their weights' type"),
}
# Parameters that change nothing here, whatever their value: they belong to tensor parallelism or offloading, which are
# refused, or tune how AWS's library shards, or ask for what is always so. Values must still have the right type.
# The values are AWS's defaults.
FLAGS_WITHOUT_EFFECT = {
    "prescaled_batch": False,  # is about the ranks of a tensor parallel group, and such a group is one rank here
    "delayed_parameter_initialization": False,  # saves host memory; the computation stays the same
    "deterministic_server": False,  # the order of a schedule is always the same on all ranks
    "sdp_hierarchical_allgather": True,  # replicas and shards are always two axes of one mesh
    "fp16_params": False,  # is about the modules that tensor parallelism distributes, and there are none
    "skip_tracing": False,  # models are cut without a tracer
    "checkpoint_attentions": False,  # is about the attention layers that tensor parallelism distributes
}
NUMBERS_WITHOUT_EFFECT: dict[str, int | float] = {
    "activation_loading_horizon": 4,
    # A unit's weights travel together (FSDP2), whatever the sizes.
    "sdp_reduce_bucket_size": 500_000_000,
    "sdp_param_persistence_threshold": 1_000_000,
    "sdp_max_live_parameters": 1_000_000_000,
}
PLACEMENTS = ("cluster", "spread")
TRANSLATED = (
    "partitions", "pipeline_parallel_degree", "microbatches", "pipeline", "optimize", "placement_strategy", "ddp",
    "auto_partition", "default_partition", "active_microbatches", "bf16", "memory_weight",
    "fp16", "sharded_data_parallel_degree", "shard_optimizer_state", "sdp_gradient_clipping",
)  # fmt: skip
