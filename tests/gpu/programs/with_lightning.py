"""The model of Lightning's bug_report_model.py, fitted by a Trainer with the numbers of the job and `strategy="ddp"`."""

import os

import lightning
import torch
from lightning import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset


class BoringModel(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(32, 2)
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = self.layer(batch[0]).square().mean()
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.layer.parameters(), lr=0.1)


torch.manual_seed(0)
model = BoringModel()
trainer = Trainer(
    max_epochs=8,
    num_nodes=1,
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    strategy="ddp",
    accelerator="gpu" if torch.cuda.is_available() else "cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, DataLoader(TensorDataset(torch.randn(64, 32)), batch_size=4))
print(
    f"lightning {lightning.__version__} on {trainer.strategy.root_device.type}: {type(trainer.strategy).__name__}, "
    f"{trainer.world_size} processes, loss {model.losses[0]:.6f} to {model.losses[-1]:.6f}",
    flush=True,
)
