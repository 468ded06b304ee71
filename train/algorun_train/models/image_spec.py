"""What an image classifier is built from."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything that decides the shapes of a model's weights."""

    model: str
    classes: int
    image_size: int
    patch_size: int
    width: int
    depth: int
    heads: int
    dropout: float

    def as_dict(self) -> dict[str, str | int | float]:
        return asdict(self)
