from dataclasses import dataclass
from typing import Protocol, Any
@dataclass(frozen=True)
class TensorSpec:
    shape: tuple
    dtype: Any
class Cutting(Protocol):
    pass
