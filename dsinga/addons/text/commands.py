"""The commands ``generate`` and ``translate``, which produce texts with a trained net."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

import click

from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.commands.options import CHECKPOINT, DEVICE, job_options


@register("command", "generate")
@click.command()
@CHECKPOINT
@click.option("--seed-text", default="", help="Text to continue [default: one random character].")
@click.option(
    "--length",
    default=500,
    show_default=True,
    type=click.IntRange(min=0),
    help="Number of characters or words to generate.",
)
@click.option(
    "--temperature", default=1.0, show_default=True, type=click.FloatRange(min=0),
    help="Lower values prefer the more probable characters; 0 always takes the most probable one.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of the random numbers.")
@DEVICE
@job_options
def generate(
    conf: Path, checkpoint: str | None, seed_text: str, length: int, temperature: float, seed: int,
    data_root: str | None, overrides: tuple[str, ...],
) -> None:  # fmt: skip
    """Generate text with a trained net.

    CONF is the job file of a net that predicts the next character or word, such as a char-rnn.
    """
    from dsinga.addons.text import generation
    from dsinga.job import load

    job = load(conf, overrides)
    text = generation.generate(job, checkpoint, seed_text, length, temperature, seed, data_root=data_root)
    click.echo(seed_text + text)


@register("command", "translate")
@click.command()
@CHECKPOINT
@click.option(
    "--input", "source", type=click.File(), default="-", help="File of sentences, one a line [default: standard input]."
)
@click.option("--references", type=click.File(), help="File of right translations, one a line; prints the BLEU.")
@click.option(
    "--beam", default=5, show_default=True, type=int, help="Beginnings of a translation that go on at each step."
)
@click.option(
    "--length-penalty",
    default=0.6,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Exponent for the length of translations; lower values give shorter ones.",
)
@DEVICE
@job_options
def translate(
    conf: Path, checkpoint: str | None, source: TextIO, references: TextIO | None, beam: int, length_penalty: float,
    data_root: str | None, overrides: tuple[str, ...],
) -> None:  # fmt: skip
    """Translate sentences with a trained net, by beam search.

    CONF is the job file of a translator. Prints a translation for each line of the input, with words separated by
    blanks.
    """
    import time

    from dsinga.addons.text import translation
    from dsinga.addons.text.bleu_score import bleu
    from dsinga.job import load

    job = load(conf, overrides)
    sentences = source.read().splitlines()
    right = references.read().splitlines() if references else None
    if right is not None and len(right) != len(sentences):
        raise UserError(f"{len(sentences)} sentences have {len(right)} references; give one for each sentence")
    started = time.perf_counter()
    translations = translation.translate(job, checkpoint, sentences, beam, length_penalty, data_root=data_root)
    seconds = time.perf_counter() - started
    for text in translations:
        click.echo(text)
    click.echo(f"translated {len(translations)} sentences in {seconds:.1f} s", err=True)
    if right is not None:
        click.echo(f"BLEU {bleu(translations, [reference.lower() for reference in right]):.2f}", err=True)
