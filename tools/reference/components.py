"""The entries of components: their names in Python and in job files, what they compute, and their settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import dsinga.data
import dsinga.net
import dsinga.training  # noqa: F401  registers the rest
from dsinga.base.registry import entries, is_user_code, registered_numbers
from dsinga.job.message import Message, field_types
from tools.reference.names import python_names
from tools.reference.texts import (
    arguments,
    arguments_table,
    call,
    first_sentence,
    paragraphs,
    settings_table,
    table,
)

SEQUENCE_FILES = "convolution1d embedding pooling1d recurrent steps text_layers".split()
ATTENTION_FILES = "attention".split()
IMAGE_FILES = "convolution pooling image".split()
FIELD_FILES = "convolution_lstm padding transposed_convolution upsampling resize lead_feedback".split()
FEATURE_FILES = "combine arithmetic connection reshape bridge".split()
RECORD_FILES = "input label output".split()
METRIC_TYPES = ("kAccuracy", "kArgSort", "kEntityF1", "kPerplexity")


SECOND = ("kNesterov", "kStep", "kInverse")


class Entry(NamedTuple):
    """A component: its kind, its names in job files with their numbers, and its class or function."""

    kind: str
    names: dict[str, int | None]
    component: Any

    @property
    def type(self) -> str:
        """The first name in job files."""
        return next(iter(self.names))

    @property
    def words(self) -> dict[str, Any]:
        """What makes it in Python, by name."""
        return python_names(self.kind, self.type)

    @property
    def title(self) -> str:
        """The heading of the entry: the name in Python, or in job files where there is none."""
        words = [word.rpartition(".")[2] for word in self.words]
        if self.type in SECOND:  # a word of Python has two types
            return f"{words[0]} ({self.type})"
        return ", ".join(words[:2]) + (", ..." if len(words) > 2 else "") if words else self.type

    @property
    def settings(self) -> type[Message] | None:
        """The class of its settings, None where it has none."""
        settings: type[Message] | None = getattr(self.component, "Conf", None)
        return settings if settings and field_types(settings) else None

    @property
    def file(self) -> str:
        """The name of the file that defines it."""
        return str(self.component.__module__.rpartition(".")[2])

    @property
    def room(self) -> str:
        """The path of the module that defines it."""
        return str(self.component.__module__)


class Section(NamedTuple):
    """The components of a kind that ``belongs`` chooses, below a heading."""

    kind: str
    heading: str = ""
    belongs: Callable[[Entry], bool] = lambda _: True


def is_loss(entry: Entry) -> bool:
    """Whether a layer is a loss."""
    return bool(entry.component.is_loss)


def is_of_agents(entry: Entry) -> bool:
    """Whether a layer belongs to reinforcement learning."""
    return entry.room.startswith("dsinga.rl") or entry.type in ("kMeanLoss", "kDueling", "kLearnedVector")


def is_metric(entry: Entry) -> bool:
    """Whether a layer reports metrics besides a loss."""
    return not is_loss(entry) and (entry.room.startswith("dsinga.layers.metrics") or entry.type in METRIC_TYPES)


def family(entry: Entry) -> str:
    """Return the page of a layer."""
    if is_of_agents(entry):
        return "reinforcement"
    if is_loss(entry):
        return "losses"
    if is_metric(entry) or entry.file in ("forecast_scores", "field_error"):
        return "metrics"
    if entry.room.startswith("dsinga.addons.tables"):
        return "layers-tables"
    by_file = {
        "layers-sequences": SEQUENCE_FILES,
        "layers-attention": ATTENTION_FILES,
        "layers-images": IMAGE_FILES,
        "layers-fields": FIELD_FILES,
        "layers-features": FEATURE_FILES,
        "layers-records": RECORD_FILES,
    }
    return next((page for page, files in by_file.items() if entry.file in files), "layers-dense")


def on_page(page: str) -> Callable[[Entry], bool]:
    """Return whether a layer is on a page, as a function of it."""
    return lambda entry: family(entry) == page


def built_in(kind: str) -> list[Entry]:
    """Return the components of a kind that are in this package, by title."""
    found: dict[Any, Entry] = {}
    numbers = registered_numbers(kind)
    for name, component in entries(kind).items():
        if not is_user_code(component):
            found.setdefault(component, Entry(kind, {}, component)).names[name] = numbers.get(name)
    return sorted(found.values(), key=lambda entry: entry.title.lower())


def section_parts(section: Section) -> Iterator[str]:
    """Yield the paragraphs of a section."""
    level = "##"
    if section.heading:
        yield f"## {section.heading}\n"
        level = "###"
    titles: dict[type[Message], str] = {}
    for entry in filter(section.belongs, built_in(section.kind)):
        yield f"{level} {entry.title}\n"
        yield from entry_parts(entry, titles)


def entry_parts(entry: Entry, titles: dict[type[Message], str]) -> Iterator[str]:
    """Yield the paragraphs of a component; ``titles`` has those of earlier ones by their settings."""
    words = entry.words
    if len(words) > 1:
        yield "".join(f"- {call(word, name)}\n" for name, word in words.items())
    elif words:
        (name, word) = next(iter(words.items()))
        yield f"{call(word, name)}\n"
    yield f"{in_a_job(entry)}\n"
    texts = paragraphs(entry.component)
    for paragraph in texts[:2] if entry.type == "kBP" else texts:  # the others are for developers
        yield f"{paragraph}\n"
    conf = entry.settings
    first = next(iter(words.values()), None)
    said = arguments(getattr(first, "__doc__", None)) if entry.kind in ("layer", "updater", "schedule") else {}
    said = {name: text for name, text in said.items() if name not in COMMON}
    if set(said) - set(field_types(conf) if conf is not None else ()):
        yield arguments_table(first, said)
        if conf is not None and conf not in titles:
            yield f"In `{conf.field}` of a job file:\n"  # type: ignore[attr-defined]
    if conf is not None and conf in titles:
        yield f"The settings are the settings of [{titles[conf]}](#{anchor(titles[conf])}).\n"
    elif conf is not None:
        yield settings_table(conf)
        titles[conf] = entry.title


COMMON = (
    "decoupled_weight_decay clip_norm clip_global_norm clip_value param_settings use_ema ema_momentum ema_warmup "
    "ema_every minimum_lr start_step warmup_steps warmup_lr"
).split()


def in_a_job(entry: Entry) -> str:
    """Return the names of a component in a job file, their numbers, and where its settings stand."""
    names = " or ".join(
        f"`{name}`" + ("" if number is None else f" ({number})") for name, number in entry.names.items()
    )
    needed = " and ".join(f"`{name}`" for name in getattr(entry.component, "required_fields", ()))
    conf: Any = entry.settings
    has_field = conf is not None and entry.kind not in ("extension", "augmentation", "initialiser")  # they are flat
    settings = f", with settings in `{conf.field}`" if has_field and hasattr(conf, "field") else ""
    return f"Job file: {names}{settings}{f', which needs {needed}' if needed else ''}."


def anchor(title: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return "".join(sign for sign in title.lower().replace(" ", "-") if sign.isalnum() or sign in "-_")


def index(pages: dict[str, str]) -> str:
    """Return a table of all layers, by page: their names, and what they are for."""
    parts = []
    for page, title in pages.items():
        rows = []
        for entry in filter(on_page(page), built_in("layer")):
            words = ", ".join(f"`{word.rpartition('.')[2]}`" for word in entry.words) or "-"
            rows.append((words, f"[`{entry.type}`]({page}.md#{anchor(entry.title)})", first_sentence(entry.component)))
        parts.append(f"## {title}\n\n{table(('in nn', 'in a job file', 'what it computes'), rows)}")
    return "\n".join(parts)
