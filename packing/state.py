"""Saved positions: what a state holds, when one is refused, and which changes of a run it survives.

A state survives every change of ranks, workers and batch size, since none of them enters the plan. It also survives
what provably leaves the past as it was: sources that a mixture gains or no longer draws from, and more or fewer epochs
of a source that had not reached its cap. Everything else is refused, with the fact that differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gristmill.packing.errors import StateError, problem
from gristmill.packing.format import canonical_json, digest
from gristmill.packing.lengths import Lengths, WeightChange
from gristmill.packing.order import Order
from gristmill.packing.plan import Plan

STATE_MAGIC = "gristmill-loader"
STATE_VERSION = 1
FIXED = ("pack", "sequence_length", "seed", "shuffle", "tokenizer")


def check_format(state: Mapping[str, Any]) -> None:
    """Refuse what is not a state of this format, or was damaged.

    Raises:
        StateError: see the message.
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
    plan = state.get("plan", {})
    if digest(canonical_json({key: value for key, value in plan.items() if key != "hash"})) != plan.get("hash"):
        raise StateError(problem("the state's plan is damaged: its hash is another", where="load_state_dict"))


def changed(changes: tuple[WeightChange, ...], now: int, weights: Mapping[str, float]) -> tuple[WeightChange, ...]:
    """Return the changes before sample `now`, and these weights from there on."""
    return (*(change for change in changes if change[0] < now), (now, dict(weights)))


def adopt(plan: Plan, state: Mapping[str, Any], now: int, weights: Mapping[str, float] | None) -> Plan:
    """Return `plan` with the changes that `state` remembers, at global sample `now`.

    Raises:
        StateError: the state belongs to another run; says which fact differs.
    """
    saved, mine = state["plan"], plan.facts
    for key in FIXED:
        if saved[key] != mine[key]:
            raise _differs(key, saved[key], mine[key])
    _check_sources(plan, saved)
    if (
        weights is None
        and saved["weights"] != mine["weights"]
        and not _in_force(state["changes"], mine["weights"], now)
    ):
        raise _differs("weights", saved["weights"], mine["weights"], "load_state_dict(state, weights=...) changes them")
    if saved["lengths"] != mine["lengths"]:
        raise _differs("lengths", saved["lengths"], mine["lengths"], "set_sequence_length changes them after loading")
    gone = {
        name: (identity, saved["items"][name], saved["layouts"][name], saved["epochs"][name])
        for name, identity in saved["sources"].items()
        if name not in mine["sources"]
    }
    if gone:
        plan = plan.with_gone(gone)
    changes = tuple((int(start), dict(given)) for start, given in state["changes"])
    lengths = Lengths(plan.sequence_length, [(int(start), int(length)) for start, length in state["lengths"]])
    plan = plan.with_changes(changes, lengths)
    _check_epochs(plan, saved, now)
    if weights is not None:
        if not plan.order.mixed:
            raise _differs("weights", None, weights, "a run without weights cannot get any")
        plan = plan.with_changes(changed(changes, now, weights), lengths)
    for name in gone:
        _check_unused(plan, name, now)
    return plan


def _differs(key: str, saved: object, mine: object, then: str = "") -> StateError:
    return StateError(
        problem(
            f"the state was saved under another plan: {key} differs",
            where="load_state_dict",
            expected=saved,
            got=mine,
            then=then or "make the loader with the saved value, or start a new run",
        )
    )


def _in_force(changes: list[Any], mine: list[Any], now: int) -> bool:
    """Whether `mine` are weights without a curriculum, and those that hold from sample `now` to the end."""
    if len(mine) != 1 or not changes or changes[-1][0] > now:
        return False
    last, own = ({name: w for name, w in given[1].items() if w} for given in (changes[-1], mine[0]))
    return bool(last == own)


def _check_sources(plan: Plan, saved: Mapping[str, Any]) -> None:
    mine = plan.facts
    mixed = bool(saved["weights"])
    if mixed != plan.order.mixed:
        raise _differs("weights", saved["weights"] or None, mine["weights"] or None)
    for name, identity in saved["sources"].items():
        if mine["sources"].get(name) == identity and saved["layouts"][name] != mine["layouts"][name]:
            raise _differs(f"how source {name!r} is packed", saved["layouts"][name], mine["layouts"][name])
        if mine["sources"].get(name, identity) != identity:
            raise _differs(
                f"what source {name!r} holds",
                identity,
                mine["sources"][name],
                "give new shards as a source of their own",
            )
    if not mixed and set(saved["sources"]) != set(mine["sources"]):
        raise _differs(
            "the list of sources",
            sorted(saved["sources"]),
            sorted(mine["sources"]),
            "without weights all sources are shuffled as one; a run with weights can gain and lose sources",
        )


def _check_epochs(plan: Plan, saved: Mapping[str, Any], now: int) -> None:
    """Refuse caps under which the past would have been another."""
    order = plan.order
    caps = tuple(saved["epochs"].get(name, cap) for name, cap in zip(order.names, order.caps, strict=True))
    if caps == order.caps:
        return
    before = Order(order.names, order.n_items, order.seed, order.shuffle, caps, order.changes)
    end = order.n_samples
    same = (end is None or end >= now) and (not order.mixed or _past(before, now) == _past(order, now))
    if not same:
        raise _differs(
            "epochs",
            dict(zip(order.names, caps, strict=True)),
            dict(zip(order.names, order.caps, strict=True)),
            "a source that has reached its cap stays as it is; give more of it as a source of its own",
        )


def _past(order: Order, now: int) -> list[Any]:
    return [(segment.start, segment.parts, segment.base) for segment in order.segments(now)]


def _check_unused(plan: Plan, name: str, now: int) -> None:
    """Refuse to go on without a source that the run will draw from."""
    order = plan.order
    number = order.names.index(name)
    current = order.segments(now + 1)[-1:]
    later = [weights for start, weights in order.changes if start > now]
    if any(segment.parts[number] for segment in current) or any(weights.get(name) for weights in later):
        raise StateError(
            problem(
                f"source {name!r} is not given, but the run goes on drawing from it",
                where="load_state_dict",
                expected=f"{name!r} among the sources",
                got=[source.name for source in plan.sources if source.name != name],
                then="give it, or load_state_dict(state, weights=...) without it",
            )
        )
