"""What an agent needs to know to trust a study and be trusted: one line of JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from autotune.errors import UsageError
from autotune.wire.codec import FormatError, parse


@dataclass(frozen=True)
class _Line:
    key: str
    certificate: str


@dataclass(frozen=True)
class Credentials:
    """Of one study."""

    key: bytes
    certificate: str
    """PEM; empty for no TLS."""

    def line(self) -> str:
        """For a file that nobody else may read, or for stdin."""
        return json.dumps(asdict(_Line(self.key.hex(), self.certificate)))

    @classmethod
    def parse(cls, line: str) -> Credentials:
        """Raises UsageError where `line` is none of a study."""
        try:
            found = parse(_Line, json.loads(line))
            return cls(bytes.fromhex(found.key), found.certificate)
        except (ValueError, FormatError) as error:
            raise UsageError("--key-file: is no key of a study; take the file it made") from error
