"""What AWS's example scripts and transformers' Trainer take from smdistributed.modelparallel without its documentation."""

from __future__ import annotations

import copy
import sys
import types

import pytest
import torch
from torch import nn

import smdistributed.modelparallel.torch as smp
from algorun_train.common.errors import UserError
from algorun_train.parallel.model import recompute
from smdistributed.modelparallel.torch import transformer_names
from smdistributed.modelparallel.torch.module_view import ModuleView
from tests.compat.smp_runs import run
from tests.train.pretended_gpu import CUDA, PretendedGpu


class Config:
    width, spread = 64, 0.02


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.mlp = nn.Linear(64, 64), nn.Linear(64, 64)


class Pretrained(nn.Module):
    """As transformers makes its models."""

    __module__ = "transformers.modeling_utils"
    config = Config()

    def post_init(self):
        self.init_weights()

    def init_weights(self):
        self.apply(self._init_weights)
        self.tie_weights()

    def tie_weights(self):
        pass

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(0, self.config.spread)
            module.bias.data.zero_()


Pretrained.init_weights.__module__ = Pretrained.__module__


@pytest.fixture
def switched_off(monkeypatch):
    """transformers is imported, and its `init_weights` switched off, as AWS's examples do."""
    library = types.ModuleType(Pretrained.__module__)
    library.PreTrainedModel = Pretrained
    monkeypatch.setitem(sys.modules, library.__name__, library)
    monkeypatch.setattr(Pretrained, "init_weights", lambda x: None)


class GPT2Model(Pretrained):
    def __init__(self):
        super().__init__()
        self.h = nn.ModuleList(GPT2Block() for _ in range(2))
        self.post_init()


GPT2Block = type("GPT2Block", (Block,), {})


class Head(Pretrained):
    def __init__(self):
        super().__init__()
        self.transformer = GPT2Model()
        self.lm_head = nn.Linear(64, 32)
        self.post_init()


@pytest.mark.parametrize("context", [smp.tensor_parallelism, lambda: smp.model_creation(tensor_parallelism=True)])
def test_a_transformer_draws_its_weights_where_the_library_would_place_its_own(context, switched_off):
    torch.manual_seed(3)
    plain = Head()
    after = torch.rand(1)
    torch.manual_seed(3)
    with context():
        model = Head()
    assert torch.equal(after, torch.rand(1))  # random numbers of the script are not used up
    weights = [module.weight.detach().flatten() for module in model.modules() if isinstance(module, nn.Linear)]
    assert all(0.018 < weight.std() < 0.022 for weight in weights)
    assert all(abs(float(torch.corrcoef(torch.stack(weights[:2]))[0, 1])) < 0.1 for _ in weights)
    assert not model.lm_head.bias.any()
    assert plain.lm_head.bias.any()
    torch.manual_seed(3)
    with context():
        again = Head()
    assert all(map(torch.equal, model.parameters(), again.parameters()))


def test_a_finished_transformer_keeps_the_trained_modules_that_it_gets(switched_off):
    trained = nn.Linear(64, 32)
    with torch.no_grad():
        trained.weight.fill_(5.0)
    with smp.tensor_parallelism():
        model = Head()
        model.lm_head = trained
        model.transformer.wte = trained  # as resize_token_embeddings does
    assert (trained.weight == 5.0).all()


class GPT2LMHeadModel(Pretrained):
    """Its head is tied to its embedding, as transformers' init_weights ties it."""

    def __init__(self):
        super().__init__()
        self.wte, self.lm_head = nn.Linear(32, 64), nn.Linear(32, 64)
        self.post_init()

    def tie_weights(self):
        self.lm_head.weight = self.wte.weight


def test_weights_that_the_configuration_ties_are_tied(switched_off):
    with smp.tensor_parallelism():
        model = GPT2LMHeadModel()
    assert model.lm_head.weight is model.wte.weight


class Classifier(Head):
    """Goes on after transformers' own __init__, and ends as transformers' classes do."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(64, 8)
        self.post_init()


def test_what_a_subclass_adds_when_it_is_made_is_drawn(switched_off):
    with smp.tensor_parallelism():
        model = Classifier()
    assert not model.score.bias.any()
    assert 0.018 < model.score.weight.std() < 0.022


def test_where_transformers_draws_itself_the_library_draws_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, Pretrained.__module__, types.SimpleNamespace(PreTrainedModel=Pretrained))
    torch.manual_seed(3)
    plain = Head()
    torch.manual_seed(3)
    with smp.tensor_parallelism():
        model = Head()
    assert all(map(torch.equal, plain.parameters(), model.parameters()))


def test_the_switch_of_the_script_is_back_afterwards(switched_off):
    switch = Pretrained.init_weights
    with smp.tensor_parallelism():
        pass
    assert Pretrained.init_weights is switch


class OnGpu(Pretrained):
    def __init__(self):
        super().__init__()
        self.h = nn.Linear(4, 4, device=CUDA)
        self.post_init()

    def _init_weights(self, module):
        self.drawn = torch.rand(1, generator=torch.cuda.default_generators[0]).item()


def test_random_numbers_of_gpus_stay_as_they_are(monkeypatch, switched_off):
    """Of the GPU that a model is made on, and of those that it is not."""
    gpus = [torch.Generator().manual_seed(number) for number in range(2)]
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "default_generators", gpus)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: [gpu.manual_seed(seed) for gpu in gpus])
    before = [gpu.get_state() for gpu in gpus]
    with PretendedGpu(), smp.tensor_parallelism():
        drawn = {OnGpu().drawn for _ in range(2)}
    with smp.tensor_parallelism():
        Head()
    assert len(drawn) == 2
    assert all(map(torch.equal, before, [gpu.get_state() for gpu in gpus]))


def test_a_transformer_has_the_librarys_names_and_each_weight_one_name():
    model = Head()
    names = list(model.state_dict())
    transformer_names.give(model)
    assert model.transformer.seq_layers is model.transformer.h
    assert model.transformer.seq_layers[1].attention is model.transformer.h[1].attn
    assert model.transformer.seq_layers[1].output is model.transformer.h[1].mlp
    assert list(model.state_dict()) == names


def test_layers_of_a_list_are_recomputed_one_by_one():
    model = Head()
    smp.set_activation_checkpointing(model.transformer.h, pack_args_as_tuple=True, strategy="group_2")
    marked = [name for name, module in model.named_modules() if recompute.is_marked(module)]
    assert marked == ["transformer.h.0", "transformer.h.1"]


def unwrapped(model):
    """transformers' unwrap_model."""
    return unwrapped(model.module) if hasattr(model, "module") else model


class Script(nn.Sequential):
    @property
    def device(self):
        return self[0].weight.device


def test_a_wrapper_ends_where_the_scripts_module_begins():
    module = Script(nn.Linear(2, 3))
    view = ModuleView(module)
    assert unwrapped(view) is view.module is module
    assert view.append == module.append
    assert view.device == torch.device("cpu")
    assert torch.equal(view(torch.ones(1, 2)), module(torch.ones(1, 2)))
    assert not hasattr(view, "nothing")
    assert isinstance(view, Script)
    assert "0.weight" in dict(view.named_parameters())


def test_a_wrapper_is_the_scripts_module_to_all_who_read_change_or_hook_it():
    module = Script(nn.Linear(2, 3))
    view = ModuleView(module)
    names = [name for name, _ in module.named_parameters()]
    assert [name for name, _ in view.named_parameters()] == list(view.state_dict()) == names
    module.eval()
    assert view.training is False
    view.train()
    assert module.training is True
    view.config = "the script's"
    assert module.config == "the script's"
    del view.config
    assert not hasattr(module, "config")
    ran = []
    view.register_forward_hook(lambda *_: ran.append("hook"))
    module(torch.ones(1, 2))
    assert ran == ["hook"]
    assert nn.Sequential(view).state_dict().keys() == {"0.0.weight", "0.0.bias"}
    assert repr(view) == repr(module)
    copied = copy.deepcopy(view)
    assert copied.module is not module
    assert torch.equal(copied.module[0].weight, module[0].weight)


class Trainer:
    @smp.step
    def step_of_all_arguments(model, batch):
        return model

    @smp.step
    def method(self, model):
        return model


def test_a_step_function_in_a_class_is_a_method_only_if_it_takes_self():
    trainer = Trainer()
    assert trainer.step_of_all_arguments is Trainer.step_of_all_arguments
    assert trainer.method.args == (trainer,)


def test_the_layer_norm_is_torchs_under_the_librarys_name():
    layer, plain = smp.nn.FusedLayerNorm(8, eps=1e-3), nn.LayerNorm(8, 1e-3)
    batch = torch.rand(4, 8)
    assert torch.equal(layer(batch), plain(batch))
    assert smp.nn.FusedLayerNorm((2, 8), elementwise_affine=False).normalized_shape == (2, 8)


def test_state_before_init_says_what_is_missing():
    with pytest.raises(
        UserError, match=r"^smdistributed.modelparallel is not initialised; fix: call smp.init\(\) first$"
    ):
        smp.state.cfg.fp16  # noqa: B018
    assert list(smp.state.module_manager.translate_functions) == []


def test_state_files_and_the_wrapper_in_a_job(tmp_path):
    """The job's parameters win over those that the script gives to smp.init."""
    parameters = {"partitions": 2, "microbatches": 2, "ddp": True, "prescaled_batch": True}
    for rank, row in enumerate(run(tmp_path, "smp_scripts_names.py", str(tmp_path), parameters=parameters)):
        assert row["config"] == [2, 2, 2, True, False, False, 1, "speed"]
        assert row["unknown"] == "smp.state.cfg has no parameter 'partitons'"
        assert row["names"] == ["module.0.weight", "module.0.bias", "module.2.weight", "module.2.bias"]
        assert row["unwrapped"] == "Sequential"
        assert row["modes"] == [False, True]
        assert row["hooked"] >= 4 * rank  # where the model's forward ends: the last stage
        assert row["message"] == f"[rank {rank}, pp_rank {rank}] hello"
        assert row["file"] == [f"state.pt_{rank}_0_0", rank]
        assert row["optimizer"] is True
        assert row["loaded"] is True
        assert row["furthest"] < 1e-6  # LAMB clips by the norm over both stages
