"""Types of what the user's script gives and gets: only the script knows them, so each of these names stands for Any."""

from __future__ import annotations

from typing import Any

Given = Any  # types know nothing of the script
"""an argument of the script's: of its model's forward, its step functions and hooks, an object that it sends or saves"""

Result = Any  # as Given
"""what one of the script's functions returns, an object that another rank has sent or a file holds, or a handle of torch's"""

StateDict = dict[str, Any]  # as torch has it
"""torch's own type of a state dict: tensors, numbers, and whatever a module or an optimizer adds to them"""
