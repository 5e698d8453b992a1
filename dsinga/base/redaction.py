"""Masks secrets in text that is shown or kept: messages, logs, checkpoints and reprs."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

MASK = "***"
# Literal secrets up to this length are left in texts around a URL, where they would mask parts of words.
SHORT = 3

# In a URL what stands before the last @ of the host, or, for secrets with a slash, before the last @ of the URL.
# A pathlib.Path has one of the two slashes.
_USER = re.compile(r"""(?P<scheme>\w{2,}://?)(?P<user>[^\s/'"<>]*@|[^\s/@:'"<>]+:(?P<rest>(?:(?!://)[^\s'"<>])*)@)""")
# A port, of URLs that have one, with a path behind it that has an @.
_PORT = re.compile(r"\d{1,5}/")
_WITH_PORTS = {"http", "https", "ftp", "sftp", "ssh", "smb", "hdfs", "webhdfs", "tcp", "tls"}
# URLs of Azure, which have the name of a container before the @.
_WITH_CONTAINERS = {"abfs", "abfss", "wasb", "wasbs"}
# A query, or a fragment with values, up to the end of the URL; a punctuation mark there belongs to the sentence.
_QUERY = re.compile(r"""(\w\w://?[^\s?#'"<>]*)(\?|\#(?=[^\s'"<>]*=))[^\s'"<>]*[^\s'"<>),;.:]""")
_SECRET_NAME = r"[\w-]*(?:secret|passw(?:or)?d|token|signature|credential|account_key|access_key)[\w-]*|sig|sas"
# "name=value", and 'name': 'value' of a dict.
_ASSIGNED = re.compile(rf"""(?i)\b({_SECRET_NAME})=(?!\*)[^\s&'"),;]+""")
_IN_DICT = re.compile(rf"""(?i)(['"])({_SECRET_NAME})\1(\s*:\s*)(['"])(?:(?!\4).)*\4""")
_HEADER = re.compile(r"""(?i)(authorization\W+(?:basic|bearer)\s+)[^\s'",;]+""")


def redact(text: str, *locations: str) -> str:
    """Mask secrets in a text: users, passwords and queries of URLs, tokens and similar values.

    Passwords and query values of the URLs ``locations`` are masked anywhere.
    """
    for secret in sorted({secret for location in locations for secret in _secrets(location)}, key=len, reverse=True):
        text = text.replace(secret, MASK)
    text = _USER.sub(_masked_user, text)
    text = _QUERY.sub(rf"\1\2{MASK}", text)
    text = _IN_DICT.sub(rf"\1\2\1\3\4{MASK}\4", text)
    text = _HEADER.sub(rf"\1{MASK}", text)
    return _ASSIGNED.sub(rf"\1={MASK}", text)


def redacted_cause(error: BaseException, *locations: str) -> BaseException | None:
    """Return ``error`` as the cause of another one; None if its traceback would show a secret."""
    cause: BaseException | None = error
    while cause is not None:
        text = f"{cause} {cause!r}"
        if redact(text, *locations) != text:
            return None
        cause = cause.__cause__ or cause.__context__
    return error


def _masked_user(match: re.Match[str]) -> str:
    scheme = match["scheme"].lower().rstrip(":/")
    if scheme in _WITH_PORTS and _PORT.match(match["rest"] or ""):
        return match[0]
    if scheme in _WITH_CONTAINERS and ":" not in match["user"]:
        return match[0]
    return f"{match['scheme']}{MASK}@"


def _secrets(location: str) -> set[str]:
    found: set[str] = set()
    for match in _USER.finditer(location):
        if _masked_user(match) != match[0]:
            user, _, password = match["user"].removesuffix("@").partition(":")
            found |= {password or user, match["user"].removesuffix("@")}
    for match in _QUERY.finditer(location):
        query = match[0].partition(match[2])[2]
        found |= {query, *(pair.partition("=")[2] for pair in query.split("&"))}
    return {form for secret in found for form in (secret, unquote(secret), quote(secret)) if len(form) > SHORT}
