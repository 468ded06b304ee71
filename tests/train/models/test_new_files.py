"""What is written beside a trained model: the tokenizer with all of its chat templates, and nothing of an earlier artifact."""

from __future__ import annotations

import os
from types import SimpleNamespace

from algorun_train.models.folder_model import new_files


def test_the_named_chat_templates_go_along(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    for folder in (source, target):
        (folder / "additional_chat_templates").mkdir(parents=True)
    (source / "tokenizer.json").write_text("{}")
    (source / "chat_template.jinja").write_text("plain")
    (source / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    (target / "additional_chat_templates" / "old.jinja").write_text("of an earlier job")
    with new_files(SimpleNamespace(path=str(source), images=None), target) as aside:
        (aside / "model.safetensors").write_text("weights")
    assert sorted(os.listdir(target)) == [
        "additional_chat_templates", "chat_template.jinja", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    assert os.listdir(target / "additional_chat_templates") == ["tool_use.jinja"]
