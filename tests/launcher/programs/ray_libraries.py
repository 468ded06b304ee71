"""A Ray driver of Ray Data or of Ray Train, as their documentation writes them."""

from __future__ import annotations

import os
import sys

import ray
import ray.data
import ray.train
import ray.train.torch
import torch


def data() -> None:
    """Blocks of a dataset, mapped by tasks on all hosts."""
    doubled = ray.data.range(1000, override_num_blocks=8).map_batches(lambda batch: {"id": batch["id"] * 2})
    print("sum", sum(row["id"] for row in doubled.take_all()), flush=True)


def loop(config: dict[str, bool]) -> None:
    """Fits a line; both workers must get the same weights."""
    rank = ray.train.get_context().get_world_rank()
    print(
        "worker",
        rank,
        os.environ["WORLD_SIZE"],
        os.environ["SM_CURRENT_HOST"],
        torch.distributed.get_backend(),
        flush=True,
    )
    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samples = torch.Generator().manual_seed(rank)
    for step in range(5):
        inputs = torch.randn(16, 4, generator=samples)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if config["fails"] and step == 2 and rank == 1:
            raise ValueError("bad batch 2")
        ray.train.report({"loss": loss.item()})
    print(f"weights of {rank}:", [round(each, 5) for each in next(model.parameters()).flatten().tolist()], flush=True)


def train(*, fails: bool = False) -> None:
    """TorchTrainer with a worker on each of two hosts."""
    scaling = ray.train.ScalingConfig(num_workers=2, use_gpu=False, placement_strategy="STRICT_SPREAD")
    where = ray.train.RunConfig(storage_path=os.path.abspath("results"), name="line")
    ray.train.torch.TorchTrainer(
        loop, train_loop_config={"fails": fails}, scaling_config=scaling, run_config=where
    ).fit()


def train_fails() -> None:
    train(fails=True)


if __name__ == "__main__":
    ray.init()
    {"data": data, "train": train, "train_fails": train_fails}[sys.argv[1]]()
