"""An engine whose own process on a host starts the ranks there, as torchrun does."""

from __future__ import annotations

import os
from collections.abc import Mapping

from algorun.host.ranks.ranks import Ranks
from algorun.plan.plan import Plan

from .engine import EngineAtWork


class RankStarter(EngineAtWork):
    """The plan's starter of this host starts the ranks; a standalone host starts its own."""

    def start(self, plan: Plan, ranks: Ranks) -> None:
        """Starts the starter. Raises UserError where the program cannot start."""
        self._plan, self._ranks = plan, ranks
        self._has_time()
        host = plan.host(self._host)
        if host.starter:
            self._starter = self._run(host.starter, what=self.name, extra=self._environ())
        if not host.joined:
            ranks.start()

    def _environ(self) -> dict[str, str]:
        """The engine's own variables, and where to find this supervisor."""
        assert self._plan is not None
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}  # silences torchrun's own default
        extra = self._plan.starter_environ(self._plan.host(self._host))
        return {**threads, **self._session(), **extra, "ALGORUN_RUN_DIR": self._tools.run_dir}

    def _session(self) -> Mapping[str, str]:
        """The variable that puts the engine's files into the run folder: apart from those of other simulated hosts, and removed
        with it. PET_LOG_DIR is torchrun's --log-dir."""
        return {"PET_LOG_DIR": self._tools.run_dir}
