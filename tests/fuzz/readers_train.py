"""Readers of the training entrypoints: checkpoints, options, the environment of a rank."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import pickle
import shutil
import zipfile
from dataclasses import asdict
from pathlib import Path
from random import Random

import torch

from algorun_train.checkpoint.ddp_checkpoints import DdpCheckpoints
from algorun_train.checkpoint.shard_reader import ShardReader
from algorun_train.checkpoint.shard_saver import shard_state
from algorun_train.checkpoint.shards import Save, ShardStore
from algorun_train.checkpoint.single_file import LATEST, MANIFEST, STATE
from algorun_train.checkpoint.state_file import FORMAT, JobRecord
from algorun_train.common.errors import UserError
from algorun_train.loop.progress import LoopProgress, Position
from algorun_train.options import option_parser
from algorun_train.options.job_options import DdpJobOptions
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.world import World, read_world
from tests.train import old_checkpoints

from . import mutations
from .reader import PART, Reader, parts, scratch
from .readers_config import environment

IDENTITY = {"model": "vit", "classes": 10, "seed": 0}
NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
END_OF_TEXT = b"\x1d"  # between manifest, pointer and state, whose bytes hold every other separator


class Alone(Communicator):
    """The communicator of a job with one rank."""

    def __init__(self):
        super().__init__(World(0, 1, 0, 1, False), torch.device("cpu"))

    def say(self, text):
        pass


def parts_of_training() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@functools.cache
def saved() -> tuple[bytes, bytes]:
    """Manifest and state of an honest checkpoint."""
    model, optimizer = parts_of_training()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    folder = scratch() / "saved"
    state = {
        "format": FORMAT,
        "identity": IDENTITY,
        "position": asdict(Position(1, 2, 3)),
        "losses": [0.5],
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    made = old_checkpoints.save(folder, 3, state)
    return (made / MANIFEST).read_bytes(), (made / STATE).read_bytes()


def read_checkpoint(data: bytes) -> None:
    """Manifest, pointer and state as they may lie in a folder: used whole, passed over, or refused."""
    manifest, pointer, state = ([*data.split(END_OF_TEXT, 2), b"", b""])[:3]
    root = scratch() / "checkpoints"
    shutil.rmtree(root, ignore_errors=True)
    folder = root / "step-00000003"
    folder.mkdir(parents=True)
    digest = hashlib.sha256(state).hexdigest().encode()
    files = {
        folder / STATE: state,
        folder / MANIFEST: manifest.replace(b"@SHA@", digest).replace(b'"@SIZE@"', str(len(state)).encode()),
        root / LATEST: pointer,
    }
    for path, content in files.items():
        path.write_bytes(content)
    before = sorted(os.listdir(scratch()))
    model, optimizer = parts_of_training()
    with contextlib.suppress(UserError):
        resumed = DdpCheckpoints(ShardStore(root, 1), JobRecord(IDENTITY), model, optimizer, Alone()).restore()
        if resumed is not None:
            progress = resumed.progress
            assert all(isinstance(each, int) for each in (progress.position.epoch, progress.position.step))
            assert all(isinstance(loss, float) for loss in progress.losses)
    assert sorted(os.listdir(scratch())) == before


def checkpoint_seeds() -> list[bytes]:
    manifest, state = saved()
    promised = json.loads(manifest)
    promised["files"][STATE] = {"size": "@SIZE@", "sha256": "@SHA@"}
    right = json.dumps(promised).encode()
    legacy = io.BytesIO()
    torch.save({"format": 1, "identity": IDENTITY}, legacy, _use_new_zipfile_serialization=False)
    other = [
        torch.load(io.BytesIO(state), weights_only=True) | change
        for change in ({"identity": 1}, {"losses": None}, {"position": {}})
    ]
    states = [state, legacy.getvalue(), *(_packed(each) for each in other), b"", pickle.dumps([1])]
    return [
        END_OF_TEXT.join((manifest, b"step-00000003\n", state)),
        *(END_OF_TEXT.join((right, b"step-00000003\n", s)) for s in states),
    ]


def _packed(value: object) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def checkpoints(data: bytes, random: Random) -> bytes:
    """One of the three; within the state its pickle, in an archive with right checksums."""
    found = ([*data.split(END_OF_TEXT, 2), b"", b""])[:3]
    match random.randrange(8):
        case 0:
            found[0] = mutations.as_json(found[0], random)
        case 1:
            found[1] = mutations.raw(found[1], random)
        case 2 | 3:
            found[2] = mutations.raw(found[2], random)
        case _:
            found[2] = in_archive(found[2], random)
    return END_OF_TEXT.join(found)[: 4 * mutations.LONGEST]


def in_archive(state: bytes, random: Random) -> bytes:
    """A torch file with one of its records changed."""
    try:
        with zipfile.ZipFile(io.BytesIO(state)) as read:
            records = [(name, read.read(name)) for name in read.namelist()]
    except Exception:  # not a zip file any more
        records = []
    if not records:
        return mutations.raw(state, random)
    out = io.BytesIO()
    chosen = max(random.randrange(len(records)) - random.randrange(2) * len(records), 0)  # the pickle most of the time
    with zipfile.ZipFile(out, "w") as write:
        for at, (name, content) in enumerate(records):
            write.writestr(name, mutations.raw(content, random) if at == chosen else content)
    return out.getvalue()


@functools.cache
def saved_shard() -> tuple[bytes, bytes]:
    """Manifest and state of an honest checkpoint with one shard."""
    model, optimizer = parts_of_training()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    store = ShardStore(scratch() / "saved", 1)
    state = shard_state(JobRecord(IDENTITY, {"lr": 0.1}), LoopProgress(Position(1, 2, 3), [0.5]), model, optimizer)
    path = store.path(store.write(Save(1.0, 3, 1), 0, state))
    return path.with_suffix(".json").read_bytes(), path.read_bytes()


def read_shard(data: bytes) -> None:
    """Manifest and state of a shard as they may lie in a folder: used whole, passed over, or refused."""
    manifest, _, state = ([*data.split(END_OF_TEXT, 2), b"", b""])[:3]
    root = scratch() / "shards"
    shutil.rmtree(root, ignore_errors=True)
    folder = root / "step-00000003"
    folder.mkdir(parents=True)
    digest = hashlib.sha256(state).hexdigest().encode()
    promise = manifest.replace(b"@SHA@", digest).replace(b'"@SIZE@"', str(len(state)).encode())
    (folder / "part-0000-of-0001.pt").write_bytes(state)
    (folder / "part-0000-of-0001.json").write_bytes(promise)
    before = sorted(os.listdir(scratch()))
    model, optimizer = parts_of_training()
    comm, said = Communicator(World(), torch.device("cpu")), []
    with contextlib.suppress(UserError):
        found = ShardReader(ShardStore(root, 1), comm, said.append).newest(IDENTITY, lambda name: True)
        if found is not None:
            found.load_into([model], optimizer, comm)
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        else:
            assert said
    assert sorted(os.listdir(scratch())) == before


def shard_seeds() -> list[bytes]:
    manifest, state = saved_shard()
    right = json.dumps(json.loads(manifest) | {"size": "@SIZE@", "sha256": "@SHA@"}).encode()
    honest = torch.load(io.BytesIO(state), weights_only=True)
    other = [
        honest | change for change in ({"identity": 1}, {"losses": None}, {"model": [1]}, {"optimizer": {"weight": 3}})
    ]
    states = [state, *(_packed(each) for each in other), b"", pickle.dumps([1])]
    return [END_OF_TEXT.join((manifest, b"", state)), *(END_OF_TEXT.join((right, b"", each)) for each in states)]


def read_options(data: bytes) -> None:
    """A command line, the TOML file that it may name, and a rank's environment."""
    argv, table, environ = parts(data, 3)
    path = Path(scratch() / "options.toml")
    path.write_bytes(table)
    words = [os.fsdecode(word).replace("@FILE@", str(path)) for word in argv.split(b"\0")]
    with contextlib.suppress(UserError):
        option_parser.read_options(DdpJobOptions, words)
    with contextlib.suppress(UserError):
        read_world(environment(environ))


OPTIONS = [
    PART.join((b"--lr\x000.1\0-b\x0016\0--compile\0--config\0@FILE@", b"epochs = 3\naugment = 'flip'\nmodel-dir = '/tmp'\n",
               json.dumps(dict.fromkeys(NAMES[:4], "1") | {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "h", "MASTER_PORT": "1"}).encode())),
]  # fmt: skip
WORDS = [
    "--config",
    "@FILE@",
    "--epochs",
    "--lr=1e-3",
    "--b",
    "True",
    "3.0",
    "1e400",
    "--warmup-epochs",
    "--train",
    "-",
]

READERS = [
    Reader("checkpoint", read_checkpoint, checkpoint_seeds, checkpoints, 150),
    Reader("checkpoint-shard", read_shard, shard_seeds, checkpoints, 150),
    Reader("training-options", read_options, lambda: OPTIONS,
           mutations.of_parts(mutations.words(b"\0", WORDS), mutations.raw, mutations.as_json), 400),
]  # fmt: skip
