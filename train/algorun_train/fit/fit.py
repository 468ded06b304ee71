"""Computes the memory of a rank for several layouts of a job: `python -m algorun_train.fit.fit ddp --model FOLDER ..`.

The first word is the job, `ddp` or `pipeline`; the options are the job's. stdin has one layout a line, as JSON: `{"shards": 8, "tensor": 1,
"stages": 1, "alone": false, "precision": "bf16", "recompute": true, "tried": false}`. stdout gets a line of JSON about the model, and then
one for each layout, in their order: bytes by kind. Of one that was only `tried` and cannot be computed it is null.
"""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from algorun_train.common.errors import UserError, guarded, leave
from algorun_train.options import option_parser
from algorun_train.options.job_options import DdpJobOptions, ModelJobOptions, PipelineJobOptions


@dataclass(frozen=True, slots=True)
class _Layout:
    shards: int
    tensor: int
    stages: int
    alone: bool
    precision: str
    recompute: bool
    tried: bool


def main(argv: list[str]) -> int:
    """Returns the exit code. Raises UserError for wrong options, and for a model that cannot be computed ahead."""
    job, *words = argv
    options: ModelJobOptions
    if job == "pipeline":
        options = option_parser.read_options(PipelineJobOptions, words)
    else:
        options = option_parser.read_options(DdpJobOptions, words)
    layouts = list(_layouts())
    _refuse(options)
    from algorun_train.jobs.folder_options import for_folder
    from algorun_train.models import folder_model
    from algorun_train.models.folder_config import read_folder
    from algorun_train.models.small_copy import count

    from .stage_memory import stages_memory
    from .step_memory import RankMemory, module_of, rank_memory

    folder_model.prepare_transformers()
    folder = read_folder(Path(options.model or ""), "option --model")
    match options:  # for the type checker: `for_folder` returns the kind that it gets
        case PipelineJobOptions():
            options = for_folder(options, folder)
        case DdpJobOptions():
            options = for_folder(options, folder)
    module = module_of(folder, options)

    def memory(layout: _Layout) -> RankMemory:
        own = replace(options, precision=layout.precision, recompute=layout.recompute)
        if isinstance(own, PipelineJobOptions):
            return stages_memory(folder, module, replace(own, pp=layout.stages), layout.alone)[0]
        return rank_memory(folder, module, replace(own, tp=layout.tensor), layout.shards, layout.alone)

    shape = {"context": options.context, "batch_size": options.batch_size}
    _say({"architecture": folder.architecture, "weights": count(module), **shape})
    for layout in layouts:
        try:
            _say(asdict(memory(layout)))
        except UserError:
            if not layout.tried:
                raise
            _say(None)
    return 0


def _layouts() -> Iterator[_Layout]:
    for line in sys.stdin:
        yield _Layout(**json.loads(line))


def _refuse(options: ModelJobOptions) -> None:
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


def _say(values: dict[str, object] | None) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    leave(guarded(main))
