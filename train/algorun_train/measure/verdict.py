"""Which ranks, hosts and links are slower than the others, and by how much. Pure."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Link = tuple[str, str]  # two hosts

GPU_FACTOR = 1.25  # a GPU's matrix product: GPUs of one kind differ by some percent
LATENCY_MARGIN_S = 0.5e-3  # a shorter delay is one of the operating system


@dataclass(frozen=True, slots=True)
class MeasuredRank:
    """What one rank has measured. `device` names its GPU, or its CPU and the threads that computed; `product` is in operations
    a second, `bits` a checksum of the product, and `steady` is False if the same product gave different bits."""

    rank: int
    host: str
    device: str
    on_gpu: bool
    product: float
    bits: str
    steady: bool


@dataclass(frozen=True, slots=True)
class MeasuredHost:
    """What one host has measured, in bytes a second: copies in its memory, and writes to its disk with fsync."""

    host: str
    memory: float
    disk: float


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """A link between two hosts: bytes a second in each direction while both send, and the seconds of a small message there and back."""

    rate: float
    round_trip_s: float


@dataclass(frozen=True, slots=True)
class OddFigure:
    """Something that is slower than the others, or computes other bits. `factor`: so many times slower; 0.0: it is not a speed."""

    what: str
    factor: float
    text: str


def odd_ranks(ranks: Sequence[MeasuredRank], factor: float) -> list[OddFigure]:
    """Ranks whose product is slow beside that of equal devices, or has other bits than most of them."""
    found = []
    for device in dict.fromkeys(each.device for each in ranks):
        equal = [each for each in ranks if each.device == device]
        usual = statistics.median(each.product for each in equal)
        common, count = Counter(each.bits for each in equal).most_common(1)[0]
        for each in equal:
            what = f"rank {each.rank} on {each.host}"
            slower = usual / each.product
            if slower > (GPU_FACTOR if each.on_gpu else factor):
                speed = f"{rate(each.product, 'flop')}, {rate(usual, 'flop')} is usual for {device}"
                found.append(
                    OddFigure(what, slower, f"{what}: its matrix product is {slower:.2f} times slower: {speed}")
                )
            if not each.steady:
                text = f"{what}: {device} gives other bits for the same matrix product from one time to the next"
                found.append(OddFigure(what, 0.0, f"{text}: it computes wrongly"))
            elif each.bits != common and 2 * count > len(equal):
                found.append(
                    OddFigure(
                        what,
                        0.0,
                        f"{what}: the bits of its matrix product differ from those of {count} others with {device}",
                    )
                )
    return found


def odd_hosts(hosts: Sequence[MeasuredHost], factor: float) -> list[OddFigure]:
    """Hosts whose memory or disk is slow beside the others'."""
    found = []
    for what, speeds in (
        ("memory", {each.host: each.memory for each in hosts}),
        ("disk", {each.host: each.disk for each in hosts if each.disk}),
    ):
        usual = statistics.median(speeds.values()) if speeds else 0.0
        for host, speed in speeds.items():
            if (slower := usual / speed) > factor:
                found.append(
                    OddFigure(
                        host,
                        slower,
                        f"{host}: its {what} is {slower:.1f} times slower: {rate(speed)}, {rate(usual)} is usual",
                    )
                )
    return found


def better_hosts(first: Sequence[MeasuredHost], again: Sequence[MeasuredHost]) -> list[MeasuredHost]:
    """What hosts can do, of which some were measured again: what is slow is so in both measurements."""
    second = {each.host: each for each in again}
    return [
        MeasuredHost(
            each.host,
            max(each.memory, second.get(each.host, each).memory),
            max(each.disk, second.get(each.host, each).disk),
        )
        for each in first
    ]


def odd_links(links: Mapping[Link, MeasuredLink], factor: float) -> list[OddFigure]:
    """Links that are slow, or late to answer, beside the others. A host all of whose links are so is named in their place."""
    if len(links) < 3:  # of two hosts nobody can say which link is usual
        return []
    usual, usual_s = _usual_rate(links), _usual_round_trip_s(links)
    slow = {link: usual / each.rate for link, each in links.items() if usual / each.rate > factor}
    late = {link: each.round_trip_s / usual_s for link, each in links.items() if _is_late(each, usual_s, factor)}
    found = []
    for what, own in _by_host(slow, links):
        seen = _span([rate(links[link].rate) for link in own])
        found.append(_finding(what, own, slow, f"slower: {seen}, {rate(usual)} is usual"))
    for what, own in _by_host(late, links):
        seen = _span([f"{links[link].round_trip_s * 1e3:.2f} ms" for link in own])
        found.append(_finding(what, own, late, f"later to answer: {seen}, {usual_s * 1e3:.2f} ms is usual"))
    return found


def suspects(links: Mapping[Link, MeasuredLink], factor: float, most: int) -> list[Link]:
    """The links to measure again, alone: at most `most` of those that are slow or late, the worst first."""
    if len(links) < 3:
        return []
    usual, usual_s = _usual_rate(links), _usual_round_trip_s(links)
    bad = {
        link: max(usual / each.rate, each.round_trip_s / usual_s)
        for link, each in links.items()
        if usual / each.rate > factor or _is_late(each, usual_s, factor)
    }
    return sorted(bad, key=lambda link: (-bad[link], link))[:most]


def better(first: MeasuredLink, again: MeasuredLink) -> MeasuredLink:
    """What a link can do by two measurements: a bad link is bad in both, and a busy host may disturb either."""
    return MeasuredLink(max(first.rate, again.rate), min(first.round_trip_s, again.round_trip_s))


def rate(value: float, unit: str = "B") -> str:
    """Such as `12.3 GB/s`."""
    for power, prefix in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power:
            return f"{value / 10**power:.3g} {prefix}{unit}/s"
    return f"{value:.3g} {unit}/s"


def _usual_rate(links: Mapping[Link, MeasuredLink]) -> float:
    """The median over the hosts of each one's fastest link: one slow host makes two of the three links of three hosts slow."""
    return statistics.median(max(each.rate for link, each in links.items() if host in link) for host in _hosts(links))


def _usual_round_trip_s(links: Mapping[Link, MeasuredLink]) -> float:
    return statistics.median(
        min(each.round_trip_s for link, each in links.items() if host in link) for host in _hosts(links)
    )


def _is_late(link: MeasuredLink, usual_s: float, factor: float) -> bool:
    return link.round_trip_s > max(factor * usual_s, usual_s + LATENCY_MARGIN_S)


def _hosts(links: Iterable[Link]) -> list[str]:
    return list(dict.fromkeys(host for link in links for host in link))


def _by_host(odd: Mapping[Link, float], links: Mapping[Link, MeasuredLink]) -> list[tuple[str, list[Link]]]:
    """What to name, with its links: hosts all of whose links are odd, then the odd links between other hosts."""
    named = []
    for host in _hosts(links):
        own = [link for link in links if host in link]
        if all(link in odd for link in own):
            named.append((host, own))
    hosts = {host for host, _ in named}
    return named + [(" - ".join(link), [link]) for link in odd if not hosts & set(link)]


def _finding(what: str, own: Sequence[Link], factors: Mapping[Link, float], text: str) -> OddFigure:
    worst, least = max(factors[link] for link in own), min(factors[link] for link in own)
    times = f"{worst:.1f}" if len(own) == 1 else f"{least:.1f} to {worst:.1f}"
    subject = f"link {what} is" if len(own) == 1 else f"{what}: all its {len(own)} links are"
    return OddFigure(what, worst, f"{subject} {times} times {text}")


def _span(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"
