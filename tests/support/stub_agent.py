"""An agent for launchers: it dials, says who it is, and leaves with the connection.

A special key makes it leave at once, with a last line and exit code 3.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--driver", required=True)
    parser.add_argument("--key-file", required=True)
    parser.add_argument("--node", default=os.environ.get("SLURMD_NODENAME", socket.gethostname()))
    asked = parser.parse_args()
    by_file = asked.key_file != "-"
    key = json.loads(Path(asked.key_file).read_text() if by_file else sys.stdin.readline())
    host, _, port = asked.driver.rpartition(":")
    with socket.create_connection((host, int(port))) as study:
        said = {"node": asked.node, "host": socket.gethostname(), "pid": os.getpid(),
                "folder": str(Path.cwd()), "key": key, "variables": dict(os.environ)}  # fmt: skip
        study.sendall(json.dumps(said).encode() + b"\n")
        if asked.node in key.get("fails", []):
            print("no room here", file=sys.stderr)
            return 3
        study.recv(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
