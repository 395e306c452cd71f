"""Tells reports of failures from code, advice and other talk about failures."""

from __future__ import annotations

import re

from autotune.advise.diagnose.memory import DENIED

_TALK = re.compile(
    r"\b(?:[Ii]f (?:your?|it|this|the)|avoids?|[Ww]hen(?:ever)? an?|[Bb]etter"
    r"|[Tt]ips?|[Hh]ints?|FAQ|how to|watch(?:ing)? for|handles"
    r"|(?:may|might|would|could|can) (?:be|see|cause|get|lead|result|raise|hit|run)"
    r"|will (?:\w+ )?(?:certainly|likely|probably|inevitably) \w+"
    r"|(?:attempts|tr(?:y|ies)|used|able) to (?:avoid|catch|detect|handle|prevent)"
    r"|(?:tell|know|clear|sure) (?:whether|if)|otherwise"
    r"|I think (?:it|this|that)(?:'s| is| was)? (?:\w+ )?(?:by|due|because)"
    r"|common(?:ly)? |typical(?:ly)?|usually|I(?:'m| am) thinking"
    r"|I (?:guess|suspect|assume)|\b(?:[Ee]rrors?|[Cc]rash\w*) (?:like|such as)|0 [Ww]orkers"
    r"|grep|findstr|instead of"
    r"|used to (?:be|get|give|fail|have|hit|run|see|throw)"
    r"|(?:[Pp]reviously|[Ee]arlier|[Bb]efore(?= this|,)|[Ii]nitially|[Aa]t (?:the beginning|first)"
    r"|^Without)(?:,? \w+){0,6} (?:gave|got|had|hit|met|ran|saw|was)"
    r"|(?<!way to )(?<!advice to )(?<!help me )"
    r"(?:fix|solv|resolv|avoid|overcame|prevent)(?:ed|ing)?(?: \w+){0,2})\b"
    rf"|{DENIED}"
    r"|\bwill (?:likely |either )?(?:CPU |CUDA |GPU )?$|\b(?:cause|risk|source)s? of(?: \w+)? ?$"
    r"|^\W*(?:\[[^\]]*\] ?|\w+(?:\([^)]*\))?: )?"
    r"(?:[Oo]nly|[Ff]ind|[Ff]ix(?:e[ds])?|[Aa]dds?|[Ss]et|[Ss]upport|[Hh]andle|[Pp]ut|[Rr]emove|[Dd]etect|[Ee]nable|[Ee]xplain|[Cc]atch"
    r"|[Aa]llow|[Dd]iagnose|[Pp]revent|[Rr]esolve|[Ss]olve) |\bdiagnosing\b"
    r"|\b(?:backs? off|halves|retries|recovers) (?:on|after|from) $"
    r"|\(\d\) The \w+ (?:(?:is|was) )?$|^(?!.*\b(?:I|[Mm]y|[Ww]e)\b).*\bdreaded\b"
    r"|== ?[\"'`]{1,2}$|常见|典型|よくある|如果"
)
"""Before a message, this makes it talk."""
_TALK_AFTER = re.compile(
    r" ?(?:protection|[Hh]andl|guard|recovery|backoff|killer|[Dd]iagnos|[Aa]lleviat|[Mm]itigat"
    r"|[Pp]revent|errors (?:are|will))"
    r"|[^\]]{0,40}\]\(#"
    r"|还是|吗"
    r"|\W{0,3}(?:errors? )?(?:can|may|might|could|would)\b(?! (?:I|you|we|any|some))"
    r"|\W{0,3}errors? (?:has become|stops your|is (?:an?|often|usually|typically)\b)"
    r"|\W{0,3}(?:errors? )?is one of\b"
    r"|s (?:caused|thrown|raised)\b|[^.!?]*\byour\b[^.!?]*\?"
    r"|(?P<general>[\"”'] (?:[Ee]rrors? )?(?:[Oo]ccurs|[Hh]appens)\b)"
    r"|\W{0,3}(?:in \w+ )?(?:means|(?:occurs|happens) when (?:the|your|an?))\b"
)
_SENTENCE_END = re.compile(r"(?<!e\.g\.)(?<=[.?!]) |(?<=,) (?=but )|(?<=[。？！])")
_CODE = re.compile(
    r"^[\s`]*(?:[+-] *)?(?:#|//|\[ \] |if |elif |except\b|assert |raise |return |with |print\("
    r"|log\w*\.|[\"'](?![^\"]*\"\s*$|.*(?:[Ee]rror|Exception): )|>>>"
    r"|== |\w+ = |-?-> *\d+ |\d+ +(?:if|raise|assert|except))"
)
_PERSON = re.compile(r"\b(?:I|my|we)\b")
_BEGINS = re.compile(r"^\W*(?:[A-Z]{3,5}(?: backend)? |(?:\w+\.)*)$")
_BEGUN = re.compile(r"\b\w+$")
"""The beginning of a word before a match inside it, as in CUBLAS_STATUS_ALLOC_FAILED."""
_ENDS = re.compile(r"\w*(?:[.!,:;)\"'`]|\s*$)")
_RAISED = re.compile(
    r"(?:what\(\):\s*"
    r"|(?:Error|Exception|ERROR|error(?! \w)|FATAL|WARN(?:ING)?|[Ff]ailed|FAIL)\b(?!\. )\W{0,4}"
    r"(?:.{0,60}:\s)?\W{0,3}(?:[\w()]+ ){0,4}['\"`]?"
    r"|\w*(?:[a-z][A-Z]|_)\w*\W{1,3}"
    r"|(?:with|get|got|getting|error):? [\"'`“])$",
    re.ASCII,
)
"""The words before a real message: a class of exceptions, another name of code, or a quote."""


def is_code(text: str) -> bool:
    """Whether `text` is a line of code, of a diff, or an item of a list that does not apply."""
    return bool(_CODE.match(text))


def is_quoted(text: str, match: re.Match[str], *, title: bool = False) -> bool:
    """Whether a program printed `match` of `text`: as an exception, as a line, or in quotes.

    A person, not a program, writes a title that is only the message.
    """
    before = _BEGUN.sub("", text[: match.start()])
    alone = (
        not title and text.isascii() and _BEGINS.search(before) and _ENDS.match(text, match.end())
    )
    return bool(alone or _RAISED.search(before))


def is_talk(text: str, match: re.Match[str]) -> bool:
    """Whether the sentence of `match` talks of failures in general."""
    before = _SENTENCE_END.split(text[: match.start()])[-1]
    after = _TALK_AFTER.match(text, match.end())
    if after and after["general"] and _PERSON.search(text):
        after = None
    return bool(_TALK.search(before) or after or " otherwise " in match[0])
