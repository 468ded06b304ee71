"""Decides over how many ranks a job shards its model, from --shard and the number of ranks. Pure, so all ranks decide the same."""

from algorun_train.common.errors import UserError

from .job_options import DdpJobOptions, divisors


def shards_of(options: DdpJobOptions, ranks: int) -> int:
    """Ranks of a replica: each holds 1 / that of weights, gradients and moments. 1: nothing is sharded. Raises UserError."""
    return shards_among(options.shard, ranks, "ranks")


def shards_among(asked: str, number: int, what: str) -> int:
    """How many of `number` ranks, or pipelines, share the weights: `asked` is the value of --shard. Raises UserError."""
    if asked == "all":
        return number
    shards = int(asked)
    if number % shards:
        raise UserError(
            f"option --shard: {shards} does not divide the {number} {what}; allowed: {divisors(number)}, all; "
            f"fix: use one of them, or another number of {what}"
        )
    return shards
