"""Images as a `Source`: loads the channels or the embedded digits, and makes batches on the device."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn import functional

from algorun_train.common.errors import UserError
from algorun_train.options.folders import Folders
from algorun_train.options.job_options import ModelOptions
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.device_copies import to_device

from . import digits
from .augment import Augment
from .batch import IGNORED, Batch
from .folder import same_classes
from .images import Images, InMemory, Opening, Unread, default_workers, open_images
from .listing import Listing
from .listing_on_hosts import list_everywhere
from .sampler import Batching, Epochs, OptimizerStep, Piece, held_out, walk, walk_epochs

FOLDER_SIDE = 64
FOLDER_HELD_OUT = 0.1


@dataclass(frozen=True, slots=True)
class ImageData:
    """Both splits of images: a `Source` of batches with inputs [B, 3, S, S] in -1..1 and labels [B]. `source` says for the
    log where the images come from; `checksum` differs for images of other names, and in tar files of other sizes."""

    train: Images
    validation: Images
    classes: tuple[str, ...]
    side: int
    source: str
    augment: Augment
    device: torch.device
    checksum: str = ""

    @property
    def unit(self) -> str:
        return "images"

    @property
    def sample_tokens(self) -> int:
        return 0

    @property
    def train_count(self) -> int:
        return len(self.train.labels)

    @property
    def validation_count(self) -> int:
        """Images that count: skipped ones do not."""
        return int((self.validation.labels != IGNORED).sum())

    @property
    def validation_weight(self) -> int:
        """One label for each image."""
        return self.validation_count

    def training(self, epochs: Epochs, batching: Batching) -> Iterator[tuple[OptimizerStep, tuple[Batch, ...]]]:
        """See `Source`. Decoding runs ahead, also into the next epoch."""
        counted = (self.train.labels != IGNORED).numpy().astype(np.int64)
        steps = walk_epochs(self.train_count, epochs, batching, counted)
        passes = ((step, piece) for step in steps for piece in step.pieces)
        batches: list[Batch] = []
        for (step, piece), pixels in self.train.batches(passes, lambda request: request[1].indices):
            changed = self.augment(pixels, step.epoch, piece.indices)
            batches.append(self._batch(changed, self.train.labels, piece))
            if len(batches) == len(step.pieces):
                yield step, tuple(batches)
                batches = []

    def evaluation(self, batching: Batching) -> Iterator[Batch]:
        """See `Source`."""
        order = np.arange(len(self.validation.labels))
        pieces = (piece for step in walk(order, 0, batching) for piece in step.pieces)
        for piece, pixels in self.validation.batches(pieces, lambda piece: piece.indices):
            yield self._batch(pixels, self.validation.labels, piece)

    def without_inputs(self) -> "ImageData":
        """See `Source`. No file is decoded and no image augmented."""
        train, validation = (Unread(split.labels, self.side, self.device) for split in (self.train, self.validation))
        nothing = Augment("none", 0, len(train.labels), self.side)
        return replace(self, train=train, validation=validation, augment=nothing)

    def _batch(self, pixels: torch.Tensor, labels: torch.Tensor, piece: Piece) -> Batch:
        images = pixels.permute(0, 3, 1, 2).to(torch.float32).mul_(2 / 255).sub_(1)
        chosen = labels[torch.from_numpy(piece.indices)]
        if piece.valid < len(chosen):
            chosen[piece.valid :] = IGNORED
        return Batch(images, to_device(chosen, self.device), int((chosen != IGNORED).sum()))


def load(config: ModelOptions, paths: Folders, comm: Communicator) -> ImageData:
    """Loads both splits, equal on all ranks. Raises UserError, the same on all ranks, if a channel cannot be used."""
    if paths.train is None:
        if paths.validation is not None:
            raise UserError("channel 'validation' is given without 'train'; fix: give both, or train alone, or neither")
        return embedded(config, comm.device)
    side = config.image_size or FOLDER_SIDE
    workers = config.workers or default_workers(comm.world.local_world_size)
    opening = Opening(side, workers, config.cache_mb, config.skip_bad_samples)
    root, other = paths.train, paths.validation
    train = list_everywhere("train", root, comm, config.skip_bad_samples)
    if other:
        validation = list_everywhere("validation", other, comm, config.skip_bad_samples)
        validation = same_classes(train, validation)
        source = f"{root} and {other}"
    else:
        if len(set(train.labels)) == len(train.labels):
            raise UserError(
                f"channel 'train' at {root} holds one image of each class, and none of them can be held out for validation; "
                "allowed: two images or more of a class; fix: add images, or give a channel 'validation'"
            )
        train, validation = (train.subset(chosen) for chosen in held_out(np.array(train.labels), FOLDER_HELD_OUT))
        source = f"{root}, a tenth of it held out for validation"
    shown, held = (open_images(listing, opening, comm) for listing in (train, validation))
    augment = Augment(config.augment, config.seed, len(train.files), side)
    return ImageData(shown, held, train.classes, side, source, augment, comm.device, _checksum(train, validation))


def _checksum(*listings: Listing) -> str:
    """Of the names and labels of images; of their sizes where the listing has them."""
    digest = hashlib.sha256()
    for listing in listings:
        digest.update("\0".join(listing.files).encode(errors="surrogateescape"))
        digest.update(np.asarray(listing.labels, np.int64).tobytes())
        if listing.tars is not None:
            digest.update(np.ascontiguousarray(listing.tars.spans[:, 2]).tobytes())
    return digest.hexdigest()[:16]


def embedded(config: ModelOptions, device: torch.device) -> ImageData:
    pixels, labels = digits.load()
    side = config.image_size or digits.SIDE
    parts = []
    for chosen in held_out(labels, digits.HELD_OUT):
        images = torch.from_numpy(pixels[chosen])
        if side != digits.SIDE:
            channels_first = images.permute(0, 3, 1, 2).to(torch.float32)
            larger = functional.interpolate(channels_first, (side, side), mode="bilinear", align_corners=False)
            images = larger.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
        parts.append(InMemory(images.to(device), torch.from_numpy(labels[chosen])))
    augment = Augment(config.augment, config.seed, len(parts[0].labels), side)
    return ImageData(parts[0], parts[1], digits.CLASSES, side, "embedded digits", augment, device)
