"""Decides over how many ranks a job shards its model, from --shard, --tp and the number of ranks. Pure, so all ranks decide the
same."""

from collections.abc import Sequence

from algorun_train.common.errors import UserError

from .job_options import DdpJobOptions, divisors

SHOWN_GROUPS = 16  # tensor groups of which a plan shows the ranks; of more, the first two and the last


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


def tensor_lines(tensor: int, ranks: Sequence[int]) -> list[str]:
    """What a plan says of the tensor groups of a job with these numbers of ranks on its hosts: the ranks of each group, and a
    warning if one lies on several hosts. Nothing without --tp."""
    if tensor == 1:
        return []
    groups = [f"{first}-{first + tensor - 1}" for first in range(0, sum(ranks), tensor)]
    if len(groups) > SHOWN_GROUPS:
        groups[2:-1] = [".."]
    lines = [f"tensor groups, {tensor} ranks each (option --tp): {', '.join(groups)}"]
    hosts = hosts_of_a_group(tensor, ranks)
    return [*lines, several_hosts(tensor, ranks, hosts)] if hosts > 1 else lines


def hosts_of_a_group(tensor: int, ranks: Sequence[int]) -> int:
    """The most hosts that a tensor group lies on. `ranks`: of each host, in the order of hosts."""
    hosts = [host for host, count in enumerate(ranks) for _ in range(count)]
    return max(len(set(hosts[first : first + tensor])) for first in range(0, len(hosts), tensor))


def several_hosts(tensor: int, ranks: Sequence[int], hosts: int) -> str:
    """The warning of a job that has a tensor group on `hosts` hosts."""
    each = " or ".join(map(str, sorted(set(ranks))))
    return (
        f"warning: option --tp: {tensor}, with {each} ranks per host: a tensor group lies on {hosts} hosts, and each layer waits "
        "for the network between them at least four times a pass; fix: a --tp that divides the ranks of a host, and --shard for "
        "the rest"
    )


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
