"""Linear modules and losses in parts: what torch's own styles compute, to the bit, without DTensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

PROGRAM = str(Path(__file__).parents[1] / "programs" / "split_products.py")


@pytest.mark.slow(but=["2"])
@pytest.mark.parametrize("world", [2, 4])
def test_they_are_those_of_torch_to_the_bit(ranks, tmp_path, world):
    job = ranks(1, world, str(tmp_path / "found.pt"), program=PROGRAM)
    assert job.codes() == [0] * world, job.text()
    found = torch.load(tmp_path / "found.pt", weights_only=True)
    for kind in ("products", "losses"):
        if f"{kind} of torch" in found:
            for name, expected in found[f"{kind} of torch"].items():
                assert torch.equal(found[kind][name], expected), (kind, name)
    for name, expected in found["losses alone"].items():
        assert torch.allclose(found["losses"][name], expected, rtol=1e-5, atol=1e-6), name
