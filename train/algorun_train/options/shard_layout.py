"""Decides over how many ranks `ddp` shards its model, from --shard and the number of ranks. Pure, so all ranks decide the same."""

from algorun_train.common.errors import UserError

from .job_options import DdpJobOptions, divisors


def shards_of(options: DdpJobOptions, ranks: int) -> int:
    """Ranks of a replica: each holds 1 / that of weights, gradients and moments. 1: nothing is sharded. Raises UserError."""
    if options.shard == "all":
        return ranks
    shards = int(options.shard)
    if ranks % shards:
        raise UserError(
            f"option --shard: {shards} does not divide the {ranks} ranks; allowed: {divisors(ranks)}, all; "
            "fix: use one of them, or another number of ranks"
        )
    return shards
