"""Learning rate, report lines, agreement on a stop, models and transfer of weights."""

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorun.inside.stop_agreement import Agreement, Verdict
from algorun.inside.stop_flag import StopFlag
from algorun_train.errors import UserError
from algorun_train.loop.learning_rate import learning_rate_schedule
from algorun_train.loop.metrics import EpochReport, Pace, StepReport, clock, record
from algorun_train.models.image_models import build, specify
from algorun_train.models.pretrained import start_from
from algorun_train.options.job_options import DdpJobOptions


def rates(**options):
    return learning_rate_schedule(DdpJobOptions(**options), global_batch=options.pop("global_batch", 1024))


def test_warm_up_then_decay_per_epoch():
    plan = rates(lr=0.1, warmup_epochs=2, gamma=0.5)
    assert plan.at(0, 0.5) == pytest.approx(0.025)
    assert plan.at(1, 2.0) == pytest.approx(0.1 * 0.5)
    assert plan.at(3, 3.1) == pytest.approx(0.1 * 0.125)


def test_gamma_is_steplr_of_torch():
    plan = rates(lr=0.3, warmup_epochs=0, gamma=0.7)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    theirs = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(5):
        assert plan.at(epoch, epoch + 0.5) == pytest.approx(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()


def test_linear_scaling_of_goyal():
    plan = rates(lr=0.1, scale_lr=True, warmup_epochs=5, gamma=1.0)  # global batch 1024, reference 256
    assert plan.peak == pytest.approx(0.4)
    assert plan.at(0, 1e-9) == pytest.approx(0.1)
    assert plan.at(2, 2.5) == pytest.approx(0.25)
    assert plan.at(7, 7.5) == pytest.approx(0.4)


@given(st.floats(0, 30), st.floats(0.01, 5))
def test_the_rate_never_leaves_its_bounds(progress, warmup):
    plan = rates(lr=0.1, warmup_epochs=warmup, gamma=0.9)
    assert 0 <= plan.at(int(progress), progress) <= 0.1


PACE = Pace(unit="images", samples_per_s=1234.56, data_wait=0.01234, peak_memory_mib=345.67, eta_s=3725.2)
STEP = StepReport(step=5, steps=9, epoch=1, epochs=2, train_loss=0.123449, learning_rate=3e-5, pace=PACE)
EPOCH = EpochReport(step=9, epoch=1, epochs=2, train_loss=12.5, val_loss=0.00001, val_accuracy=0.97123, pace=PACE)


def test_the_lines_hold_what_regular_expressions_of_users_look_for():
    assert re.findall(r"train_loss: ([0-9\.]+)", str(STEP)) == ["0.1234"]
    assert re.findall(r"train_loss: ([0-9\.]+)", str(EPOCH)) == ["12.5000"]
    assert re.findall(r"val_loss : ([0-9\.]+)", str(EPOCH)) == ["0.0000"]
    assert re.findall(r"val_accuracy: ([0-9\.]+)", str(EPOCH)) == ["0.9712"]
    assert re.findall(r"learning_rate: ([0-9\.]+)", str(STEP)) == ["0.00003000"]
    for name, value in (("images_per_s", "1234.6"), ("data_wait", "0.0123"), ("peak_memory_mib", "345.7")):
        for line in (str(STEP), str(EPOCH)):
            assert re.findall(rf"{name}: ([0-9\.]+)", line) == [value]
    assert "eta: 1:02:05" in str(STEP)
    assert "\n" not in str(STEP) + str(EPOCH)


def test_records_are_flat_and_exact():
    assert record(EPOCH)["val_loss"] == 0.00001
    assert record(EPOCH)["kind"] == "epoch"
    assert record(STEP)["images_per_s"] == 1234.56
    assert all(not isinstance(value, dict) for value in record(STEP).values())


def test_text_has_sequences_where_images_were():
    text = replace(STEP, pace=replace(PACE, unit="sequences"))
    assert str(text) == str(STEP).replace("images", "sequences")
    assert list(record(text)) == [name.replace("images", "sequences") for name in record(STEP)]
    assert record(text)["sequences_per_s"] == 1234.56


def test_an_unknown_eta():
    assert clock(float("inf")) == "?"
    assert clock(59.6) == "0:01:00"


class Peers:
    """A communicator whose other rank has these wishes."""

    def __init__(self, stop: float = 0.0, save: float = 0.0, every: float = 256.0) -> None:
        self.row, self.calls = [stop, save, every], 0

    def exchange(self, values):
        self.calls += 1
        return [values, self.row]


def test_one_rank_s_wish_to_stop_counts_for_all():
    flag = StopFlag()
    assert Agreement(Peers(), flag).poll() == Verdict(stop=False, save=False)
    assert Agreement(Peers(stop=1.0), flag).poll() == Verdict(stop=True, save=False)
    flag.wanted = True
    assert Agreement(Peers(), flag).poll().stop


def test_rank_0_alone_decides_on_saving():
    assert Agreement(Peers(save=1.0), StopFlag()).poll(save_due=False) == Verdict()
    assert Agreement(Peers(), StopFlag()).poll(save_due=True) == Verdict(save=True)


def test_quick_steps_are_agreed_on_seldom_and_at_the_smallest_wish():
    peers = Peers(every=10.0)
    agreement = Agreement(peers, StopFlag())
    agreement.poll()
    for _ in range(100):
        agreement.poll()
    assert 1 + 100 // 10 <= peers.calls <= 1 + 100
    peers = Peers()
    agreement = Agreement(peers, StopFlag())
    for _ in range(2000):  # far less than a microsecond each but for the calls themselves
        agreement.poll()
    assert peers.calls < 200


def test_sizes_of_the_model_must_fit():
    with pytest.raises(UserError, match=r"--patch-size: 3 does not divide the image size 8; allowed: 1, 2, 4, 8"):
        specify(DdpJobOptions(patch_size=3), 10, 8)
    with pytest.raises(UserError, match=r"--heads: 5 does not divide the width 64"):
        specify(DdpJobOptions(heads=5), 10, 8)
    with pytest.raises(UserError, match=r"--width: 12 .* multiples of 8"):
        specify(DdpJobOptions(model="convnet", width=12), 10, 8)


@pytest.mark.parametrize("name", ["vit", "convnet"])
@pytest.mark.parametrize("side", [8, 33, 64])
def test_models_map_images_to_logits_and_samples_do_not_mix(name, side):
    config = DdpJobOptions(model=name, width=16, depth=2)
    model = build(specify(config, 7, side), seed=0).eval()
    images = torch.rand(4, 3, side, side)
    logits = model(images)
    assert logits.shape == (4, 7)
    assert torch.allclose(model(images[1:2]), logits[1:2], atol=1e-5)


def test_equal_seeds_give_equal_weights():
    spec = specify(DdpJobOptions(), 10, 8)
    one, two, other = (build(spec, seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert not all(torch.equal(one[k], other[k]) for k in one)


@pytest.fixture
def trained(tmp_path):
    """Weights of a model for 3 classes."""
    model = build(specify(DdpJobOptions(width=16, depth=1), 3, 8), seed=5)
    (tmp_path / "old").mkdir()
    torch.save(model.state_dict(), tmp_path / "old" / "model.pt")
    return tmp_path / "old", model.state_dict()


def test_transfer_takes_all_but_a_head_of_other_classes(trained):
    folder, old = trained
    model = build(specify(DdpJobOptions(width=16, depth=1), 4, 8), seed=0)
    fresh = model.head.weight.clone()
    text = start_from(model, folder)
    assert "head.weight, head.bias" in text
    assert torch.equal(model.head.weight, fresh)
    assert torch.equal(model.patches.stem.weight, old["patches.stem.weight"])


def test_transfer_to_the_same_classes_takes_the_head_too(trained):
    folder, old = trained
    model = build(specify(DdpJobOptions(width=16, depth=1), 3, 8), seed=0)
    assert "anew" not in start_from(model, folder / "model.pt")
    assert all(torch.equal(value, old[name]) for name, value in model.state_dict().items())


def test_transfer_refuses_other_shapes_and_names_and_leaves_the_model_alone(trained):
    folder, _ = trained
    for config, part in ((DdpJobOptions(width=16, depth=2), "blocks.1"), (DdpJobOptions(width=32, depth=1), "[32, ")):
        model = build(specify(config, 3, 8), seed=0)
        before = {k: v.clone() for k, v in model.state_dict().items()}
        with pytest.raises(UserError) as caught:
            start_from(model, folder)
        assert part in str(caught.value)
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_transfer_refuses_what_holds_no_weights(tmp_path, trained):
    model = build(specify(DdpJobOptions(width=16, depth=1), 3, 8), seed=0)
    (tmp_path / "text.pt").write_text("no weights")
    torch.save([1, 2], tmp_path / "list.pt")
    for name, part in (("none.pt", "No such file"), ("text.pt", "holds no weights"), ("list.pt", "holds a list")):
        with pytest.raises(UserError, match=part):
            start_from(model, tmp_path / name)
