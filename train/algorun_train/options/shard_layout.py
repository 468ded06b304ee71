"""Decides over how many ranks a job shards its model, from --shard, --tp and the number of ranks. Pure, so all ranks decide the
same."""

from algorun_train.common.errors import UserError

from .job_options import DdpJobOptions, divisors


def shards_of(options: DdpJobOptions, ranks: int) -> int:
    """Ranks that share a replica's weights, or tensor groups that do (--tp). 1: nothing is sharded. Raises UserError."""
    groups = tensor_groups(options.tp, ranks)
    return shards_among(options.shard, groups, "ranks" if options.tp == 1 else "tensor groups")


def tensor_groups(tensor: int, ranks: int) -> int:
    """The number of groups of `tensor` ranks. Raises UserError if that does not divide the ranks."""
    if ranks % tensor:
        raise UserError(
            f"option --tp: {tensor} does not divide the {ranks} ranks; allowed: {divisors(ranks)}; "
            "fix: use one of them, or another number of ranks"
        )
    return ranks // tensor


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
