"""An S3-protocol server on loopback over a folder, which checks signatures and misbehaves as told.

It speaks what object stores do for readers and writers: GET with ranges, HEAD, PUT, multipart uploads, DELETE (one or
many), and listing. The bucket is called `data`; its objects are the files below `root`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.server
import threading
import time
import urllib.parse
import uuid
from collections import Counter
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest

ACCESS, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
BUCKET = "/data/"
XML = '<?xml version="1.0" encoding="UTF-8"?>'


class S3Server(http.server.ThreadingHTTPServer):
    """Counts reads by object and range in `seen`; `fail_every`, `cut_every`, `delay`, `always` misbehave.

    `refuse` is the end of a key that may not be written.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.root = root
        self.seen: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.refused: list[str] = []
        self.fail_every = 0
        self.cut_every = 0
        self.delay = 0.0
        self.always: int | None = None
        self.refuse: str | None = None
        self.n = 0
        self.uploads: dict[str, dict[int, bytes]] = {}
        self._lock, self._spared = threading.Lock(), set[str]()
        self.holding = threading.Event()
        self._free = threading.Event()
        self._free.set()
        self._hold_from: int | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def hold_after(self, n: int) -> None:
        """Answer n more requests, then none until `release`; `holding` is set once one waits."""
        self._free.clear()
        self._hold_from = self.n + n

    def release(self) -> None:
        self._hold_from = None
        self._free.set()

    def before_answer(self) -> None:
        self.n += 1
        time.sleep(self.delay)
        if self._hold_from is not None and self.n > self._hold_from:
            self.holding.set()
            self._free.wait(120)

    def misbehaves(self, every: int, path: str) -> bool:
        """Whether this is the time to; never twice in a row to one path, so that a client that tries again succeeds."""
        with self._lock:
            if path in self._spared:
                self._spared.discard(path)
                return False
            if every and self.n % every == 0:
                self._spared.add(path)
                return True
            return False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that were killed hang up: no traceback."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True
    server: S3Server

    def handle_one(self) -> None:
        server = self.server
        body = self.body()
        server.before_answer()
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        if server.always is not None or server.misbehaves(server.fail_every, self.path):
            return self.answer(server.always or 503, b"slow down")
        if not self.signed(url):
            server.refused.append(f"{self.command} {self.path}")
            return self.answer(403, b"bad signature")
        key = urllib.parse.unquote(url.path)
        if server.refuse is not None and self.command in ("PUT", "POST") and key.endswith(server.refuse):
            return self.answer(403, b"no")
        if key.rstrip("/") + "/" == BUCKET:
            return self.bucket(query, body)
        if not key.startswith(BUCKET):
            return self.answer(404, b"no such bucket")
        name = key.removeprefix(BUCKET)
        server.requests[self.command] += 1
        action = getattr(self, f"object_{self.command.lower()}")
        return action(server.root / name, name, query, body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one  # noqa: N815

    # ---- objects ---------------------------------------------------------------------------------------

    def object_get(self, path: Path, name: str, query: dict[str, str], body: bytes) -> None:
        if not path.is_file():
            return self.answer(404, b"no such key")
        raw = path.read_bytes()
        wanted = self.headers.get("range")
        self.server.seen[f"{path.name} {wanted}"] += 1
        if wanted:
            first, last = wanted.removeprefix("bytes=").split("-")
            whole, raw = len(raw), raw[int(first) : int(last) + 1]
        cut = self.server.misbehaves(self.server.cut_every, self.path)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(raw)))
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{int(first) + len(raw) - 1}/{whole}")
        self.send_header("ETag", '"x"')
        self.end_headers()
        self.wfile.write(raw[: len(raw) // 2] if cut else raw)
        if cut:
            self.close_connection = True
        return None

    def object_head(self, path: Path, name: str, query: dict[str, str], body: bytes) -> None:
        if not path.is_file():
            return self.answer(404, b"")
        self.send_response(200)
        self.send_header("Content-Length", str(path.stat().st_size))
        self.send_header("Last-Modified", formatdate(path.stat().st_mtime, usegmt=True))
        self.send_header("ETag", '"x"')
        return self.end_headers()

    def object_put(self, path: Path, name: str, query: dict[str, str], body: bytes) -> None:
        if "uploadId" in query:
            if query["uploadId"] not in self.server.uploads:
                return self.answer(404, b"no such upload")
            self.server.uploads[query["uploadId"]][int(query["partNumber"])] = body
        elif name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
        return self.answer(200, b"", etag=True)

    def object_post(self, path: Path, name: str, query: dict[str, str], body: bytes) -> None:
        if "uploads" in query:
            made = uuid.uuid4().hex
            self.server.uploads[made] = {}
            return self.xml(
                f"<InitiateMultipartUploadResult><UploadId>{made}</UploadId></InitiateMultipartUploadResult>"
            )
        parts = self.server.uploads.pop(query["uploadId"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(parts[number] for number in sorted(parts)))
        return self.xml(
            f"<CompleteMultipartUploadResult><Key>{escape(name)}</Key><ETag>x</ETag></CompleteMultipartUploadResult>"
        )

    def object_delete(self, path: Path, name: str, query: dict[str, str], body: bytes) -> None:
        if "uploadId" in query:
            self.server.uploads.pop(query["uploadId"], None)
        else:
            self.remove(name)
        return self.answer(204, b"")

    def remove(self, name: str) -> None:
        path = self.server.root / name
        if path.is_dir():
            with contextlib.suppress(OSError):
                path.rmdir()
        else:
            path.unlink(missing_ok=True)

    # ---- the bucket ------------------------------------------------------------------------------------

    def bucket(self, query: dict[str, str], body: bytes) -> None:
        if self.command == "POST" and "delete" in query:
            keys = [e.text or "" for e in ElementTree.fromstring(body).iter() if e.tag.endswith("Key")]
            for key in sorted(keys, reverse=True):
                self.remove(key)
            return self.xml("<DeleteResult/>")
        if self.command == "GET" and "list-type" in query:
            return self.listing(query.get("prefix", ""), query.get("delimiter", ""))
        return self.answer(200, b"")

    def listing(self, prefix: str, delimiter: str) -> None:
        out, common = [], set()
        for path in sorted(self.server.root.rglob("*")):
            name = str(path.relative_to(self.server.root)) + ("/" if path.is_dir() else "")
            if not name.startswith(prefix):
                continue
            rest = name[len(prefix) :]
            if delimiter and delimiter in rest:
                common.add(prefix + rest.partition(delimiter)[0] + delimiter)
                continue
            size = path.stat().st_size if path.is_file() else 0
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(path.stat().st_mtime))
            out.append(
                f"<Contents><Key>{escape(name)}</Key><Size>{size}</Size><LastModified>{stamp}</LastModified></Contents>"
            )
        out += [f"<CommonPrefixes><Prefix>{escape(p)}</Prefix></CommonPrefixes>" for p in sorted(common)]
        n = len(out)
        return self.xml(
            f"<ListBucketResult><KeyCount>{n}</KeyCount><IsTruncated>false</IsTruncated>{''.join(out)}</ListBucketResult>"
        )

    # ---- the wire --------------------------------------------------------------------------------------

    def body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            out = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                out.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            raw = b"".join(out)
        else:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        return unchunked(raw) if "x-amz-decoded-content-length" in self.headers else raw

    def signed(self, url: urllib.parse.SplitResult) -> bool:
        """Check signature version 4, from the request alone and not by the code that is tested."""
        given = self.headers.get("authorization", "")
        fields = dict(part.strip().partition("=")[::2] for part in given.partition(" ")[2].split(","))
        try:
            access, day, region, service, _ = fields["Credential"].split("/")
            names, signature = fields["SignedHeaders"], fields["Signature"]
        except (KeyError, ValueError):
            return False
        pairs = sorted(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        query = "&".join(f"{urllib.parse.quote(k, safe='-_.~')}={urllib.parse.quote(v, safe='-_.~')}" for k, v in pairs)
        lines = [self.command, url.path, query]
        lines += [f"{name}:{' '.join(self.headers.get(name, '').split())}" for name in names.split(";")]
        lines += ["", names, self.headers.get("x-amz-content-sha256", "")]
        scope = f"{day}/{region}/{service}/aws4_request"
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        text = "\n".join(["AWS4-HMAC-SHA256", self.headers.get("x-amz-date", ""), scope, digest])
        key = f"AWS4{SECRET}".encode()
        for part in (day, region, service, "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        wanted = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        return access == ACCESS and hmac.compare_digest(wanted, signature)

    def xml(self, inner: str) -> None:
        self.answer(200, (XML + inner).encode())

    def answer(self, status: int, body: bytes, etag: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if etag:
            self.send_header("ETag", '"x"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


def unchunked(raw: bytes) -> bytes:
    """Undo the `aws-chunked` encoding: lines of sizes in hexadecimal, each before that many bytes."""
    out, at = [], 0
    while True:
        line, _, _ = raw[at:].partition(b"\r\n")
        size = int(line.split(b";")[0], 16)
        at += len(line) + 2
        if not size:
            return b"".join(out)
        out.append(raw[at : at + size])
        at += size + 2


@contextlib.contextmanager
def serving(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """Serve `root` as bucket `data`, with the variables set that clients find it by."""
    made = S3Server(root)
    thread = threading.Thread(target=made.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", made.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    try:
        yield made
    finally:
        made.release()
        made.shutdown()
        made.server_close()
        thread.join()
