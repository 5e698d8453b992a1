"""The codes of texts in a vocabulary of characters or words."""

from __future__ import annotations

import pytest

from dsinga.data.vocabulary import SymbolEncoder, decode, encode
from dsinga.errors import UserError


def test_words_that_are_not_in_the_vocabulary_get_the_code_of_unk() -> None:
    encoder = SymbolEncoder(("the", "<unk>", "cat"))
    assert encoder.encode("the  dog cat\n") == [0, 1, 2]
    assert encoder.encode_symbols(["<unk>", "a b"]) == [1, 1]
    assert encoder.encode(" ") == []


def test_characters_are_bytes_of_utf_8() -> None:
    symbols = tuple(sorted(set("aé".encode().decode("latin-1"))))
    assert decode(encode("éa", symbols), symbols) == "éa"


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        (("ab", "c"), "of 2 words has no 'x', 'y', and no <unk> in their place; leave such out of the text"),
        (("a", "b", " "), "of 3 characters has no 'c', 'x', 'y'; leave such out"),
    ],
)
def test_what_has_no_code_is_named(symbols: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError) as caught:
        encode("ab y c x y", symbols)
    assert message in str(caught.value)
