"""Sharded data parallelism as AWS's `mp_parameters` ask for it. Pure."""

from dataclasses import dataclass

from algorun_train.common.errors import UserError

from .mp_values import Given, count, flag, number, refused

DEGREE, STATE, CLIP = "sharded_data_parallel_degree", "shard_optimizer_state", "sdp_gradient_clipping"
DEFAULT_CLIP = 1.0


@dataclass(frozen=True, slots=True)
class Sharding:
    """Weights, gradients and optimizer state are shares of `degree` ranks. Without arguments: they are whole."""

    degree: int = 1
    """ranks of a replica; 0: all ranks of the job"""
    clip: float = 0.0
    """largest norm of all gradients together, by which each step of the optimizer clips; 0: it does not"""
    half: str = ""
    """"bf16" or "fp16": units compute in it, with weights and optimizer state in float32; "": in the weights' own type"""

    def shards(self, ranks: int) -> int:
        """The ranks of a replica in a job of this number of `ranks`. UserError if the degree does not divide them."""
        shards = self.degree or ranks
        if ranks % shards:
            fits = ", ".join(str(n) for n in range(1, ranks + 1) if ranks % n == 0)
            raise UserError(
                f"mp_parameters: {DEGREE} = {shards} does not divide the job's {ranks} ranks; allowed: {fits}; "
                "fix: choose one of them, or start another number of ranks"
            )
        return shards


NO_SHARDING = Sharding()


def read_sharding(given: Given, partitions: int) -> Sharding:
    """What a job with this number of partitions asks for. UserError for what cannot be had together, as in AWS's library."""
    degree = count(given, DEGREE) or 1
    clip = number(given, CLIP)
    state, fp16, bf16 = (flag(given, key, default=False) for key in (STATE, "fp16", "bf16"))
    if degree > 1 and partitions > 1:
        raise refused(DEGREE, degree, "1 with more than one partition", '"partitions": 1, or pipeline stages alone')
    if state and partitions > 1:
        raise refused(STATE, True, "false with more than one partition", f'"partitions": 1, or leave {STATE} out')
    if state and degree > 1:
        raise refused(STATE, True, f"false with {DEGREE} = {degree}, which shards that state too", "leave it out")
    if fp16 and bf16:
        raise refused("fp16", True, "one of fp16 and bf16", "use bf16 alone")
    if not state and degree == 1:
        if fp16:
            raise refused("fp16", True, f"false without {DEGREE} above 1", f"use bf16, or a {DEGREE} above 1")
        return NO_SHARDING
    half = "fp16" if fp16 else "bf16" if bf16 else ""
    if state:
        return Sharding(0, 0.0, half)
    return Sharding(degree, DEFAULT_CLIP if clip is None else float(clip), half)
