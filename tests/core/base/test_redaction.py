"""Secrets are masked wherever text is shown or kept."""

import pickle
import string
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.base.errors import RunError, UserError
from dsinga.base.redaction import redact, redacted_cause


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:secret@host/x.zarr was not found", "https://***@host/x.zarr was not found"),
        ("s3://key:sec:ret@bucket/x", "s3://***@bucket/x"),
        ("s3://key:sec/r+et@bucket/x", "s3://***@bucket/x"),
        ("https://me:p@ss@host/x", "https://***@host/x"),
        ("'https://host/x?X-Amz-Signature=abc&y=1', see", "'https://host/x?***', see"),
        ("(https://host/x?sig=a,b;c=1).", "(https://host/x?***)."),
        ("https://host/x#access_token=abc, see", "https://host/x#***, see"),
        ("what? see https://host/a@b and 3 > 2?", "what? see https://host/a@b and 3 > 2?"),
        ("http://host:9000/run@3.zarr#top", "http://host:9000/run@3.zarr#top"),
        ("abfs://container@account.net/x", "abfs://container@account.net/x"),
        ("abfs://name:key@account.net/x", "abfs://***@account.net/x"),
        ("simplecache::ftp://u:p@host/x.zarr", "simplecache::ftp://***@host/x.zarr"),
        ("zip://a@b::s3://k:p@bucket/a.zip", "zip://***@b::s3://***@bucket/a.zip"),
        ("{'key': 'K', 'secret': 'a', \"sas_token\": \"t\"}", "{'key': 'K', 'secret': '***', \"sas_token\": \"***\"}"),
        ("aws_secret_access_key=abc, region=eu", "aws_secret_access_key=***, region=eu"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("an unknown token: 'x'; the signal is=1", "an unknown token: 'x'; the signal is=1"),
    ],
)
def test_secrets_in_texts_are_masked(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert redact(shown) == shown
    for kind in (UserError, RunError):
        error = kind(text)
        assert str(error) == str(pickle.loads(pickle.dumps(error))) == shown


# What people paste into URLs: anything but spaces and quotes; a URL's own delimiters are in it unescaped.
SECRETS = st.text(string.ascii_letters + string.digits + "/+=-_.~!$&*;,:%", min_size=8, max_size=40).map(
    lambda text: f"k{text}z"  # a delimiter at an end would not belong to it
)
NAMES = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=8).map(lambda text: f"n{text}")
PATHS = st.lists(NAMES, max_size=3).map(lambda parts: "".join(f"/{part}" for part in parts))
SCHEMES = st.sampled_from(["s3", "gs", "https", "ftp", "abfs", "sftp", "simplecache::s3", "zip://x::https"])


@given(SCHEMES, NAMES, SECRETS, NAMES, PATHS)
def test_a_password_is_masked_and_the_rest_kept(scheme: str, user: str, secret: str, host: str, path: str) -> None:
    shown = f"layer 'data': {scheme}://***@{host}{path} was not found, see {host}"
    assert redact(f"layer 'data': {scheme}://{user}:{secret}@{host}{path} was not found, see {host}") == shown


@given(SCHEMES, SECRETS, NAMES, NAMES, PATHS)
def test_a_query_is_masked_and_the_rest_kept(scheme: str, secret: str, name: str, host: str, path: str) -> None:
    text = f'path: "{scheme}://{host}{path}?{name}={secret}&x=1" label: "y"'
    assert redact(text) == f'path: "{scheme}://{host}{path}?***" label: "y"'


@given(SECRETS, NAMES, NAMES)
def test_what_a_library_says_of_a_location_is_masked(secret: str, user: str, host: str) -> None:
    url = f"s3://{user}:{secret}@{host}/x.zarr"
    for form in (secret, quote(secret), f"{user}:{secret}"):
        assert form not in redact(f"Invalid name {form!r}", url)
    signed = f"zip::https://{host}/x.zip?sv=1&sig={quote(secret)}"
    for form in (secret, quote(secret)):
        assert form not in redact(f"GET /x.zip with {form}", signed)


@given(st.text("".join(set(string.printable) - set(":=")), max_size=80))
def test_other_texts_are_kept(text: str) -> None:
    assert redact(text) == text


def test_an_error_that_shows_a_secret_is_no_cause() -> None:
    assert redacted_cause(harmless := OSError("no route to s3://bucket")) is harmless
    assert redacted_cause(OSError("no route to s3://k:p@bucket")) is None
    assert redacted_cause(OSError("Invalid name 'k:pass'"), "s3://k:pass@bucket") is None
    outer = RuntimeError("failed")
    outer.__cause__ = OSError("GET https://host/x?sig=abc")
    assert redacted_cause(outer) is None
