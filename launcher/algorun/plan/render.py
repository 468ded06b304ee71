"""A plan and the rank map as text for people. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from algorun.common import __version__
from algorun.common.fast_dataclasses import replace
from algorun.common.secret_names import HIDDEN, is_secret, secrets_of, without_secrets
from algorun.common.secret_values import hidden, hidden_json
from algorun.machine import openmpi

from .plan import HostPlan, Plan
from .rank_env import Variable

FEW_HOSTS = 4  # of which a plan shows everything
SHOWN_VALUE = 100  # characters of a variable's value; `plan --json` has the whole value
LONG = 8  # characters of a secret that is looked for everywhere; a shorter one occurs in harmless text
SHOWN_CONFIG = 1000  # characters of TF_CONFIG
SOURCE_COLUMN = 60  # column in which sources begin; after a longer value, further right


def table(rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """Rows in aligned columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return "\n".join(
        indent + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )


def redacted(plan: Plan) -> Plan:
    """The plan for showing, with `***` for its secrets: variables and options with a secret's name, wherever their values stand if
    they are long, and texts that are secrets by their form."""
    variables = (*plan.env, *(v for host in plan.hosts for v in host.env))
    named = {v.value for v in variables if is_secret(v.name)} | {value for _, _, value in secrets_of(plan.argv)}
    long = {value for value in named if len(value) >= LONG}
    secrets = sorted(long | {json.dumps(value)[1:-1] for value in long}, key=len, reverse=True)

    def clean(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def hide(variables: tuple[Variable, ...]) -> tuple[Variable, ...]:
        # SM_HPS, SM_USER_ARGS and SM_TRAINING_ENV are JSON.
        return tuple(replace(v, value=clean(str(hidden_json(v.value, v.value and v.name)))) for v in variables)

    hosts = tuple(replace(host, env=hide(host.env)) for host in plan.hosts)
    argv = tuple(clean(hidden(word)) for word in without_secrets(plan.argv))
    return replace(plan, argv=argv, env=hide(plan.env), hosts=hosts)


def ranks(host: HostPlan) -> str:
    """`0-3`, or `0` for a single rank, `-` without ranks."""
    if not host.ranks:
        return "-"
    first, last = host.ranks[0].rank, host.ranks[-1].rank
    return str(first) if first == last else f"{first}-{last}"


def _row(host: HostPlan) -> list[str]:
    role = "leader" if host.node_rank == 0 else ""
    role += "" if host.joined else f"{', ' if role else ''}alone"
    return [host.host, str(host.node_rank), str(host.slots.value), ranks(host), role]


def _folded(hosts: Sequence[HostPlan]) -> list[list[str]]:
    """A row for the first and the last host, and for those between as few as their slots allow."""
    rows, begin = [_row(hosts[0])], 1
    while begin < len(hosts) - 1:
        end = begin + 1
        while end < len(hosts) - 1 and _alike(hosts[begin], hosts[end]):
            end += 1
        first, last = _row(hosts[begin]), _row(hosts[end - 1])
        ends = [*(f"{a} to {b}" if a != b else a for a, b in zip(first[:2], last[:2], strict=True)), first[2]]
        numbers = f"{first[3].partition('-')[0]}-{last[3].rpartition('-')[2]}" if hosts[begin].ranks else "-"
        rows.append(first if end == begin + 1 else [*ends, numbers, first[4]])
        begin = end
    return [*rows, _row(hosts[-1])]


def _alike(one: HostPlan, other: HostPlan) -> bool:
    return (one.slots.value, one.joined, len(one.ranks)) == (other.slots.value, other.joined, len(other.ranks))


def rank_map(plan: Plan, most: int = 16, *, folded: bool = False) -> str:
    """The ranks of each host, a line per host; at most the first `most` hosts. `folded`: equal hosts share a line."""
    alone = not any(host.joined for host in plan.hosts)
    mode = "one rank per host" if plan.per_host else f"world_size {plan.world_size}"
    mode += " (default; --slots and --per-gpu change it)" if plan.is_default else ""
    mode = "one process per host, without ranks" if alone else mode
    mode = "a node on each host, the driver on the leader" if plan.engine.value.has_driver else mode
    head = (
        f"algorun {__version__}  engine {plan.engine.value} ({plan.engine.source})  "
        f"nnodes {plan.nnodes}  {mode}  interface {plan.interface.value}"
    )
    rows = [["host", "node_rank", "slots", "ranks", ""], *map(_row, plan.hosts[:most])]
    more = f"\n  and {plan.nnodes - most} more hosts" if plan.nnodes > most else ""
    if folded:
        rows, more = [rows[0], *_folded(plan.hosts)], ""
    warning = f"\nalgorun: warning: {plan.warning}" if plan.warning else ""
    return f"{head}\n{table(rows)}{more}{warning}"


def _variables(variables: Sequence[Variable]) -> str:
    lines = []
    for variable in variables:
        value = variable.value
        value = value if len(value) <= SHOWN_VALUE else f"{value[:SHOWN_VALUE]}.. ({len(value)} characters)"
        lines.append(f"    {variable.name}={value}".ljust(SOURCE_COLUMN) + f"  # {variable.source}")
    return "\n".join(lines) or "    none"


def plan_text(plan: Plan, *, whole: bool = True) -> str:
    """The plan, each value with its source. Not `whole`: of many hosts the first and the last one."""
    plan = redacted(plan)
    shared = (*plan.env, *plan.contract)
    whole = whole or plan.nnodes <= FEW_HOSTS
    parts = [rank_map(plan, plan.nnodes if whole else 0, folded=not whole)]
    if plan.groups:
        parts.append("\n" + "\n".join(plan.groups))
    if plan.compatibility:
        name, source = plan.compatibility.value, plan.compatibility.source
        parts.append(f"\nimports of {name}: algorun's compatibility layer ({source})")
    parts += [f"\nevery rank, in {plan.cwd}:\n    {shlex.join(plan.argv)}", _variables(shared)]
    if plan.tensorflow:
        config = plan.tensorflow.tf_config(0)
        shown = config if len(config) <= SHOWN_CONFIG else f"{config[:SHOWN_CONFIG]}.. ({len(config)} characters)"
        parts.append(
            f"\nTF_CONFIG of rank 0; in other ranks only the index differs ({plan.tensorflow.source}):\n    {shown}"
        )
    if plan.starter_env:
        parts.append(f"\nthe engine's own environment:\n{_variables(plan.starter_env)}")
    if plan.preparation:
        lines = "\n".join(f"    {each.value}".ljust(SOURCE_COLUMN) + f"  # {each.source}" for each in plan.preparation)
        parts.append(f"\nbefore the ranks start, every host will:\n{lines}")
    if plan.openmpi:
        parts.append(f"\n{plan.openmpi}")
    elif plan.engine.value.needs_openmpi:
        parts.append(f"\nno mpirun here: the plan has options of Open MPI {openmpi.ASSUMED}")
    elif plan.engine.value.has_driver:
        parts.append(f"\n{plan.ray or 'no Ray here: every host looks for it once its requirements are installed'}")
    for host in plan.hosts if whole else (plan.hosts[0], plan.hosts[-1]):
        if not whole and host is plan.hosts[-1]:
            between = f"{plan.hosts[1].host} to {plan.hosts[-2].host}"
            parts.append(f"\n{between}: left out here; --all shows every host")
        parts.append(f"\n{host.host}: slots {host.slots.value} ({host.slots.source})")
        if host.starter:
            parts.append(f"    {shlex.join(host.starter)}")
        parts.append(_variables(host.env))
        for rank in host.ranks:
            own = " ".join(f"{v.name}={v.value}" for v in rank.env)
            parts.append(f"    rank {rank.rank}: {own}")
    return "\n".join(parts)
