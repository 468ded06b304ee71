"""transformers' Trainer or Lightning, with something that is not finite: `nonfinite_trainer.py trainer|lightning RANK STEP`."""

import os
import sys

import torch
from torch import nn

which, broken_rank, broken_step = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
here = int(os.environ["RANK"]) == broken_rank
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.calls = nn.Linear(4, 8), nn.Linear(8, 1), 0

    def forward(self, inputs, labels=None):
        self.calls += 1
        loss = (self.last(self.first(inputs).relu()) - labels).square().mean()
        return {"loss": loss * (float("nan") if here and self.calls == broken_step else 1.0)}


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return {"inputs": torch.full((4,), index / 64), "labels": torch.ones(1)}


if which == "trainer":
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        "/tmp/unused", per_device_train_batch_size=4, num_train_epochs=2, save_strategy="no", report_to=[], use_cpu=True,
        logging_steps=1000, disable_tqdm=True,
    )  # fmt: skip
    Trainer(Model(), arguments, train_dataset=Data()).train()
else:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, _):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    lightning.Trainer(
        accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp", max_epochs=2, logger=False,
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]), enable_checkpointing=False, gradient_clip_val=1.0,
    ).fit(Module(), torch.utils.data.DataLoader(Data(), batch_size=4))  # fmt: skip
print("trained", flush=True)
