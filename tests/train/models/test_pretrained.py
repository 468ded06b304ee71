"""--init-from: which weights are taken, and what is refused."""

import pytest
import torch

from algorun_train.common.errors import UserError
from algorun_train.models.image_models import build, specify
from algorun_train.models.pretrained import start_from
from algorun_train.options.job_options import DdpJobOptions


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
