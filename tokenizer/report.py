"""The tokenizer report: how many tokens each language and script needs, on documents held out from training.

* bytes per token: UTF-8 bytes over tokens, higher is denser; the number that compares vocabularies.
* tokens per character: the same for scripts whose words have no spaces (Chinese, Japanese, Thai).
* tokens per word (fertility, Rust et al. 2021, arXiv:2012.15613): tokens over pre-tokens that hold a letter or a
  number; for a script without spaces such a pre-token is a clause, so read tokens per character there.
* unused: tokens that no document of the training sample or the held-out documents comes out with; a few per cent
  are stepping stones of longer merges.
* common Chinese characters: the 3,755 of GB 2312 level 1 that are one token each.
"""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.stages.kernels.pretokenize import NO_SPLIT
from gristmill.stages.kernels.unicode import SCRIPT_NAMES
from gristmill.stages.kernels.word_facts import word_facts
from gristmill.tokenizer.count import Counted, Words
from gristmill.tokenizer.encode import AnyEncoder, Encoder

CHUNK = 1 << 20
N_EXAMPLES = 20
_SUMS = ("bytes", "chars", "words", "tokens")


def make_report(
    encoder: AnyEncoder,
    counted: Counted,
    pattern: str | None = None,
    given: str | None = None,
    compare: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the report as JSON data. Deterministic: no paths but the given ones, no times.

    `pattern`: the split it was trained with, None for a given tokenizer, whose own tokens the tasks have counted.
    """
    split = Encoder(replace(encoder.model, pattern=NO_SPLIT)) if isinstance(encoder, Encoder) else None
    used = np.zeros(encoder.vocab_size, np.int64)
    if split is not None and len(counted.train):
        used += _usage(split, counted.train)[1]
    languages = []
    scripts: dict[str, dict[str, int]] = {}
    for language, words in sorted(counted.held_out.items()):
        script_W, char_W, is_word_W = word_facts(words.offsets_W1, words.data_B)
        tokens_W = np.zeros(len(words), np.int64)
        if split is not None:
            tokens_W, usage = _usage(split, words)
            used += usage
        totals = counted.held_out_totals[language]
        sums_W = np.stack([np.diff(words.offsets_W1), char_W, is_word_W, tokens_W]) * words.counts_W
        row = dict(zip(_SUMS, sums_W.sum(axis=1).tolist(), strict=True))
        if given is not None:
            row["tokens"] = totals[2]
        languages.append({"language": language, "documents": totals[0], **row})
        for script in np.unique(script_W).tolist():
            sums = sums_W[:, script_W == script].sum(axis=1).tolist()
            place = scripts.setdefault(SCRIPT_NAMES[script], dict.fromkeys(_SUMS, 0))
            for name, value in zip(_SUMS, sums, strict=True):
                place[name] += value
    whole = {name: sum(row[name] for row in languages) for name in ("documents", *_SUMS)}
    languages.sort(key=lambda row: (-row["bytes"], row["language"]))
    by_bytes = sorted(scripts.items(), key=lambda item: (-item[1]["bytes"], item[0]))
    return {
        "vocab_size": encoder.vocab_size,
        "eos_id": encoder.eos_id,
        "pattern": pattern,
        "given": given,
        "note": encoder.note,
        "training": None if given is not None else _training(counted),
        "held_out": _rates(whole),
        "languages": [_rates(row) for row in languages],
        "scripts": [_rates({"script": name, **row}) for name, row in by_bytes] if split is not None else [],
        "compare": _comparison(counted, compare, whole["tokens"], 2 + (given is not None)),
        **(_vocabulary(encoder, used) if isinstance(encoder, Encoder) else {}),
    }


def _training(counted: Counted) -> dict[str, int]:
    return {
        "documents": counted.train_totals[0],
        "bytes": counted.train_totals[1],
        "pretokens": int(counted.train.counts_W.sum()),
        "distinct_pretokens": len(counted.train),
    }


def _usage(split: Encoder, words: Words) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Tokens of each word, and how often each token comes out in all."""
    tokens_W = np.zeros(len(words), np.int64)
    used = np.zeros(split.vocab_size, np.float64)
    for first in range(0, len(words), CHUNK):
        part = slice(first, min(first + CHUNK, len(words)))
        tokens, offsets = split.encode_batch(words.offsets_W1[first : part.stop + 1], words.data_B)
        tokens_W[part] = np.diff(offsets)
        used += np.bincount(tokens, np.repeat(words.counts_W[part], tokens_W[part]), split.vocab_size)
    return tokens_W, used.astype(np.int64)


def _rates(row: dict[str, Any]) -> dict[str, Any]:
    tokens, chars, words = row["tokens"], row["chars"], row["words"]
    return {
        **row,
        "bytes_per_token": round(row["bytes"] / tokens, 4) if tokens else None,
        "tokens_per_char": round(tokens / chars, 4) if tokens and chars else None,
        "tokens_per_word": round(tokens / words, 4) if tokens and words else None,
    }


def _comparison(counted: Counted, names: tuple[str, ...], ours: int, first: int) -> list[dict[str, Any]]:
    rows = []
    for k, name in enumerate(names):
        by_language = {language: sums[first + k] for language, sums in sorted(counted.held_out_totals.items())}
        tokens = sum(by_language.values())
        n_bytes = sum(sums[1] for sums in counted.held_out_totals.values())
        rows.append(
            {
                "path": name,
                "tokens": tokens,
                "bytes_per_token": round(n_bytes / tokens, 4) if tokens else None,
                "tokens_to_ours": round(tokens / ours, 4) if ours else None,
                "languages": by_language,
            }
        )
    return rows


def _vocabulary(encoder: Encoder, used: npt.NDArray[np.int64]) -> dict[str, Any]:
    model = encoder.model
    special = set(model.specials.values())
    ordinary = [i for i, token in enumerate(model.tokens) if token and i not in special]
    unused = [i for i in ordinary if not used[i]] if used.any() else []
    longest = sorted(ordinary, key=lambda i: (-len(model.tokens[i]), i))[:N_EXAMPLES]
    known = {model.tokens[i] for i in ordinary}
    common = bytes(b for high in range(0xB0, 0xD8) for low in range(0xA1, 0xFF) for b in (high, low))
    characters = common.decode("gb2312", "ignore")
    return {
        "special_tokens": model.specials,
        "unused": {
            "tokens": len(unused),
            "single_bytes": sum(len(model.tokens[i]) == 1 for i in unused),
            "examples": [{"id": i, "text": show(model.tokens[i])} for i in unused if len(model.tokens[i]) > 1][
                :N_EXAMPLES
            ],
        },
        "longest": [{"id": i, "n_bytes": len(model.tokens[i]), "text": show(model.tokens[i])} for i in longest],
        "chinese": {
            "common_characters": len(characters),
            "single_tokens": sum(character.encode() in known for character in characters),
        },
    }


def show(token: bytes) -> str:
    """Return a token as a person can read it: text, with what is not text escaped."""
    text = token.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _tables(report: dict[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, head and rows of each table of the report."""

    def number(value: Any) -> str:
        return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.3f}"

    rates = ("bytes", "tokens", "bytes_per_token", "tokens_per_char", "tokens_per_word")
    head = ["bytes", "tokens", "bytes/token", "tokens/char", "tokens/word"]
    tables = []
    if report["languages"]:
        rows = [["all", *(number(report["held_out"][r]) for r in rates)]]
        rows += [[row["language"] or "unknown", *(number(row[r]) for r in rates)] for row in report["languages"]]
        tables.append(("Held-out documents by language", ["language", *head], rows))
    if report["scripts"]:
        rows = [[row["script"], *(number(row[r]) for r in rates)] for row in report["scripts"]]
        tables.append(("Held-out pre-tokens by script", ["script", *head], rows))
    if report["compare"]:
        rows = [
            [row["path"], number(row["tokens"]), number(row["bytes_per_token"]), number(row["tokens_to_ours"])]
            for row in report["compare"]
        ]
        tables.append(("Other tokenizers on the same documents", ["path", "tokens", "bytes/token", "to this"], rows))
    if report.get("longest"):
        rows = [[str(row["id"]), str(row["n_bytes"]), repr(row["text"])] for row in report["longest"]]
        tables.append(("Longest tokens", ["id", "bytes", "text"], rows))
    return tables


def _facts(report: dict[str, Any]) -> list[tuple[str, str]]:
    facts = [("vocabulary", f"{report['vocab_size']:,} tokens, end-of-text id {report['eos_id']}")]
    if report["given"]:
        facts.append(("taken from", report["given"]))
    if report["note"]:
        facts.append(("note", report["note"]))
    if report["training"]:
        t = report["training"]
        facts.append(
            (
                "trained on",
                f"{t['documents']:,} documents, {t['bytes']:,} bytes, {t['pretokens']:,} pre-tokens, "
                f"{t['distinct_pretokens']:,} of them distinct, split by {report['pattern']}",
            )
        )
    if "unused" in report:
        facts.append(
            ("unused", f"{report['unused']['tokens']:,} tokens, {report['unused']['single_bytes']} of them bytes")
        )
        c = report["chinese"]
        facts.append(
            ("Chinese", f"{c['single_tokens']:,} of {c['common_characters']:,} common characters are one token")
        )
    return facts


def as_text(report: dict[str, Any]) -> str:
    """Return the report for a terminal."""
    lines = [f"{name}: {value}" for name, value in _facts(report)]
    for title, head, rows in _tables(report):
        widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]
        lines += ["", title]
        for row in [head, *rows]:
            cells = [
                cell.ljust(width) if k == 0 or not _is_number(cell) else cell.rjust(width)
                for k, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "").isdigit() or cell == ""


def as_html(report: dict[str, Any]) -> str:
    """Return the report as an HTML fragment, one ``<section>``; every text from the corpus is escaped."""
    parts = ["<section class='tokenizer'>", "<dl>"]
    parts += [f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in _facts(report)]
    parts.append("</dl>")
    for title, head, rows in _tables(report):
        parts.append(f"<h3>{escape(title)}</h3><table><thead><tr>")
        parts += [f"<th>{escape(cell)}</th>" for cell in head]
        parts.append("</tr></thead><tbody>")
        parts += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
        parts.append("</tbody></table>")
    return "\n".join([*parts, "</section>"])
