"""JSON Lines to documents: blocks of lines through the kernels of `kernels.jsonlines`, no Python object a record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.stages.errors import RunError
from gristmill.stages.ingest import build
from gristmill.stages.ingest.decode import BrokenStreamError, decoded_blocks, range_blocks
from gristmill.stages.kernels import jsonlines
from gristmill.stages.kernels.views import text_array, text_view
from gristmill.stages.ledger import Count
from gristmill.stages.passes import PREFIX_BYTES, Sink

BLOCK_BYTES = 8 << 20
REST = "metadata"
BOM = b"\xef\xbb\xbf"
"""Some programs begin a UTF-8 file with it; it belongs to the first line's framing."""

Spans = npt.NDArray[np.int64]


@dataclass(frozen=True)
class JsonlPlan:
    """What a reader of JSON Lines needs to know. `paths`: column -> dotted field; `types`: column -> Arrow type."""

    node: str
    paths: dict[str, str]
    types: dict[str, pa.DataType]
    source: str
    schema: pa.Schema
    max_record_bytes: int


def read(
    plan: JsonlPlan, path: str, name: str, start: int, stop: int, first_line: int, sink: Sink
) -> Iterator[pa.RecordBatch]:
    """Yield the documents of one file or of its bytes ``[start, stop)`` (`stop` < 0: all of it, decompressed).

    `first_line` is the number of lines before `start`; `name` is how the file is called in ids and quarantine.
    """
    entry = sink.entry(plan.node)
    before = entry.into.n_bytes
    blocks = decoded_blocks(path, BLOCK_BYTES) if stop < 0 else range_blocks(path, start, stop, BLOCK_BYTES)
    lines = _Lines(plan, name, start, first_line, sink)
    total = 0
    try:
        for block in blocks:
            total += len(block)
            yield from lines.feed(block)
        yield from lines.end()
    except BrokenStreamError as error:
        # What was read of the record that the damage cut is quarantined with the damage itself.
        raw = lines.take_rest()
        reason = "truncated_stream" if "runcated" in error.detail else "broken_stream"
        build.quarantine(
            sink,
            plan.node,
            reason,
            len(raw),
            raw,
            file=name,
            line=lines.line + 1,
            offset=lines.offset,
            detail=f"{error.detail}; nothing after decoded byte {error.offset:,} could be read",
        )
    if entry.into.n_bytes - before != total:
        raise RunError(f"{path}: {total:,} bytes were decoded, {entry.into.n_bytes - before:,} accounted for")


class _Lines:
    """Cuts blocks into whole lines and turns them into batches; holds at most one incomplete line."""

    def __init__(self, plan: JsonlPlan, name: str, offset: int, line: int, sink: Sink) -> None:
        self.plan, self.name, self.offset, self.line, self.sink = plan, name, offset, line, sink
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._skipped = 0
        self._skip_prefix = b""

    def feed(self, block: bytes) -> Iterator[pa.RecordBatch]:
        cut = block.rfind(b"\n") + 1
        if self._skipped:
            first = block.find(b"\n") + 1
            self._skipped += first or len(block)
            if not first:
                return
            self._end_skip()
            block, cut = block[first:], cut - first
        if cut:
            whole = b"".join([*self._held, block[:cut]])
            self._held, self._held_bytes = [], 0
            yield from self._rows(whole, final=False)
        if len(block) > cut:
            self._held.append(block[cut:])
            self._held_bytes += len(block) - cut
            if self._held_bytes > self.plan.max_record_bytes:
                self._skipped = self._held_bytes
                self._skip_prefix = b"".join(self._held)[:PREFIX_BYTES]
                self._held, self._held_bytes = [], 0

    def end(self) -> Iterator[pa.RecordBatch]:
        if self._skipped:
            self._end_skip()
        elif self._held:
            whole = self.take_rest()
            yield from self._rows(whole, final=True)

    def take_rest(self) -> bytes:
        """Return the incomplete line; an oversized one is booked first."""
        if self._skipped:
            self._end_skip()
        rest = b"".join(self._held)
        self._held, self._held_bytes = [], 0
        return rest

    def _end_skip(self) -> None:
        build.quarantine(
            self.sink,
            self.plan.node,
            "record_too_large",
            self._skipped,
            self._skip_prefix,
            file=self.name,
            line=self.line + 1,
            offset=self.offset,
            detail=f"more than {self.plan.max_record_bytes:,} bytes",
        )
        self.offset += self._skipped
        self.line += 1
        self._skipped = 0

    def _rows(self, whole: bytes, final: bool) -> Iterator[pa.RecordBatch]:
        data_B = np.frombuffer(whole, np.uint8)
        n_lines = whole.count(b"\n") + 1
        starts_R, ends_R = np.empty(n_lines, np.int64), np.empty(n_lines, np.int64)
        n_lines, used = jsonlines.find_lines(data_B, len(data_B), final, starts_R, ends_R)
        assert used == len(data_B)
        starts_R, ends_R = starts_R[:n_lines], ends_R[:n_lines]
        # A record's bytes include its LF, which the last line of a file may lack.
        sizes_R = np.minimum(ends_R + 1, len(data_B)) - starts_R
        too_large_R = sizes_R > self.plan.max_record_bytes
        if self.offset == 0 and whole.startswith(BOM):
            starts_R[0] += len(BOM)
        batch = self._documents(data_B, starts_R, ends_R, sizes_R, too_large_R)
        self.line += n_lines
        self.offset += len(data_B)
        if batch is not None:
            yield batch

    def _documents(
        self, data_B: Any, starts_R: Spans, ends_R: Spans, sizes_R: Spans, too_large_R: npt.NDArray[np.bool_]
    ) -> pa.RecordBatch | None:
        plan = self.plan
        top = sorted({path.partition(".")[0] for path in plan.paths.values()})
        keys = jsonlines.join_keys(top)
        spans_RK2 = np.empty((len(starts_R), len(top), 2), np.int64)
        status_R = np.zeros(len(starts_R), np.uint8)
        jsonlines.scan_records(data_B, starts_R, ends_R, *keys, spans_RK2, status_R, True)
        reasons = np.array(jsonlines.REASONS, object)[status_R]
        spans_RK2[status_R != jsonlines.OK] = -1
        blank = status_R == jsonlines.BLANK
        reasons[too_large_R & ~blank] = "record_too_large"
        spans = {column: self._resolve(data_B, spans_RK2, top, path) for column, path in plan.paths.items()}

        details = np.full(len(starts_R), None, object)
        good = reasons == ""
        first_B = data_B[np.maximum(spans["text"][:, 0], 0)]
        absent = spans["text"][:, 0] < 0
        reasons[good & (absent | (first_B == ord("n")))] = "missing_text"
        reasons[(reasons == "") & (first_B != ord('"'))] = "text_not_string"
        text, fault_R = _strings(data_B, np.where((reasons == "")[:, None], spans["text"], -1))
        faulty = fault_R != jsonlines.OK
        reasons[faulty] = np.array(jsonlines.REASONS, object)[fault_R[faulty]]

        columns: dict[str, pa.Array] = {"text": text}
        for column in plan.paths:
            if column != "text":
                columns[column], bad = _typed(data_B, spans[column], plan.types.get(column, pa.string()))
                hit = bad & (reasons == "")
                reasons[hit] = "wrong_type"
                details[hit] = f"field {plan.paths[column]!r} is not {plan.types.get(column, pa.string())}"
        direct = [k for k, key in enumerate(top) if key in plan.paths.values()]
        if REST in plan.schema.names:
            columns[REST] = _rest(data_B, starts_R, ends_R, spans_RK2[:, direct], reasons == "")
        keep = reasons == ""
        self._book(data_B, starts_R, ends_R, sizes_R, reasons, details, blank)
        if not keep.any():
            return None
        n_lines = len(starts_R)
        constant = pa.repeat(pa.scalar(plan.source, pa.string()), n_lines)
        columns["source"] = pc.coalesce(columns["source"], constant) if "source" in columns else constant
        row = pa.array(np.arange(self.line, self.line + n_lines)).cast(pa.string())
        own = pc.binary_join_element_wise(columns["source"], pa.scalar(f"/{self.name}#"), "")
        own = pc.binary_join_element_wise(own, row, "")
        columns["id"] = pc.coalesce(columns["id"], own) if "id" in columns else own
        if not keep.all():
            mask = pa.array(keep)
            columns = {column: array.filter(mask) for column, array in columns.items()}
        batch = build.finish(columns, plan.schema)
        entry = self.sink.entry(plan.node)
        raw_bytes = int(sizes_R[keep].sum())
        entry.into.add(batch.num_rows, raw_bytes)
        entry.edited.setdefault("framing", Count()).add(batch.num_rows, raw_bytes - build.book_kept(entry, batch))
        return batch

    def _resolve(self, data_B: Any, spans_RK2: Spans, top: list[str], path: str) -> Spans:
        """Return the span of a dotted field in each record."""
        head, _, tail = path.partition(".")
        found = np.ascontiguousarray(spans_RK2[:, top.index(head)])
        while tail:
            head, _, tail = tail.partition(".")
            inner = np.empty((len(found), 1, 2), np.int64)
            status = np.zeros(len(found), np.uint8)
            starts, ends = np.maximum(found[:, 0], 0), np.where(found[:, 0] < 0, 0, found[:, 1])
            jsonlines.scan_records(data_B, starts, ends, *jsonlines.join_keys([head]), inner, status, False)
            inner[status != jsonlines.OK] = -1
            found = np.ascontiguousarray(inner[:, 0])
        return found

    def _book(
        self, data_B: Any, starts_R: Spans, ends_R: Spans, sizes_R: Spans, reasons: Any, details: Any, blank: Any
    ) -> None:
        """Book blank lines as framing and bad records as quarantined."""
        entry = self.sink.entry(self.plan.node)
        if blank.any():
            n_bytes = int(sizes_R[blank].sum())
            entry.into.add(0, n_bytes)
            entry.edited.setdefault("framing", Count()).add(0, n_bytes)
        bad = np.flatnonzero((reasons != "") & ~blank)
        if not len(bad):
            return
        entry.into.add(len(bad), int(sizes_R[bad].sum()))
        ends = np.minimum(ends_R[bad], starts_R[bad] + PREFIX_BYTES)
        out_B, offsets = np.empty(int((ends - starts_R[bad]).sum()), np.uint8), np.empty(len(bad) + 1, np.int64)
        jsonlines.copy_spans(data_B, starts_R[bad], ends, out_B, offsets)
        prefix = pa.Array.from_buffers(pa.large_binary(), len(bad), [None, pa.py_buffer(offsets), pa.py_buffer(out_B)])
        self.sink.quarantine_rows(
            self.plan.node,
            {
                "reason": pa.array(reasons[bad], pa.string()),
                "file": pa.repeat(pa.scalar(self.name), len(bad)),
                "line": pa.array(self.line + bad + 1),
                "offset": pa.array(self.offset + starts_R[bad]),
                "n_bytes": pa.array(sizes_R[bad]),
                "detail": pa.array(details[bad], pa.string()),
                "prefix": prefix.cast(pa.binary()),
            },
        )


def _strings(data_B: Any, spans: Spans) -> tuple[pa.Array, npt.NDArray[np.uint8]]:
    """Return ``(large_string array, status)`` of quoted spans; absent ones are empty."""
    starts, ends = np.ascontiguousarray(spans[:, 0]), np.ascontiguousarray(spans[:, 1])
    out_B = np.empty(int((ends - starts).sum()) + 1, np.uint8)
    offsets = np.empty(len(spans) + 1, np.int64)
    status = np.zeros(len(spans), np.uint8)
    jsonlines.unescape(data_B, starts, ends, out_B, offsets, status)
    return text_array(offsets, out_B), status


def _raw(data_B: Any, spans: Spans) -> pa.Array:
    starts, ends = np.ascontiguousarray(spans[:, 0]), np.ascontiguousarray(spans[:, 1])
    out_B = np.empty(int((ends - starts).sum()) + 1, np.uint8)
    offsets = np.empty(len(spans) + 1, np.int64)
    jsonlines.copy_spans(data_B, starts, ends, out_B, offsets)
    return text_array(offsets, out_B)


def _typed(data_B: Any, spans: Spans, kind: pa.DataType) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Return ``(column, bad)`` of a declared type. As string, a value that is not a string is its JSON text."""
    first = data_B[np.maximum(spans[:, 0], 0)]
    absent = (spans[:, 0] < 0) | (first == ord("n"))
    quoted = ~absent & (first == ord('"'))
    strings, fault_R = _strings(data_B, np.where(quoted[:, None], spans, -1))
    bad = fault_R == jsonlines.LONE_SURROGATE
    plain = _raw(data_B, np.where((absent | quoted)[:, None], -1, spans))
    values = pc.if_else(pa.array(quoted), strings, plain)
    values = pc.if_else(pa.array(absent), pa.scalar(None, values.type), values)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return values.cast(kind), bad
    try:
        return values.cast(kind), bad
    except pa.ArrowInvalid:
        # Rare: some value is not of the declared type. Find which.
        out: list[Any] = []
        for at, value in enumerate(values):
            try:
                out.append(value.cast(kind).as_py())
            except pa.ArrowInvalid:
                out.append(None)
                bad[at] = True
        return pa.array(out, kind), bad


def _rest(data_B: Any, starts_R: Spans, ends_R: Spans, spans_RK2: Spans, good: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the members not asked for as a JSON object, null where there are none."""
    at = np.flatnonzero(good)
    starts, ends = starts_R[at], ends_R[at]
    out_B = np.empty(int((ends - starts).sum()) + 2 * len(at), np.uint8)
    offsets = np.empty(len(at) + 1, np.int64)
    jsonlines.copy_rest(data_B, starts, ends, np.ascontiguousarray(spans_RK2[at]), out_B, offsets)
    full = np.zeros(len(good) + 1, np.int64)
    full[1:][at] = np.diff(offsets)
    array = text_array(np.cumsum(full), out_B)
    lengths = np.diff(text_view(array)[0])
    return pc.if_else(pa.array(lengths > 0), array, pa.scalar(None, array.type)).cast(pa.string())
