"""Image classifiers: sizes that fit each other, shapes, and weights from a seed."""

import pytest
import torch

from algorun_train.common.errors import UserError
from algorun_train.models.image_models import build, specify
from algorun_train.options.job_options import DdpJobOptions


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
