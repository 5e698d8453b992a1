"""Defines and checks ``mean_conf { }``, the settings of a job's cluster for averaging params."""

from __future__ import annotations

from dataclasses import field

from dsinga.base.registry import register
from dsinga.job.enums import ChangeMethod, Compression, UpdaterType
from dsinga.job.limits import Count, Natural, NonNegative, Share
from dsinga.job.message import Message
from dsinga.job.schema import ClusterConf, Job
from dsinga.job.updaterconf import LRGenConf, UpdaterConf


def outer_nesterov() -> UpdaterConf:
    """Return DiLoCo's outer optimizer: Nesterov's momentum of 0.9 at a rate of 0.7 (arXiv 2311.08105, table 5)."""
    rate = LRGenConf(type=ChangeMethod.kFixed, base_lr=0.7)
    return UpdaterConf(type=UpdaterType.kNesterov, learning_rate=rate, momentum=0.9)


OUTER_COMPRESSIONS = (Compression.kNone, Compression.kBF16, Compression.kInt8, Compression.kInt4)


@register("message", "ClusterConf.mean_conf")
class MeanConf(Message):
    """How server groups average their params, if the cluster has ``sync_method: kMean``.

    Each group trains alone for ``sync_freq`` steps. An outer optimizer then updates the outer params with the mean of
    the outer gradients (outer params minus the group's params). Each group continues from the outer params and keeps
    the state of the job's own updater.

    Args:
        updater: the outer optimizer; by default Nesterov's momentum of 0.9 at a rate of 0.7. Its schedule counts outer
            steps.
        weight: the weight of each group's outer gradients; equal by default.
        every_step_until: up to this step, groups average after every step.
        mixing: the share of its own params that a group keeps.
        compression: the compression of outer gradients: kNone, kBF16, kInt8 or kInt4.
        fragments: the number of parts in which params are averaged in turn, a part every ``sync_freq`` / ``fragments``
            steps.
        delay: how many steps outer gradients are late. Groups train while they are sent.
        asynchronous: whether groups do not wait for each other. An outer gradient that is a outer steps late counts
            1 / √(1 + a) times.
        max_age: outer gradients that are more outer steps late do not count.
        site: a pattern for each group, such as ``10.0.1.*``, of hosts, names, addresses or resources of its workers;
            by default each group has a host.
    """

    updater: UpdaterConf = field(default_factory=outer_nesterov)
    weight: list[NonNegative] = field(default_factory=list)
    every_step_until: Natural = 0
    mixing: Share = 0.0
    compression: Compression = Compression.kNone
    fragments: Count = 1
    delay: Natural = 0
    asynchronous: bool = False
    max_age: Natural = 8
    site: list[str] = field(default_factory=list)

    @property
    def update_words(self) -> str:
        """Describe how server groups average: the outer optimizer, and whether they wait."""
        rate = self.updater.learning_rate
        fixed = f" at a rate of {rate.base_lr:g}" if rate.type is ChangeMethod.kFixed else ""
        return f" by the mean with {self.updater.type_name}{fixed}{' asynchronously' * self.asynchronous}"

    def check(self, job: Job) -> None:
        """Raise JobError if server groups cannot average their params with these settings."""
        assert job.cluster is not None
        check_groups(job, job.cluster)
        check_mean_conf(job, job.cluster, self)
        check_outer_optimizer(self.updater)


def check_groups(job: Job, cluster: ClusterConf) -> None:
    """Raise JobError for a topology with server groups that cannot average their params."""
    groups = cluster.nserver_groups
    if groups == 1:
        text = (
            "sync_method: kMean is for several server groups; set nworker_groups and nserver_groups, each to the number"
        )
        raise cluster.error(f"{text} of sites, or leave sync_method out", "sync_method")
    if groups != cluster.nworker_groups:
        text = f"sync_method: kMean needs a server group for each of the {cluster.nworker_groups} worker groups, not"
        raise cluster.error(f"{text} {groups}; set nserver_groups: {cluster.nworker_groups}", "nserver_groups")
    if cluster.sync_freq > job.train_steps > 0:
        text = f"sync_freq: {cluster.sync_freq} is more than train_steps: {job.train_steps}, so that groups average"
        raise cluster.error(f"{text} their params at the end only; lower sync_freq", "sync_freq")
    if cluster.compression is not Compression.kNone and cluster.nworkers_per_group == 1:
        text = f"compression: {cluster.compression.name} is that of gradients between the workers of a site, which has"
        raise cluster.error(f"{text} one; put it into mean_conf, for the outer gradients between sites", "compression")


def check_mean_conf(job: Job, cluster: ClusterConf, mean: MeanConf) -> None:
    """Raise JobError for averaging settings that contradict each other or the job."""
    groups = cluster.nserver_groups
    if not mean.asynchronous and job.warmup_steps:
        text = "warmup_steps let worker group 0 train alone, but synchronous sites wait for each other; use"
        raise job.error(f"{text} mean_conf {{ every_step_until: {job.warmup_steps} }} in its place", "warmup_steps")
    if mean.every_step_until >= job.train_steps > 0:
        text = f"every_step_until: {mean.every_step_until} leaves none of train_steps: {job.train_steps} for sync_freq"
        raise mean.error(f"{text}; lower it", "every_step_until")
    if mean.max_age != MeanConf().max_age and not mean.asynchronous:
        text = "max_age is the bound of asynchronous groups, but these wait for each other; set asynchronous: true, or"
        raise mean.error(f"{text} leave max_age out", "max_age")
    if mean.weight and (len(mean.weight) != groups or not sum(mean.weight)):
        text = f"weight has {len(mean.weight)} numbers for {groups} server groups"
        text = text if len(mean.weight) != groups else "weight is 0 for all server groups"
        raise mean.error(f"{text}; give one for each, not all 0", "weight")
    if mean.site and len(mean.site) != groups:
        text = (
            f"site names the Dask workers of {len(mean.site)} groups, but there are {groups}; give a pattern for each"
        )
        raise mean.error(f'{text}, such as site: "10.0.1.*", or none', "site")
    if mean.fragments > cluster.sync_freq:
        text = f"fragments: {mean.fragments} cannot be averaged in turn within sync_freq: {cluster.sync_freq} steps;"
        raise mean.error(f"{text} use at most {cluster.sync_freq}", "fragments")
    if mean.delay >= cluster.sync_freq:
        text = f"delay: {mean.delay} must be less than sync_freq: {cluster.sync_freq}, the steps after which slices are"
        raise mean.error(f"{text} averaged again", "delay")
    if mean.delay and mean.asynchronous:
        raise mean.error(
            "asynchronous groups do not wait for outer gradients; leave delay out, or asynchronous", "delay"
        )
    if mean.compression not in OUTER_COMPRESSIONS:
        names = ", ".join(method.name for method in OUTER_COMPRESSIONS)
        raise mean.error(
            f"compression of outer gradients is one of {names}, not {mean.compression.name}: they are not sparse",
            "compression",
        )
    if mean.asynchronous and mean.compression is not Compression.kNone:
        text = "asynchronous groups add up outer gradients that wait to be sent, in float32; leave compression out, or"
        raise mean.error(f"{text} asynchronous", "compression")


def check_outer_optimizer(updater: UpdaterConf) -> None:
    """Raise JobError for settings of an outer optimizer that have no effect, or are never meant."""
    if updater.ema_conf is not None:
        raise updater.error("the outer optimizer keeps no averages; put ema_conf into the job's updater", "ema_conf")
    for name in ("clip_norm", "clip_global_norm"):
        if getattr(updater, name):
            text = (
                f"the outer optimizer has slices of outer gradients, not their norm; put {name} into the job's updater"
            )
            raise updater.error(text, name)
    rate = updater.learning_rate
    if rate.type is ChangeMethod.kFixed and not rate.base_lr:
        text = (
            "base_lr: 0 of the outer optimizer drops what sites have learnt at each averaging; give a rate, such as 1"
        )
        raise rate.error(f"{text} for the mean of the params", "base_lr")
