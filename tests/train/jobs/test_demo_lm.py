"""`make demo-lm` with a few documents: each of its steps, and that it fails if transformers finds another loss."""

from __future__ import annotations

import importlib.util
import itertools
import json

import pytest

from tests.conftest import ROOT


# It shows what test_ddp_language_models.py tests.
@pytest.mark.slow
def test_the_demo_of_a_language_model_runs_from_text_to_text(tmp_path, monkeypatch, capfd):
    spec = importlib.util.spec_from_file_location("demo_lm", ROOT / "examples" / "demo_lm.py")
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    texts = sorted(itertools.islice(demo.documents(), 79), key=len)[:40]
    assert all(texts)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(demo, "documents", lambda: texts)
    monkeypatch.setattr(demo, "TRAIN", ["1" if word == "3" else word for word in demo.TRAIN])  # --epochs
    monkeypatch.setattr(demo, "ENOUGH", 1.0)
    assert demo.main() == 0
    said = capfd.readouterr().out
    assert "sharded: over 2 ranks, 2 replicas" in said
    assert said.count("  > Return True if") == 2
    assert (tmp_path / demo.OUT / "report.html").stat().st_size > 10_000
    told = json.loads((tmp_path / demo.TRAINED / "model.json").read_text())
    assert abs(demo.held_out_loss(demo.TRAINED) - told["val_loss"]) < demo.ALIKE
    assert abs(demo.held_out_loss(demo.START) - told["val_loss"]) > 100 * demo.ALIKE
