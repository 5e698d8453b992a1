"""The pages of docs/reference/ that are written, by the names of their files."""

from pathlib import Path

import click
import yaml

from dsinga.base import settings
from dsinga.commands.cli import main_group
from dsinga.job import Job
from dsinga.job.layerconf import AugmentConf, LayerConf, ParamConf, ParamGenConf, StoreConf
from dsinga.job.message import Message, added_fields, added_message, field_types
from dsinga.job.schema import AlgConf, ClusterConf, ExtensionConf, LayerGroupConf, NetConf, SyncEdgeConf
from dsinga.job.updaterconf import EMAConf, LRGenConf, MomentumConf, ParamSettingsConf, UpdaterConf
from dsinga.nn.words.losses import losses_by_name
from dsinga.nn.words.metrics import ALIASES, GATHERED, TYPES
from dsinga.rl.reinforcement_conf import ReinforcementConf, ReplayConf
from tools.reference.components import Section, anchor, built_in, index, on_page, section_parts
from tools.reference.texts import markdown, paragraphs, settings_table, table

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
HEADS = Path(__file__).with_name("heads")
LAYERS = {
    "layers-dense": "Dense layers, activations, normalisation",
    "layers-features": "Layers that combine, cut and reshape features",
    "layers-images": "Layers for images",
    "layers-fields": "Layers for fields",
    "layers-sequences": "Layers for sequences",
    "layers-attention": "Attention layers",
    "layers-tables": "Layers for tables and ensembles",
    "layers-records": "Layers for records",
}
SECTIONS = {
    **{page: [Section("layer", "", on_page(page))] for page in LAYERS},
    "losses": [Section("layer", "", on_page("losses"))],
    "metrics": [Section("layer", "", on_page("metrics"))],
    "optimizers": [Section("updater", "Updaters"), Section("algorithm", "Algorithms")],
    "learning-rates": [Section("schedule")],
    "initialisers": [Section("initialiser")],
    "extensions": [Section("extension")],
    "augmentations": [Section("augmentation")],
    "reinforcement": [
        Section("learning_algorithm", "Algorithms"),
        Section("layer", "Layers and losses", on_page("reinforcement")),
    ],
}
ELSEWHERE = ("reinforcement",)  # messages with a page of their own
MESSAGES: dict[str, type[Message]] = {
    "The job": Job,
    "neuralnet": NetConf,
    "layer": LayerConf,
    "store_conf": StoreConf,
    "augment": AugmentConf,
    "param": ParamConf,
    "init": ParamGenConf,
    "layer_group": LayerGroupConf,
    "updater": UpdaterConf,
    "learning_rate": LRGenConf,
    "momentum_conf": MomentumConf,
    "ema_conf": EMAConf,
    "param_settings": ParamSettingsConf,
    "train_one_batch": AlgConf,
    "extension": ExtensionConf,
    "cluster": ClusterConf,
    "sync_edge": SyncEdgeConf,
}


def pages() -> dict[str, str]:
    """Return the text of each page, by the name of its file."""
    found = {f"{name}.md": page(name, *sections(name)) for name in SECTIONS}
    found["layers.md"] = page("layers", index(LAYERS))
    found["losses.md"] = page("losses", loss_names(), *sections("losses"))
    found["metrics.md"] = page("metrics", metric_names(), *sections("metrics"))
    found["job-fields.md"] = page("job-fields", *job_fields())
    agents = message_parts("Settings of an agent", ReinforcementConf) + message_parts("replay_conf", ReplayConf)
    found["reinforcement.md"] = page("reinforcement", *agents, *sections("reinforcement"))
    found["settings.md"] = page("settings", settings_rows(), variables())
    found["commands.md"] = page("commands", *commands(main_group, "dsinga"))
    return found


def sections(name: str) -> list[str]:
    """Return the parts of the components of a page."""
    return [part for section in SECTIONS[name] for part in section_parts(section)]


def page(name: str, *parts: str) -> str:
    """Return a page: its head, which is written by hand, and its parts."""
    return "\n".join([head(name), *parts]).rstrip() + "\n"


def head(name: str) -> str:
    """Return the beginning of a page."""
    return (HEADS / f"{name}.md").read_text(encoding="utf-8")


def metric_names() -> str:
    """Return the table of the metrics that ``compile`` accepts."""
    others = {name: [other for other, known in ALIASES.items() if known == name] for name in ALIASES.values()}
    layers = {name: type for name, (type, _) in TYPES.items()}
    layers |= {entry.type: GATHERED[0] for entry in built_in("metric")} | {"top_5_accuracy": "kTopKAccuracy"}
    titles = {entry.type: entry.title for entry in built_in("layer")}
    rows = []
    for name, type in sorted(layers.items()):
        also = ", ".join(f"`{other}`" for other in others.get(name, ())) or "-"
        rows.append((f"`{name}`", also, f"[`{type}`](#{anchor(titles[type])})"))
    return f"## Names\n\n{table(('metric', 'other names', 'layer that reports it'), rows)}"


def loss_names() -> str:
    """Return the table of the names of losses that ``compile`` accepts."""
    titles = {word.rpartition(".")[2]: entry.title for entry in built_in("layer") for word in entry.words}
    rows = []
    for function in sorted({*losses_by_name().values()}, key=str.lower):
        names = ", ".join(f'`"{name}"`' for name, made in sorted(losses_by_name().items()) if made == function)
        rows.append((names, f"[`nn.{function}`](#{anchor(titles[function])})"))
    return f"## Names in compile\n\n{table(('loss=', 'function'), rows)}"


def job_fields() -> list[str]:
    """Return the sections of the fields of a job."""
    parts = []
    added: dict[str, type[Message]] = {}
    for title, message in MESSAGES.items():
        found = {name: added_message(message, name) for name in added_fields(message)}
        added |= {name: kind for name, kind in found.items() if name not in ELSEWHERE}
        parts += message_parts(title, message, *found)
    for title, message in sorted(added.items()):
        parts += message_parts(title, message)
    return parts


def message_parts(title: str, message: type[Message], *added: str) -> list[str]:
    """Return the section of a message: what it is for, and its fields, those of components apart."""
    known = field_types(message)
    names = [*(name for name in message._types if name in known), *added]
    return [f"## {title}\n", *(f"{text}\n" for text in paragraphs(message)), settings_table(message, names)]


def settings_rows() -> str:
    """Return the sections of the settings of Dask's configuration."""
    parts = []
    for name, schema in settings.schema().items():
        default = yaml.safe_dump(settings.defaults()[name]).removesuffix("...\n").strip()
        parts.append(f"## {name}\n")
        parts.append(f"`dsinga.{name}`, default `{default}`. Variable: `{settings.variable(name)}`.\n")
        parts += [f"{markdown(text)}\n" for text in schema["description"].strip().split("\n\n")]
    return "\n".join(parts)


def variables() -> str:
    """Return the table of the variables of the environment that each process reads."""
    schema = Path(settings.__file__).with_name("dsinga-schema.yaml").read_text(encoding="utf-8")
    rows = [
        (f"`{name}`", row["values"], markdown(row["description"]))
        for name, row in yaml.safe_load(schema)["environment"].items()
    ]
    text = "Each process reads its own variables. Set them where `dask worker` starts.\n"
    return f"## Variables of the environment\n\n{text}\n{table(('variable', 'values', 'meaning'), rows)}"


def commands(command: click.Command, path: str) -> list[str]:
    """Return the sections of a command and its commands: what their help says."""
    context = click.Context(command, info_name=path, terminal_width=100, max_content_width=100)
    parts = [f"## {path}\n", f"```text\n{command.get_help(context)}\n```\n"]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            parts += commands(found, f"{path} {name}")
    return parts
