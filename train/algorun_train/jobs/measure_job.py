"""The job `measure`: every rank its device, one rank of each host its memory and disk, and the links between hosts."""

import os
import sys
from dataclasses import asdict
from pathlib import Path

from algorun.common.errors import ExitCode
from algorun_train.common.files import write_json
from algorun_train.loop.summary import write_summary
from algorun_train.measure import host_work, verdict
from algorun_train.measure.links import Links, NoAnswer
from algorun_train.measure.verdict import MeasuredHost, MeasuredLink, MeasuredRank, OddFigure, rate
from algorun_train.options.folders import base_folder, output_folder
from algorun_train.ranks.communicator import Communicator
from algorun_train.ranks.join import joined
from algorun_train.ranks.roll_call import host_name
from algorun_train.ranks.world import read_world

from .measure import MeasureOptions

FILE = "measure.json"
DEVICE_SHARE, LINK_SHARE, AGAIN_SHARE = 0.1, 0.5, 0.15  # of the seconds; memory, disk and meeting take the rest
MOST_AGAIN = 6  # links that are measured again, alone
LEAST_DEADLINE_S = 30.0  # of one message; with more seconds so many


def run(options: MeasureOptions) -> int:
    """The entrypoint: measures, and writes the summary; returns the exit code. Call it on all ranks."""
    found = measured(options)
    if read_world(os.environ).rank == 0:
        write_summary(output_folder(os.environ, Path.is_dir), {"findings": len(found)})
    return ExitCode.PREFLIGHT if found and options.strict else ExitCode.OK


def measured(options: MeasureOptions) -> list[OddFigure]:
    """Measures, prints the result on rank 0 and writes it to `measure.json`. Call it on all ranks.

    Returns what is odd, the same on all ranks. If a link does not answer, it says so and ends the process with 69.
    """
    with joined(read_world(os.environ)) as comm:
        try:
            found, figures = _measure(options, comm)
        except NoAnswer as error:
            print(f"error: measure: {error}", file=sys.stderr, flush=True)
            sys.stdout.flush()
            os._exit(ExitCode.PREFLIGHT)  # to leave the group would need the host that does not answer
        for finding in found:
            comm.say(f"measure: warning: {finding.text}")
        if comm.is_leader:
            folder = output_folder(os.environ, Path.is_dir)
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / FILE, figures | {"findings": [asdict(each) for each in found]})
    return found


def _measure(options: MeasureOptions, comm: Communicator) -> tuple[list[OddFigure], dict[str, object]]:
    """What is odd, and all figures, the same on all ranks."""
    ranks = comm.gather(_rank_figures(options, comm))
    names = list(dict.fromkeys(each.host for each in ranks))
    first = [next(each.rank for each in ranks if each.host == name) for name in names]
    own = host_name()
    hosts = _of_hosts(comm, _host_figures(own) if comm.rank in first else None)
    odd = {each.what for each in verdict.odd_hosts(hosts, options.factor)}
    if odd:  # a disk may have been busy for a moment
        again = _of_hosts(comm, _host_figures(own) if comm.rank in first and own in odd else None)
        hosts = verdict.better_hosts(hosts, again)
    _say_hosts(comm, ranks, hosts)
    found = verdict.odd_ranks(ranks, options.factor) + verdict.odd_hosts(hosts, options.factor)
    links = _links(options, comm, names, first) if len(names) > 1 else {}
    found += verdict.odd_links(links, options.factor)
    figures: dict[str, object] = {
        "ranks": [asdict(each) for each in ranks],
        "hosts": [asdict(each) for each in hosts],
        "links": [{"hosts": link, **asdict(each)} for link, each in links.items()],
    }
    return found, figures


def _of_hosts(comm: Communicator, own: MeasuredHost | None) -> list[MeasuredHost]:
    """What all ranks have measured that have measured a host. Call it on all ranks."""
    return [each for each in comm.gather(own) if each is not None]


def _rank_figures(options: MeasureOptions, comm: Communicator) -> MeasuredRank:
    bits, steady = host_work.product_bits(comm.device)
    comm.meet()  # all compute at the same time, as they do in a job
    speed = host_work.product_speed(comm.device, DEVICE_SHARE * options.seconds)
    device = host_work.device_name(comm.device)
    return MeasuredRank(comm.rank, host_name(), device, comm.device.type == "cuda", speed, bits, steady)


def _host_figures(host: str) -> MeasuredHost:
    base = base_folder(os.environ, Path.is_dir) or Path()
    folder = next((each for each in (base / "checkpoints", base / "output") if each.is_dir()), base)
    return MeasuredHost(host, host_work.memory_speed(), host_work.disk_speed(folder))


def _links(
    options: MeasureOptions, comm: Communicator, names: list[str], first: list[int]
) -> dict[verdict.Link, MeasuredLink]:
    links = Links(names, first, comm.rank, comm.device, max(LEAST_DEADLINE_S, options.seconds))
    seen = _named(comm, names, links.measure(LINK_SHARE * options.seconds))
    again = verdict.suspects(seen, options.factor, MOST_AGAIN)
    for link in again:  # one after the other: what only the others' traffic had slowed is not odd
        pair = names.index(link[0]), names.index(link[1])
        alone = _named(comm, names, links.measure_round([pair], AGAIN_SHARE * options.seconds / len(again)))
        seen[link] = verdict.better(seen[link], alone[link])
    around = max(comm.exchange([links.ring(AGAIN_SHARE * options.seconds)]))[0]
    _say_links(comm, seen, around)
    return seen


def _named(
    comm: Communicator, names: list[str], own: dict[tuple[int, int], MeasuredLink]
) -> dict[verdict.Link, MeasuredLink]:
    """The links of all hosts; of both ends' figures the slower rate and the longer round trip."""
    found: dict[verdict.Link, MeasuredLink] = {}
    for part in comm.gather(own):
        for (one, other), figures in part.items():
            link = names[one], names[other]
            before = found.get(link, figures)
            found[link] = MeasuredLink(min(before.rate, figures.rate), max(before.round_trip_s, figures.round_trip_s))
    return found


def _say_hosts(comm: Communicator, ranks: list[MeasuredRank], hosts: list[MeasuredHost]) -> None:
    for device in dict.fromkeys(each.device for each in ranks):
        speeds = sorted(each.product for each in ranks if each.device == device)
        kind = "bf16" if comm.device.type == "cuda" else "fp32"
        comm.say(f"measure: {len(speeds)} x {device}: matrix product in {kind} {_span(speeds, 'flop')}")
    count = "1 host" if len(hosts) == 1 else f"{len(hosts)} hosts"
    memory, disk = (sorted(getattr(each, what) for each in hosts) for what in ("memory", "disk"))
    comm.say(f"measure: {count}: copies in memory {_span(memory)}, writes to disk {_span(disk)}")


def _say_links(comm: Communicator, links: dict[verdict.Link, MeasuredLink], around: float) -> None:
    trips = sorted(each.round_trip_s * 1e3 for each in links.values())
    comm.say(
        f"measure: {len(links)} links: {_span(sorted(each.rate for each in links.values()))} each way, "
        f"answers after {trips[0]:.2f} to {trips[-1]:.2f} ms; all-reduce of all hosts {rate(around)}"
    )


def _span(values: list[float], unit: str = "B") -> str:
    least, most = rate(values[0], unit), rate(values[-1], unit)
    return least if least == most else f"{least} to {most}"
