"""Heuristic filters: signals measured once, rules applied to them (`Heuristics`)."""

from __future__ import annotations

from gristmill.stages.heuristics.presets import PRESET_NAMES, preset
from gristmill.stages.heuristics.rules import Rule, apply_rules, change_rules, histogram, what_if
from gristmill.stages.heuristics.stage import Heuristics

__all__ = ["PRESET_NAMES", "Heuristics", "Rule", "apply_rules", "change_rules", "histogram", "preset", "what_if"]
