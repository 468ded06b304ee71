"""The pipeline entrypoint: the models and the data that it trains, text and images."""

import os
import re
import signal

import pytest
import torch

from algorun_train.models import gpt
from tests.train.training_runs import epochs, write_images

from .pipeline_runs import CLIPPED, TINY, checkpoints, ended, refused, weights, words


# `make test` has tied weights in stages in test_pipeline_folders.py, and a vit from files of images there.
@pytest.mark.slow
def test_tied_embeddings_are_one_weight_in_checkpoints_of_any_layout(start, tmp_path):
    tied = {"tied": True, **CLIPPED, "batch-size": 16, "microbatches": 8, "optimizer": "adamw"}
    whole = start(1, tied, base=tmp_path / "whole")
    ended(whole)
    base, stops = tmp_path / "split", []
    for ranks in (2, 1):
        reached = f"step: {3 if ranks == 2 else stops[0] + 2}/"
        run = start(ranks, tied, base=base, hold=reached)
        run.wait_for(reached)
        run.signal(signal.SIGTERM, ranks=[ranks - 1])
        said = ended(run)
        assert ("resumed: " in said) == bool(stops)
        stops.append(int(re.search(r"stopped on request after step (\d+)", said)[1]))
        folder = base / "host0" / "checkpoints" / checkpoints(base)[-1]
        parts = [torch.load(file, weights_only=True) for file in sorted(folder.glob("*.pt"))]
        assert len(parts) == ranks
        holders = [[name for name in ("embed.tokens.weight", "head.weight") if name in part["model"]] for part in parts]
        assert holders == [["embed.tokens.weight", "head.weight"], []][:ranks]
        first, second = (parts[0]["model"][name].data_ptr() for name in holders[0])
        assert first == second  # once in the file
        assert [set(holders[0]) & set(part["optimizer"]) for part in parts] == [{"embed.tokens.weight"}, set()][:ranks]
    said = ended(start(4, tied, {"pp": 4, "explain": True}, base=base))
    assert f"step-{stops[1]:08d}" in said
    assert "embed.tokens.weight is in stages 0, 3" in said
    model = gpt.build(gpt.GptSpec(width=16, depth=4, heads=2, context=32, tied=True), seed=9)
    model.load_state_dict(weights(base))
    assert model.head.weight is model.embed.tokens.weight
    left = weights(base)
    assert left["head.weight"].data_ptr() == left["embed.tokens.weight"].data_ptr()
    for name, tensor in weights(tmp_path / "whole").items():
        torch.testing.assert_close(left[name], tensor, rtol=0, atol=1e-4, msg=name)  # Adam makes steps of noise
    for one, two in zip(epochs(base / "host0"), epochs(tmp_path / "whole" / "host0"), strict=True):
        assert one["val_loss"] == pytest.approx(two["val_loss"], rel=1e-5)
    assert "tied is True there, None here" in refused(start(1, {"epochs": 2, "batch-size": 16}, base=base))


@pytest.mark.slow
def test_the_loss_falls_on_the_embedded_text_until_a_stop_that_saves(ranks):
    args = words(TINY, {"context": 64, "batch-size": 8, "epochs": 1, "lr": 0.01, "warmup-epochs": 0})
    run = ranks(1, 2, *args, program="algorun_train.jobs.pipeline", hold="step: 60/")
    run.wait_for("step: 60/")
    run.signal(signal.SIGTERM, ranks=[1])
    said = ended(run)
    losses = [float(each) for each in re.findall(r"step: .* train_loss: ([0-9\.]+)", said)]
    assert sum(losses[-10:]) / 10 < 0.7 * losses[0]
    step = int(re.search(r"stopped on request after step (\d+)", said)[1])
    assert checkpoints(run.base) == [f"step-{step:08d}"]
    assert not (run.base / "host0" / "model" / "model.pt").exists()
    assert not (run.base / "host0" / "output" / "data" / "summary.json").exists()


@pytest.mark.slow
def test_images_go_through_a_vit(ranks):
    args = words(
        {"model": "vit", "width": 16, "depth": 2, "heads": 2, "image-size": 8, "epochs": 2, "batch-size": 256},
        {
            "schedule": "interleaved",
            "microbatches": 4,
            "recompute": True,
            "explain": True,
            "dropout": 0.1,
            "lr": 0.01,
            "warmup-epochs": 0,
        },
    )
    run = ranks(1, 2, *args, program="algorun_train.jobs.pipeline")
    said = ended(run)
    assert "receive buffers; not what is computed again in the backward pass, which the plan has)\n" in said
    first, second = epochs(run.base / "host0")
    assert second["train_loss"] < first["train_loss"]
    assert second["val_accuracy"] > first["val_accuracy"]
    assert "images_per_s" in first


@pytest.mark.slow
def test_images_from_files_train_as_from_memory_and_only_the_first_stage_decodes_them(ranks, tmp_path):
    """On the second host, which has the last stage, every file breaks off in the middle of its image."""
    table = {"model": "vit", "width": 16, "depth": 2, "heads": 2, "image-size": 8, "epochs": 2, "batch-size": 8}
    found = []
    for name, cache in (("memory", 100), ("files", 0)):
        base = tmp_path / name
        for host in range(2):
            write_images(base / f"host{host}" / "input" / "data" / "train", ["a", "b"], 20)
        if not cache:
            for file in (base / "host1" / "input").rglob("*.*"):
                os.truncate(file, file.stat().st_size * 9 // 10)
        run = ranks(2, 1, *words(table, {"cache-mb": cache}), base=base, program="algorun_train.jobs.pipeline")
        ended(run)
        found.append([(each["train_loss"], each["val_loss"]) for each in epochs(base / "host0")])
    assert found[0] == found[1]
