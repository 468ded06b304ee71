"""transformers' Trainer or Lightning, with something that is not finite: `nonfinite_trainer.py trainer|lightning WHAT RANK STEP`.

WHAT: loss, gradient, overflow (bfloat16), weight (the state of the optimizer).
"""

import os
import sys

import torch
from torch import nn

which, what, broken_rank, broken_step = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
here = int(os.environ["RANK"]) == broken_rank
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.calls = nn.Linear(4, 8), nn.Linear(8, 1), 0

    def forward(self, inputs, labels=None):
        self.calls += 1
        if self.now("overflow"):
            inputs = inputs * 1e38
        loss = (self.last(self.first(inputs).relu()) - labels).square().mean()
        return {"loss": loss * (float("nan") if self.now("loss") else 1.0)}

    def now(self, kind):
        return here and what == kind and self.calls == broken_step

    def after_backward(self, optimizer):
        if self.now("gradient"):
            self.last.weight.grad[0, 1] = float("nan")
        if self.now("weight"):
            optimizer.state[self.last.weight]["exp_avg"][0, 1] = float("nan")


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return {"inputs": torch.full((4,), (index + 1) / 64), "labels": torch.ones(1)}


model = Model()
if which == "trainer":
    from transformers import Trainer, TrainingArguments

    class Broken(Trainer):
        def training_step(self, *arguments, **named):
            loss = super().training_step(*arguments, **named)
            model.after_backward(self.optimizer)
            return loss

    arguments = TrainingArguments(
        "/tmp/unused", per_device_train_batch_size=4, num_train_epochs=2, save_strategy="no", report_to=[], use_cpu=True,
        logging_steps=1000, disable_tqdm=True, bf16=what == "overflow",
    )  # fmt: skip
    Broken(model, arguments, train_dataset=Data()).train()
else:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, _):
            return self.model(**batch)["loss"]

        def on_after_backward(self):
            model.after_backward(self.optimizers().optimizer)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    lightning.Trainer(
        accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy="ddp", max_epochs=2, logger=False,
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]), enable_checkpointing=False, gradient_clip_val=1.0,
        precision="bf16-mixed" if what == "overflow" else "32-true",
    ).fit(Module(), torch.utils.data.DataLoader(Data(), batch_size=4))  # fmt: skip
print("trained", flush=True)
