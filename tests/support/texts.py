"""Texts for hypothesis, which would first try which of a million characters UTF-8 can write, in each process."""

from typing import Any

from hypothesis import strategies as st

# All of one byte in UTF-8 and of Latin-1, and of each greater length, ends of lines and blanks included.
CHARACTERS = "".join(map(chr, range(256))) + "Ωжא\u0301\u2028\u3000中\ufeff\uffff😀\U0010ffff"


def texts(**sizes: Any) -> st.SearchStrategy[str]:
    """Return a strategy of texts, whose ``min_size`` and ``max_size`` may be given."""
    return st.text(CHARACTERS, **sizes)
