"""Trees of values with something wrong in them, written as JSON or as TOML."""

import copy
import json
from typing import Any

from hypothesis import strategies as st

# Names that Python functions, pydantic and our settings give a meaning to.
NAMES = ("self", "cls", "name", "network", "training", "methods", "", "__init__", "a\nb", "\x1b[1m")
KEYS = st.sampled_from(NAMES) | st.text(max_size=4)
PLAIN: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 300),
    st.sampled_from((31, 63, 64, 1000, 20_000)).map(lambda power: 2**power),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(("[/b]", "1", "nan", "cgp", "mlp", "\ud800", "two\nlines")),
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


def changed(tree: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return the tree with a few of its values replaced, taken out, or added."""

    @st.composite
    def after_changes(draw: st.DrawFn) -> dict[str, Any]:
        new = copy.deepcopy(tree)
        for _ in range(draw(st.integers(1, 3))):
            _change(draw, new)
        return new

    return after_changes()


def _change(draw: st.DrawFn, tree: Any) -> None:
    """Walk down to some value, and change it there."""
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    if not keys or draw(st.integers(0, 9)) == 0:
        if isinstance(tree, dict):
            tree[draw(KEYS)] = draw(VALUES)
        else:
            tree.append(draw(VALUES))
        return
    key = draw(st.sampled_from(keys))
    if isinstance(tree[key], dict | list) and draw(st.booleans()):
        _change(draw, tree[key])
    elif draw(st.integers(0, 3)) == 0:
        del tree[key]
    else:
        tree[key] = draw(VALUES)


def as_json(tree: Any) -> bytes:
    """Write a tree as JSON, with numbers too long for decimal digits as a word."""
    try:
        return json.dumps(tree).encode()
    except ValueError:
        return b'"too long"'


def as_toml(tree: dict[str, Any]) -> bytes:
    """Write a tree as TOML: one line for each key at the top, tables within it in braces."""
    lines = (f"{json.dumps(key)} = {_inline(value)}\n" for key, value in tree.items())
    return "".join(lines).encode(errors="surrogatepass")


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {_inline(inner)}" for key, inner in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    if isinstance(value, bool) or value is None:
        return json.dumps(bool(value))
    if isinstance(value, int):
        return hex(value) if value >= 0 else str(value)
    return json.dumps(value) if isinstance(value, str) else repr(value)
