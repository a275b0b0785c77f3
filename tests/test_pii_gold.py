"""Recall and precision on presidio-research's 1,500 labelled documents, and on Chinese cases of our own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from gristmill.stages.kernels.pii import scan
from gristmill.stages.kernels.pii_tables import KINDS
from gristmill.stages.kernels.views import text_view

GOLD = Path(__file__).parents[2] / "shared" / "data" / "pii" / "synth_dataset_v2.json"
TYPES = {
    "EMAIL_ADDRESS": "email", "PHONE_NUMBER": "phone", "IP_ADDRESS": "ip", "CREDIT_CARD": "credit_card",
    "IBAN_CODE": "iban", "US_SSN": "us_ssn",
}  # fmt: skip
FLOORS = {
    "email": (1.0, 1.0), "phone": (0.95, 0.97), "ip": (1.0, 1.0), "credit_card": (0.98, 1.0), "iban": (1.0, 1.0),
    "us_ssn": (1.0, 1.0),
}  # fmt: skip
"""Least recall and precision by type."""


def test_recall_and_precision_on_labelled_documents() -> None:
    if not GOLD.exists():
        pytest.skip(f"{GOLD.name} of presidio-research is not at {GOLD.parent}")
    documents = json.loads(GOLD.read_text(encoding="utf-8"))
    offsets, data = text_view(pa.array([document["full_text"] for document in documents], pa.large_string()))
    spans = scan(offsets, data, KINDS)
    ours: dict[int, list[tuple[str, int, int]]] = {}
    for doc, start, end, kind in zip(*spans, strict=True):
        text = data[offsets[doc] : end].tobytes().decode()
        size = len(data[start:end].tobytes().decode())
        ours.setdefault(int(doc), []).append((KINDS[kind], len(text) - size, len(text)))
    hit, missed, wrong = Counter[str](), Counter[str](), Counter[str]()
    for number, document in enumerate(documents):
        gold = [
            (TYPES[span["entity_type"]], span["start_position"], span["end_position"])
            for span in document["spans"]
            if span["entity_type"] in TYPES
        ]
        got = ours.get(number, [])
        for kind, start, end in gold:
            overlap = any(k == kind and a < end and start < b for k, a, b in got)
            (hit if overlap else missed)[kind] += 1
        for kind, start, end in got:
            wrong[kind] += not any(k == kind and a < end and start < b for k, a, b in gold)
    for kind, (recall, precision) in FLOORS.items():
        assert hit[kind] / (hit[kind] + missed[kind]) >= recall, kind
        assert hit[kind] / (hit[kind] + wrong[kind]) >= precision, kind


CHINESE = [
    ("请联系张经理13912345678或发邮件至zhang.san@corp.com.cn咨询。", ["13912345678", "zhang.san@corp.com.cn"]),
    ("姓名：李四，身份证：11010519491231002X，电话：010-62345678转801", ["11010519491231002X", "010-62345678"]),
    ("微信同号186 1234 5678，QQ邮箱12345678@qq.com", ["186 1234 5678", "12345678@qq.com"]),
    ("全国统一客服热线400-810-8888，传真(0755)26543210。", ["400-810-8888", "(0755)26543210"]),
    ("收款账户6222021234567890128，开户行工商银行", ["6222021234567890128"]),
    ("服务器IP为47.95.164.112，端口8080", ["47.95.164.112"]),
    ("国际长途+86-10-62345678与+86 138 1234 5678均可", ["+86-10-62345678", "+86 138 1234 5678"]),
    ("香港办事处電話+852 2345 6789，台北+886 2 2345 6789", ["+852 2345 6789", "+886 2 2345 6789"]),
    ("订单号20231112345678901，金额12345.67元，共13800件", []),
    ("圆周率是3.14159265358979323846，版本12.34.56.78，2023年11月12日", []),
    ("第11.2.3.4节，ISBN 978-7-111-21382-6，邮编100084，车牌京A12345", []),
    ("编号110105194912310021校验不对，统一社会信用代码91110000100003962T", []),
    ("时间戳1700000000000，学号20231234567，股票代码600519", []),
]


@pytest.mark.parametrize(("text", "values"), CHINESE)
def test_identifiers_in_chinese_text(text: str, values: list[str]) -> None:
    offsets, data = text_view(pa.array([text], pa.large_string()))
    spans = scan(offsets, data, KINDS)
    assert [data[a:b].tobytes().decode() for a, b in zip(spans.start, spans.end, strict=True)] == values
