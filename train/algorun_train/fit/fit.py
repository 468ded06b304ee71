"""Computes the memory of a rank for several layouts of a job: `python -m algorun_train.fit.fit --model FOLDER ..`.

The options are those of `ddp`. stdin has one layout a line, as JSON: `{"shards": 8, "tensor": 1, "alone": false, "precision":
"bf16", "recompute": true}`. stdout gets a line of JSON about the model, and then one for each layout, in their order: bytes by kind.
"""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from algorun_train.common.errors import UserError, guarded, leave
from algorun_train.options import option_parser
from algorun_train.options.job_options import DdpJobOptions


@dataclass(frozen=True, slots=True)
class _Layout:
    shards: int
    tensor: int
    alone: bool
    precision: str
    recompute: bool


def main(argv: list[str]) -> int:
    """Returns the exit code. Raises UserError for wrong options, and for a model that cannot be computed ahead."""
    options = option_parser.read_options(DdpJobOptions, argv)
    layouts = list(_layouts())
    _refuse(options)
    from algorun_train.jobs.folder_options import for_folder
    from algorun_train.models import folder_model
    from algorun_train.models.folder_config import read_folder
    from algorun_train.models.small_copy import count

    from .step_memory import module_of, rank_memory

    folder_model.prepare_transformers()
    folder = read_folder(Path(options.model or ""), "option --model")
    options = for_folder(options, folder)
    module = module_of(folder, options)
    _say(
        architecture=folder.architecture, weights=count(module), context=options.context, batch_size=options.batch_size
    )
    for layout in layouts:
        own = replace(options, tp=layout.tensor, precision=layout.precision, recompute=layout.recompute)
        _say(**asdict(rank_memory(folder, module, own, layout.shards, layout.alone)))
    return 0


def _layouts() -> Iterator[_Layout]:
    for line in sys.stdin:
        yield _Layout(**json.loads(line))


def _refuse(options: DdpJobOptions) -> None:
    if options.compile:
        raise UserError(
            "option --compile: True; the memory of compiled code is not computed ahead; allowed: False; fix: leave it out, "
            "or run one step of the job, its log has peak_memory_mib"
        )
    if not options.model or not os.path.isdir(options.model):
        raise UserError(
            f"option --model: {options.model or 'not given'}; allowed: a folder with the model's config.json and its tokenizer or "
            "image processor, the weights are not read; fix: --model FOLDER"
        )


def _say(**values: object) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    leave(guarded(main))
