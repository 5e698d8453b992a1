"""Messages of errors show no credentials."""

from __future__ import annotations

import pickle

import pytest

from dsinga.errors import UserError, without_credentials


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:secret@host/x.zarr was not found", "https://***@host/x.zarr was not found"),
        ("s3://key:sec:ret@bucket/x", "s3://***@bucket/x"),
        ("'https://host/x?X-Amz-Signature=abc&y=1', see", "'https://host/x?***', see"),
        ("what? see https://host/a@b and 3 > 2?", "what? see https://host/a@b and 3 > 2?"),
        ("simplecache::ftp://u:p@host/x.zarr", "simplecache::ftp://***@host/x.zarr"),
    ],
)
def test_credentials_in_urls_are_not_shown(text: str, shown: str) -> None:
    assert without_credentials(text) == shown
    error = UserError(text)
    assert str(error) == str(pickle.loads(pickle.dumps(error))) == shown
