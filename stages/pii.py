"""Personal data and secrets: find, count, then mask, pseudonymise, drop or only flag, by type.

One compiled pass over the Arrow buffer (`kernels.pii`) finds exact, validated spans; Python touches only identity
card numbers (county register) and pseudonyms. A replacement depends on the value alone, never on its position or
on other documents, so output is the same however documents are batched. See docs/pii.md for rules and figures.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field, field_validator

from gristmill.stages.base import REASON_FIELDS, BatchStage, replace_columns
from gristmill.stages.errors import ConfigError, nearest
from gristmill.stages.kernels.pii import Spans, scan, splice
from gristmill.stages.kernels.pii_tables import CN_ID, KINDS
from gristmill.stages.kernels.views import Bytes, text_array, text_view

Action = Literal["off", "flag", "mask", "pseudonym", "drop"]
"""off: not looked for; flag: counted; mask: replaced by a tag; pseudonym: replaced by a tag with a keyed hash of the
value, the same for the same value everywhere; drop: the document is rejected."""

TAGS = {
    "email": "<EMAIL>",
    "phone": "<PHONE>",
    "ip": "<IP>",
    "credit_card": "<CREDIT_CARD>",
    "cn_id": "<CN_ID>",
    "iban": "<IBAN>",
    "us_ssn": "<US_SSN>",
    "secret": "<SECRET>",
}


class Pii(BatchStage):
    """Find personal data in `text`; write a count per type; mask it or reject the document."""

    name: ClassVar[str] = "pii"
    version: ClassVar[int] = 1
    summary: ClassVar[str] = "mask e-mail, phone, IP, cards, Chinese ID, IBAN, SSN and secrets; or drop the document"

    email: Action = Field(default="mask", description="e-mail addresses")
    phone: Action = Field(
        default="mask", description="phone numbers: E.164, Chinese, North American; others in context"
    )
    ip: Action = Field(default="mask", description="IPv4 and IPv6 addresses")
    credit_card: Action = Field(default="mask", description="payment cards: issuer range, length and Luhn check")
    cn_id: Action = Field(default="mask", description="Chinese resident identity cards: checksum, birth date, county")
    iban: Action = Field(default="mask", description="bank accounts: country length and MOD 97 check")
    us_ssn: Action = Field(default="mask", description="US social security numbers, 3-2-4 with valid area")
    secret: Action = Field(
        default="mask", description="keys and tokens of known services, JWT, private key blocks, passwords in URLs"
    )
    keep_reserved_ips: bool = Field(
        default=True, description="leave private, loopback, link-local and documentation addresses alone"
    )
    tags: dict[str, str] = Field(
        default={}, description="replacement by type where the default such as <EMAIL> will not do"
    )
    salt: str = Field(
        json_schema_extra={"secret": True},
        default="",
        description="secret key of the pseudonyms, at least 16 characters; needed by action pseudonym",
    )
    allow: tuple[str, ...] = Field(
        default=(), description="exact values left alone, without regard to ASCII case, e.g. info@example.org"
    )
    max_per_kb: float | None = Field(
        default=None, gt=0, description="reject documents with more identifiers per 1,000 bytes than this (at least 5)"
    )

    @field_validator("tags")
    @classmethod
    def _known_types(cls, tags: dict[str, str]) -> dict[str, str]:
        for kind in tags:
            if kind not in KINDS:
                raise ValueError(f"unknown type {kind!r}.{nearest(kind, KINDS)} Known: {', '.join(KINDS)}")
        return tags

    def model_post_init(self, _: object) -> None:
        """Refuse what no field can refuse alone.

        Raises:
            ConfigError: a pseudonym without a salt, or a salt that is too short to be one.
        """
        hashed = [kind for kind in KINDS if self.action(kind) == "pseudonym"]
        if hashed and len(self.salt) < 16:
            raise ConfigError(
                f"{self.name}.salt: pseudonyms of {', '.join(hashed)} need a secret salt of at least 16 characters; "
                f"got {len(self.salt)}. Without one, phone and ID numbers can be found again by trying them all"
            )

    def action(self, kind: str) -> Action:
        """Return what is done with identifiers of type `kind`."""
        value: Action = getattr(self, kind)
        return value

    def _kinds(self, *actions: str) -> tuple[str, ...]:
        return tuple(kind for kind in KINDS if self.action(kind) in actions)

    def writes(self) -> tuple[pa.Field, ...]:
        """``text``; ``pii_<type>_n`` int32 where looked for; ``pii_<type>_removed_bytes`` int64 where edited."""
        counts = [pa.field(f"pii_{kind}_n", pa.int32()) for kind in self._kinds("flag", "mask", "pseudonym", "drop")]
        edited = [pa.field(column, pa.int64()) for column in self.edits().values()]
        text = [pa.field("text", pa.large_string())] if edited else []
        return (*text, *counts, *edited)

    def edits(self) -> dict[str, str]:
        """Ledger reason ``pii_<type>`` -> column of bytes removed (negative: the tag is longer than the value)."""
        return {f"pii_{kind}": f"pii_{kind}_removed_bytes" for kind in self._kinds("mask", "pseudonym")}

    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with masked text, counts, edited bytes and the verdict."""
        offsets_D1, data_B = text_view(batch.column("text"))
        n_docs = batch.num_rows
        sought = self._kinds("flag", "mask", "pseudonym", "drop")
        spans = scan(offsets_D1, data_B, sought, self.keep_reserved_ips)
        spans = self._confirmed(spans, data_B)
        counts_KD = np.zeros((len(KINDS), n_docs), np.int32)
        np.add.at(counts_KD, (spans.kind, spans.doc), 1)
        columns: dict[str, pa.Array] = {}
        edited = self.edits()
        if edited:
            chosen = np.array([self.action(kind) in ("mask", "pseudonym") for kind in KINDS])
            cut = spans.where(chosen[spans.kind])
            removed_KD = np.zeros((len(KINDS), n_docs), np.int64)
            if len(cut.doc):
                which_S, tags = self._replacements(cut, data_B)
                lengths_T = np.array([len(tag) for tag in tags], np.int64)
                np.add.at(removed_KD, (cut.kind, cut.doc), cut.end - cut.start - lengths_T[which_S])
                columns["text"] = text_array(*splice(offsets_D1, data_B, cut, which_S, tags))
            for kind in self._kinds("mask", "pseudonym"):
                edited_column = edited[f"pii_{kind}"]
                columns[edited_column] = pa.array(removed_KD[KINDS.index(kind)])
        counts = {f"pii_{kind}_n": pa.array(counts_KD[KINDS.index(kind)]) for kind in sought}
        order = [*(["text"] if "text" in columns else []), *counts, *edited.values()]
        columns = {name: counts[name] if name in counts else columns[name] for name in order}
        verdict = self._verdict(counts_KD, np.diff(offsets_D1))
        return replace_columns(batch, {**columns, **verdict})

    def _confirmed(self, spans: Spans, data_B: Bytes) -> Spans:
        """Return the spans without identity cards of unknown counties and without allowed values."""
        keep_S = np.ones(len(spans.doc), np.bool_)
        for s in np.flatnonzero(spans.kind == CN_ID):
            at = spans.start[s]
            keep_S[s] = county_exists(data_B[at : at + 6].tobytes())
        if self.allow:
            allowed = {value.lower().encode() for value in self.allow}
            longest = max(map(len, allowed))
            for s in np.flatnonzero(spans.end - spans.start <= longest):
                value = data_B[spans.start[s] : spans.end[s]].tobytes().lower()
                keep_S[s] = keep_S[s] and value not in allowed
        return spans if keep_S.all() else spans.where(keep_S)

    def _replacements(self, spans: Spans, data_B: Bytes) -> tuple[npt.NDArray[np.int64], list[bytes]]:
        """Return for each span the number of its tag, and the tags."""
        plain = [self.tags.get(kind, TAGS[kind]).encode() for kind in KINDS]
        which_S = spans.kind.astype(np.int64)
        hashed = np.array([self.action(kind) == "pseudonym" for kind in KINDS])
        extra: dict[bytes, int] = {}
        for s in np.flatnonzero(hashed[spans.kind]):
            kind = KINDS[spans.kind[s]]
            value = data_B[spans.start[s] : spans.end[s]].tobytes()
            tag = pseudonym(plain[spans.kind[s]], kind, value, self.salt)
            which_S[s] = extra.setdefault(tag, len(plain) + len(extra))
        return which_S, [*plain, *extra]

    def _verdict(self, counts_KD: npt.NDArray[np.int32], n_bytes_D: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
        n_docs = len(n_bytes_D)
        reason: npt.NDArray[np.object_] = np.full(n_docs, None, object)
        value_D = np.full(n_docs, np.nan)
        threshold_D = np.full(n_docs, np.nan)
        if self.max_per_kb is not None:
            total_D = counts_KD.sum(axis=0)
            density_D = total_D * 1000 / np.maximum(n_bytes_D, 1)
            dense_D = (total_D >= 5) & (density_D > self.max_per_kb)
            reason[dense_D] = "pii_density"
            value_D[dense_D] = density_D[dense_D]
            threshold_D[dense_D] = self.max_per_kb
        for kind in reversed(self._kinds("drop")):
            n_D = counts_KD[KINDS.index(kind)]
            hit_D = n_D > 0
            reason[hit_D] = f"pii_{kind}"
            value_D[hit_D] = n_D[hit_D]
            threshold_D[hit_D] = 0
        kept_D = np.isnan(value_D)
        arrays = (
            pa.array(reason, pa.string()),
            pa.array(value_D, pa.float64(), mask=kept_D),
            pa.array(threshold_D, pa.float64(), mask=kept_D),
        )
        return {field.name: array for field, array in zip(REASON_FIELDS, arrays, strict=True)}


@lru_cache(maxsize=65_536)
def county_exists(code: bytes) -> bool:
    """Return whether six digits are a county code of the register, past or present (GB/T 2260 and 81-83)."""
    from stdnum import numdb

    if code in (b"810000", b"820000", b"830000"):
        return True
    return any(info for _, info in numdb.get("cn/loc").info(code.decode()))


def pseudonym(tag: bytes, kind: str, value: bytes, salt: str) -> bytes:
    """Return `tag` with 48 bits of a keyed hash of the value: ``<EMAIL>`` becomes ``<EMAIL:9f86d081884c>``.

    The same person's value gives the same pseudonym in any writing: case is ignored, and in numbers everything but
    digits and letters. Keyed BLAKE2b (RFC 7693), so that nobody without the salt can try all numbers.
    """
    value = value.lower()
    if kind in ("phone", "credit_card", "cn_id", "iban", "us_ssn"):
        value = bytes(byte for byte in value if chr(byte).isalnum() and byte < 128)
    digest = hashlib.blake2b(value, digest_size=6, key=hashlib.blake2b(salt.encode()).digest(), person=kind.encode())
    end = len(tag) - 1 if tag.endswith((b">", b"]", b"}")) else len(tag)
    return tag[:end] + b":" + digest.hexdigest().encode() + tag[end:]
