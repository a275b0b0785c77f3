"""Range requests to S3-protocol stores and plain HTTP servers, with the standard library.

Signature version 4; keys come from the usual variables (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL); without keys requests are unsigned. One kept-alive connection a
thread. What fails for a moment (connection, 429, 5xx, a body that ends early) is tried again with doubling pauses.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
import time
import urllib.parse
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gristmill.packing.activity import doing
from gristmill.packing.errors import ShardMissingError, ShardReadError, problem

_EMPTY = hashlib.sha256(b"").hexdigest()
_local = threading.local()


class _Connections(dict[tuple[str, bool, int], Any]):
    """A thread's open connections; they are closed when the thread ends."""

    def __del__(self) -> None:
        for connection in self.values():
            connection.close()


def signed_headers(
    host: str, path: str, headers: Mapping[str, str], now: datetime, access: str, secret: str, region: str
) -> dict[str, str]:
    """Return `headers` with those that sign a GET or HEAD of `path` (already percent-encoded) by AWS SigV4."""
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    every = {**headers, "host": host, "x-amz-content-sha256": _EMPTY, "x-amz-date": stamp}
    every = {key.lower(): value for key, value in every.items()}
    names = ";".join(sorted(every))
    canonical = "\n".join(
        ["GET", path, "", *(f"{key}:{every[key].strip()}" for key in sorted(every)), "", names, _EMPTY]
    )
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{secret}".encode()
    for part in (stamp[:8], region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    every["authorization"] = f"AWS4-HMAC-SHA256 Credential={access}/{scope},SignedHeaders={names},Signature={signature}"
    return every


class Remote:
    """Reads byte ranges of files below one `s3://`, `http://` or `https://` prefix."""

    def __init__(self, url: str, retries: int = 4, timeout: float = 60.0) -> None:
        """Parse the URL; nothing is contacted."""
        self.url = url.rstrip("/")
        self.retries = retries
        self.timeout = timeout
        parts = urllib.parse.urlsplit(self.url)
        self._signs = parts.scheme == "s3"
        if self._signs:
            endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
            self._region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
            given = urllib.parse.urlsplit(endpoint or f"https://s3.{self._region}.amazonaws.com")
            self._secure, self._host = given.scheme == "https", given.netloc
            self._prefix = f"{given.path.rstrip('/')}/{parts.netloc}{parts.path}"
        else:
            self._secure, self._host, self._prefix = parts.scheme == "https", parts.netloc, parts.path

    def read(self, name: str, start: int = 0, n_bytes: int | None = None) -> bytes:
        """Return bytes [start, start + n_bytes) of a file, or all of it.

        Raises:
            ShardMissingError: no such file. ShardReadError: it kept failing; says where and how.
        """
        from http.client import HTTPException  # 20 ms that only remote shards should cost

        failure = ""
        for attempt in range(self.retries + 1):
            trial = f"fetching {self.url}/{name} at byte {start:,}, try {attempt + 1} of {self.retries + 1}"
            try:
                with doing(trial + (f" after {failure}" if failure else "")):
                    if attempt:
                        time.sleep(min(0.05 * 2**attempt, 5.0))
                    status, body = self._get(name, start, n_bytes)
            except (OSError, HTTPException) as error:
                failure = f"{type(error).__name__}: {error}"
                self._drop()
                continue
            if status in (200, 206) and (n_bytes is None or len(body) == n_bytes):
                return body
            if status == 404:
                raise ShardMissingError(
                    problem("no such object", where=f"{self.url}/{name}", then="check the URL and the upload")
                )
            failure = f"HTTP {status}" if status not in (200, 206) else f"{len(body):,} of {n_bytes:,} bytes"
            if status in (400, 401, 403):
                break
        raise ShardReadError(
            problem(
                f"reading failed ({failure})",
                where=f"{self.url}/{name} at byte {start:,}",
                expected="n bytes" if n_bytes is None else f"{n_bytes:,} bytes",
                got=failure,
                then="check the store, the keys and the network",
            )
        )

    def _get(self, name: str, start: int, n_bytes: int | None) -> tuple[int, bytes]:
        path = urllib.parse.quote(f"{self._prefix}/{name}", safe="/-_.~")
        headers = {} if n_bytes is None else {"range": f"bytes={start}-{start + n_bytes - 1}"}
        access, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
        if self._signs and access and secret:
            if token := os.environ.get("AWS_SESSION_TOKEN"):
                headers["x-amz-security-token"] = token
            headers = signed_headers(self._host, path, headers, datetime.now(UTC), access, secret, self._region)
        connection = self._connection()
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        body = response.read()
        if response.status == 200 and n_bytes is not None:
            body = body[start : start + n_bytes]
        return response.status, body

    def _connection(self) -> Any:
        from http.client import HTTPConnection, HTTPSConnection

        held: _Connections | None = getattr(_local, "held", None)
        if held is None:
            held = _local.held = _Connections()
        key = (self._host, self._secure, os.getpid())
        if key not in held:
            kind = HTTPSConnection if self._secure else HTTPConnection
            held[key] = kind(self._host, timeout=self.timeout)
        return held[key]

    def _drop(self) -> None:
        held = getattr(_local, "held", {})
        connection = held.pop((self._host, self._secure, os.getpid()), None)
        if connection is not None:
            connection.close()
