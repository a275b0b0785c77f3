"""`gristmill plan-loader` and `gristmill spike`: what they print, what they write, what they refuse."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from s3_server import serving

pytest.importorskip("typer")

from gristmill.jobs import cli
from gristmill.packing import Change, Loader, Shuffle, TokenSpec, s3, write_shards
from gristmill.packing.questions import windows
from gristmill.packing.skipfile import read_skip_file

SPEC = TokenSpec(1000, 0, "t")
S, BATCH = 50, 4
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    rng = np.random.default_rng(1)
    zipf = [np.minimum(rng.zipf(1.5, 100), 500) for _ in range(200)]
    loops = [*zipf[:99], np.tile([7, 8, 9], 33), *zipf[100:]]
    base = tmp_path_factory.mktemp("r")
    return {
        "web": write_shards(base / "web", loops, SPEC, ids=[f"web-{i}" for i in range(200)], source="crawl"),
        "code": write_shards(base / "code", zipf[:50], SPEC, ids=[f"code-{i}" for i in range(50)], source="repo"),
    }


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run `gristmill ...` in this process: exit code, output, errors."""

    def go(*arguments: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gristmill", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return go


def delivered(root: Any, **options: Any) -> list[tuple[int, bytes]]:
    loader = Loader(root, **{"sequence_length": S, "batch_size": BATCH, "seed": 5, "prefetch": 0, **options})
    return [
        (int(t), ids.tobytes())
        for batch in loader
        for t, ids in zip(batch["samples"], batch["input_ids"], strict=True)
        if t >= 0
    ]


def arguments(root: Path | str) -> list[Any]:
    return [root, "--sequence-length", S, "--batch-size", BATCH, "--seed", 5]


def test_the_plan_of_a_run_is_printed(roots: dict[str, Path], command: Command) -> None:
    code, out, _ = command("plan-loader", *arguments(roots["web"]), "--steps", 10)
    assert code == 0
    assert "10 steps of 4 rows of 50 = 2,000 tokens (concat, 1 ranks)" in out
    assert "first row, position 0" in out
    assert "a local cache of 40.4 kB fetches nothing twice within an epoch" in out


def test_the_plan_of_a_remote_run_is_the_same(
    roots: dict[str, Path], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = command("plan-loader", *arguments(roots["web"]))[1]
    with serving(roots["web"].parent, monkeypatch):
        code, out, err = command("plan-loader", *arguments("s3://data/web"), "--cache", tmp_path / "cache")
    s3._local.__dict__.clear()
    assert code == 0, err
    assert out == local


def test_a_skipped_window_is_delivered_no_more_and_the_rest_stays_in_order(
    roots: dict[str, Path], command: Command, tmp_path: Path
) -> None:
    path = tmp_path / "skip.json"
    code, out, _ = command("spike", *arguments(roots["web"]), "--steps", "10:13", "--skip", path)
    assert code == 0
    assert f"{path}: 12 rows in 1 windows added; it holds 1 windows and 0 documents" in out
    assert read_skip_file(path) == ([(40, 52)], [])
    everything = delivered(roots["web"])
    assert delivered(roots["web"], skip=path) == [row for row in everything if not 40 <= row[0] < 52]


def test_the_documents_of_the_worst_rows_are_withdrawn_and_nothing_else_moves(
    roots: dict[str, Path], command: Command, tmp_path: Path
) -> None:
    path = tmp_path / "skip.json"
    loader = Loader(roots["web"], sequence_length=S, batch_size=BATCH, seed=5, pack="document", prefetch=0)
    step = loader.when("web-99")[0].step
    code, out, _ = command(
        "spike", *arguments(roots["web"]), "--pack", "document", "--steps", f"{step}:{step + 3}", "--skip", path,
        "--documents", "--above", 3,
    )  # fmt: skip
    assert code == 0
    assert "1 documents added; it holds 0 windows and 1 documents" in out
    assert read_skip_file(path) == ([], ["web-99"])
    before, after = delivered(roots["web"], pack="document"), delivered(roots["web"], pack="document", skip=path)
    assert [t for t, _ in before] == [t for t, _ in after]
    shown = {s.sample for s in loader.when("web-99")}
    assert {t for (t, a), (_, b) in zip(before, after, strict=True) if a != b} == shown
    assert all(set(np.frombuffer(ids, np.int32).tolist()) == {0} for t, ids in after if t in shown)


def test_a_run_that_goes_on_with_the_list_leaves_out_what_lies_ahead(
    roots: dict[str, Path], command: Command, tmp_path: Path
) -> None:
    path = tmp_path / "skip.json"
    command("spike", *arguments(roots["web"]), "--steps", "1:3", "--skip", path)
    command("spike", *arguments(roots["web"]), "--steps", "10:12", "--skip", path)
    assert read_skip_file(path)[0] == [(4, 12), (40, 48)]
    options: dict[str, Any] = {"sequence_length": S, "batch_size": BATCH, "seed": 5, "prefetch": 0}
    first = Loader(roots["web"], **options)
    seen = [t for _ in range(5) for t in next(first)["samples"].tolist()]
    second = Loader(roots["web"], skip=path, **options)
    second.load_state_dict(first.state_dict())
    seen += [t for batch in second for t in batch["samples"].tolist() if t >= 0]
    assert seen == [t for t, _ in delivered(roots["web"]) if not 40 <= t < 48]


def test_a_saved_state_says_what_the_run_was(roots: dict[str, Path], command: Command, tmp_path: Path) -> None:
    options: dict[str, Any] = {"weights": {"web": 2, "code": 1}, "epochs": {"code": 3}, "seed": 9, "pack": "best_fit"}
    loader = Loader(roots, sequence_length=60, batch_size=BATCH, skip=[(5, 9)], prefetch=0, **options)
    for _ in range(6):
        next(loader)
    loader.set_weights({"web": 1, "code": 1})
    loader.skip([(40, 45)])
    saved = tmp_path / "state.json"
    saved.write_text(json.dumps(loader.state_dict(), sort_keys=True))
    path = tmp_path / "skip.json"
    # Neither names nor order of the folders are given: the state knows the sets by content.
    for folders in ([roots["code"], roots["web"]], [f"web={roots['web']}", f"code={roots['code']}"]):
        path.unlink(missing_ok=True)
        code, _, err = command(
            "spike", *folders, "--state", saved, "--batch-size", BATCH, "--steps", "8:12", "--skip", path
        )
        assert code == 0, err
        assert read_skip_file(path)[0] == loader.samples_of_steps(8, 12) == [(36, 40), (45, 57)]
    code, out, _ = command("plan-loader", roots["web"], roots["code"], "--state", saved, "--steps", 10)
    assert code == 0
    assert "rows of 60" in out
    code, _, err = command("plan-loader", roots["web"], "--state", roots["web"] / "shards.json")
    assert code == 2
    assert "not a saved state of the loader" in err


@pytest.mark.parametrize(
    "options",
    [
        {"pack": "best_fit", "balance": True},
        {"shuffle": Shuffle("blocks", 8, 4)},
        {"curriculum": [Change(20, sequence_length=25)], "epochs": 2},
        {"weights": {"web": 1, "code": 1}, "curriculum": [Change(20, weights={"web": 1}, sequence_length=10)]},
    ],
)
def test_any_run_is_made_again_from_its_state(
    roots: dict[str, Path], command: Command, tmp_path: Path, options: dict[str, Any]
) -> None:
    loader = Loader(roots, sequence_length=S, batch_size=BATCH, seed=9, prefetch=0, **options)
    for _ in range(7):
        next(loader)
    saved, path = tmp_path / "state.json", tmp_path / "skip.json"
    saved.write_text(json.dumps(loader.state_dict()))
    code, _, err = command(
        "spike", roots["web"], roots["code"], "--state", saved, "--batch-size", BATCH, "--steps", "6:9", "--skip", path
    )
    assert code == 0, err
    slots = loader.samples_of_slots(6, 9)
    assert read_skip_file(path)[0] == windows(np.sort(slots))


SENTENCES = {
    "superscript": (["spike", "WEB", "--steps", "0:²"], "--steps 0:²: it is written A:B"),
    "backwards": (["spike", "WEB", "--steps", "5:5"], "--steps 5:5: it is written A:B"),
    "beyond the run": (["spike", "WEB", "--steps", "900000:900001", "--sequence-length", 50], "no such steps"),
    "huge window": (["spike", "WEB", "--steps", "0:999999999999"], "rows are looked at together"),
    "negative steps": (["plan-loader", "WEB", "--steps", "-1"], "--steps -1: it must be from 1 to"),
    "too many steps": (["plan-loader", "WEB", "--steps", 10**30], f"--steps {10**30}: it must be from 1 to"),
    "long rows": (["plan-loader", "WEB", "--sequence-length", 10**8], "--sequence-length 100,000,000: the longest"),
    "huge rows": (["plan-loader", "WEB", "--sequence-length", 10**30], "impossible length"),
    "no rows": (["plan-loader", "WEB", "--batch-size", 0], "--batch-size 0: it must be at least 1"),
    "huge batches": (["plan-loader", "WEB", "--batch-size", 10**30], "impossible number of rows"),
    "big batches": (["plan-loader", "WEB", "--batch-size", 10**9], "more positions than int32 counts"),
    "many ranks": (["plan-loader", "WEB", "--world-size", 10**30], "impossible number of rows"),
    "no such packing": (["plan-loader", "WEB", "--pack", "tetris"], "unknown packing"),
    "wrong path": (["plan-loader", "nowhere"], "no shards.json here"),
    "wrong path of spike": (["spike", "nowhere", "--steps", "0:1"], "no shards.json here"),
    "weight of one": (["plan-loader", "web=WEB:2", "code=CODE"], "code: give every source a weight"),
    "no weight at all": (["plan-loader", "web=WEB:0"], "impossible mixture weights"),
    "endless": (["plan-loader", "web=WEB:1"], "the run never ends"),
    "remote without a cache": (["plan-loader", "s3://data/x"], "remote shards need a cache"),
    "no state": (["plan-loader", "WEB", "--state", "nowhere.json"], "--state nowhere.json: No such file"),
    "no tokenizer": (["spike", "WEB", "--steps", "0:1", "--sequence-length", 50, "--tokenizer", "x.json"], "x.json"),
    "no list": (["spike", "WEB", "--steps", "0:1", "--documents"], "give that file"),
    "no folder": (
        ["spike", "WEB", "--steps", "0:1", "--sequence-length", 50, "--html", "no/where.html"],
        "--html no/where.html: No such file",
    ),
    "no folder for the list": (
        ["spike", "WEB", "--steps", "0:1", "--sequence-length", 50, "--skip", "no/where.json"],
        "--skip no/where.json: No such file",
    ),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_wrong_input_is_one_sentence_and_exit_code_2(
    case: str, roots: dict[str, Path], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given, sentence = SENTENCES[case]
    full = [str(a).replace("WEB", str(roots["web"])).replace("CODE", str(roots["code"])) for a in given]
    code, _, err = command(*full)
    assert code == 2, err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert sentence in err


def test_a_list_of_something_else_is_not_overwritten(roots: dict[str, Path], command: Command, tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    path.write_text('{"mine": 1}')
    code, _, err = command("spike", *arguments(roots["web"]), "--steps", "0:1", "--skip", path)
    assert code == 2
    assert "wrong magic" in err
    assert path.read_text() == '{"mine": 1}'


def test_the_page_shows_loops_and_rare_tokens(roots: dict[str, Path], command: Command, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    loader = Loader(roots["web"], sequence_length=S, batch_size=BATCH, seed=5, pack="document", prefetch=0)
    step = loader.when("web-99")[0].step
    code, *_ = command(
        "spike", *arguments(roots["web"]), "--pack", "document", "--steps", f"{step}:{step + 1}", "--html", page
    )
    assert code == 0
    assert "<td>7 8 9 7 8 9 7 8</td>" in page.read_text()
