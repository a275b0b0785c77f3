"""What is personal data and what is not, and what the stage does with it."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

from gristmill import stages
from gristmill.stages.errors import ConfigError
from gristmill.stages.kernels.pii import scan
from gristmill.stages.kernels.pii_tables import KINDS
from gristmill.stages.kernels.views import text_view


def found(text: str, kinds: tuple[str, ...] = KINDS, keep_reserved: bool = True) -> list[tuple[str, str]]:
    """Return ``(kind, value)`` of each identifier in `text`."""
    offsets, data = text_view(pa.array(["9", text, "@"], pa.large_string()))
    spans = scan(offsets, data, kinds, keep_reserved)
    assert (spans.doc == 1).all()
    return [
        (KINDS[kind], data[a:b].tobytes().decode())
        for a, b, kind in zip(spans.start, spans.end, spans.kind, strict=True)
    ]


SURE = [
    ("write to a.b-c+d@mail.example.co.uk.", "email", "a.b-c+d@mail.example.co.uk"),
    ("邮箱zhang@example.cn和", "email", "zhang@example.cn"),
    ("<mailto:x_y@xn--fiqs8s.xn--fiqz9s>", "email", "x_y@xn--fiqs8s.xn--fiqz9s"),
    ("13812345678@qq.com", "email", "13812345678@qq.com"),
    ("'bob@example.org'", "email", "bob@example.org"),
    ("email=foo@bar.io&x=1", "email", "foo@bar.io"),
    ("电话13812345678。", "phone", "13812345678"),
    ("手机：138-1234-5678", "phone", "138-1234-5678"),
    ("手机 138 1234 5678，", "phone", "138 1234 5678"),
    ("+86 13812345678", "phone", "+86 13812345678"),
    ("(+86)13812345678", "phone", "(+86)13812345678"),
    ("0086-13812345678", "phone", "0086-13812345678"),
    ("总机010-62345678转", "phone", "010-62345678"),
    ("拨打400-810-8888", "phone", "400-810-8888"),
    ("at 415-555-2671 now", "phone", "415-555-2671"),
    ("(415) 555-2671 x123", "phone", "(415) 555-2671 x123"),
    ("+1 (415) 555-2671", "phone", "+1 (415) 555-2671"),
    ("+44 7700 900123", "phone", "+44 7700 900123"),
    ("+41 (0)96 471 07 95", "phone", "+41 (0)96 471 07 95"),
    ("Tel: 0490 75 40 81", "phone", "0490 75 40 81"),
    ("call me at 07700 900123", "phone", "07700 900123"),
    ("тел. 495 123 45 67", "phone", "495 123 45 67"),
    ("from 172.61.42.192 to", "ip", "172.61.42.192"),
    ("address 82.50.72.20", "ip", "82.50.72.20"),
    ("the number is +81 3 5308 6120, call", "phone", "+81 3 5308 6120"),
    ("WhatsApp 13812345678", "phone", "13812345678"),
    ("张三,13812345678,女", "phone", "13812345678"),
    ("http://93.184.216.34:80/", "ip", "93.184.216.34"),
    ("地址为93.184.216.34。", "ip", "93.184.216.34"),
    ("2001:4860:4860::8888", "ip", "2001:4860:4860::8888"),
    ("[2606:2800:220:1:248:1893:25c8:1946]:443", "ip", "2606:2800:220:1:248:1893:25c8:1946"),
    ("4111111111111111", "credit_card", "4111111111111111"),
    ("card 5500 0000 0000 0004,", "credit_card", "5500 0000 0000 0004"),
    ("3782-822463-10005", "credit_card", "3782-822463-10005"),
    ("银行卡6222020200000000006", "credit_card", "6222020200000000006"),
    ("my card 30569309025904", "credit_card", "30569309025904"),
    ("身份证号11010519491231002X，", "cn_id", "11010519491231002X"),
    ("身份证11010519491231002x", "cn_id", "11010519491231002x"),
    ("440524 18800101 0014", "cn_id", "440524 18800101 0014"),
    ("身份证：110105491231002", "cn_id", "110105491231002"),
    ("GB82WEST12345698765432", "iban", "GB82WEST12345698765432"),
    ("IBAN DE89 3704 0044 0532 0130 00.", "iban", "DE89 3704 0044 0532 0130 00"),
    ("SSN 460-89-9847", "us_ssn", "460-89-9847"),
    ("key AKIAQ3EGT7UZ5ABCDWXY", "secret", "AKIAQ3EGT7UZ5ABCDWXY"),
    ("ghp_aB3dE6gH9kL2nP5rS8tV1xY4zA7cF0iJ3lM6", "secret", "ghp_aB3dE6gH9kL2nP5rS8tV1xY4zA7cF0iJ3lM6"),
    ("postgres://bob:s3cretpw@db.example.com/x", "secret", "s3cretpw"),
    ("AIzaSyD3rXkq9vT1mZ0pLw8Jc5Hb2Nf7Gx4Ry6u", "secret", "AIzaSyD3rXkq9vT1mZ0pLw8Jc5Hb2Nf7Gx4Ry6u"),
    ("sk-proj-a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8", "secret", "sk-proj-a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"),
    ("xoxb-123456789012-AbCdEfGhIjKlMnOp", "secret", "xoxb-123456789012-AbCdEfGhIjKlMnOp"),
]  # fmt: skip

NONE = [
    "3.14159265358979323846264338327950288", "version 12.34.56.78", "v2.13.40.1", "Chrome/91.23.44.124", "1.2.3.4",
    "\n12.6.2.1. Installing", "numpy==1.26.4.12", "pkg-1.22.13.41", "1.3.6.1.4.1", "256.1.1.1", "01.02.33.44",
    "10.20.130.40", "192.168.100.200", "127.0.0.1", "203.0.113.77", "12:34:56", "std::vector", "a::b", "fe80::1",
    "2001:db8::1", "00:1A:2B:3C:4D:5E", "2001::/32", "2023-11-12 10:30:00", "20231112", "1700000000", "1700000000123",
    "12345678901", "1234567890", "12,345,678,901", "1998-2003", "pages 1234-5678", "ISBN 978-3-16-148410-0",
    "4111111111111112", "1234 5678 9012 3456", "0000000000000000", "110105194912310021", "999999194912310025",
    "110105194913310020", "@decorator", "user@localhost", "icon@2x.png", "git@github.com:a/b.git", "a@b@c", "x@y.1",
    "AKIAIOSFODNN7EXAMPLE", "sk-this-is-only-a-sentence-with-many-words", "http://user:${PASSWORD}@host/",
    "666-12-3456", "123-00-4567", "GB82WEST12345698765433", "13812345678901", "X13812345678", "0x13812345678",
    "/item/13812345678.html", "12.13812345678", "-0.055782417923803", "00 20 00 00 00 00", "00400000-00452000",
    "total 14511243264", "Timestamp: 17107041535", "phone 1.000.000", "call 00000000", "tel 04/25/2017",
    "call 00 00 02 00 00 00", "Section\xa011.7.3.2", "0001:0002:0003:0004:0005:0006:0007:0008", "0014 95dc 0035 1670 0034 db30",
    "100-200-3000", "911-911-9111",
]  # fmt: skip


@pytest.mark.parametrize(("text", "kind", "value"), SURE)
def test_identifier_is_found_exactly(text: str, kind: str, value: str) -> None:
    assert found(text) == [(kind, value)]


@pytest.mark.parametrize("text", NONE)
def test_look_alike_is_left_alone(text: str) -> None:
    assert found(text) == []


def test_json_web_token_and_private_key_are_found_whole() -> None:
    token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"
    key = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEA0Z3\n" * 8 + "-----END RSA PRIVATE KEY-----"
    assert found(f"Bearer {token}, {key}.") == [("secret", token), ("secret", key)]
    assert found(key.replace("PRIVATE", "PUBLIC")) == []


def test_reserved_addresses_are_found_on_demand() -> None:
    assert found("10.20.130.40 fe80::1", keep_reserved=False) == [("ip", "10.20.130.40"), ("ip", "fe80::1")]


def batch(*texts: str) -> pa.RecordBatch:
    return pa.record_batch({"id": [str(i) for i in range(len(texts))], "text": pa.array(texts, pa.large_string())})


def test_mask_counts_and_edits_balance() -> None:
    stage = stages.create("pii")
    source = batch("电邮 a@b.cn 和 13812345678", "", "plain", "c@d.org c@d.org")
    out = stage.transform(source)
    assert out.column("text").to_pylist() == ["电邮 <EMAIL> 和 <PHONE>", "", "plain", "<EMAIL> <EMAIL>"]
    assert out.column("pii_email_n").to_pylist() == [1, 0, 0, 2]
    removed = sum(np.array(out.column(name)) for name in stage.edits().values())
    before = [len(text.encode()) for text in source.column("text").to_pylist()]
    after = [len(text.encode()) for text in out.column("text").to_pylist()]
    assert removed.tolist() == [a - b for a, b in zip(before, after, strict=True)]
    assert out.column("reason").null_count == 4


def test_columns_are_the_declared_ones() -> None:
    for options in ({}, {"email": "flag", "phone": "off"}, {"cn_id": "drop"}, dict.fromkeys(KINDS, "flag")):
        stage = stages.create("pii", **options)
        out = stage.transform(batch("a@b.cn"))
        declared = {field.name: field.type for field in stage.writes()}
        assert {name: out.schema.field(name).type for name in declared} == declared
        assert set(out.schema.names) == {"id", "text", *declared, "reason", "reason_value", "reason_threshold"}


def test_drop_names_the_type_and_the_count() -> None:
    out = stages.create("pii", email="drop", phone="flag").transform(batch("a@b.cn c@d.cn", "13812345678"))
    assert out.column("reason").to_pylist() == ["pii_email", None]
    assert out.column("reason_value").to_pylist() == [2.0, None]
    assert out.column("text").to_pylist() == ["a@b.cn c@d.cn", "13812345678"]


def test_density_rule_rejects_address_lists_only() -> None:
    stage = stages.create("pii", max_per_kb=10)
    out = stage.transform(batch("a@b.cn " * 20, "a@b.cn " * 5 + "word " * 300, "a@b.cn"))
    assert out.column("reason").to_pylist() == ["pii_density", None, None]


def test_pseudonym_depends_on_the_value_alone() -> None:
    stage = stages.create("pii", phone="pseudonym", email="pseudonym", salt="0123456789abcdef")
    one, two, other = (
        stage.transform(batch("电话13812345678", "x 138-1234-5678 Y@b.cn", "电话13812345679"))
        .column("text")
        .to_pylist()
    )
    assert one.startswith("电话<PHONE:") and one[2:] in two and one != other
    salted = stages.create("pii", phone="pseudonym", salt="another salt, long").transform(batch("电话13812345678"))
    assert salted.column("text").to_pylist() != [one]


def test_pseudonym_without_salt_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"pii\.salt"):
        stages.create("pii", email="pseudonym")


def test_unknown_tag_names_the_nearest_type() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'email'"):
        stages.create("pii", tags={"emial": "x"})


def test_allowed_value_is_left() -> None:
    out = stages.create("pii", allow=("Info@Example.org",)).transform(batch("info@example.org bob@example.org"))
    assert out.column("text").to_pylist() == ["info@example.org <EMAIL>"]


def test_result_is_independent_of_batches_and_survives_pickling() -> None:
    texts = [text for text, _, _ in SURE] + NONE
    stage = pickle.loads(pickle.dumps(stages.create("pii")))
    whole = stage.transform(batch(*texts))
    pieces = [stage.transform(batch(*texts).slice(i, 7)) for i in range(0, len(texts), 7)]
    assert pa.Table.from_batches(pieces).to_pylist() == pa.Table.from_batches([whole]).to_pylist()
