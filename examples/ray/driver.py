"""A Ray driver: tasks on all hosts make data, Ray Train trains on it, and an actor brings the model to the driver.

pip install -r examples/ray/requirements.txt                        # at home: two hosts of two CPUs each
algorun simulate -j 2x2 --engine ray examples/ray/driver.py

cd examples/ray                                                     # on SageMaker, which installs requirements.txt
algorun submit --image IMAGE_URI --role ROLE --hosts 2 --instance ml.g5.12xlarge --engine ray driver.py

With the SDK v2: PyTorch(source_dir="examples/ray", entry_point="driver.py", hyperparameters={"algorun_engine": "ray"}, ..)
"""

import os

import ray
import ray.train.torch
import torch


@ray.remote(scheduling_strategy="SPREAD")
def make_part(number):
    """Inputs [64, 4], made on a host with a free CPU, and that host's name."""
    return torch.randn(64, 4, generator=torch.Generator().manual_seed(number)), os.environ["SM_CURRENT_HOST"]


@ray.remote(num_cpus=0)
class Keeper:
    """Holds the model for all hosts: a worker sets it, the driver gets it."""

    def set(self, weights):
        self.weights = weights

    def get(self):
        return self.weights


def train(config):
    """Runs in each worker, which trains on its share of the parts. Gradients are means over all workers."""
    context = ray.train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    print(f"worker {rank} of {size} on {os.environ['SM_CURRENT_HOST']}", flush=True)
    inputs = torch.cat(config["parts"][rank::size]).to(ray.train.torch.get_device())
    model = ray.train.torch.prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 51):
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:  # a report waits up to 2 s for Ray Train's controller
            ray.train.report({"step": step, "train_loss": loss.item()})
    if rank == 0:
        weights = {name.removeprefix("module."): each.cpu() for name, each in model.state_dict().items()}
        ray.get(config["keeper"].set.remote(weights))


ray.init()
parts, hosts = zip(*ray.get([make_part.remote(number) for number in range(32)]), strict=True)
print(f"{len(parts)} parts made on {', '.join(sorted(set(hosts)))}", flush=True)
gpus, keeper = int(ray.cluster_resources().get("GPU", 0)), Keeper.remote()
workers = gpus or len(ray.nodes())
scaling = ray.train.ScalingConfig(num_workers=workers, use_gpu=gpus > 0, placement_strategy="SPREAD")
config = {"parts": parts, "keeper": keeper}
ray.train.torch.TorchTrainer(train, train_loop_config=config, scaling_config=scaling).fit()
weights = ray.get(keeper.get.remote())
print("weights:", [round(each, 2) for each in weights["weight"].flatten().tolist()], flush=True)
torch.save(weights, os.path.join(os.environ.get("SM_MODEL_DIR", "."), "model.pt"))
