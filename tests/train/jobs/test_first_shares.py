"""What the ranks of a sharded model do if rank 0, which sends the weights, cannot read one of them."""

import threading

import torch
from safetensors.torch import load_file, save_file

from algorun_train.common.errors import UserError
from algorun_train.jobs import first_shares
from algorun_train.models.folder_config import read_folder
from algorun_train.models.folder_model import build_model, prepare_transformers
from tests.train.model_folders import write_language_model
from tests.train.thread_communicator import as_ranks
from tests.train.training_runs import TRANSFORMERS, load_once

load_once(*TRANSFORMERS, "tokenizers")


def test_all_ranks_end_with_the_same_line(tmp_path, monkeypatch):
    prepare_transformers()
    path = write_language_model(tmp_path / "llama")
    weights = load_file(path / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    folder = read_folder(path, "option --model")
    models = [build_model(folder, None, 0) for _ in range(2)]
    monkeypatch.setattr(first_shares, "fingerprint", lambda *_: str(threading.get_ident()))  # other files on each host

    def fill(comm):
        try:
            first_shares.fill_shares(models[comm.rank].model.state_dict(), folder, None, 0, comm)
        except UserError as error:
            return str(error)

    one, other = as_ranks(2, fill)
    assert one == other
    assert "model.norm.weight: 1 of 32 values are NaN or infinite; allowed: " in one
    assert torch.isfinite(models[1].model.lm_head.weight).all()
