"""Find Java 17 or later; if there is none, install it where that needs no question, else say how."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from gristmill.stages import runtime
from gristmill.stages.errors import ConfigError


def main() -> None:
    """Exit 0 when a suitable Java is there at the end."""
    try:
        print(f"Java: {runtime.find_java()}")
        return
    except ConfigError as error:
        message = str(error)
    if not (shutil.which("apt-get") and os.geteuid() == 0):
        sys.exit(message)
    print("installing openjdk-17-jre-headless")
    quiet = {"stdout": subprocess.DEVNULL, "env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}}
    subprocess.run(["apt-get", "-qq", "update"], check=True, **quiet)  # type: ignore[call-overload]
    subprocess.run(["apt-get", "-qq", "install", "-y", "openjdk-17-jre-headless"], check=True, **quiet)  # type: ignore[call-overload]
    runtime.find_java.cache_clear()
    print(f"Java: {runtime.find_java()}")


if __name__ == "__main__":
    main()
