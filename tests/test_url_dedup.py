"""Canonical URLs and one document a URL."""

from __future__ import annotations

import pyarrow as pa
import pytest
from dedup_corpus import make_artifact, removed, run_stage
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.stages.kernels.urls import TRACKING, canonical_urls, parameter_hashes
from gristmill.stages.kernels.views import text_array, text_view
from gristmill.stages.url_dedup import UrlDedup

DROPPED = parameter_hashes(TRACKING)


def canonical(*urls: str) -> list[str]:
    view = text_view(pa.array(["https://skip.example/", *urls], pa.large_string()).slice(1))
    offsets_D1, data_B = canonical_urls(*view, DROPPED)
    return text_array(offsets_D1, data_B).cast(pa.large_binary()).to_pylist()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://www.Example.org/", "example.org"),
        ("HTTP://user:pw@example.org:80/a/b/", "example.org/a/b"),
        ("https://example.org:443?b=2&a=1#top", "example.org?a=1&b=2"),
        ("https://example.org:8080/x", "example.org:8080/x"),
        ("https://example.org./p?utm_source=x&UTM_medium=y&id=7&fbclid=z", "example.org/p?id=7"),
        ("https://example.org/p?gclid=1", "example.org/p"),
        ("https://example.org/%7euser/%2fx%c3%a9?q=%41+b", "example.org/~user/%2Fx%C3%A9?q=A+b"),
        ("https://example.org/app#!/page", "example.org/app#!/page"),
        ("ftp://Example.org/File", "ftp://example.org/File"),
        ("  https://例子.cn/路径/ ", "例子.cn/路径"),
        ("example.org/path/", "example.org/path/"),
        ("https://example.org/a?&&b=1&", "example.org/a?b=1"),
        ("https://example.org/100%", "example.org/100%"),
        ("https://example.org/a?b=%4", "example.org/a?b=%4"),
        ("https://", ""),
        ("", ""),
        (" \t", ""),
    ],
)
def test_known_urls(url, expected):
    assert canonical(url) == [expected.encode()]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.text(st.sampled_from(list("htps:/w.@#!?&=%4aA1~é utm_")), max_size=40), max_size=6))
def test_any_text_is_taken_and_repeating_changes_nothing_more(urls):
    first = canonical(*urls)
    assert len(first) == len(urls)
    assert all(len(out) <= len(url.encode()) for out, url in zip(first, urls, strict=True))
    assert [canonical(url)[0] for url in urls] == first


def test_latest_document_of_a_page_is_kept(spark, tmp_path):
    documents = [
        {"id": "old", "text": "a", "url": "http://www.example.org/x", "date": "2023-01-05"},
        {"id": "new", "text": "b", "url": "https://example.org/x/?utm_source=n", "date": "2024-02-01"},
        {"id": "undated", "text": "c", "url": "https://example.org/x", "date": None},
        {"id": "other", "text": "d", "url": "https://example.org/y", "date": "2023-01-05"},
        {"id": "none1", "text": "e"},
        {"id": "none2", "text": "f", "url": ""},
    ]
    artifact = make_artifact(tmp_path, documents, 2)
    outcome = run_stage(spark, UrlDedup.build(), artifact)
    assert {id_: kept for id_, (kept, _) in removed(outcome).items()} == {"old": "new", "undated": "new"}
