"""Options about a Hugging Face folder: which folder is trained, and what its model takes."""

from dataclasses import fields, replace
from pathlib import Path
from typing import TypeVar

from algorun_train.common.errors import UserError
from algorun_train.models import folder_model
from algorun_train.models.folder_check import checked_folder
from algorun_train.models.folder_config import ModelFolder
from algorun_train.options.job_options import DdpJobOptions, ModelJobOptions, PipelineJobOptions
from algorun_train.ranks.communicator import Communicator

CONTEXT = 1024  # tokens of a sequence if the option is not given; a model that sees fewer at once gets its own limit
# Options of embedded models. A folder's config.json decides on what they say.
FOR_EMBEDDED = ("init_from", "patch_size", "width", "depth", "heads", "dropout", "tied")

Options = TypeVar("Options", DdpJobOptions, PipelineJobOptions)


def open_folder(options: ModelJobOptions, channel: Path | None, comm: Communicator) -> ModelFolder | None:
    """The folder that option or channel names, as rank 0 has it; None for an embedded model. Call it on all ranks.

    Raises UserError, the same on all ranks, if it cannot be trained or an option is for embedded models.
    """
    path = channel if options.model is None else None if options.model in options.embedded else Path(options.model)
    if path is None:
        return None
    source = "channel 'model'" if options.model is None else "option --model"
    for name, default in ((field.name, field.default) for field in fields(options) if field.name in FOR_EMBEDDED):
        if getattr(options, name) != default:
            raise UserError(
                f"option --{name.replace('_', '-')}: {getattr(options, name)}, with {source} {path}; allowed: with an "
                f"embedded model ({', '.join(options.embedded)}); fix: leave it out, the folder's config.json decides"
            )
    comm.on_all(folder_model.prepare_transformers)
    comm.on_all(_import_models)
    folder = comm.from_leader(lambda: checked_folder(path, source, options.context))
    for note in folder.notes:
        comm.say(note)
    return folder


def _import_models() -> None:
    """What every rank needs sooner or later, and rank 0 to read a folder. It takes seconds: ranks import it side by side."""
    import transformers.modeling_utils  # noqa: F401


def for_folder(options: Options, folder: ModelFolder) -> Options:
    """The options with the size of images or the context that the folder's model takes. Raises UserError if the model cannot
    take what is asked for."""
    if folder.tokens:
        return replace(options, context=_context(options, folder, folder.tokens.context))
    if options.context is not None:
        raise UserError(
            f"option --context: {options.context}, with the image classifier {folder.path}; allowed: with a language model; "
            "fix: leave it out"
        )
    side, fixed = folder.images.side if folder.images else 0, folder.config.get("image_size")
    asked = options.image_size or side
    if asked != side or (isinstance(fixed, int) and fixed != side):
        raise UserError(
            f"option --image-size: {asked}, but {folder.path} takes {side} by its image processor"
            f"{f' and {fixed} by its config.json' if isinstance(fixed, int) else ''}; allowed: one size for all; "
            "fix: leave --image-size out, and save model and processor with the same size"
        )
    return replace(options, image_size=side)


def _context(options: ModelJobOptions, folder: ModelFolder, limit: int | None) -> int:
    if options.image_size is not None:
        raise UserError(
            f"option --image-size: {options.image_size}, with the language model {folder.path}; allowed: with an image "
            "classifier; fix: leave it out"
        )
    asked = options.context or min(limit or CONTEXT, CONTEXT)
    if limit is not None and asked > limit:
        raise UserError(
            f"option --context: {asked} is more than the {limit} tokens that {folder.path} sees at once, by its config.json; "
            f"allowed: 1 to {limit}; fix: give a smaller one"
        )
    return asked
