"""The samples of a tar file with webdataset's names: which `.cls` belongs to which image.

The key of a member is its name up to the first dot behind the last slash; what follows is its field. Neighbours with one
key are a sample, as for webdataset (`group_by_keys`): a key that comes again later is another sample. The files of a
sample may also be apart, such as all labels behind all images, if each field of their key comes once.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from .left_out import LONE_LABEL, LeftOut
from .listing import SUFFIXES
from .tar_tree import BadTarError, Bytes

LABEL = "cls"


class TarPiece(NamedTuple):
    """A member that is an image or a `.cls` file. Neighbours with one key have one `run`."""

    name: str
    content: Bytes
    run: int


class Sample(NamedTuple):
    """An image and its `.cls` file, None if it has none."""

    image: TarPiece
    label: TarPiece | None


def key_of(name: str) -> tuple[str, str]:
    """webdataset's key and field (in lower case) of a member."""
    folder, slash, base = name.rpartition("/")
    first, _, field = base.partition(".")
    return folder + slash + first, field.lower()


def samples(pieces: Sequence[TarPiece], left_out: LeftOut) -> list[Sample]:
    """The samples of a tar file, whose pieces are in its order. What belongs to none is counted in `left_out`. Raises
    BadTarError where a label could be that of another image."""
    times = Counter(key_of(next(run).name)[0] for _, run in groupby(pieces, itemgetter(2)))
    again: dict[str, list[list[TarPiece]]] = {}
    found: list[Sample | None] = []
    for _, together in groupby(pieces, itemgetter(2)):
        run = list(together)
        key = key_of(run[0].name)[0]
        if times[key] == 1:
            found.append(_sample(key, run, left_out))
        else:
            again.setdefault(key, []).append(run)
    for key, several in again.items():
        found += _repeated(key, several, left_out)
    return [sample for sample in found if sample]


def _repeated(key: str, runs: list[list[TarPiece]], left_out: LeftOut) -> Iterator[Sample | None]:
    """The samples of a key that comes at several places."""
    together = [piece for run in runs for piece in run]
    if len({key_of(piece.name)[1] for piece in together}) == len(together):
        yield _sample(key, together, left_out)
        return
    for run in runs:
        labels = sum(_is_label(piece) for piece in run)
        if not 0 < labels < len(run):
            raise BadTarError(
                f"holds {run[0].name} without {'an image' if labels else 'a .cls file'} beside it, while its key {key} comes "
                f"{len(runs)} times; allowed: the files of a sample side by side, or each key once; "
                "fix: write the tar file again (tar --sort=name), or give each sample a key of its own"
            )
        yield _sample(key, run, left_out)


def _sample(key: str, pieces: list[TarPiece], left_out: LeftOut) -> Sample | None:
    """The sample of these pieces; None if it has no image."""
    images: dict[str, TarPiece] = {}
    labels: dict[str, TarPiece] = {}
    for piece in pieces:
        field = key_of(piece.name)[1]
        fields = labels if _is_label(piece) else images
        if field in fields:
            raise BadTarError(
                f"holds {piece.name} twice in one sample; allowed: each file of a sample once; "
                "fix: write the tar file again, or give each sample a key of its own"
            )
        fields[field] = piece
    if not images:
        for piece in labels.values():
            left_out.add(piece.name, LONE_LABEL)
        return None
    chosen = _image(key, images)
    label = LABEL if LABEL in labels else f"{chosen.rpartition('.')[0]}.{LABEL}"
    if labels and label not in labels:
        first = next(iter(labels.values()))
        raise BadTarError(
            f"holds {first.name} beside {images[chosen].name}, and no {key}.{LABEL}: {_RULE}; allowed: KEY.{LABEL}; "
            "fix: write no dot into a key"
        )
    for field, piece in (images | labels).items():
        if field not in (chosen, label):
            left_out.add(piece.name, f".{field}")
    return Sample(images[chosen], labels.get(label))


_RULE = "a key ends at the first dot of the file name, as for webdataset"


def _image(key: str, images: dict[str, TarPiece]) -> str:
    """The field of a sample's image: its only one, or else the only one named KEY.png, KEY.jpg and so on."""
    plain = [field for field in images if "." not in field]
    if len(images) == 1 or len(plain) == 1:
        return (plain or list(images))[0]
    first, second = [images[field].name for field in (plain or images)][:2]
    raise BadTarError(
        f"holds {first} and {second} in one sample, {key}: {_RULE}; allowed: one image named KEY.jpg, KEY.png, .. in a "
        "sample; fix: write no dot into a key, or leave one of them out"
    )


def _is_label(piece: TarPiece) -> bool:
    return not piece.name.lower().endswith(SUFFIXES)
