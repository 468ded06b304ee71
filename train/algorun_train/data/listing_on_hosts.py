"""The images of a channel whose files differ between hosts (SageMaker's ShardedByS3Key), in the order of one host with all."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from algorun_train.common.errors import UserError
from algorun_train.ranks.communicator import Communicator

from .folder import check_classes, find_images
from .left_out import LeftOut
from .listing import Listing, Tars
from .tar_listing import sorted_classes

Key = tuple[str, str, str, int]  # of an image: its class, its file, its tar file or "", its first byte there or 0


def list_everywhere(channel: str, root: Path, comm: Communicator, skip_bad: bool = False) -> Listing:
    """The images of a channel on all hosts; `root` is this host's folder, all else is the same on all ranks. Call it on all
    ranks. The log says what is left out; with `skip_bad` also links that lead nowhere are. Raises UserError, the same on
    all ranks."""
    own = comm.on_all(lambda: find_images(channel, root, skip_bad) if comm.world.local_rank == 0 else None)
    marks = {mark for mark in comm.gather(own and _mark(own)) if mark}
    if len(marks) == 1:
        listing = comm.from_leader(lambda: _checked(own))
    else:
        listings = {rank: each for rank, each in enumerate(comm.gather(own)) if each is not None}
        listing = check_classes(_merged(listings))
        counts = ", ".join(str(len(each.files)) for each in listings.values())
        comm.say(
            f"channel '{channel}': {len(listings)} hosts have different files, with {counts} images, "
            f"{len(listing.files)} together; each rank keeps all of them decoded"
        )
    if line := listing.left_out.line(channel):
        comm.say(line)
    return replace(listing, root=str(root))


def _checked(own: Listing | None) -> Listing:
    assert own is not None, "rank 0 is the first of its host"
    return check_classes(own)


def _mark(listing: Listing) -> str:
    """Equal for the same files; of tar files the names count, since other sizes have an error of their own (`check_tars`)."""
    names = listing.tars.names if listing.tars else (listing.classes, listing.files, listing.labels)
    return hashlib.sha256(repr(names).encode()).hexdigest()


def _merged(listings: Mapping[int, Listing]) -> Listing:
    """The images of all hosts, each once; an image of several hosts is read by the one that reads fewest. By first rank."""
    first = next(iter(listings.values()))
    if len({each.tars is None for each in listings.values() if each.files}) > 1:
        raise UserError(
            f"channel '{first.channel}': some hosts hold tar files, others class folders; allowed: either; "
            "fix: move one of them to another channel"
        )
    keyed = {each.tars.keyed for each in listings.values() if each.tars is not None and each.files}
    if len(keyed) > 1:
        raise UserError(
            f"channel '{first.channel}': the tar files of some hosts have .cls files, those of others class folders; "
            "allowed: either; fix: pack all tar files in one way"
        )
    sizes = _tar_sizes(listings)
    tars = {name: number for number, name in enumerate(sorted(sizes))}
    holders: dict[Key, list[int]] = {}
    spans: dict[Key, tuple[int, int, int]] = {}
    for host, listing in listings.items():
        for index, (file, label) in enumerate(zip(listing.files, listing.labels, strict=True)):
            tar, offset, size = listing.tars.spans[index].tolist() if listing.tars else (0, 0, 0)
            name = listing.tars.names[tar] if listing.tars else ""
            key = (listing.classes[label], file, name, offset)
            holders.setdefault(key, []).append(host)
            spans[key] = (tars.get(name, 0), offset, size)
    names = {key[0] for key in holders}
    classes = sorted_classes(names) if True in keyed else sorted(names)
    numbers = {name: number for number, name in enumerate(classes)}
    keys = sorted(holders, key=lambda key: (numbers[key[0]], *key[1:]))
    read = dict.fromkeys(listings, 0)
    hosts = []
    for key in keys:
        host = min(holders[key], key=read.__getitem__)
        read[host] += 1
        hosts.append(host)
    where = np.array([spans[key] for key in keys], np.int64)
    left_out = LeftOut()
    for listing in listings.values():
        left_out.join(listing.left_out)
    return Listing(
        first.channel,
        first.root,
        tuple(classes),
        tuple(key[1] for key in keys),
        tuple(numbers[key[0]] for key in keys),
        Tars(tuple(tars), tuple(sizes[name] for name in tars), where, True in keyed) if tars else None,
        np.array(hosts, np.int64),
        left_out,
    )


def _tar_sizes(listings: Mapping[int, Listing]) -> dict[str, int]:
    """The size of each tar file. Raises UserError for one that differs between hosts."""
    sizes: dict[str, int] = {}
    for listing in listings.values():
        for name, size in zip(listing.tars.names, listing.tars.sizes, strict=True) if listing.tars else ():
            if sizes.setdefault(name, size) != size:
                raise UserError(
                    f"channel '{listing.channel}': {name} has {size} bytes on one host and {sizes[name]} on another; "
                    "allowed: the same file, or files of other names; fix: upload the tar file again, or rename one"
                )
    return sizes
