"""Accelerate's smallest training loop: `Accelerator()`, `prepare`, `backward`, as its quick tour has it. A line is fitted."""

import accelerate
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, RATE = 20, 0.1

torch.manual_seed(0)
accelerator = Accelerator()
inputs = torch.randn(256, 4)
data = DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=32, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
losses = []
for _ in range(EPOCHS):
    for batch, wanted in data:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch), wanted)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
print(
    f"accelerate {accelerate.__version__} on {accelerator.device.type}: {accelerator.distributed_type}, "
    f"{accelerator.num_processes} processes, loss {losses[0]:.6f} to {losses[-1]:.6f}",
    flush=True,
)
accelerator.end_training()
