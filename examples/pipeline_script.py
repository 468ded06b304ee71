"""A script of one's own that trains in pipeline stages: `algorun simulate -j 1x2 examples/pipeline_script.py`.

Any nn.Module works that can be cut; torchrun starts it as well: `torchrun --nproc-per-node 2 examples/pipeline_script.py`.
"""

import torch
from torch import nn

from algorun.pipeline import pipeline

MICROBATCH, MICROBATCHES, STEPS = 4, 8, 60


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm(x))


class Net(nn.Module):
    def __init__(self, width: int = 64, depth: int = 6) -> None:
        super().__init__()
        self.first = nn.Linear(16, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.last = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


torch.manual_seed(0)  # equal weights on every rank
model = Net()
pipe = pipeline(model, torch.zeros(MICROBATCH, 16), nn.functional.cross_entropy, microbatches=MICROBATCHES, pp=2)
optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-3)
teacher = torch.randn(16, 4)
recent = []
for step in range(1, STEPS + 1):
    torch.manual_seed(1000 * step + pipe.axes.dp_rank)  # the ranks of one pipeline draw the same batch
    inputs = torch.randn(MICROBATCH * MICROBATCHES, 16)
    labels = (inputs @ teacher).argmax(dim=1)
    loss = pipe.everywhere(pipe.step(inputs, labels)) / MICROBATCHES
    optimizer.step()
    optimizer.zero_grad()
    recent.append(loss.item())
    if step % 20 == 0 and pipe.is_first and pipe.axes.dp_rank == 0:
        print(f"step {step} loss {sum(recent[-20:]) / 20:.4f}", flush=True)
