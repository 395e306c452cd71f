"""Messages of every type, with any values."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

from hypothesis import strategies as st

from autotune.wire import messages, ranks

TYPES: tuple[type[Any], ...] = get_args(messages.Message)
_LEAF = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
_JSON = st.dictionaries(st.text(max_size=3), _LEAF | st.lists(_LEAF, max_size=2), max_size=2)


def any_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Messages of that type; all their fields have any values."""
    inferred = {each.name: _JSON if "Any" in str(each.type) else ... for each in fields(kind)}
    return st.builds(kind, **inferred)


st.register_type_strategy(float, st.floats(allow_nan=False))
st.register_type_strategy(ranks.ModelSpec, any_of(ranks.ModelSpec))
