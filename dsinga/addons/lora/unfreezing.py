"""The extension Unfreeze, with which groups of layers begin to train one after the other."""

from __future__ import annotations

from collections.abc import Iterator

from dsinga.addons.lora.layer_params import fitting, layers_by_name, with_layers, with_params
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.extensions.extension import Extension, LoopView
from dsinga.extensions.triggers import AtEnd
from dsinga.job import Job, ParamConf, Phase
from dsinga.job.component import Fault, Settings, setting
from dsinga.job.limits import Count
from dsinga.net import NeuralNet
from dsinga.reading.checked_job import CheckedJob


@register("extension", kUnfreeze=9)
class Unfreeze(Extension):
    """Trains groups of layers one after the other, usually from the last layer to the first: gradual unfreezing.

    Howard and Ruder, Universal Language Model Fine-tuning for Text Classification (2018). The first group is trained
    from the start, each further one some epochs or steps later. Until then its params and their updater's state do not
    change, bit for bit as if frozen.

    Layers in no group are trained, and statistics of batch normalisation change from the first step on.
    """

    class Conf(Settings):
        """Settings of kUnfreeze."""

        groups: list[str] = setting(
            [],
            "names or patterns of the layers of each group, with spaces between; by default each layer with params is "
            "a group, the last one first",
        )
        epochs: Count | None = setting(None, "after how many epochs each further group is trained")
        steps: Count | None = setting(None, "after how many steps, in place of epochs")

        def faults(self) -> Iterator[Fault]:
            """Yield an error unless exactly one of epochs and steps is given."""
            if (self.epochs is None) == (self.steps is None):
                yield Fault("extension kUnfreeze needs either epochs, as in epochs: 1, or steps, as in steps: 500")

    settings: Conf
    pauses = False  # what it does is in the job

    def set_up(self) -> None:
        """Choose a trigger that never fires."""
        self.trigger = AtEnd()

    def run(self, loop: LoopView) -> None:
        """Do nothing: the job has the params' first steps."""

    def change_job(self, checked: CheckedJob) -> Job:
        """Set the first training step of each param to the start of its group."""
        job, net = checked.job, checked.net(Phase.kTrain)
        first: dict[str, int] = {}
        for number, names in enumerate(self._groups(net)):
            start = number * (self.settings.steps or 0) or checked.epochs.end(number * (self.settings.epochs or 0))
            for node in net.nodes:
                if node.layer.name.rpartition("#")[2] in names:
                    first |= {param: min(start, first.get(param, start)) for param in node.params}

        def change(name: str, conf: ParamConf) -> ParamConf:
            return conf.replace(first_step=first[name]) if first.get(name) else conf

        built = layers_by_name(net)
        layers = [
            with_params(layer, built[layer.name], change) if layer.name in built else layer
            for layer in job.neuralnet.layer
        ]
        return with_layers(job, layers)

    def _groups(self, net: NeuralNet) -> list[set[str]]:
        names = [name for name, layer in layers_by_name(net).items() if layer.params]
        if not self.settings.groups:
            return [{name} for name in reversed(names)]
        groups, left = [], set(names)
        for group in self.settings.groups:
            found = {name for pattern in group.split() for name in fitting(pattern, names, self._fault)}
            groups.append(found & left)
            left -= found
        return groups

    def _fault(self, sentence: str) -> UserError:
        return self.error(sentence, "groups")
