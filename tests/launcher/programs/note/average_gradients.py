"""Data parallel by hand, as examples for AWS's PyTorch containers do it: a rank per host, from the list of hosts."""

import argparse
import json
import os

import torch
import torch.distributed as dist


def average_gradients(model: torch.nn.Module) -> None:
    size = float(dist.get_world_size())
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad.data, op=dist.ReduceOp.SUM)
        parameter.grad.data /= size


def train(args: argparse.Namespace) -> None:
    world_size, host_rank = len(args.hosts), args.hosts.index(args.current_host)
    given = {name: os.environ[name] for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT")}
    os.environ["WORLD_SIZE"] = str(world_size)
    os.environ["RANK"] = str(host_rank)
    os.environ["MASTER_ADDR"] = args.hosts[0]
    os.environ["MASTER_PORT"] = args.master_port
    dist.init_process_group(backend=args.backend, rank=host_rank, world_size=world_size)
    torch.manual_seed(args.seed)
    model = torch.nn.DataParallel(torch.nn.Linear(2, 1, bias=False))
    torch.nn.init.zeros_(model.module.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for _ in range(args.epochs):
        optimizer.zero_grad()
        # The gradient of rank r is [r + 1, 10 * (r + 1)].
        model(torch.tensor([[1.0, 10.0]]) * (host_rank + 1)).sum().backward()
        average_gradients(model)
        optimizer.step()
    says = {"rank": dist.get_rank(), "size": dist.get_world_size(), "weight": model.module.weight[0].tolist()}
    print("averaged", json.dumps({**says, "given": given}), flush=True)
    if host_rank == 0:
        torch.save(model.module.state_dict(), os.path.join(args.model_dir, "model.pth"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", type=str, default=None)
    parser.add_argument("--master-port", type=str, default="29500")
    parser.add_argument("--hosts", type=list, default=json.loads(os.environ["SM_HOSTS"]))
    parser.add_argument("--current-host", type=str, default=os.environ["SM_CURRENT_HOST"])
    parser.add_argument("--model-dir", type=str, default=os.environ["SM_MODEL_DIR"])
    parser.add_argument("--num-gpus", type=int, default=os.environ["SM_NUM_GPUS"])
    train(parser.parse_args())
