"""A warning for data that is too small for the batch: each epoch is then one optimizer step. Pure."""

from algorun_train.data.sampler import Batching, steps_in


def short_epoch(count: int, unit: str, batching: Batching, replica: str) -> str | None:
    """The warning if `count` samples (their `unit` in the plural) are one step an epoch; None for two steps or more.

    `replica`: what takes a share of a step, "rank" or "pipeline".
    """
    if steps_in(count, batching.global_batch) > 1:
        return None
    batch, passes, replicas = batching.batch, batching.accumulation, batching.replicas
    factors = f"{batch} per {replica} x {_counted(replicas, f'{replica}s')}" + (f" x {passes} passes" * (passes > 1))
    idle = replicas - min(replicas, steps_in(count, batch))
    without = f"{idle} of the {replicas} {replica}s {'have' if idle > 1 else 'has'} no {unit[:-1]}; " if idle else ""
    fixes = ["a smaller --batch-size or --accumulation" if passes > 1 else "a smaller --batch-size"]
    fixes += [f"fewer {replica}s"] if replicas > 1 else []
    return (
        f"warning: an epoch is 1 step: {_counted(count, f'training {unit}')}, and a global batch of "
        f"{batching.global_batch} ({factors}); {without}fix: {', '.join(fixes)}, or more data"
    )


def _counted(number: int, words: str) -> str:
    return f"{number} {words[:-1] if number == 1 else words}"
