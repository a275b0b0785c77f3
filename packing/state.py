"""Saved positions: what a state holds, and when one is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gristmill.packing.errors import StateError, problem
from gristmill.packing.plan import Plan

STATE_MAGIC = "gristmill-loader"
STATE_VERSION = 1


def check_state(state: Mapping[str, Any], plan: Plan) -> None:
    """Refuse a state of another format or plan.

    Raises:
        StateError: says which fact differs, what was saved and what this loader has.
    """
    if state.get("magic") != STATE_MAGIC or state.get("version") != STATE_VERSION:
        raise StateError(
            problem(
                "not a loader state of this version",
                where="load_state_dict",
                expected=(STATE_MAGIC, STATE_VERSION),
                got=(state.get("magic"), state.get("version")),
                then="resume with the release of gristmill that saved it",
            )
        )
    saved = dict(state["plan"])
    if saved.get("hash") == plan.hash:
        return
    mine = plan.facts
    for key in mine:
        if saved.get(key) != mine[key]:
            raise StateError(
                problem(
                    f"the state was saved under another plan: {key} differs",
                    where="load_state_dict",
                    expected=saved.get(key),
                    got=mine[key],
                    then="call set_weights after loading to change the mixture"
                    if key == "weights"
                    else "make the loader with the saved value, or start a new run",
                )
            )
    raise StateError(problem("the state's plan hash is damaged", where="load_state_dict", expected=plan.hash))
