"""How a job's model is split: cut, profiled, decided on once, and the same on all ranks."""
from dataclasses import dataclass
import torch
from .cut import cut
from .cutting import Cutting
from .whole import Whole
@dataclass
class Split:
    cutting: Cutting
    begins: tuple
def decide(config, wishes, layout, model, example, where, mesh, say):
    if layout.grid.pp==1:
        with torch.no_grad(): return Split(Whole(model, example, model(example)), (0,))
    c=cut(model, example, stages=layout.stages)
    n=len(c.segments)
    return Split(c, tuple(n*i//layout.stages for i in range(layout.stages)))
