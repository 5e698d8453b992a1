"""Lists the values that fields of a job can have, with SINGA's names and numbers."""

from __future__ import annotations

from enum import Enum, IntFlag

from dsinga.base.errors import UserError
from dsinga.job.type_names import TypeName


class Phase(IntFlag):
    """The use of a net: training, validation, test or deployment, as in a layer's ``include``."""

    kUnknown = 0
    kTrain = 1
    kVal = 2
    kTest = 4
    kPositive = 8
    kNegative = 16
    kForward = 32
    kBackward = 64
    kLoss = 128
    kDeploy = 256


class AlgType(TypeName, kind="algorithm", user="kUserAlg", number=104):
    """The names of the algorithms that compute gradients (SINGA's TrainOneBatch)."""


class UpdaterType(TypeName, kind="updater", user="kUserUpdater", number=105):
    """The names of the updaters (optimizers)."""


class ChangeMethod(TypeName, kind="schedule", user="kUserChange", number=100):
    """The names of the schedules of the learning rate."""


class ExtensionType(TypeName, kind="extension", user="kUserExtension", number=106):
    """The names of the extensions (callbacks) of the training loop."""


class AugmentationType(TypeName, kind="augmentation", user="kUserAugmentation", number=107):
    """The names of the random changes of training records."""


class MonitorMode(Enum):
    """Whether lower or higher metric values are better; ``auto`` decides by the metric's name."""

    auto = 0
    min = 1
    max = 2


class InitMethod(TypeName, kind="initialiser", user="kUserInit", number=101):
    """The names of the initialisers of params.

    ``kUniformFanInOut`` multiplies by √(6 / (rows + columns)), as on SINGA's Param page, ``kUniformSqrtFanInOut`` by 1
    / √(rows + columns), as in its source.
    """


class ParamType(Enum):
    """Whether a param is of SINGA's class or a user's; without effect."""

    kParam = 0
    kUser = 103


class UnrollConnType(Enum):
    """Which time steps of a source a copy of an unrolled layer reads: its own, all, or the last."""

    kUnrollOneToOne = 1  # copy i takes copy i - ``shift``, and nothing if that is before the first
    kUnrollOneToAll = 2  # copy i takes every copy, or the only one of a source that is not unrolled
    kUnrollFirstToLast = 3  # copy 0 takes the last copy, other copies nothing
    kUnrollCustomized = 4


class ActivationType(Enum):
    """The functions that a kActivation layer can compute."""

    RELU = 1
    SIGMOID = 2
    TANH = 3
    STANH = 4
    GELU = 5
    SILU = 6
    ELU = 7
    SELU = 8
    SOFTPLUS = 9
    CELU = 10
    SOFTSIGN = 11
    MISH = 12
    HARDSIGMOID = 13
    HARDSWISH = 14
    EXP = 15
    LOG = 16
    ERF = 17
    SIN = 18
    COS = 19


class CellActivation(Enum):
    """The activations of recurrent cells; derivatives follow from the values."""

    SIGMOID = 0
    TANH = 1
    RELU = 2
    IDENTITY = 3

    @classmethod
    def aliases(cls) -> dict[str, CellActivation]:
        """Return the cell activations by their other names."""
        return {"LINEAR": cls.IDENTITY}


class AttentionScore(Enum):
    """How kAttention scores a query q and a key k: q·k divided by the root of their size, q·k, or v·tanh(q + k)."""

    kScaledDot = 0
    kDot = 1
    kAdditive = 2


class DistributionName(Enum):
    """The distributions that a net can predict (:mod:`dsinga.addons.probabilities.distributions`)."""

    normal = 0
    laplace = 1
    lognormal = 2
    poisson = 3
    negative_binomial = 4


class DistributionScore(Enum):
    """The loss of a predicted distribution: negative log-likelihood or CRPS."""

    nll = 0
    crps = 1


class PoolMethod(Enum):
    """How pooling reduces a region to one number."""

    MAX = 0
    AVG = 1


class StepPoolMethod(Enum):
    """How pooling reduces the steps of a sequence to one."""

    MAX = 0
    AVG = 1
    SUM = 2
    FIRST = 3
    LAST = 4
    ENDS = 5


class DropoutUnit(Enum):
    """The unit that kDropout drops: a number, a channel of a row, a row, or a feature at all steps."""

    kNumber = 0
    kChannel = 1
    kRow = 2
    kFeature = 3


class PolicyDistribution(Enum):
    """The meaning of a policy net's outputs: scores of actions, or means and log standard deviations."""

    kCategorical = 0
    kGaussian = 1


class SamplingMethod(Enum):
    """How a language model's loss tells words from random ones: by scores, or by noise-contrastive estimation."""

    kNegativeSampling = 0
    kNCE = 1


class PaddingMode(Enum):
    """How kPadding fills points around a field: zeros, edge values, mirror image, or opposite side."""

    kZero = 0
    kEdge = 1
    kReflect = 2
    kPeriodic = 3


class UpsamplingMethod(Enum):
    """Whether kUpsampling repeats points or interpolates linearly along each axis."""

    kNearest = 0
    kLinear = 1


class HingeNorm(Enum):
    """Whether kHingeLoss sums violations of the margin (L1) or their squares (L2)."""

    L1 = 1
    L2 = 2


class SlicingMethod(Enum):
    """How params are divided among servers: by SINGA's slicer, or in fixed blocks by hash (PaddlePaddle)."""

    kSinga = 0
    kBlock = 1


class PartitionMethod(Enum):
    """Whether the job or a cost model decides how layers are divided among workers."""

    manual = 0
    auto = 1


class SyncTopology(Enum):
    """Which server groups send each other changes of params."""

    kAllToAll = 0
    kRing = 1
    kStar = 2


class SyncMethod(Enum):
    """How groups of servers synchronise: they add up changes, or an outer optimizer averages params."""

    kSum = 0
    kMean = 1


class Compression(Enum):
    """How gradients are compressed: signs and two means (1-bit SGD), the largest numbers, or fewer bits.

    kInt8 and kInt4 are 8-bit and 4-bit integers with a scale for each block.
    """

    kNone = 0
    kOneBit = 1
    kTopK = 2
    kBF16 = 3
    kInt8 = 4
    kInt4 = 5

    @property
    def by_number(self) -> bool:
        """Whether each number of a gradient is sent by itself, so that gradients can be split."""
        return self in (Compression.kNone, Compression.kBF16)


class PullTime(Enum):
    """When a worker fetches new params: right after its gradients, or when a forward pass needs them."""

    kAtOnce = 0
    kDeferred = 1


class UpdatePlace(Enum):
    """Where params are updated: on the servers, or on every worker with the summed gradients."""

    kServer = 0
    kWorker = 1


class Precision(Enum):
    """The precision of factors in matrix products and convolutions; params and sums are float32.

    kTF32 (GPUs only) rounds factors to 10 bits of mantissa, kBF16 to 7. With kBF16, images between convolutions are
    bfloat16.
    """

    kFloat32 = 0
    kTF32 = 1
    kBF16 = 2


PRECISIONS = {Precision.kFloat32: "float32", Precision.kTF32: "tf32", Precision.kBF16: "bf16"}  # as kernels name them
CPU_PRECISIONS = (Precision.kFloat32, Precision.kBF16)  # the precisions of CPU cores


class LayerType(TypeName, kind="layer", user="kUserLayer", number=600):
    """The names of the layer types."""


PHASES = {"train": Phase.kTrain, "val": Phase.kVal, "test": Phase.kTest, "deploy": Phase.kDeploy}


def find_phase(name: str) -> Phase:
    """Return the phase named "train", "val", "test" or "deploy". Raises UserError for another name."""
    try:
        return PHASES[name]
    except KeyError:
        raise UserError(f"there is no phase {name!r}; the phases are {', '.join(PHASES)}") from None
