"""What torch allocates on the CPU within a block."""

from torch.profiler import ProfilerActivity, profile


def measured() -> profile:
    return profile(activities=[ProfilerActivity.CPU], profile_memory=True)


def allocated(profiled: profile, mapped: set[int]) -> tuple[int, int]:
    """The most bytes that were allocated at once, and those at the end, less those that were there before. Files that are
    `mapped` are not allocated: torch reports their sizes, but the kernel reads and drops their pages."""
    held = most = 0
    events = profiled.profiler.kineto_results.events()
    for event in sorted(
        (e for e in events if e.name() == "[memory]" and abs(e.nbytes()) not in mapped), key=lambda e: e.start_ns()
    ):
        held += event.nbytes()
        most = max(most, held)
    return most, held
