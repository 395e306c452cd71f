"""What an agent needs to know to trust a study and be trusted: one line of JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass

from autotune.errors import UsageError


@dataclass(frozen=True)
class Credentials:
    """Of one study."""

    key: bytes
    certificate: str
    """PEM; empty for no TLS."""

    def line(self) -> str:
        """For a file that nobody else may read, or for stdin."""
        return json.dumps({"key": self.key.hex(), "certificate": self.certificate})

    @classmethod
    def parse(cls, line: str) -> Credentials:
        """Raises UsageError where `line` is none of a study."""
        try:
            found = json.loads(line)
            return cls(bytes.fromhex(found["key"]), str(found["certificate"]))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise UsageError("--key-file: is no key of a study; take the file it made") from error
