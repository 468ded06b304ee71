"""What the time of a rank is spent on, as far as it is seen. Pure."""

from __future__ import annotations

# In the order of a rank's record (inside/rank_steps.py). `exchange`: waiting for other ranks and talking to them.
NAMES = ("data", "forward", "backward", "exchange", "optimizer", "saving", "evaluation")
