"""Java and the SparkSession: found, started and configured in this one place.

Everything that would make results depend on the machine is fixed here: UTC, bounded Arrow batches, no inferred
types. Under spark-submit the cluster's own settings win.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from gristmill.stages.errors import ConfigError

MIN_JAVA = 17
LOCAL_MASTER = "local[*,2]"
"""All cores of this machine; a task whose worker was killed runs a second time, as on a cluster."""
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.python.worker.reuse": "true",
    "spark.task.maxFailures": "4",
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
}
LOCAL_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.daemon.module": "gristmill.stages.worker_daemon",
}


@cache
def find_java() -> str:
    """Return the home of a Java of at least version 17: JAVA_HOME, PATH, then the usual places.

    Raises:
        ConfigError: none found; says how to get one.
    """
    candidates = [os.environ.get("JAVA_HOME", "")]
    on_path = shutil.which("java")
    if on_path:
        candidates.append(str(Path(on_path).resolve().parents[1]))
    for pattern in (
        "/usr/lib/jvm/*",
        "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
        "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    ):
        candidates.extend(sorted(str(p) for p in Path("/").glob(pattern[1:])))
    for home in candidates:
        if home and _java_version(Path(home) / "bin" / "java") >= MIN_JAVA:
            return home
    hint = "brew install openjdk@17" if sys.platform == "darwin" else "apt-get install openjdk-17-jre-headless"
    raise ConfigError(f"Java {MIN_JAVA} or later is needed by Spark and was not found. Install it: {hint}")


def _java_version(java: Path) -> int:
    if not java.is_file():
        return 0
    try:
        text = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=20, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if not match:
        return 0
    return int(match[2] or 0) if match[1] == "1" else int(match[1])


def session(app_name: str = "gristmill", master: str | None = None, conf: dict[str, str] | None = None) -> Any:
    """Return the SparkSession, starting one if there is none.

    `master` defaults to what spark-submit gave, else `LOCAL_MASTER`. `conf` overrides our settings.

    Raises:
        ConfigError: no suitable Java, or pyspark is not installed.
    """
    try:
        from pyspark.conf import SparkConf
        from pyspark.sql import SparkSession
    except ImportError:
        raise ConfigError("pyspark is not installed; install gristmill[curate]") from None
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        os.environ["JAVA_HOME"] = find_java()
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYTHONHASHSEED", "0")
    base = SparkConf()
    where = master or base.get("spark.master", None) or LOCAL_MASTER
    settings = dict(SETTINGS)
    if where.startswith("local"):
        settings |= LOCAL_SETTINGS | {
            "spark.driver.extraJavaOptions": _java_options(_n_local(where)),
            "spark.driver.memory": "2g",
            "spark.sql.shuffle.partitions": str(2 * _n_local(where)),
        }
        settings |= _socket_settings()
    settings |= conf or {}
    builder = SparkSession.builder.appName(app_name).master(where)
    for key, value in settings.items():
        if not submitted or base.get(key, None) is None:
            builder = builder.config(key, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


MAX_SOCKET_PATH = 100
"""Bytes of a Unix socket's path; macOS takes 104, Linux 108."""


@cache
def _socket_settings() -> dict[str, str]:
    """Let the JVM and its Python workers talk through Unix sockets, in a directory that goes with this process.

    Over TCP each task waits 40 ms for a delayed acknowledgement, twenty times as long as it needs itself.
    """
    base = min((d for d in ("/tmp", tempfile.gettempdir()) if os.access(d, os.W_OK)), key=len, default=None)
    if (
        base is None
        or len(os.fsencode(base)) + len("/gristmill-12345678/.") + len(f"{uuid.UUID(int=0)}.sock") > MAX_SOCKET_PATH
    ):
        return {}
    directory = tempfile.mkdtemp(prefix="gristmill-", dir=base)
    atexit.register(_remove_sockets, directory, os.getpid())
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": directory}


def _remove_sockets(directory: str, owner: int) -> None:
    """Remove the directory, unless this is a fork of the process that made it."""
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)


def _java_options(n_cores: int) -> str:
    """Return options for an embedded JVM: our logging; on few cores, compile fast rather than well.

    No text passes through the JVM, so on a small machine its optimising compiler costs more than it earns
    (a third of the JVM's processor time in a run of a minute).
    """
    options = [f"-Dlog4j2.configurationFile=file:{Path(__file__).with_name('log4j2.properties')}"]
    if n_cores <= 4:
        options += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    return " ".join(options)


def _n_local(master: str) -> int:
    match = re.match(r"local\[(\d+|\*)", master)
    if match is None:
        return 1
    return (os.cpu_count() or 1) if match[1] == "*" else int(match[1])
