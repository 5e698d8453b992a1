"""The enumerations of the job schema, with SINGA's names and numbers."""

from __future__ import annotations

from enum import Enum, IntFlag

from dsinga.base.errors import UserError
from dsinga.job.type_names import TypeName


class Phase(IntFlag):
    """A phase of a run; a layer's ``include`` and ``exclude`` list the phases it belongs to."""

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
    """The TrainOneBatch algorithms."""


class UpdaterType(TypeName, kind="updater", user="kUserUpdater", number=105):
    """The updaters."""


class ChangeMethod(TypeName, kind="schedule", user="kUserChange", number=100):
    """The schedules of the learning rate."""


class ExtensionType(TypeName, kind="extension", user="kUserExtension", number=106):
    """The extensions of the training loop."""


class AugmentationType(TypeName, kind="augmentation", user="kUserAugmentation", number=107):
    """The augmentations of training records."""


class MonitorMode(Enum):
    """Whether lower or higher values of a metric are better; ``auto`` goes by its name."""

    auto = 0
    min = 1
    max = 2


class InitMethod(TypeName, kind="initialiser", user="kUserInit", number=101):
    """The initialisers of params. The names ``kConst`` and ``kUniformFanInOut`` come from SINGA's Param page.

    ``kUniformFanInOut`` multiplies by √(6 / (rows + columns)), as on that page; ``kUniformSqrtFanInOut``, from SINGA's
    source, multiplies by 1 / √(rows + columns).
    """


class ParamType(Enum):
    """The kind of a param: SINGA's only one, or a user's."""

    kParam = 0
    kUser = 103


class UnrollConnType(Enum):
    """How the copies of an unrolled layer take the copies of a source."""

    kUnrollOneToOne = 1  # copy i takes copy i - ``shift``, and nothing if that is before the first
    kUnrollOneToAll = 2  # copy i takes every copy, or the only one of a source that is not unrolled
    kUnrollFirstToLast = 3  # copy 0 takes the last copy, other copies nothing
    kUnrollCustomized = 4


class ActivationType(Enum):
    """The functions of kActivation."""

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
    """The activations of recurrent cells, whose derivative follows from their value."""

    SIGMOID = 0
    TANH = 1
    RELU = 2
    IDENTITY = 3

    @classmethod
    def aliases(cls) -> dict[str, CellActivation]:
        """Return other names of members."""
        return {"LINEAR": cls.IDENTITY}


class AttentionScore(Enum):
    """How kAttention scores a query q and a key k: q·k divided by the root of their size, q·k, or v·tanh(q + k)."""

    kScaledDot = 0
    kDot = 1
    kAdditive = 2


class DistributionName(Enum):
    """The distributions whose parameters a net can predict (:mod:`dsinga.addons.probabilities.distributions`)."""

    normal = 0
    laplace = 1
    lognormal = 2
    poisson = 3
    negative_binomial = 4


class DistributionScore(Enum):
    """The score that trains a predicted distribution: its negative log-likelihood, or its CRPS."""

    nll = 0
    crps = 1


class PoolMethod(Enum):
    """The kinds of pooling."""

    MAX = 0
    AVG = 1


class StepPoolMethod(Enum):
    """The kinds of pooling over the steps of sequences."""

    MAX = 0
    AVG = 1
    SUM = 2
    FIRST = 3
    LAST = 4
    ENDS = 5


class DropoutUnit(Enum):
    """The unit that kDropout drops: a single number, a channel of a row, a whole row, or a feature at all steps."""

    kNumber = 0
    kChannel = 1
    kRow = 2
    kFeature = 3


class PolicyDistribution(Enum):
    """The meaning of a policy's numbers: scores of actions, or means and logs of standard deviations."""

    kCategorical = 0
    kGaussian = 1


class SamplingMethod(Enum):
    """How a loss tells a word from random ones: by their scores, or by noise-contrastive estimation."""

    kNegativeSampling = 0
    kNCE = 1


class PaddingMode(Enum):
    """The points around a field, by kPadding: zeros, its edge, its mirror image at the edge, or its opposite side."""

    kZero = 0
    kEdge = 1
    kReflect = 2
    kPeriodic = 3


class UpsamplingMethod(Enum):
    """Whether kUpsampling repeats points, or interpolates linearly between them along each axis."""

    kNearest = 0
    kLinear = 1


class HingeNorm(Enum):
    """Whether kHingeLoss sums the violations of the margin (L1) or their squares (L2)."""

    L1 = 1
    L2 = 2


class SlicingMethod(Enum):
    """How params are sliced for servers: by SINGA's slicer, or in blocks of fixed size by hash (PaddlePaddle)."""

    kSinga = 0
    kBlock = 1


class PartitionMethod(Enum):
    """Whether the job (manual) or the cost model (auto) chooses how layers are partitioned."""

    manual = 0
    auto = 1


class SyncTopology(Enum):
    """The links between server groups; linked groups send each other the changes of their params."""

    kAllToAll = 0
    kRing = 1
    kStar = 2


class SyncMethod(Enum):
    """How server groups synchronise: their changes add up, or an outer optimizer averages their params."""

    kSum = 0
    kMean = 1


class Compression(Enum):
    """How gradients are compressed: to signs and two means (1-bit SGD), to their largest numbers, or to fewer bits.

    kInt8 and kInt4 are integers of 8 and 4 bits with a scale for each block of numbers.
    """

    kNone = 0
    kOneBit = 1
    kTopK = 2
    kBF16 = 3
    kInt8 = 4
    kInt4 = 5

    @property
    def by_number(self) -> bool:
        """Whether each number of a gradient is sent by itself, so that gradients may be cut into pieces."""
        return self in (Compression.kNone, Compression.kBF16)


class PullTime(Enum):
    """When a worker pulls new values: at once after its push, or when the next forward pass needs them."""

    kAtOnce = 0
    kDeferred = 1


class UpdatePlace(Enum):
    """Where the updater runs: at the server, or at every worker after the server has summed the gradients."""

    kServer = 0
    kWorker = 1


class Precision(Enum):
    """The precision of the factors of matrix products, convolutions included; params and sums of products are float32.

    kTF32, of GPUs only, and kBF16 round the factors to 10 and 7 bits of the mantissa. In kBF16 images between
    convolutions are bfloat16, too.
    """

    kFloat32 = 0
    kTF32 = 1
    kBF16 = 2


PRECISIONS = {Precision.kFloat32: "float32", Precision.kTF32: "tf32", Precision.kBF16: "bf16"}  # as kernels name them
CPU_PRECISIONS = (Precision.kFloat32, Precision.kBF16)  # the precisions of CPU cores


class LayerType(TypeName, kind="layer", user="kUserLayer", number=600):
    """The layer types."""


PHASES = {"train": Phase.kTrain, "val": Phase.kVal, "test": Phase.kTest, "deploy": Phase.kDeploy}


def find_phase(name: str) -> Phase:
    """Return the phase "train", "val", "test" or "deploy". Raises UserError for any other name."""
    try:
        return PHASES[name]
    except KeyError:
        raise UserError(f"there is no phase {name!r}; the phases are {', '.join(PHASES)}") from None
