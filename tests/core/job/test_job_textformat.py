"""The syntax of the text format, without a schema."""

import math

import pytest

from dsinga.job import JobError
from dsinga.job.textformat import BareWord, Block, Entry, UnclosedError, parse, parse_value
from tests.support.refusals import refused


def values(text: str) -> list:
    return [entry.value for entry in parse(text, "job.conf").entries]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("12", 12),
        ("-1", -1),
        ("- 1", -1),
        ("0x1F", 31),
        ("0Xff", 255),
        ("017", 15),
        ("1e-3", 0.001),
        ("5E+2", 500.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("-2.5", -2.5),
        ("5f", 5.0),
        ("1.5F", 1.5),
        ("0f", 0.0),
        ("-inf", -math.inf),
        ('"a b"', "a b"),
        ("'it''s'", "its"),
        (""" "a" 'b'\n  "c" """, "abc"),
        (r'"\t\n\"\\\'"', "\t\n\"\\'"),
        (r'"\303\251\x41\u00e9\U0001F600"', "éAé😀"),
        ("'# no comment'", "# no comment"),
        ("[1, 2, 3]", [1, 2, 3]),
        ("[]", []),
        ("['a' 'b', \"c\"]", ["ab", "c"]),
    ],
)
def test_values_are_read_as_protobuf_reads_them(text, value):
    read = parse_value(text, "job.conf")
    assert read == value
    assert type(read) is type(value)
    assert values(f"field: {text}") == [value]


def test_bare_words_and_strings_are_distinct():
    word, string = values("a: kSGD b: 'kSGD'")
    assert (type(word), type(string)) == (BareWord, str)


@pytest.mark.parametrize(
    "text",
    [
        "a { b: 1 }",
        "a: { b: 1 }",
        "a:{b:1}",
        "a < b: 1 >",
        'a : {\n  b : 1 # a comment with } and "\n}',
        "a { b: 1, }",
        "a { b: 1; };",
        "#first\na{b:1}#last",
    ],
)
def test_a_block_may_be_written_in_many_ways(text):
    (entry,) = parse(text, "job.conf").entries
    (inner,) = entry.value.entries
    assert (entry.name, inner.name, inner.value) == ("a", "b", 1)


def test_fields_need_no_separator_but_may_have_one():
    assert values("a: 1 b: 2, c: 3; d: 4\n e: 5") == [1, 2, 3, 4, 5]


def test_extensions_and_lists_of_blocks_keep_names_and_lines():
    block = parse("\n[data_conf] { k: t }\n[ a.b/c ]: 1\nlist [{x: 1}, {x: 2}]", "job.conf")
    assert [(entry.name, entry.line) for entry in block.entries] == [("[data_conf]", 2), ("[a.b/c]", 3), ("list", 4)]
    assert block.entries[2].value == [Block((Entry("x", 1, 4),)), Block((Entry("x", 2, 4),))]


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ("a 1", "1:3", "expected ':' or '{' after the name 'a', found '1'"),
        ("\n  a: 1 b", "2:9", "expected ':' or '{' after the name 'b', found the end of the text"),
        ("a:\n}", "2:1", "expected a value, found '}'"),
        ("a: ", "1:4", "expected a value, found the end of the text"),
        ("a: 1:2", "1:5", "expected a field name, found ':'"),
        ("a { 3: 4 }", "1:5", "expected a field name, found '3'"),
        ("a: [1 2]", "1:7", "expected ',' or ']', found '2'"),
        ("a: [[1]]", "1:5", "expected a value, found '['"),
        ("a: 1 }", "1:6", "'}' closes no block"),
        ("a {\n b: 1\n", "3:1", "the text ends, but the '{' of line 1 is never closed"),
        ("a: [", "1:5", "the text ends, but the '[' of line 1 is never closed"),
        ("a: 1.2.3", "1:4", "'1.2.3' is not a number"),
        ("a: 5x", "1:4", "'5x' is not a number"),
        ("a: 08", "1:4", "'08' is not a number"),
        ("a: -kSGD", "1:5", "'-kSGD' is not a number"),
        ('a: "open\nb: 1', "1:4", 'the string that begins with " is not closed on its line'),
        (r'a: "\q"', "1:4", r'"\q" has an unknown escape'),
        (r'a: "\xff"', "1:4", "is not UTF-8 text"),
        (r'a: "\UFFFFFFFF"', "1:4", "is not UTF-8 text"),
        ("a: 1 & b: 2", "1:6", "'&' has no meaning here; expected a field name"),
        ("a: /* c */ 1", "1:4", "'/' has no meaning here; expected a value"),
    ],
)
def test_a_fault_of_syntax_says_where_and_what_was_expected(text, place, expected):
    with pytest.raises(JobError) as caught:
        parse(text, "job.conf")
    assert str(caught.value).startswith(f"job.conf:{place}: ")
    assert expected in str(caught.value)


def test_open_blocks_at_the_end_can_be_closed():
    with pytest.raises(UnclosedError) as caught:
        parse("a { b < c: [", "job.conf")
    assert caught.value.closing == "]>}"
    refused(lambda: parse("a { b < c: ", "job.conf"), "expected a value", error=JobError)
