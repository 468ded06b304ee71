"""smp.save and smp.load: torch's, with a file for each rank of a model replica."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch

from algorun_smdistributed.script_types import Given, Result
from algorun_smdistributed.torch_files import safe_files
from algorun_train.common.errors import UserError

from .ranks import mp_rank, pp_rank, rdp_rank, tp_rank
from .session import context


def save(
    obj: Given,
    f: str,
    partial: bool = True,
    pickle_module: Given = pickle,
    pickle_protocol: int = 2,
    v3: bool = False,
) -> None:
    """Writes `obj` to the file `f`, and where it is `partial` to `{f}_{mp_rank}`; it appears complete or not at all.

    With `v3`, which AWS's example scripts use for state that differs between replicas, the name is
    `{f}_{pp_rank}_{tp_rank}_{rdp_rank}`. Every process that calls it writes. Raises UserError for a name that is no text,
    or a folder that cannot be written.
    """
    path = _named("save", f, partial, v3)
    safe_files.write(path, context().comm.rank, lambda file: torch.save(obj, file, pickle_module, pickle_protocol))


def load(
    f: str,
    map_location: Given = None,
    pickle_module: Given = None,
    pickle_load_args: Mapping[str, Given] | None = None,
    partial: bool = True,
    **options: Given,
) -> Result:
    """What `save` has written to `f`. `pickle_load_args` and `options` are those of torch.load.

    Like torch.load, it takes tensors and plain data only, unless `weights_only=False` or a `pickle_module` is given.
    Raises UserError for a file that is not there, or holds other objects.
    """
    if not isinstance(pickle_load_args, Mapping | None):
        raise UserError(
            f"smp.load: pickle_load_args is a {type(pickle_load_args).__name__}; allowed: a dictionary of torch.load's "
            "arguments; fix: give `partial`, which comes after it, by its name"
        )
    path = _named("load", f, partial)
    if partial and not path.is_file() and _named("load", f, partial, v3=True).is_file():
        path = _named("load", f, partial, v3=True)
    if not path.is_file():
        other = f"{f} is there, for partial=False" if partial and Path(f).is_file() else "what smp.save has written"
        raise UserError(f"smp.load: no file {path}; allowed: {other}; fix: another name, or another value of partial")
    options = {**(pickle_load_args or {}), **options}
    if pickle_module is not None:
        options = {"pickle_module": pickle_module, "weights_only": False} | options
    return safe_files.read_safely(path, "smp.load", map_location=map_location, **options)


def _named(what: str, f: Given, partial: bool, v3: bool = False) -> Path:
    if not isinstance(f, str):
        raise UserError(f"smp.{what}: f is a {type(f).__name__}; allowed: a text; fix: str(..)")
    if not partial:
        return Path(f)
    return Path(f"{f}_{pp_rank()}_{tp_rank()}_{rdp_rank()}" if v3 else f"{f}_{mp_rank()}")
