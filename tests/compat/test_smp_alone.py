"""smdistributed.modelparallel.torch in a process without a launcher, which is a job of one: what needs no second rank."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import smdistributed.modelparallel.torch as smp
from algorun_train.common.errors import UserError
from smdistributed.modelparallel.core.answers import UpToModel, scalar
from tests.compat.programs.smp_both import batch, net, train_step

pytestmark = pytest.mark.usefixtures("alone")


def said(call, *args, **options):
    with pytest.raises(UserError) as caught:
        call(*args, **options)
    return str(caught.value)


class WithNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.act = nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Tanh()

    def forward(self, x):
        return self.act(self.norm(self.first(x)))


def test_local_parts_of_an_uncut_model_are_all_of_it():
    module = WithNorm()
    model = smp.DistributedModel(module)
    assert dict(model.local_named_parameters("a.")).keys() == {f"a.{n}" for n, _ in module.named_parameters()}
    assert [id(buffer) for buffer in model.local_buffers()] == [id(buffer) for buffer in module.buffers()]
    assert [name for name, _ in model.local_named_modules(prefix="a.")] == ["a.", "a.first", "a.norm"]
    assert [id(each) for each in model.local_modules()] == [id(each) for each in (module, module.first, module.norm)]


def test_at_tensor_parallel_degree_1_nothing_is_distributed():
    module = WithNorm()
    model, weight, mean = smp.DistributedModel(module), module.first.weight, module.norm.running_mean
    assert list(model.distributed_modules()) == list(model.scaled_batch_reducer_named_parameters()) == []
    assert not any(
        [
            model.is_distributed_parameter(weight),
            model.is_distributed_buffer(mean),
            model.is_scaled_batch_parameter(weight),
            model.is_scaled_batch_buffer(mean),
        ]
    )
    assert list(model.default_reducer_named_parameters()) == list(module.named_parameters())
    assert smp.utils.get_distribution_axis(weight) is None


def test_a_model_comes_back_to_the_cpu_with_its_weights():
    module = net()
    before = copy.deepcopy(module.state_dict())
    model = smp.DistributedModel(module)
    assert model.cpu() is model
    assert model.get_module() is module
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_the_wrapper_lists_what_the_module_has():
    module = net()
    assert set(dir(smp.DistributedModel(module).module)) == {*dir(module), "module"}


def test_what_one_replica_cannot_have_is_refused():
    assert said(smp.DistributedModel, net(), backward_passes_per_step=0) == (
        "backward_passes_per_step = 0; allowed: 1 or more; fix: give one"
    )
    model = smp.DistributedModel(net())
    assert said(model.register_comm_hook, None, print) == (
        'register_comm_hook: there is one replica; allowed: with "ddp": true and several; fix: drop it'
    )


def test_a_step_needs_a_model_and_names_its_own_arguments():
    assert said(train_step, None, batch(0)) == (
        "train_step: there is no model; fix: model = smp.DistributedModel(model) before the first step"
    )
    assert not smp.is_tracing()
    assert said(smp.step(non_split_inputs=["mask"], input_split_axes={"rows": 1}), lambda model, x: x).endswith(
        "mask, rows is none of its arguments; allowed: model, x; fix: name an argument"
    )


def test_a_step_output_shows_its_tensors_and_goes_through_pickle():
    smp.DistributedModel(net())
    output = smp.step(lambda inputs: inputs.sum(1))(torch.ones(2, 3))
    assert repr(output) == "StepOutput([tensor([3., 3.])])"
    assert torch.equal(pickle.loads(pickle.dumps(output)).concat(), output.concat())
    assert not hasattr(output, "reduce_max")


def test_the_number_that_backward_starts_from():
    rows = torch.tensor([1.0, 2.0], requires_grad=True)
    weight = torch.tensor([3.0, 4.0])
    assert scalar([rows, rows.sum()], [weight, None]).item() == 1 * 3 + 2 * 4 + 3
    assert said(scalar, [rows, rows], [weight]) == (
        "model.backward: 1 gradients for 2 tensors; fix: one for each, or none"
    )
    assert said(scalar, []) == "model.backward: no tensor; fix: give it the loss"
    assert said(UpToModel("cpu").backward, rows.sum()) == (
        "model.backward before the model was called; fix: loss = ..model(..).., then model.backward(loss)"
    )


def test_a_scaler_takes_torchs_arguments_with_and_without_the_device():
    for arguments in (("cpu", 4.0), (4.0,)):
        scaler = smp.amp.GradScaler(*arguments)
        assert scaler.get_scale() == 4.0
        assert scaler.scale(torch.ones(())).device.type == "cpu"


def test_a_parameter_that_python_itself_asks_for_is_none_of_the_jobs():
    with pytest.raises(AttributeError, match="^__len__$"):
        smp.state.cfg.__len__  # noqa: B018
    assert copy.copy(smp.state.cfg).partitions == 1


def test_a_bare_state_dict_is_a_full_checkpoint_and_can_be_translated(tmp_path):
    theirs = {f"theirs.{name}": tensor + 1 for name, tensor in net().state_dict().items()}
    torch.save(theirs, tmp_path / "7")
    model = smp.DistributedModel(net())

    def translate(state):
        return {name.removeprefix("theirs."): tensor for name, tensor in state.items()}

    assert smp.resume_from_checkpoint(tmp_path, "7", partial=False, translate_function=translate) is None
    assert all(torch.equal(theirs[f"theirs.{name}"], tensor) for name, tensor in model.state_dict().items())


def test_the_oldest_parts_go_also_while_another_rank_removes_them(tmp_path):
    """A file that is gone when it is looked at."""
    (tmp_path / "old_partial").mkdir()
    (tmp_path / "old_partial/model_0_of_1.pt").symlink_to(tmp_path / "gone")
    smp.save_checkpoint(tmp_path, "new", model=smp.DistributedModel(net()), num_kept_partial_checkpoints=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new_partial", "newest"]


def test_a_folder_without_a_whole_checkpoint_is_refused(tmp_path):
    (tmp_path / "7_partial").mkdir()
    assert said(smp.resume_from_checkpoint, tmp_path, "7") == (
        f"smp.resume_from_checkpoint: {tmp_path}/7_partial holds no whole checkpoint; found: nothing; "
        "fix: another tag, or partial=False for a full one"
    )
