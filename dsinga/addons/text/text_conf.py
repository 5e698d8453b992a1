"""The message ``text { }`` of a job's store: the settings that turn texts into codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsinga.base.registry import register
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Count

if TYPE_CHECKING:
    from dsinga.addons.text.text_vectorization import TextEncoder


@register("message", "StoreConf.text")
class TextConf(Settings):
    """Settings with which nn.TextVectorization turns an input's texts into codes."""

    vocabulary: str = setting("", "the words of the codes 2, 3, ..., one a line; 0 is after the end, 1 another word")
    standardize: str = setting(
        "lower_and_strip_punctuation",
        'what is done to a text first: "lower_and_strip_punctuation", "lower", "strip_punctuation", or "" for nothing',
    )
    split: str = setting("whitespace", 'what are words: "whitespace" is between them, "character", or "" for the text')
    steps: Count | None = setting(None, "the codes of a record; without it the length of the longest text")

    def encoder(self) -> TextEncoder:
        """Create an encoder of texts with these settings."""
        from dsinga.addons.text.text_vectorization import TextEncoder

        return TextEncoder(self.vocabulary.split("\n"), self.standardize, self.split, self.steps)
