"""The JSON Lines kernels against Python's own json."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gristmill.stages.kernels import jsonlines as jl

KEYS = ["text", "id"]


def scan(line: bytes) -> tuple[int, list[bytes | None]]:
    data = np.frombuffer(line, np.uint8)
    spans, status = np.empty((1, len(KEYS), 2), np.int64), np.zeros(1, np.uint8)
    starts, ends = np.array([0]), np.array([len(line)])
    jl.scan_records(data, starts, ends, *jl.join_keys(KEYS), spans, status, True)
    return int(status[0]), [None if a < 0 else line[a:b] for a, b in spans[0]]


def rest(line: bytes) -> bytes:
    data = np.frombuffer(line, np.uint8)
    spans, status = np.empty((1, len(KEYS), 2), np.int64), np.zeros(1, np.uint8)
    starts, ends = np.array([0]), np.array([len(line)])
    jl.scan_records(data, starts, ends, *jl.join_keys(KEYS), spans, status, True)
    out, offsets = np.zeros(len(line) + 2, np.uint8), np.zeros(2, np.int64)
    jl.copy_rest(data, starts, ends, spans, out, offsets)
    return out[: offsets[1]].tobytes()


def unescape(quoted: bytes) -> str | None:
    data = np.frombuffer(quoted, np.uint8)
    out, offsets, status = np.zeros(len(quoted) + 1, np.uint8), np.zeros(2, np.int64), np.zeros(1, np.uint8)
    jl.unescape(data, np.array([0]), np.array([len(quoted)]), out, offsets, status)
    assert (status[0] == jl.NUL_BYTE) == (b"\0" in out[: offsets[1]].tobytes())
    return None if status[0] == jl.LONE_SURROGATE else out[: offsets[1]].tobytes().decode()


def strict_loads(line: bytes) -> Any:
    def refuse(word: str) -> Any:
        raise ValueError(word)

    return json.loads(line.decode(), parse_constant=refuse)


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(), v, max_size=3), max_leaves=8
)
records = st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=6), values, max_size=5)


@given(records, st.booleans(), st.sampled_from([None, 1]))
def test_valid_records_give_their_values_and_the_rest_is_kept(
    record: dict[str, Any], ascii_only: bool, indent: Any
) -> None:
    text = json.dumps(record, ensure_ascii=ascii_only, indent=indent)
    try:
        line = text.encode()
    except UnicodeEncodeError:
        return
    status, found = scan(line)
    assert status == jl.OK
    for key, raw in zip(KEYS, found, strict=True):
        assert (raw is not None) == (key in record)
        if raw is not None:
            assert json.loads(raw) == record[key]
    left = {k: v for k, v in record.items() if k not in KEYS}
    assert json.loads(rest(line) or b"{}") == left


@given(st.text(alphabet='{}[]:,"\\ntrue0123.eE+-u \t', max_size=24))
def test_any_line_is_valid_exactly_when_json_says_so(text: str) -> None:
    line = text.encode()
    status, _ = scan(line)
    try:
        value = strict_loads(line)
    except (ValueError, RecursionError):
        assert status in (jl.INVALID_JSON, jl.BLANK)
        return
    assert status in ((jl.OK, jl.DUPLICATE_KEY) if isinstance(value, dict) else (jl.NOT_AN_OBJECT,))


@given(records, st.integers(0, 200), st.integers(0, 255))
def test_one_changed_byte_never_crashes_and_agrees_with_json(record: dict[str, Any], at: int, byte: int) -> None:
    line = bytearray(json.dumps(record).encode())
    line[at % len(line)] = byte
    status, _ = scan(bytes(line))
    try:
        value = strict_loads(bytes(line))
        good = isinstance(value, dict)
    except ValueError:
        good = False
    if status == jl.DUPLICATE_KEY:
        return
    assert (status == jl.OK) == good


@given(st.text())
def test_unescaping_gives_the_string_back(text: str) -> None:
    quoted = json.dumps(text).encode()
    try:
        text.encode()
    except UnicodeEncodeError:
        assert unescape(quoted) is None
        return
    assert unescape(quoted) == text


@given(st.binary(max_size=12))
def test_utf8_errors_are_found_where_python_finds_them(raw: bytes) -> None:
    data = np.frombuffer(raw, np.uint8)
    at = jl.utf8_error(data, 0, len(raw))
    try:
        raw.decode()
        assert at == -1
    except UnicodeDecodeError as error:
        assert at == error.start


def test_nesting_is_bounded() -> None:
    deep = b'{"a":' + b"[" * 300 + b"]" * 300 + b"}"
    assert scan(deep)[0] == jl.TOO_DEEP
    fine = b'{"a":' + b"[" * 200 + b"]" * 200 + b"}"
    assert scan(fine)[0] == jl.OK


def test_duplicate_wanted_keys_are_refused() -> None:
    assert scan(b'{"text":"a","text":"b"}')[0] == jl.DUPLICATE_KEY
    assert scan(b'{"other":"a","other":"b"}')[0] == jl.OK


def test_surrogate_pairs_join_and_lone_ones_are_refused() -> None:
    assert unescape(rb'"\ud83d\ude00"') == "\U0001f600"
    assert unescape(rb'"\ud83d"') is None
    assert unescape(rb'"\ude00\ud83d"') is None
    assert unescape(rb'"nul \u0000"') == "nul \0"


@given(st.lists(st.binary(max_size=5).map(lambda b: b.replace(b"\n", b"x")), max_size=6), st.booleans())
def test_lines_are_found_and_no_byte_is_lost(lines: list[bytes], final: bool) -> None:
    data = b"\n".join(lines)
    buffer = np.frombuffer(data, np.uint8)
    starts, ends = np.empty(len(lines) + 1, np.int64), np.empty(len(lines) + 1, np.int64)
    n_lines, used = jl.find_lines(buffer, len(data), final, starts, ends)
    want = data.split(b"\n")[:-1] + ([data.rsplit(b"\n", 1)[-1]] if final and data and not data.endswith(b"\n") else [])
    assert [data[a:b] for a, b in zip(starts[:n_lines], ends[:n_lines], strict=True)] == want
    assert used == sum(len(x) for x in want) + len(want) - (1 if final and data and not data.endswith(b"\n") else 0)
