"""The factor that keeps gradients of float16 above zero: AWS's own rules, which are those of DeepSpeed."""

from __future__ import annotations

from collections.abc import Mapping

from algorun_smdistributed.script_types import Given


class LossScale:
    """With `dynamic` it falls after an overflow and rises after `scale_window` steps without one."""

    def __init__(self, static: float | None, dynamic: bool, arguments: Mapping[str, Given]) -> None:
        self._dynamic = dynamic
        self._factor = float(arguments.get("scale_factor", 2.0))
        self._window = int(arguments.get("scale_window", 1000))
        self._least = float(arguments.get("min_scale", 1.0))
        self._shift = int(arguments.get("delayed_shift", 1))
        self._consecutive = bool(arguments.get("consecutive_hysteresis", False))
        self.value = float(arguments.get("init_scale", 2.0**32)) if dynamic else float(static or 1.0)
        self._left, self._step, self._overflow = self._shift, 0, -1

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps of it."""
        return {"value": self.value, "left": self._left, "step": self._step, "overflow": self._overflow}

    def load(self, state: Mapping[str, float]) -> None:
        """Takes over what `state` gave; a scale that is not dynamic stays what it is."""
        if self._dynamic:
            self.value, self._left = float(state["value"]), int(state["left"])
            self._step, self._overflow = int(state["step"]), int(state["overflow"])

    def update(self, overflow: bool) -> None:
        """After the gradients of a step are known."""
        if not self._dynamic:
            return
        if overflow:
            if self._left <= 1:
                self.value = max(self.value / self._factor, self._least)
            else:
                self._left -= 1
            self._overflow = self._step
        else:
            whole = (self._step - self._overflow) % self._window == 0
            if self._consecutive or whole:
                self._left = self._shift
            if whole:
                self.value *= self._factor
        self._step += 1
