"""Small models that ship with gristmill; licences are in NOTICE.md next to them."""

from __future__ import annotations

from pathlib import Path

LID_176 = Path(__file__).with_name("lid.176.ftz")
"""fastText's language identifier for 176 languages (CC-BY-SA-3.0, see NOTICE.md)."""
