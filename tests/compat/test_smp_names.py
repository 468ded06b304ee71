"""Every name that AWS's public API pages document for smdistributed.modelparallel.torch is there, or says why not.

Source: the pages "Common API", "PyTorch API" and "PyTorch API for Tensor Parallelism" of sagemaker-python-sdk 2.200, with
the names that earlier versions of the library (1.1 to 1.10) had, the release notes, and the page "Support for Hugging Face
Transformer Models" of the developer guide.
"""

from __future__ import annotations

import importlib
import inspect

import pytest
import torch
from torch import nn

import smdistributed.modelparallel.torch as smp
from algorun_train.common.errors import UserError
from smdistributed.modelparallel.core import refused

# "+": it works. "class": it can be named and registered, but not made. "name": naming it is refused.
DOCUMENTED = {
    "init": "+",
    "is_initialized": "+",
    "is_tracing": "+",
    "step": "+",
    "StepOutput": "+",
    "StepOutput.outputs": "+",
    "StepOutput.reduce_mean": "+",
    "StepOutput.reduce_sum": "+",
    "StepOutput.concat": "+",
    "StepOutput.stack": "+",
    "StepOutput.merge": "name",
    "StepOutput.accumulate": "name",
    "DistributedModel": "+",
    "DistributedModel.__call__": "+",
    "DistributedModel.backward": "+",
    "DistributedModel.partitioned": "+",
    "DistributedModel.local_buffers": "+",
    "DistributedModel.local_named_buffers": "+",
    "DistributedModel.local_parameters": "+",
    "DistributedModel.local_named_parameters": "+",
    "DistributedModel.local_modules": "+",
    "DistributedModel.local_named_modules": "+",
    "DistributedModel.local_state_dict": "+",
    "DistributedModel.state_dict": "+",
    "DistributedModel.load_state_dict": "+",
    "DistributedModel.register_post_partition_hook": "+",
    "DistributedModel.cpu": "+",
    "DistributedModel.join": "+",
    "DistributedModel.register_comm_hook": "+",
    "DistributedModel._register_comm_hook": "+",
    "DistributedModel.distributed_modules": "+",
    "DistributedModel.is_distributed_parameter": "+",
    "DistributedModel.is_distributed_buffer": "+",
    "DistributedModel.is_scaled_batch_parameter": "+",
    "DistributedModel.is_scaled_batch_buffer": "+",
    "DistributedModel.default_reducer_named_parameters": "+",
    "DistributedModel.scaled_batch_reducer_named_parameters": "+",
    "DistributedOptimizer": "+",
    "DistributedOptimizer.state_dict": "+",
    "DistributedOptimizer.load_state_dict": "+",
    "DistributedOptimizer.local_state_dict": "+",
    "amp.GradScaler": "+",
    "partition": "+",
    "model_creation": "+",
    "delay_param_initialization": "+",
    "delayed_parameter_initialization": "+",
    "save": "+",
    "load": "+",
    "save_checkpoint": "+",
    "resume_from_checkpoint": "+",
    "tensor_parallelism": "+",
    "set_tensor_parallelism": "+",
    "tp_register": "+",
    "tp_register_with_module": "+",
    "patches.checkpoint.checkpoint": "+",
    "patches.checkpoint.checkpoint_sequential": "+",
    "set_activation_checkpointing": "+",
    "CheckpointManager": "name",
    "FP16_Module": "name",
    "FP16_Optimizer": "name",
    "nn.DistributedModule": "class",
    "nn.DistributedLinear": "class",
    "nn.DistributedEmbedding": "class",
    "nn.DistributedTransformer": "class",
    "nn.DistributedTransformerLayer": "class",
    "nn.DistributedTransformerLMHead": "class",
    "nn.DistributedTransformerOutputLayer": "class",
    "nn.DistributedAttentionLayer": "class",
    "nn.FlashAttentionLayer": "class",
    "nn.FusedLayerNorm": "+",
    "optimizers.FusedNovoGrad": "class",
    "optimizers.FusedLamb": "+",
    "optimizers.FusedLAMB": "+",
    "broadcast": "+",
    "send": "+",
    "recv_from": "+",
    "allgather": "+",
    "barrier": "+",
    "dp_barrier": "+",
    "mp_barrier": "+",
    "rank": "+",
    "size": "+",
    "local_rank": "+",
    "local_size": "+",
    "get_world_process_group": "+",
    "get_mp_group": "+",
    "get_dp_group": "+",
    "WORLD": "+",
    "MP_GROUP": "+",
    "DP_GROUP": "+",
    "CommGroup.WORLD": "+",
    "RankType.WORLD_RANK": "+",
    "RankType.MP_RANK": "+",
    "RankType.DP_RANK": "+",
}
# Not documented, but in AWS's example scripts or in transformers.
DOCUMENTED |= dict.fromkeys(
    (
        *("DistributedModel.get_module", "model.DistributedModel", "state.module_manager.translate_functions"),
        *("state_mod.state", "utils.rmsg", "utils.get_distribution_axis", "nn.huggingface.gpt2.get_hf_gpt2_transformer_layer_hooks"),
        *("nn.huggingface.gpt2.translate_hf_state_dict_to_smdistributed", "nn.huggingface.gpt2.translate_hf_block_state_dict_to_smdistributed"),
        *("nn.huggingface.gpt2.translate_layer_state_dict_to_hf_gpt2_block", "nn.huggingface.gptj.translate_hf_gptj_state_dict_to_smdistributed"),
        "nn.huggingface.gptneo.translate_hf_gptneo_state_dict_to_smdistributed",
    ),
    "+",
)  # fmt: skip
for _model in ("gpt2", "bert", "roberta", "gptj", "gptneo"):
    _back = "hf_gptj_state_dict_to_smdistributed" if _model == "gptj" else "hf_state_dict_to_smdistributed"
    DOCUMENTED |= {f"nn.huggingface.{_model}.translate_{name}_{_model}": "+" for name in ("state_dict_to_hf", _back)}
DOCUMENTED["nn.huggingface.roberta.translate_state_dict_to_smdistributed"] = "+"
for _axis in ("tp", "pp", "rdp", "mp", "dp"):
    DOCUMENTED |= {f"{_axis}_rank": "+", f"{_axis}_size": "+", f"get_{_axis}_process_group": "+"}
    DOCUMENTED[f"CommGroup.{_axis.upper()}_GROUP"] = "+"

# Parameters as documented, in their order; the library's own `pickel_module` is a misprint for pickle_module.
SIGNATURES = {
    "broadcast": ["obj", "group"],
    "send": ["obj", "dest_rank", "rank_type"],
    "recv_from": ["src_rank", "rank_type"],
    "allgather": ["obj", "group"],
    "barrier": ["group"],
    "save": ["obj", "f", "partial", "pickle_module", "pickle_protocol", "v3"],
    "load": ["f", "map_location", "pickle_module", "pickle_load_args", "partial"],
    "nn.huggingface.gpt2.translate_state_dict_to_hf_gpt2": ["state_dict", "max_seq_len"],
    "nn.huggingface.gpt2.translate_hf_state_dict_to_smdistributed_gpt2": ["state_dict", "max_seq_len"],
    "save_checkpoint": ["path", "tag", "partial", "model", "optimizer", "user_content", "translate_if_full", "num_kept_partial_checkpoints"],
    "resume_from_checkpoint": ["path", "tag", "partial", "strict", "load_optimizer", "load_sharded_optimizer_state", "translate_function"],
    "tensor_parallelism": ["enabled"],
    "set_tensor_parallelism": ["module", "enabled"],
    "tp_register": ["dist_module", "init_hook", "forward_hook", "return_hook"],
    "tp_register_with_module": ["module_cls", "dist_module", "init_hook", "forward_hook", "return_hook"],
    "model_creation": ["tensor_parallelism", "dtype"],
    "delay_param_initialization": ["enabled"],
    "DistributedOptimizer": ["optimizer", "static_loss_scale", "dynamic_loss_scale"],
}  # fmt: skip


def named(name):
    """What the dotted name stands for; of a class that __getattr__ answers for, what an object of it says."""
    path, found = name.split("."), smp
    for part in path:
        if inspect.isclass(found) and f"{found.__name__}.{part}" in refused.SENTENCES:
            return getattr(found.__new__(found), part)
        if inspect.ismodule(found) and not hasattr(found, part) and part in ("patches", "checkpoint"):
            found = importlib.import_module(f"{found.__name__}.{part}")
        else:
            found = getattr(found, part)
    return found


def says(name):
    why, _, instead = refused.SENTENCES[name].partition("; ")
    return f"smdistributed: smp.{name} cannot be had: {why}; fix: {instead}"


@pytest.mark.parametrize(("name", "kind"), DOCUMENTED.items(), ids=DOCUMENTED)
def test_a_documented_name_is_there_or_says_why_not(name, kind):
    if kind == "+":
        assert named(name) is not None
        assert name not in refused.SENTENCES
        return
    with pytest.raises(UserError) as caught:
        named(name)(1, 2) if kind == "class" else named(name)
    assert str(caught.value) == says(name)


def test_every_sentence_is_for_a_documented_name_and_says_what_to_use():
    assert {name for name, kind in DOCUMENTED.items() if kind != "+"} == refused.SENTENCES.keys()
    assert all("; " in text and text.isprintable() for text in refused.SENTENCES.values())


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_are_the_documented_ones(name):
    parameters = list(inspect.signature(named(name)).parameters)
    assert parameters[: len(SIGNATURES[name])] == SIGNATURES[name]


def test_the_model_takes_the_options_of_the_api_pages_and_of_the_release_notes():
    wanted = {
        "module", "trace_device", "trace_execution_times", "overlapping_allreduce", "backward_passes_per_step",
        "average_grads_across_microbatches", "bucket_cap_mb", "trace_memory_usage", "broadcast_buffers",
        "gradient_as_bucket_view", "find_unused_parameters",
    }  # fmt: skip
    assert set(inspect.signature(smp.DistributedModel).parameters) == wanted
    assert smp.DistributedModel._register_comm_hook is smp.DistributedModel.register_comm_hook


def test_translations_leave_the_state_dict_of_a_model_with_its_own_modules_as_it_is():
    state = nn.Linear(2, 2).state_dict()
    for name in DOCUMENTED:
        if name.startswith("nn.huggingface.") and ".translate_" in name:
            assert named(name)(state) is named(name)(state, 1024) is named(name)(state, max_seq_len=8) is state
    before, call, after = smp.nn.huggingface.gpt2.get_hf_gpt2_transformer_layer_hooks()
    assert (before(1, a=2), call(3), after(4)) == (((1,), {"a": 2}), ((3,), {}), 4)


@pytest.mark.parametrize("module", [smp, smp.nn, smp.optimizers])
def test_an_unknown_name_is_an_attribute_error(module):
    assert not hasattr(module, "DistributedFoo")


def test_with_one_rank_per_tensor_parallel_group_nothing_is_distributed():
    init_hook = lambda *args: (args, {})  # noqa: E731 (as the documentation's example)

    @smp.tp_register(smp.nn.DistributedLinear, init_hook=init_hook)
    class Own(nn.Linear):
        pass

    class Theirs(smp.nn.DistributedModule):
        def __init__(self):
            self.made = True

    smp.tp_register_with_module(nn.Linear, Theirs)
    with smp.tensor_parallelism(), smp.delay_param_initialization(enabled=True), smp.tensor_parallelism(enabled=False):
        layer = Own(2, 3)
    smp.set_tensor_parallelism(layer, True, fused_softmax=False)
    with smp.model_creation(tensor_parallelism=True, dtype=torch.bfloat16, fused_bias_gelu=True):
        half = nn.Linear(2, 2)
    assert (type(layer), type(half), half.weight.dtype) == (Own, nn.Linear, torch.bfloat16)
    assert torch.get_default_dtype() == nn.Linear(1, 1).weight.dtype == torch.float32
    with pytest.raises(UserError, match=r"^smdistributed: smp.nn.DistributedModule cannot be had: .*"):
        Theirs()
    with (
        pytest.raises(UserError, match=r"^smp.model_creation: dtype = torch.int64; allowed: .*; fix: torch.float32$"),
        smp.model_creation(dtype=torch.int64),
    ):
        pass


def test_the_data_type_is_put_back_where_the_model_cannot_be_made():
    with pytest.raises(ZeroDivisionError), smp.model_creation(dtype=torch.float64):
        1 / 0  # noqa: B018
    assert torch.get_default_dtype() == torch.float32
