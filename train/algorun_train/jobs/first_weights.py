"""The weights that training starts from: rank 0 has read them, and every rank gets them."""

import torch
from torch import nn

from algorun_train.ranks.communicator import Communicator


def send_weights(model: nn.Module, comm: Communicator) -> None:
    """Copies rank 0's weights and buffers into the model of every rank, tensor by tensor. Call it on all ranks."""
    for tensor in model.state_dict().values():
        whole = tensor.detach().cpu().contiguous()
        comm.broadcast(whole.view(-1).view(torch.uint8), 0)
        tensor.copy_(whole)
