"""Pages of the site, not of the tree: the reference of components and their settings, from the registry.

``python -m tests.support.settings_pages FOLDER`` writes them, to look at.
"""

import enum
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dsinga.base.registry import entries, is_user_code, registered_numbers
from dsinga.job.component import docs
from dsinga.job.field_types import item_type
from dsinga.job.limits import Range, range_in
from dsinga.job.message import Message, defaults, describe, field_types, is_message

HOW_TO_READ = "The *number* may stand for the name in a job file. A setting whose default is *required* must be given."
SEQUENCE_FILES = "convolution1d embedding pooling1d recurrent steps tagging text_layers".split()
ATTENTION_FILES = "attention attention_cache".split()
IMAGE_FILES = "convolution normalisation image".split()
FIELD_FILES = "convolution_lstm group_norm padding permute transposed_convolution upsampling".split()
RECORD_FILES = "input label output composed_metrics gathered_metrics score_metrics field_error".split()
FIELD_LOSS_FILES = "loss point_loss".split()
POLICY_FILES = "mean_loss policy_loss vtrace".split()


class Entry(NamedTuple):
    """A component: its names, the first of which is its title, with their numbers, and its class or function."""

    names: dict[str, int | None]
    component: Any

    @property
    def title(self) -> str:
        return next(iter(self.names))

    @property
    def settings(self) -> type[Message] | None:
        settings: type[Message] | None = getattr(self.component, "Conf", None)
        return settings if settings and field_types(settings) else None

    @property
    def file(self) -> str:
        return str(self.component.__module__.rpartition(".")[2])


class Section(NamedTuple):
    """The components of a kind that ``belongs`` chooses; where they are set, as ``updater { type: ... }``."""

    kind: str
    heading: str
    where: str
    belongs: Callable[[Entry], bool] = lambda _: True


class Page(NamedTuple):
    title: str
    about: str
    sections: tuple[Section, ...]


def layers(belongs: Callable[[Entry], bool]) -> tuple[Section, ...]:
    return (Section("layer", "", "layer { type: ... }", belongs),)


def is_loss(entry: Entry) -> bool:
    return bool(entry.component.is_loss)


PAGES = {
    "settings-layers.md": Page(
        "Settings of layers",
        "Every layer type that is not on the pages of [images](settings-images.md), "
        "[fields](settings-fields.md), [sequences](settings-sequences.md), [attention](settings-attention.md), "
        "[records](settings-records.md) and "
        "[losses](settings-losses.md). "
        "[layers.md](layers.md) has their formulas.",
        layers(
            lambda entry: (
                not is_loss(entry)
                and entry.file not in (*SEQUENCE_FILES, *ATTENTION_FILES, *IMAGE_FILES, *FIELD_FILES, *RECORD_FILES)
            )
        ),
    ),
    "settings-images.md": Page(
        "Settings of layers for images",
        "Layer types for images (B, C, H, W), and normalisation. [layers.md](layers.md) has their formulas.",
        layers(lambda entry: not is_loss(entry) and entry.file in IMAGE_FILES),
    ),
    "settings-fields.md": Page(
        "Settings of layers for fields",
        "Layer types for fields on images and volumes, whose pixels are points. [layers.md](layers.md) has "
        "their formulas.",
        layers(lambda entry: not is_loss(entry) and entry.file in FIELD_FILES),
    ),
    "settings-sequences.md": Page(
        "Settings of layers for sequences",
        "Layer types for texts and other sequences of T steps. [layers.md](layers.md) has their formulas.",
        layers(lambda entry: not is_loss(entry) and entry.file in SEQUENCE_FILES),
    ),
    "settings-attention.md": Page(
        "Settings of attention",
        "Layer types of [attention](attention.md) and of positions. [layers.md](layers.md) has their formulas.",
        layers(lambda entry: not is_loss(entry) and entry.file in ATTENTION_FILES),
    ),
    "settings-records.md": Page(
        "Settings of layers for records",
        "Layer types that read, prepare, measure and write records. [layers.md](layers.md) says what they give.",
        layers(lambda entry: not is_loss(entry) and entry.file in RECORD_FILES),
    ),
    "settings-losses.md": Page(
        "Settings of losses",
        "Layer types that are losses; those of [numbers and fields](settings-field-losses.md) and of [reinforcement "
        "learning](settings-policy-losses.md) are on other pages. Their formulas are in [losses.md](losses.md).",
        layers(lambda entry: is_loss(entry) and entry.file not in (*POLICY_FILES, *FIELD_LOSS_FILES)),
    ),
    "settings-field-losses.md": Page(
        "Settings of losses of numbers and fields",
        "Layer types that are losses of numbers, of fields, and of a class for each point. [losses.md](losses.md) has "
        "their formulas, [losses.md](losses.md#targets-that-are-fields) examples.",
        layers(lambda entry: is_loss(entry) and entry.file in FIELD_LOSS_FILES),
    ),
    "settings-policy-losses.md": Page(
        "Settings of losses of policies and values",
        "Layer types that are losses of reinforcement learning. Their formulas are in "
        "[reinforcement.md](reinforcement.md#losses-of-policies-and-values).",
        layers(lambda entry: is_loss(entry) and entry.file in POLICY_FILES),
    ),
    "settings-updaters.md": Page(
        "Settings of updaters, initialisers and algorithms",
        "[updaters.md](updaters.md) has their formulas, and the settings that all of them share.",
        (
            Section("updater", "Updaters", "updater { type: ... }"),
            Section("initialiser", "Initialisers", "init { type: ... }"),
            Section("algorithm", "Algorithms", "train_one_batch { alg: ... }"),
        ),
    ),
    "settings-schedules.md": Page(
        "Settings of learning rates",
        "How the learning rate follows from the step. [updaters.md](updaters.md#learning-rates) has the settings "
        "that all of them share, [learning-rate.md](learning-rate.md#schedules) draws them.",
        (Section("schedule", "", "learning_rate { type: ... }"),),
    ),
    "settings-extensions.md": Page(
        "Settings of extensions",
        "What a training loop does besides training. In Python these are classes of `dsinga.extensions`, without the "
        "k, and settings are arguments. [extensions.md](extensions.md) has examples.",
        (Section("extension", "", "extension { type: ... }"),),
    ),
    "settings-augmentation.md": Page(
        "Settings of augmentations",
        "Random changes of training records. In Python these are functions of `dsinga.nn.augment`, without the k, and "
        "settings are arguments. [augmentation.md](augmentation.md) has examples.",
        (Section("augmentation", "", "store_conf { augment { type: ... } }"),),
    ),
    "settings-reinforcement.md": Page(
        "Settings of reinforcement learning's algorithms",
        "In Python these are classes of `dsinga.rl`, without the k, and settings are arguments. "
        "[reinforcement.md](reinforcement.md#which-algorithm-to-choose) says which to choose.",
        (Section("learning_algorithm", "", "reinforcement { algorithm: ... }"),),
    ),
}


def pages() -> dict[str, str]:
    """Return the text of each page, by the name of its file."""
    return {name: page_text(page) for name, page in PAGES.items()}


def page_text(page: Page) -> str:
    parts = [f"# {page.title}\n", f"{page.about}\n{HOW_TO_READ}\n"]
    for section in page.sections:
        if section.heading:
            parts.append(f"## {section.heading}\n")
        parts += section_parts(section, "###" if section.heading else "##")
    return "\n".join(parts)


def section_parts(section: Section, level: str) -> Iterator[str]:
    """Yield the paragraphs of a section: a table of settings for each component, and one of those without settings."""
    components = [entry for entry in built_in(section.kind) if section.belongs(entry)]
    yield f"In a job: `{section.where}`.\n"
    titles: dict[type[Message], str] = {}
    for entry in components:
        if conf := entry.settings:
            yield f"{level} {entry.title}\n"
            yield f"{summary(entry)} {place(entry, section.kind)}\n"
            if conf in titles:
                yield f"The settings are those of [{titles[conf]}](#{titles[conf].lower()}).\n"
            else:
                yield settings_table(conf)
            titles.setdefault(conf, entry.title)
    if without := [entry for entry in components if not entry.settings]:
        if len(without) < len(components):
            yield f"{level} Without settings\n"
        yield table(("type", "number", "what"), [no_settings_row(entry) for entry in without])


def built_in(kind: str) -> list[Entry]:
    """Return the components of a kind that are in this package, by name."""
    found: dict[Any, Entry] = {}
    numbers = registered_numbers(kind)
    for name, component in entries(kind).items():
        if not is_user_code(component):
            found.setdefault(component, Entry({}, component)).names[name] = numbers.get(name)
    return sorted(found.values(), key=lambda entry: entry.title.lower())


def summary(entry: Entry) -> str:
    """Return the first sentence of a component's docstring, as Markdown."""
    paragraph = " ".join((entry.component.__doc__ or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=\.) (?=[A-Z])", paragraph)[0]
    return re.sub(r":\w+:`~?\.?([^`]+)`", r"`\1`", sentence).replace("``", "`")


def place(entry: Entry, kind: str) -> str:
    """Return where the settings of a component stand in a job, its number, and its other names."""
    conf: Any = entry.settings
    where = "" if kind in ("extension", "augmentation") else f"Settings in `{conf.field}`; number"
    first, *more = entry.names.items()
    also = "".join(f"; also `{name}`, {number}" for name, number in more)
    return f"{where or 'Number'} {first[1]}{also}."


def no_settings_row(entry: Entry) -> tuple[str, str, str]:
    needed = " and ".join(f"`{name}`" for name in getattr(entry.component, "required_fields", ()))
    text = f"{summary(entry)} It needs {needed}." if needed else summary(entry)
    names = ", ".join(f"`{name}`" for name in entry.names)
    return names, ", ".join(str(number) for number in dict.fromkeys(entry.names.values())), text


def settings_table(conf: type[Message]) -> str:
    meanings, default = docs(conf), defaults(conf)
    rows = []
    for name, hint in field_types(conf).items():
        value = "required" if name in conf._required else default_text(default.get(name))
        rows.append((f"`{name}`", type_text(hint), value, meanings[name]))
    return table(("setting", "type", "default", "meaning"), rows)


def table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [titles, ("---",) * len(titles), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def default_text(value: Any) -> str:
    """Return a default as a job file has it."""
    if value is None or value in ([], ""):
        return "none"
    if isinstance(value, enum.Enum):
        return f"`{value.name}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def type_text(hint: Any) -> str:
    """Return the type of a setting and its bounds in words."""
    kind, repeated = item_type(hint)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        words = f"one of {', '.join(f'`{name}`' for name in kind.__members__)}"
    elif is_message(kind):
        words = f"`{kind.__name__.removesuffix('Conf').lower()} {{ ... }}`"
    else:
        words = {str: "text"}.get(kind) or describe(kind).removeprefix("a ")
    limits = bounds(range_in(hint))
    if repeated:
        return f"list of {words}s{limits and ', each '}{limits}"
    return f"{words}{limits and ', '}{limits}"


def bounds(allowed: Range | None) -> str:
    """Return the bounds of numbers in words, "" where there are none."""
    if allowed is None or allowed.low == -allowed.high:
        return "or infinity" if allowed and allowed.infinite else ""
    low = f"{'above' if allowed.open_low else 'at least'} {allowed.low:g}"
    if allowed.high == math.inf:
        return f"{low}, or infinity" if allowed.infinite else low
    if not allowed.open_low and not allowed.open_high:
        return f"from {allowed.low:g} to {allowed.high:g}"
    return f"{low}, {'below' if allowed.open_high else 'at most'} {allowed.high:g}"


def main(folder: str) -> None:
    """Write the pages to a folder."""
    for name, text in pages().items():
        (Path(folder) / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
