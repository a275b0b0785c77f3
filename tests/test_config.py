"""Mistakes in a pipeline are found before Spark starts, with the nearest right word; exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import write_jsonl

from gristmill.pipelines import config
from gristmill.pipelines.plan import plan
from gristmill.stages import ConfigError, registry


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    return str(write_jsonl(tmp_path / "in" / "a.jsonl", [{"id": "1", "text": "hello"}]).parent)


def planned(stages: dict[str, Any], **top: Any) -> Any:
    return plan(config.build({"stages": stages, **top}))


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (
            {"web": {"stage": "ingest", "path": "CORPUS", "sorce": "x"}},
            "web.sorce: unknown key. Did you mean 'source'?",
        ),
        ({"web": {"stage": "ingets", "path": "CORPUS"}}, "unknown stage 'ingets'. Did you mean 'ingest'?"),
        ({"web": {"stage": "ingest"}}, "web.path: this key is required"),
        ({"web": {"stage": "ingest", "path": "CORPUS", "max_record_bytes": 1}}, "greater than or equal to 1024"),
        ({"exact_dedup": {}}, "nothing before it makes documents"),
        ({"web": {"stage": "ingest", "path": "CORPUS"}, "exact_dedup": {"inputs": "wbe"}}, "Did you mean 'web'?"),
        (
            {"web": {"stage": "ingest", "path": "CORPUS"}, "cards": {"inputs": "web"}},
            "takes shards, but web makes documents",
        ),
        ({"web": {"stage": "ingest", "path": "CORPUS", "inputs": "web"}}, "takes no inputs"),
        ({"a": {"stage": "pii", "inputs": "b"}, "b": {"stage": "pii", "inputs": "a"}}, "in a circle among a, b"),
        ({"web": ["x"]}, "a mapping is needed"),
    ],
)
def test_each_mistake_is_named(stages: dict[str, Any], message: str, corpus: str) -> None:
    for node in stages.values():
        if isinstance(node, dict) and node.get("path") == "CORPUS":
            node["path"] = corpus
    with pytest.raises(ConfigError) as error:
        planned(stages)
    assert message in str(error.value)


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"d": {"stage": "decontaminate", "evals": "builtin:dem"}}, "builtin:demo does"),
    ({"d": {"stage": "decontaminate", "evals": 3}}, "d.evals: a list is needed, got 3"),
    ({"d": {"stage": "decontaminate", "evals": []}}, "d.evals: at least 1 item is needed"),
    ({"d": {"stage": "decontaminate", "evals": "TMP"}}, "is a directory; write"),
    (
        {"d": {"stage": "decontaminate", "evals": "TMP/empty.jsonl"}},
        "d.evals: evaluation set TMP/empty.jsonl: holds no rows",
    ),
    ({"d": {"stage": "decontaminate", "evals": "TMP/misnamed.jsonl"}}, "no question found in fields questoin"),
    ({"d": {"stage": "decontaminate", "evals": "TMP/three.json"}}, "a list of objects is needed, got int"),
    ({"d": {"stage": "decontaminate", "evals": {"pth": "x"}}}, "d.evals.path: this key is required"),
    ({"d": {"stage": "decontaminate", "evals": [{"pth": "x"}]}}, "d.evals.0.pth: unknown key. Did you mean 'path'?"),
    ({"d": {"stage": "decontaminate", "evals": "builtin:demo", "fields": []}}, "d.fields: at least 1 item is needed"),
    ({"d": {"stage": "decontaminate", "evals": "builtin:demo", "action": "dorp"}}, "Did you mean 'drop'?"),
    ({"tokenizer": {"path": "TMP/three.json"}}, "tokenizer.path: TMP/three.json: not a tokenizer.json"),
    ({"tokenizer": {"compare": ["TMP/three.json"]}}, "tokenizer.compare: TMP/three.json: not a tokenizer.json"),
    ({"tokenizer": {"compare": ["TMP"]}}, "TMP: is a directory; a file is needed"),
    ({"tokenizer": {"compare": "x"}}, "tokenizer.compare: a list is needed, got 'x'; write [x]"),
    ({"tokenizer": {}, "pack": {"eos_id": 40000}}, "pack.eos_id: ids are below 32,768 in tokenizer, got 40,000"),
    ({"tokenizer": {"special_tokens": ["<a>"]}, "pack": {}}, "pack.append_eos: tokenizer names no end-of-text token"),
    (
        {"a": {"stage": "tokenizer"}, "b": {"stage": "tokenizer"}, "pack": {"inputs": ["web", "a", "b"]}},
        "pack.inputs: one tokenizer is needed, got a and b",
    ),
    ({"language": {"model_path": "TMP"}}, "TMP: is not a file"),
]


@pytest.mark.parametrize(("stages", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_what_a_file_holds_is_looked_at_while_planning(
    stages: dict[str, Any], message: str, corpus: str, tmp_path: Path
) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "misnamed.jsonl").write_text('{"questoin": "x"}')
    (tmp_path / "three.json").write_text("3")
    given = yaml.safe_load(yaml.safe_dump(stages, sort_keys=False).replace("TMP", str(tmp_path)))
    with pytest.raises(ConfigError) as error:
        planned({"web": {"stage": "ingest", "path": corpus}, **given}, output=str(tmp_path / "out"))
    assert message.replace("TMP", str(tmp_path)) in str(error.value)
    assert "\n" not in str(error.value) or "pth" in str(stages)


@pytest.mark.parametrize("output", ["s3://", "s3://a b/c", "nul\0byte", "x" * 300, "s3x://a/b", "http://a/b"])
def test_an_output_that_cannot_be_is_refused(output: str, corpus: str) -> None:
    with pytest.raises(ConfigError, match="^output: "):
        planned({"web": {"stage": "ingest", "path": corpus}}, output=output)


@pytest.mark.parametrize("path", ["s3://", "s3:///x", "nul\0byte", "x" * 300, "s3x://a/b", ""])
def test_an_input_path_that_cannot_be_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"^web\.path: "):
        planned({"web": {"stage": "ingest", "path": path}})


def test_settings_reach_every_top_key(corpus: str) -> None:
    data = {"stages": {"web": {"stage": "ingest", "path": corpus}}, "spark": {"spark.ui.enabled": True}}
    changed = config.build(data, None, ("fuse=false", "spark.driver.memory=4g", "spark.spark.cores.max=3"))
    assert changed.fuse is False
    assert changed.spark == {"spark.ui.enabled": "true", "spark.driver.memory": "4g", "spark.cores.max": "3"}
    for setting, message in (
        ("fuse=maybe", "fuse: true or false is needed"),
        ("spark=3", "spark: a mapping of Spark settings is needed"),
        ("spark={memory: 4g}", "begin with 'spark.'"),
        ("spark.driver.memory=[1]", "a text, a number, true or false is needed"),
        ("web.fields={text: a, text: b}", "stands twice"),
    ):
        with pytest.raises(ConfigError, match=message):
            config.build(data, None, (setting,))


def test_a_yaml_mistake_has_its_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("name: a\nstages: [\n")
    with pytest.raises(ConfigError, match=r"p\.yaml, line \d: not valid YAML: "):
        config.load(str(tmp_path / "p.yaml"))


def test_unknown_top_keys_are_named(corpus: str) -> None:
    with pytest.raises(ConfigError, match="sed: unknown key. Did you mean 'seed'"):
        planned({"web": {"stage": "ingest", "path": corpus}}, sed=1)


def test_a_key_that_stands_twice_is_refused(tmp_path: Path, corpus: str) -> None:
    file = tmp_path / "p.yaml"
    node = f"  web: {{stage: ingest, path: {corpus}}}\n"
    file.write_text("stages:\n" + node + node)
    with pytest.raises(ConfigError, match="key 'web' stands twice"):
        config.load(str(file))


@pytest.mark.parametrize("top", [{"output": ""}, {"output": None}, {"output": ["a"]}, {"name": 5}])
def test_output_and_name_are_texts(top: dict[str, Any], corpus: str) -> None:
    with pytest.raises(ConfigError, match="a text that is not empty is needed"):
        config.build({"stages": {"web": {"stage": "ingest", "path": corpus}}, **top})


@pytest.mark.parametrize("inputs", [5, True, [], {"web": 1}, ["web", "web"], [1]])
def test_inputs_are_names_each_once(inputs: Any, corpus: str) -> None:
    with pytest.raises(ConfigError, match="names of stages, each once"):
        planned({"web": {"stage": "ingest", "path": corpus}, "pii": {"inputs": inputs}})


def test_names_that_cannot_be_directories_are_refused(corpus: str) -> None:
    with pytest.raises(ConfigError, match="a name has letters"):
        planned({"a/b": {"stage": "ingest", "path": corpus}})


def test_an_output_that_cannot_be_written_is_refused(corpus: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for output in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="output: "):
            planned({"web": {"stage": "ingest", "path": corpus}}, output=str(output))


def test_settings_change_one_key_and_wrong_ones_are_named(corpus: str, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump({"stages": {"web": {"stage": "ingest", "path": corpus}}}, sort_keys=False))
    loaded = config.load(str(file), None, ("web.source=books", "seed=5"))
    assert loaded.by_name["web"].stage.model_dump()["source"] == "books"
    assert loaded.seed == 5
    with pytest.raises(ConfigError, match="no stage 'wbe'. Did you mean 'web'"):
        config.load(str(file), None, ("wbe.source=books",))
    with pytest.raises(ConfigError, match="written stage.key=value"):
        config.load(str(file), None, ("web.source",))


def test_a_missing_column_names_the_stage_that_writes_it(corpus: str) -> None:
    class NeedsLanguage(registry.get("pii")):  # type: ignore[misc]
        def reads(self) -> dict[str, Any]:
            return {"text": None, "lang": None}

    pipeline = config.build({"stages": {"web": {"stage": "ingest", "path": corpus}, "pii": {}}})
    node = config.Node("pii", NeedsLanguage(), ("web",))
    broken = config.Pipeline("t", 0, "out", True, {}, (pipeline.nodes[0], node))
    with pytest.raises(ConfigError, match="column 'lang' is missing from its input"):
        plan(broken)


def test_fingerprints_follow_content_not_place(corpus: str, tmp_path: Path) -> None:
    import shutil

    def fingerprint(path: str, **options: Any) -> str:
        return planned({"web": {"stage": "ingest", "path": path, **options}}).units[0].fingerprint  # type: ignore[no-any-return]

    copy = tmp_path / "copy"
    shutil.copytree(corpus, copy)
    assert fingerprint(corpus) == fingerprint(str(copy))
    assert fingerprint(corpus) != fingerprint(corpus, source="other")
    assert fingerprint(corpus) == fingerprint(corpus, max_removed=0.5)
    (copy / "a.jsonl").write_text('{"id": "1", "text": "other"}\n')
    assert fingerprint(corpus) != fingerprint(str(copy))


def test_adjacent_batch_stages_are_fused_unless_something_else_reads_between(corpus: str) -> None:
    base = {"web": {"stage": "ingest", "path": corpus}, "a": {"stage": "pii"}, "b": {"stage": "pii"}}
    assert [[n.name for n in u.nodes] for u in planned(base).units] == [["web"], ["a", "b"]]
    assert [[n.name for n in u.nodes] for u in planned(base, fuse=False).units] == [["web"], ["a"], ["b"]]
    tapped = {**base, "exact_dedup": {"inputs": ["a", "b"]}}
    assert [[n.name for n in u.nodes] for u in planned(tapped).units] == [["web"], ["a"], ["b"], ["exact_dedup"]]


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("web.sorce=x", "Did you mean 'source'"),
        ("web.path=/no/such/place", "no such file or directory"),
        ("pii.inputs=wbe", "Did you mean 'web'"),
        ("pii.stage=pi", "unknown stage 'pi'"),
    ],
)
def test_the_command_line_says_what_is_wrong_and_exits_2_before_spark_starts(
    setting: str, word: str, corpus: str, tmp_path: Path
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        yaml.safe_dump(
            {"stages": {"web": {"stage": "ingest", "path": corpus}, "pii": {"inputs": "web"}}}, sort_keys=False
        )
    )
    arguments = ["gristmill", "run", str(file), "--output", str(tmp_path / "out"), "--set", setting]
    code = f"""
import sys
sys.argv = {arguments!r}
from gristmill.jobs.cli import main
try:
    main()
finally:
    print("pyspark" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout.strip() == "False"
    assert done.stderr.startswith("error: ")
    assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_missing_pipeline_file_names_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text("stages: {}")
    with pytest.raises(ConfigError, match="Did you mean 'web.yaml'"):
        config.load(str(tmp_path / "wbe.yaml"))


@pytest.mark.parametrize("name", ["demo.yaml", "web.yaml"])
def test_the_pipelines_that_we_ship_are_valid(name: str) -> None:
    loaded = config.load(str(Path(__file__).resolve().parent.parent / "pipelines" / name))
    assert loaded.nodes[-1].name == "cards"


def test_secrets_are_not_written_into_manifests_but_count_for_identity(corpus: str) -> None:
    def record(salt: str) -> Any:
        stages = {"web": {"stage": "ingest", "path": corpus}, "pii": {"email": "pseudonym", "salt": salt}}
        return planned(stages).units[1].records[0]

    one, other = record("correct horse battery"), record("another long secret")
    assert "horse" not in one.model_dump_json()
    assert one.config["salt"].startswith("blake2b:")
    assert one.fingerprint != other.fingerprint
