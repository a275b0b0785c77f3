"""Opens shard sets: nothing is read but `shards.json` until a shard is touched.

A shard is opened on first use: its manifest is held against the digest in `shards.json`, the sizes of its
files and the header of its `.idx` against the manifest, the document starts against their checksum. Tokens
are read by `preadv` into the caller's buffer, not through a map: a truncated file or a failing disk is then
an exception with shard and offset, and not a SIGBUS that kills the training job. That has a price: 32 rows of
4 KiB from the page cache take about 40 us, and 11 to 15 us through a map. At most 256 shards are open at a time,
one descriptor each, and up to 65 more that a thread which fills batches holds on to.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.packing.activity import doing
from gristmill.packing.cache import Cache, RemoteFolder
from gristmill.packing.errors import (
    ArgumentError,
    ShardCorruptError,
    ShardFormatError,
    ShardMissingError,
    ShardReadError,
    problem,
)
from gristmill.packing.format import (
    INDEX_HEADER,
    SET_FILE,
    SET_MAGIC,
    SHARD_MAGIC,
    canonical_json,
    crc32,
    decode_index_header,
    digest,
    read_bytes,
    read_index,
    read_json,
    read_sealed,
    unpack_block_sums,
)
from gristmill.packing.table import Table

MAX_OPEN_SHARDS = 256
VERIFY = ("first", "always", "never")


@dataclass(frozen=True)
class Provenance:
    """Where a token comes from. `first_token` counts from the start of the shard."""

    document_id: str
    source: str
    url: str
    shard: str
    document: int
    first_token: int
    n_tokens: int


class Shard:
    """One open shard. Thread-safe: reads share nothing but the record of verified blocks."""

    def __init__(
        self,
        directory: Path | RemoteFolder,
        entry: dict[str, Any],
        common: dict[str, Any],
        *,
        verify: str,
        retries: int,
    ) -> None:
        """Open and check the four files against `entry`, this shard's line in `shards.json`.

        Raises:
            ShardMissingError, ShardFormatError, ShardCorruptError: with the file and what differs.
        """
        self.name = str(entry["name"])
        self._remote = directory if isinstance(directory, RemoteFolder) else None
        if isinstance(directory, RemoteFolder):
            # Small files are fetched whole and read as local ones; `.bin` comes in chunks, when it is read.
            for kind in ("manifest.json", "idx", "provenance"):
                local = directory.file(f"{self.name}.{kind}")
            directory = local.parent
        self.directory = directory
        self.verify_mode = verify
        self._retries = retries
        path = directory / f"{self.name}.manifest.json"
        manifest, raw = read_json(path, SHARD_MAGIC)
        if digest(raw) != entry["manifest"]:
            raise ShardCorruptError(
                problem(
                    "stale or foreign manifest: its digest is not the one in shards.json",
                    where=path,
                    expected=entry["manifest"],
                    got=digest(raw),
                    then="shards of two runs are mixed in this folder: copy the whole set again",
                )
            )
        for key in ("dtype", "tokenizer", "eos_id", "vocab_size"):
            if manifest[key] != common[key]:
                raise ShardFormatError(
                    problem(f"{key} differs from the set's", where=path, expected=common[key], got=manifest[key])
                )
        self.manifest = manifest
        self.dtype = np.dtype(manifest["dtype"]).newbyteorder("<")
        self.n_tokens = int(manifest["n_tokens"])
        self.n_documents = int(manifest["n_documents"])
        self.path = directory / f"{self.name}.bin"
        self._check_sizes()
        self.block_bytes = int(manifest["blocks"]["n_bytes"])
        self._sums = unpack_block_sums(manifest["blocks"]["crc32"])
        if digest(self._sums.tobytes()) != manifest["files"]["bin"]["blocks_digest"]:
            raise ShardCorruptError(problem("block checksums are damaged", where=path, then="copy it again"))
        self._seen = bytearray(len(self._sums))
        self._unseen = len(self._sums)
        self.clean = verify == "never"
        self.table = Table(directory / f"{self.name}.provenance", int(manifest["files"]["provenance"]["n_bytes"]))
        self.first_token: npt.NDArray[np.int64] = self.table.array("first_token", verify=verify != "never")
        if len(self.first_token) != self.n_documents + 1 or int(self.first_token[-1]) != self.n_tokens:
            raise ShardCorruptError(
                problem(
                    "provenance belongs to another shard",
                    where=self.table.path,
                    expected=f"{self.n_documents:,} documents, {self.n_tokens:,} tokens",
                    got=f"{len(self.first_token) - 1:,} documents, {int(self.first_token[-1]):,} tokens",
                    then="files were swapped: copy the shard again",
                )
            )
        self._check_index()
        self.fd = -1 if self._remote else os.open(self.path, os.O_RDONLY)

    def __del__(self) -> None:
        fd = getattr(self, "fd", -1)
        if fd >= 0:
            os.close(fd)
            self.fd = -1

    def read_into(self, out: npt.NDArray[Any], first: int) -> None:
        """Fill `out` (contiguous, the shard's dtype) with tokens [first, first + len(out)).

        Raises:
            ShardCorruptError: a touched block fails its checksum, or the file ended early.
            ShardReadError: the read kept failing.
        """
        self.read_bytes_into(out, first * self.dtype.itemsize)

    def read_bytes_into(self, out: npt.NDArray[Any], offset: int) -> None:
        """As `read_into`, from a byte offset."""
        try:
            done = os.preadv(self.fd, [out.data], offset)
        except OSError:
            done = -1
        if done != out.nbytes:
            self.read_slowly(out.data.cast("B"), offset)
        if not self.clean:
            self.check(offset, out.nbytes)

    def check(self, offset: int, n_bytes: int) -> None:
        """Verify the blocks that bytes [offset, offset + n_bytes) touch, unless they are known to be good."""
        low, high = offset // self.block_bytes, (offset + n_bytes - 1) // self.block_bytes + 1
        if self.verify_mode == "always" or 0 in self._seen[low:high]:
            self.verify_blocks(low, high)

    def read(self, first: int, n_tokens: int) -> npt.NDArray[Any]:
        """Return tokens [first, first + n_tokens) as a new array of the stored dtype."""
        out = np.empty(n_tokens, self.dtype)
        if n_tokens:
            self.read_into(out, first)
        return out

    def verify_blocks(self, low: int, high: int) -> None:
        """Check blocks [low, high) of `.bin` that are not known to be good.

        Raises:
            ShardCorruptError: names the first bad block's bytes.
        """
        with doing(f"checking {self.path} from byte {low * self.block_bytes:,} on"):
            self._verify_blocks(low, high)

    def _verify_blocks(self, low: int, high: int) -> None:
        n_bytes = self.n_tokens * self.dtype.itemsize
        for block in range(low, high):
            if self._seen[block] and self.verify_mode != "always":
                continue
            start = block * self.block_bytes
            raw = bytearray(min(self.block_bytes, n_bytes - start))
            if self._remote is None:
                self.read_slowly(memoryview(raw), start)
            else:
                self._remote.read_into(self.path.name, memoryview(raw), start, n_bytes)
                if crc32(raw) != self._sums[block]:
                    self._remote.drop(self.path.name, start, start + len(raw))
                    self._remote.read_into(self.path.name, memoryview(raw), start, n_bytes)
            if crc32(raw) != self._sums[block]:
                raise ShardCorruptError(
                    problem(
                        f"checksum of bytes {start:,} to {start + len(raw):,} fails",
                        where=self.path,
                        expected=f"{self._sums[block]:08x}",
                        got=f"{crc32(raw):08x}",
                        then="the file was damaged after it was written, or belongs to another set: copy it again",
                    )
                )
            if not self._seen[block]:
                self._seen[block] = 1
                self._unseen -= 1
        self.clean = self.verify_mode != "always" and self._unseen <= 0

    def verify(self) -> None:
        """Read everything once and check every checksum and cross-reference.

        Raises:
            ShardCorruptError: the first difference found.
        """
        for kind in ("idx", "provenance"):
            path = self.directory / f"{self.name}.{kind}"
            want = self.manifest["files"][kind]["crc32"]
            got = f"{crc32(read_bytes(path)):08x}"
            if got != want:
                raise ShardCorruptError(
                    problem("checksum of the file fails", where=path, expected=want, got=got, then="copy it again")
                )
        self._seen, self._unseen, self.clean = bytearray(len(self._sums)), len(self._sums), False
        self.verify_blocks(0, len(self._sums))
        _, lengths, _, bounds = read_index(self.directory / f"{self.name}.idx")
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])[bounds]
        if not np.array_equal(ends, self.first_token):
            raise ShardCorruptError(problem("index and provenance disagree on document bounds", where=self.table.path))

    def document(self, number: int) -> npt.NDArray[Any]:
        """Return the tokens of one document, EOS included where it was appended."""
        first, last = int(self.first_token[number]), int(self.first_token[number + 1])
        return self.read(first, last - first)

    def provenance(self, number: int) -> Provenance:
        """Return where document `number` of this shard comes from."""
        first, last = int(self.first_token[number]), int(self.first_token[number + 1])
        source = self.table.string("sources", int(self.table.array("source")[number]))
        return Provenance(
            self.table.string("id", number),
            source,
            self.table.string("url", number),
            self.name,
            number,
            first,
            last - first,
        )

    def _check_sizes(self) -> None:
        for kind, facts in self.manifest["files"].items():
            if kind == "bin" and self._remote is not None:
                continue
            path = self.directory / f"{self.name}.{kind}"
            try:
                got = path.stat().st_size
            except FileNotFoundError:
                raise ShardMissingError(problem("file is missing", where=path, then="copy the shard again")) from None
            if got != facts["n_bytes"]:
                raise ShardCorruptError(
                    problem(
                        "truncated or overlong file",
                        where=path,
                        expected=f"{facts['n_bytes']:,} bytes",
                        got=f"{got:,}",
                        then="copy it again",
                    )
                )
        path = self.directory / f"{self.name}.idx"
        with path.open("rb") as stream:
            header = decode_index_header(stream.read(INDEX_HEADER.size), path)
        want = (self.manifest["dtype"], self.manifest["n_sequences"], self.n_documents)
        if (header.dtype, header.n_sequences, header.n_documents) != want:
            raise ShardFormatError(
                problem(
                    "header of .idx disagrees with the manifest",
                    where=path,
                    expected=want,
                    got=(header.dtype, header.n_sequences, header.n_documents),
                    then="the index was rewritten or swapped: copy the shard again",
                )
            )

    def _check_index(self) -> None:
        """Hold some pointers of `.idx` against the document starts: what was swapped in has others.

        Pointers are sums of all lengths before them, so a few of them see every difference. Documents of several
        sequences (2^31 tokens or more) are left to `verify`.
        """
        n = self.n_documents
        if not n or int(self.manifest["n_sequences"]) != n or self.verify_mode == "never":
            return
        path = self.directory / f"{self.name}.idx"
        with path.open("rb") as stream:
            for document in {0, n // 3, n // 2, n - 1}:
                stream.seek(INDEX_HEADER.size + 4 * n + 8 * document)
                got = int.from_bytes(stream.read(8), "little")
                want = int(self.first_token[document]) * self.dtype.itemsize
                if got != want:
                    raise ShardCorruptError(
                        problem(
                            f"pointer of document {document:,} is not where the document begins",
                            where=path,
                            expected=want,
                            got=got,
                            then="files were swapped: copy the shard again",
                        )
                    )

    def read_slowly(self, view: memoryview, offset: int) -> None:
        """Read with retries and back-off until `view` is full."""
        with doing(f"reading {self.path} at byte {offset:,}"):
            self._read_slowly(view, offset)

    def _read_slowly(self, view: memoryview, offset: int) -> None:
        if self._remote is not None:
            if not self.clean:
                self.check(offset, len(view))
            self._remote.read_into(self.path.name, view, offset, self.n_tokens * self.dtype.itemsize)
            return
        done, failures = 0, 0
        while done < len(view):
            try:
                got = os.preadv(self.fd, [view[done:]], offset + done)
            except OSError as error:
                failures += 1
                if failures > self._retries:
                    raise ShardReadError(
                        problem(
                            f"reading failed {failures} times ({error})",
                            where=f"{self.path} at byte {offset + done:,}",
                            then="check the disk or mount",
                        )
                    ) from error
                time.sleep(min(0.05 * 2**failures, 5.0))
                continue
            if got == 0:
                raise ShardCorruptError(
                    problem(
                        "file ends early: it was truncated while open",
                        where=self.path,
                        expected=f"{self.n_tokens * self.dtype.itemsize:,} bytes",
                        got=f"{offset + done:,}",
                        then="copy it again",
                    )
                )
            done += got


class ShardSet:
    """An ordered set of shards seen as one stream of tokens and one list of documents."""

    def __init__(
        self,
        entries: list[tuple[Path | RemoteFolder, dict[str, Any]]],
        common: dict[str, Any],
        verify: str,
        retries: int,
    ) -> None:
        """Use `open_shards` to make one."""
        self._entries = entries
        self._common = common
        self._verify = verify
        self._retries = retries
        self._open: dict[int, Shard] = {}
        self._lock = threading.Lock()
        self.dtype = np.dtype(common["dtype"]).newbyteorder("<")
        self.vocab_size = int(common["vocab_size"])
        self.eos_id: int | None = common["eos_id"]
        self.tokenizer = str(common["tokenizer"])
        self.eos_policy = str(common["eos_policy"])
        self.token_starts = np.cumsum([0, *(int(e["n_tokens"]) for _, e in entries)], dtype=np.int64)
        self.document_starts = np.cumsum([0, *(int(e["n_documents"]) for _, e in entries)], dtype=np.int64)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["_open"] = {}
        state.pop("_lock")
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def n_tokens(self) -> int:
        """Tokens of all shards, EOS included."""
        return int(self.token_starts[-1])

    @property
    def n_documents(self) -> int:
        """Documents of all shards."""
        return int(self.document_starts[-1])

    @cached_property
    def identity(self) -> str:
        """Content hash of the set: tokenizer, dtype and every shard's manifest; paths do not enter it."""
        return digest(canonical_json([self._common, [entry for _, entry in self._entries]]))

    def emptied(self, identity: str) -> ShardSet:
        """Return a set of no shards, of the same tokenizer, that goes by the identity of one that is gone."""
        out = ShardSet([], self._common, self._verify, self._retries)
        out.__dict__["identity"] = identity
        return out

    def name_of(self, number: int) -> str:
        """Return a shard's name without opening it."""
        return str(self._entries[number][1]["name"])

    def place_of(self, token: int) -> str:
        """Return the file and byte of a token of the stream, without opening the shard."""
        number = max(min(int(np.searchsorted(self.token_starts, token, side="right")) - 1, len(self) - 1), 0)
        if not self._entries:
            return "a source that is gone"
        directory, entry = self._entries[number]
        offset = (token - int(self.token_starts[number])) * self.dtype.itemsize
        return f"{directory}/{entry['name']}.bin at byte {offset:,}"

    def shard(self, number: int) -> Shard:
        """Return shard `number`, opening and checking it on first use."""
        shard = self._open.get(number)
        if shard is None:
            with self._lock:
                shard = self._open.get(number)
                if shard is None:
                    directory, entry = self._entries[number]
                    with doing(f"opening {directory}/{entry['name']}"):
                        shard = Shard(directory, entry, self._common, verify=self._verify, retries=self._retries)
                    self._open[number] = shard
                    if len(self._open) > MAX_OPEN_SHARDS:
                        del self._open[next(iter(self._open))]
        return shard

    def read_into(self, out: npt.NDArray[Any], first: int) -> None:
        """Fill `out` with tokens [first, first + len(out)) of the stream, across shard borders."""
        number = int(self.token_starts.searchsorted(first, side="right")) - 1
        at = 0
        while at < len(out):
            stop = int(self.token_starts[number + 1])
            step = min(len(out) - at, stop - (first + at))
            if step > 0:
                part = out[at : at + step]
                self.shard(number).read_into(part, first + at - int(self.token_starts[number]))
            at += step
            number += 1

    def tokens(self, first: int, last: int) -> npt.NDArray[Any]:
        """Return tokens [first, last) of the stream as a new array of the stored dtype."""
        if not 0 <= first <= last <= self.n_tokens:
            raise ArgumentError(
                problem(
                    "token range outside the set",
                    where="ShardSet.tokens",
                    expected=f"within [0, {self.n_tokens:,}]",
                    got=f"[{first:,}, {last:,})",
                )
            )
        out = np.empty(last - first, self.dtype)
        self.read_into(out, first)
        return out

    def document(self, number: int) -> npt.NDArray[Any]:
        """Return the tokens of document `number` of the set."""
        shard, local = self._place(number)
        return self.shard(shard).document(local)

    def provenance(self, number: int) -> Provenance:
        """Return where document `number` of the set comes from."""
        shard, local = self._place(number)
        return self.shard(shard).provenance(local)

    def locate(self, token: int) -> Provenance:
        """Return the document that token `token` of the stream belongs to."""
        if not 0 <= token < self.n_tokens:
            raise ArgumentError(
                problem("no such token", where="ShardSet.locate", expected=f"below {self.n_tokens:,}", got=token)
            )
        number = int(np.searchsorted(self.token_starts, token, side="right")) - 1
        shard = self.shard(number)
        local = token - int(self.token_starts[number])
        return shard.provenance(int(np.searchsorted(shard.first_token, local, side="right")) - 1)

    def documents_at(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the numbers of the documents that tokens of the stream belong to."""
        number = np.searchsorted(self.token_starts, tokens, side="right") - 1
        out = np.empty(len(tokens), np.int64)
        for shard in np.unique(number).tolist():
            mine = number == shard
            starts, local = self.shard(shard).first_token, tokens[mine] - self.token_starts[shard]
            out[mine] = self.document_starts[shard] + np.searchsorted(starts, local, side="right") - 1
        return out

    def find(self, document_id: str) -> list[int]:
        """Return the numbers of the documents with this id, by one scan of the id columns."""
        found: list[int] = []
        for number in range(len(self)):
            base = int(self.document_starts[number])
            found += [base + row for row in self.shard(number).table.find_string("id", document_id)]
        return found

    def document_tokens(self, number: int) -> tuple[int, int]:
        """Return the token range [first, last) of document `number` in the stream."""
        shard, local = self._place(number)
        base = int(self.token_starts[shard])
        starts = self.shard(shard).first_token
        return base + int(starts[local]), base + int(starts[local + 1])

    def verify(self) -> None:
        """Check every byte of every shard.

        Raises:
            ShardMissingError, ShardFormatError, ShardCorruptError: the first difference found.
        """
        for number in range(len(self)):
            self.shard(number).verify()

    def _place(self, number: int) -> tuple[int, int]:
        if not 0 <= number < self.n_documents:
            raise ArgumentError(
                problem("no such document", where="ShardSet", expected=f"below {self.n_documents:,}", got=number)
            )
        shard = int(np.searchsorted(self.document_starts, number, side="right")) - 1
        return shard, number - int(self.document_starts[shard])


def open_shards(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    verify: str = "first",
    retries: int = 4,
    cache: Cache | None = None,
) -> ShardSet:
    """Open one shard set, or several as one stream in the given order.

    Args:
        paths: folders that hold a `shards.json`, or `s3://`, `http://` or `https://` URLs of such.
        verify: "first" checks each block the first time it is read, "always" each time, "never" not at all.
        retries: how often a failing read is tried again, with doubling pauses.
        cache: where chunks of remote shards are kept; needed for URLs.

    Raises:
        ShardMissingError: no `shards.json`.
        ShardFormatError: unknown version, or the sets disagree on tokenizer, dtype or EOS.
    """
    if verify not in VERIFY:
        raise ArgumentError(problem("unknown verify mode", where="open_shards", expected=VERIFY, got=verify))
    several = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not several:
        raise ArgumentError(problem("no paths given", where="open_shards", expected="at least one folder", got=0))
    entries: list[tuple[Path | RemoteFolder, dict[str, Any]]] = []
    common: dict[str, Any] = {}
    keys = ("dtype", "vocab_size", "eos_id", "eos_policy", "tokenizer")
    for item in several:
        root: Path | RemoteFolder
        if "://" in str(item):
            if cache is None:
                raise ArgumentError(
                    problem("remote shards need a cache", where=item, then="pass cache=Cache(folder, limit_bytes)")
                )
            root = RemoteFolder(str(item), cache, retries)
            manifest = root.file(SET_FILE)
        else:
            root = Path(item)
            manifest = root / SET_FILE
        if not manifest.exists():
            raise ShardMissingError(
                problem(
                    f"no {SET_FILE} here",
                    where=root,
                    then="give the folder that `pack` wrote; bring Megatron, datatrove, OLMo or MDS files in with "
                    "gristmill.packing.importers",
                )
            )
        value = read_sealed(manifest, SET_MAGIC)
        mine = {key: value[key] for key in keys}
        if common and mine != common:
            differing = [key for key in keys if mine[key] != common[key]]
            raise ShardFormatError(
                problem(
                    f"sets differ in {', '.join(differing)}",
                    where=root,
                    expected={key: common[key] for key in differing},
                    got={key: mine[key] for key in differing},
                    then="encode both with one tokenizer",
                )
            )
        common = mine
        entries += [(root, entry) for entry in value["shards"]]
    return ShardSet(entries, common, verify, retries)
