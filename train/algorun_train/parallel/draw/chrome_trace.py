"""A timeline in Chrome's trace event format, for chrome://tracing and https://ui.perfetto.dev."""

from __future__ import annotations

import json

from algorun_train.parallel.schedules import Timeline


def chrome_trace(timeline: Timeline) -> str:
    """JSON: one process per pipeline rank, one event per action, times in microseconds from the step's begin."""
    events: list[dict[str, object]] = []
    for rank, spans in enumerate(timeline.ranks):
        events.append({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"pipeline rank {rank}"}})
        events.append({"name": "process_sort_index", "ph": "M", "pid": rank, "args": {"sort_index": rank}})
        for action, begin_s, end_s in spans:
            event = {
                "name": str(action),
                "cat": action.kind,
                "ph": "X",
                "ts": round((begin_s - timeline.begin_s) * 1e6, 3),
                "dur": round((end_s - begin_s) * 1e6, 3),
                "pid": rank,
                "tid": 0,
                "args": {"stage": action.stage, "microbatch": action.microbatch},
            }
            events.append(event)
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}) + "\n"
