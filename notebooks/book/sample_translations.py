"""Generates German sentences and their English translations in files like those of Multi30k.

The German sentences of a small grammar and their English translations differ in the order of the words: "hat ...
gesehen" is "has seen ...", and after "heute" the verb comes before the subject.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

NOUNS = {  # English, then article and noun in the nominative and in the accusative
    "man": ("der", "den", "mann"),
    "dog": ("der", "den", "hund"),
    "woman": ("die", "die", "frau"),
    "cat": ("die", "die", "katze"),
    "child": ("das", "das", "kind"),
    "horse": ("das", "das", "pferd"),
}
ADJECTIVES = {"small": "klein", "big": "groß", "old": "alt", "young": "jung", "brown": "braun"}
VERBS = {"sees": ("sieht", "gesehen", "seen"), "looks for": ("sucht", "gesucht", "looked for")}
VERBS |= {"finds": ("findet", "gefunden", "found"), "paints": ("malt", "gemalt", "painted")}
PLACES = {"in the park": "im park", "at the lake": "am see", "on the street": "auf der straße", "": ""}
TIMES = {"today": "heute", "now": "jetzt"}


def write_pairs(folder: str | Path, train: int = 2000, test: int = 100, seed: int = 0) -> None:
    """Write train, val and test_2016_flickr, each as .de and .en with a sentence a line, to ``folder``.

    Args:
        folder: is created where it does not exist.
        train: number of pairs to learn from.
        test: number of other pairs, in val and in test_2016_flickr each.
        seed: of all random numbers.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)

    def choose(options: Iterable[str]) -> str:
        return str(rng.choice(list(options)))

    pairs: dict[str, str] = {}
    while len(pairs) < train + 2 * test:
        german, english = _pair(choose)
        pairs[german] = english
    begin = 0
    for name, count in (("train", train), ("val", test), ("test_2016_flickr", test)):
        part = list(pairs.items())[begin : begin + count]
        begin += count
        for language, suffix in enumerate(("de", "en")):
            lines = "".join(f"{pair[language]} .\n" for pair in part)
            (folder / f"{name}.{suffix}").write_text(lines, encoding="utf-8")


def _pair(choose: Callable[[Iterable[str]], str]) -> tuple[str, str]:
    """Return a German sentence and its translation; ``choose`` returns one of several."""
    subject, english_subject = _thing(choose, 0)
    thing, english_thing = _thing(choose, 1)
    verb = choose(VERBS)
    present, german_participle, participle = VERBS[verb]
    place = choose(PLACES)
    german: tuple[str, ...]
    english: tuple[str, ...]
    kind = choose(("plain", "time", "perfect"))
    if kind == "plain":
        german = (subject, present, thing, PLACES[place])
        english = (english_subject, verb, english_thing, place)
    elif kind == "time":
        time = choose(TIMES)
        german = (TIMES[time], present, subject, thing, PLACES[place])
        english = (time, english_subject, verb, english_thing, place)
    else:
        german = (subject, "hat", thing, PLACES[place], german_participle)
        english = (english_subject, "has", participle, english_thing, place)
    return " ".join(filter(None, german)), " ".join(filter(None, english))


def _thing(choose: Callable[[Iterable[str]], str], case: int) -> tuple[str, str]:
    """Return a noun with its article and perhaps an adjective, in the nominative (0) or the accusative (1)."""
    noun = choose(NOUNS)
    article, german = NOUNS[noun][case], NOUNS[noun][2]
    if choose("ny") == "n":
        return f"{article} {german}", f"the {noun}"
    adjective = choose(ADJECTIVES)
    ending = "en" if article == "den" else "e"
    return f"{article} {ADJECTIVES[adjective]}{ending} {german}", f"the {adjective} {noun}"
