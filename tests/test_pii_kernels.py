"""The personal-data kernels against plain Python: check digits, masks, and time that is linear in hostile text."""

from __future__ import annotations

import ipaddress
import re
import time
from datetime import date
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stdnum import iban, luhn
from stdnum.cn import ric

from gristmill import stages
from gristmill.stages.kernels.pii import Spans, scan, splice
from gristmill.stages.kernels.pii_tables import KINDS
from gristmill.stages.kernels.views import text_view

MANY = settings(deadline=None, max_examples=80)


def found(text: str, kinds: tuple[str, ...] = KINDS) -> list[tuple[str, str]]:
    """Return ``(kind, value)`` of each identifier."""
    offsets, data = text_view(pa.array([text], pa.large_string()))
    spans = scan(offsets, data, kinds)
    return [
        (KINDS[k], data[a:b].tobytes().decode()) for a, b, k in zip(spans.start, spans.end, spans.kind, strict=True)
    ]


@MANY
@given(
    st.lists(st.text(max_size=30), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 90), st.integers(0, 30), st.integers(0, 2)), max_size=12),
)
def test_splice_equals_python_slices(texts: list[str], wanted: list[tuple[int, int, int, int]]) -> None:
    tags = [b"", b"<X>", "标".encode()]
    documents = [text.encode() for text in texts]
    array = pa.array(documents, pa.large_binary()).slice(0)
    offsets, data = text_view(array)
    rows: list[tuple[int, int, int, int]] = []
    for doc, start, size, tag in sorted(wanted):
        inside = doc < len(documents) and start + size <= len(documents[doc])
        if inside and (not rows or rows[-1][0] != doc or rows[-1][2] <= start):
            rows.append((doc, start, start + size, tag))
    expected = []
    for number, document in enumerate(documents):
        at, out = 0, b""
        for doc, start, end, tag in rows:
            if doc == number:
                out += document[at:start] + tags[tag]
                at = end
        expected.append(out + document[at:])
    doc, start, end, which = np.array(rows, np.int64).reshape(-1, 4).T.copy()
    spans = Spans(doc, start + offsets[doc], end + offsets[doc], np.zeros(len(doc), np.uint8))
    new_offsets, new_data = splice(offsets, data, spans, which, tags)
    assert [new_data[a:b].tobytes() for a, b in pairwise(new_offsets)] == expected


@MANY
@given(st.text(alphabet="0123456789 -.@:+()abXx=/_\n中é", max_size=80))
def test_spans_are_ordered_disjoint_and_independent_of_neighbours(text: str) -> None:
    offsets, data = text_view(pa.array(["5", text, "7@"], pa.large_string()))
    spans = scan(offsets, data, KINDS)
    assert (spans.start[1:] >= spans.end[:-1]).all() and (spans.start < spans.end).all()
    values = [
        (KINDS[k], data[a:b].tobytes().decode()) for a, b, k in zip(spans.start, spans.end, spans.kind, strict=True)
    ]
    assert values == found(text)


@MANY
@given(st.integers(0, 10**15 - 1), st.sampled_from(["4", "52", "601100"]))
def test_card_is_found_exactly_where_luhn_holds(body: int, prefix: str) -> None:
    number = (prefix + f"{body:015d}")[:16]
    assert (found(f"card {number}") == [("credit_card", number)]) == luhn.is_valid(number)


@MANY
@given(st.integers(0, 999), st.dates(min_value=date(1900, 1, 1)), st.sampled_from("0123456789X"))
def test_identity_card_is_found_exactly_where_stdnum_agrees(serial: int, born: date, check: str) -> None:
    number = f"110105{born:%Y%m%d}{serial:03d}{check}"
    expected = number[-1] == ric.calc_check_digit(number) and 1850 <= int(number[6:10]) <= 2099
    assert (found(f"号{number}号", ("cn_id",)) == [("cn_id", number)]) == expected


@MANY
@given(st.integers(0, 10**18 - 1), st.integers(2, 98))
def test_iban_is_found_exactly_where_stdnum_agrees(account: int, check: int) -> None:
    number = f"DE{check:02d}{account:018d}"
    assert (found(f"an {number}.", ("iban",)) == [("iban", number)]) == iban.is_valid(number, check_country=False)


@MANY
@given(st.lists(st.integers(0, 300), min_size=4, max_size=5))
def test_address_is_one_that_the_standard_library_calls_global(octets: list[int]) -> None:
    text = ".".join(map(str, octets))
    got = found(f"ip {text}", ("ip",))
    expected = len(octets) == 4 and max(octets) < 256 and max(octets) > 9 and 0 < octets[0] < 224
    if got:
        assert expected and got == [("ip", text)]
    elif expected and ipaddress.ip_address(text).is_global:
        pytest.fail(f"{text} was not found")


def test_email_equals_a_regular_expression_on_plain_text() -> None:
    pattern = re.compile(r"(?<![\w.%+'-])[a-z0-9][a-z0-9._]*@(?:[a-z0-9]+\.)+[a-z]{2,}(?![\w.@-])")
    rng = np.random.default_rng(5)
    for _ in range(300):
        text = "".join(rng.choice(list("ab1.@ _")) for _ in range(24)) + " a.b@cd.ef "
        for match in pattern.finditer(text):
            value = match.group()
            if ".." not in value and "._." not in value and value.split("@")[0][-1] not in "._":
                assert ("email", value) in found(text), text


HOSTILE = {
    "digits": "1234567890",
    "at signs": "@",
    "half addresses": "a@",
    "domains": "x@a.bb.cc.d",
    "hexadecimal": "a:",
    "full groups": "2001:",
    "single digits": "1 ",
    "groups": "1234 ",
    "hyphens": "123-456-",
    "mobiles": "13812345678 ",
    "dotted": "1.22.",
    "keys": "-----BEGIN PRIVATE KEY-----",
    "tokens": "eyJ",
    "urls": "://a:bbbb@",
    "parentheses": "(1)(",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_takes_linear_time(name: str) -> None:
    def seconds(n: int) -> float:
        data = np.frombuffer((HOSTILE[name] * (n // len(HOSTILE[name]))).encode(), np.uint8)
        began = time.process_time()
        scan(np.array([0, len(data)], np.int64), data, KINDS)
        return time.process_time() - began

    seconds(1000)
    small = min(seconds(200_000) for _ in range(2))
    assert seconds(1_600_000) < 8 * 4 * small + 0.05


def test_one_document_with_every_identifier_two_hundred_thousand_times() -> None:
    text = "a@b.cn 电话13812345678 " * 200_000
    out = stages.create("pii").transform(pa.record_batch({"text": pa.array([text], pa.large_string())}))
    assert out.column("pii_email_n").to_pylist() == [200_000]
    assert out.column("text")[0].as_py() == "<EMAIL> 电话<PHONE> " * 200_000


def test_empty_batch_and_control_characters() -> None:
    stage = stages.create("pii")
    assert stage.transform(pa.record_batch({"text": pa.array([], pa.large_string())})).num_rows == 0
    text = "\x00\ufeff\U0010ffffa@b.cn\x00"
    out = stage.transform(pa.record_batch({"text": pa.array([text], pa.large_string())}))
    assert out.column("text").to_pylist() == ["\x00\ufeff\U0010ffff<EMAIL>\x00"]
