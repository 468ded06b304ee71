"""The checksum of a folder's weights: equal for copies, another one for other weights of the same shapes."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from algorun_train.jobs.weights_checksum import BLOCK, processor_checksum, weights_checksum
from algorun_train.models.folder_config import ModelFolder


def folder(path: Path, weights: str | None = "model.safetensors") -> ModelFolder:
    return ModelFolder(str(path), "option --model", "LlamaForCausalLM", {}, weights, None, None)


def write(path: Path, seed: int, files: int = 1) -> Path:
    path.mkdir()
    generator = torch.Generator().manual_seed(seed)
    for number in range(files):
        save_file({f"w{number}": torch.randn(64 * BLOCK, generator=generator)}, path / f"model-{number}.safetensors")
    return path


def test_copies_have_one_checksum_and_other_weights_of_the_same_shapes_another(tmp_path):
    one, other = write(tmp_path / "one", 1), write(tmp_path / "other", 2)
    shutil.copytree(one, tmp_path / "copy")
    (tmp_path / "copy" / "README.md").write_text("")
    assert weights_checksum(folder(one)) == weights_checksum(folder(tmp_path / "copy"))
    assert weights_checksum(folder(one))["weights"] != weights_checksum(folder(other))["weights"]


@pytest.mark.parametrize("number", [0, 1])
def test_all_files_of_an_index_count(tmp_path, number):
    sharded = write(tmp_path / "one", 1, files=2)
    before = weights_checksum(folder(sharded, "model.safetensors.index.json"))
    save_file({f"w{number}": torch.zeros(64 * BLOCK)}, sharded / f"model-{number}.safetensors")
    assert weights_checksum(folder(sharded, "model.safetensors.index.json")) != before


def test_another_processor_has_another_checksum(tmp_path):
    assert processor_checksum(folder(tmp_path)) == {}
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5]}')
    before = processor_checksum(folder(tmp_path))
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": [0.0, 0.0, 0.0]}')
    assert processor_checksum(folder(tmp_path))["processor"] != before["processor"]


def test_without_weights_or_with_a_link_to_nowhere_there_is_none(tmp_path):
    assert weights_checksum(folder(tmp_path, None)) == {}
    (tmp_path / "model.safetensors").symlink_to("nowhere")
    assert weights_checksum(folder(tmp_path)) == {}
