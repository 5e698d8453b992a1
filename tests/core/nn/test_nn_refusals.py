"""What ``nn`` refuses: a statement that is wrong ends with one sentence, which names the remedy."""

import numpy as np
import pytest

import dsinga
from dsinga import extensions, nn
from dsinga.base.errors import UserError
from dsinga.nn.words.optimizers import updater_conf

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype(np.float32)
Y = RNG.integers(3, size=60)
HOT = np.eye(3)[Y]
ROWS, STEPS, IMAGES = (12,), (6, 5), (3, 9, 8)
CLASSES = "sparse_categorical_crossentropy"


def model(**arguments) -> nn.Sequential:
    """Return a compiled model whose inputs have a shape."""
    made = nn.Sequential([nn.Input(4), nn.Dense(3)])
    made.compile(**{"optimizer": "sgd", "loss": CLASSES, **arguments})
    return made


def shapeless() -> nn.Sequential:
    """Return a compiled model that takes the shape of its inputs from the data."""
    made = nn.Sequential([nn.Dense(3)])
    made.compile("sgd", CLASSES)
    return made


def two_outputs() -> nn.Model:
    """Return a compiled model with two outputs."""
    x = nn.Input(4)
    made = nn.Model(x, [nn.Dense(3)(x), nn.Dense(3)(x)])
    made.compile("sgd", [CLASSES, CLASSES])
    return made


def all_steps() -> nn.Sequential:
    """Return a compiled model that gives scores for each step."""
    made = nn.Sequential([nn.Input(STEPS), nn.GRU(4, return_sequences=True), nn.Dense(3)])
    made.compile("sgd", CLASSES)
    return made


def deep() -> nn.Sequential:
    return nn.Sequential([nn.Input(4), nn.Dense(8, activation="relu"), nn.Dense(3)])


def job(*layers, shape) -> dsinga.Job:
    """Return the job of a chain of layers."""
    return nn.Sequential([nn.Input(shape), *layers]).job()


class Forgetful(nn.Model):
    def __init__(self):
        self.dense = nn.Dense(3)


NAMES_AND_HABITS = {
    "nn.MaxPool2D": "dsinga.nn has no 'MaxPool2D'; did you mean 'MaxPooling2D'?",
    "from dsinga.nn import GlobalAvgPool1D": "did you mean 'GlobalAveragePooling1D'?",
    "model(loss='sparse_crossentropy')": "'sparse_crossentropy'; did you mean 'sparse_categorical_crossentropy'?",
    "nn.losses.Poisson": 'has no \'Poisson\'; write nn.DistributionLoss("poisson"), and nn.DistributionParams("po',
    "nn.losses.Tversky": "dsinga.nn.losses has no 'Tversky'; there is no such loss; register a loss layer of your own",
    "from dsinga.extensions import SwapEMAWeights": "give the optimizer use_ema=True",
    "nn.Linear(4, 3)": "dsinga.nn has no 'Linear'; write nn.Dense(units)",
    "nn.CrossEntropyLoss()": 'write loss="sparse_categorical_crossentropy", or nn.SoftmaxLoss(), which takes scores',
    "nn.Module": "write a subclass of nn.Model, or of nn.Layer, that defines call(self, x)",
    "nn.initializers.HeNormal(seed=3)": "HeNormal has no argument 'seed'; the job's seed determines all random numbers",
    "nn.optim": "optimizers are in nn, as nn.AdamW(0.001), for model.compile",
    "nn.utils.PyDataset": "write a class without a base that has __len__, __getitem__, which returns a batch (x, y)",
    "nn.set_random_seed(-1)": "seed is -1; give a whole number of at least 0",
    "nn.from_job(job(nn.Dense(3), shape=4)).compile('sgd', 'mse')": "keeps to no loss; for 'mse' make the net again",
    "nn.from_job(model().job()).compile('sgd', 'mse')": "keeps its loss, SoftmaxLoss; for 'mse' make the net again",
    "nn.to_categorical([0, 3], 3)": "x has the class 3, which is none of 3 classes; they are 0 to 2",
    "nn.Sequential().pop()": "the model has no layer to remove",
    "nn.Dense(3).weights": "the layer Dense is in no model yet, so that it has no params",
    "nn.Dense(3, input_shape=(4,))(nn.Input((5,)))": "has input_shape=(4,), but its source gives (5,)",
    "nn.CosineDecay(0.1, 9, warmup_target=0.2, warmup_lr=0.1)": "other arguments say what warmup_lr is",
    "nn.Conv1D(3, 2, padding='causal')(nn.Input((5,)))": "layer 'conv1d'",
    "nn.clone_model(nn.from_job(model().job()))": "clone_model takes a model of layers, not <model of the job",
    "nn.MultiHeadAttention(2, 4)(nn.Input(STEPS), use_causal_mask=True)": "give it to the layer itself, as in",
    "nn.losses.CategoricalCrossentropy(label_smoothing=0.1)": "give fit shares of classes as labels, np.eye(n)[y]",
    "deep().eval()": "a model has no 'eval'; fit trains, and predict and evaluate do not",
    "deep().state_dict()": "model.params has arrays by name, and can be set to others",
    "nn.Dense(3).units": "a layer Dense has no 'units'; layer.settings has",
    "nn.Dense(3)(nn.Input(3), training=True)": "call of Dense has no argument 'training'; fit trains",
    "nn.Conv2DTranspose(3, 3, dilation_rate=2)": "Conv2DTranspose has no argument 'dilation_rate'; there is none",
    "job(nn.Conv2D(3, 3, groups=3), shape=(4, 8, 9))": "cannot divide 4 channels into 3 equal groups; give group",
    "job(nn.Conv2D(3, 3, groups=2), shape=(4, 8, 9))": "cannot divide 3 filters into 2 equal groups; give group",
    "job(nn.DepthwiseConv2D(3, depth_multiplier=0), shape=(4, 8, 9))": "depth_multiplier of depthwise_conv2d is 0",
    "job(nn.Conv2D(3, 3, dilation_rate=4), shape=(4, 8, 9))": "kernel of 3 x 3 with a dilation of 4 x 4 is larger than",
    "nn.Conv2D(3, 3, data_format='channels_last')": "features of images are channels first; nn.Input(shape, data",
    "nn.LSTM(3, recurrent_regularizer='l3')": "there is no regularizer 'l3'; these are l1, l2, l1_l2",
    "nn.BatchNormalization(gamma_regularizer='l2')": "give the optimizer weight_decay, and the layer wd_scale",
    "job(nn.GRU(4), nn.GRU(4), shape=STEPS)": "(batch, steps, n), but gets (batch, 4)",
    "job(nn.GRU(4, return_sequences='no'), shape=STEPS)": "return_sequences of gru is 'no'; give True or False",
    "all_steps().fit(np.zeros((60, 6, 5)), Y)": "gives 3 scores for each of 6 steps, but y has one label a",
    "nn.Dense(3, recompute='maybe')": "recompute of Dense is 'maybe'; give True or False",
    "nn.Dense(3, kernel_regularizer=nn.L2)": "the regularizer L2 is a function; call it: nn.L2()",
    "nn.SGD(l2=0.1)": "SGD has no argument 'l2'; give layers kernel_regularizer=nn.L1(0.01) or nn.L2(0.01)",
    "nn.Lion(epsilon=1)": "Lion has no argument 'epsilon'; its steps have no divisor",
    "nn.AdamW(-0.1)": "AdamW: learning_rate must be at least 0, not -0.1",
    "nn.SGD(clip_global_norm=-1)": "SGD: clip_global_norm must be at least 0, not -1",
    "nn.SGD(clip_value=-1)": "clip_value is -1; give a number of at least 0",
    "nn.Adam(use_ema=True, ema_momentum=1)": "Adam: ema_momentum must be in [0, 1), not 1",
    "nn.Adam(ema_momentum=0.9)": "ema_momentum, ema_warmup and ema_every have no effect without use_ema=True",
    "nn.CosineDecay(0.1, 9, warmup_steps=-1)": "CosineDecay: warmup_steps must be at least 0, not -1",
    "nn.SequentialSchedule([0.1, 0.2], [3, 5])": "SequentialSchedule: 2 schedules and 2 boundaries; give one boundary",
    "nn.Input(augment=['flip'])": "Input: augment is a list of random changes, not of 'flip'; give nn.augment.Rand",
    "Forgetful().compile('sgd')": "Forgetful.__init__ must begin with super().__init__()",
    "nn.Input((8, 8, 3), data_format='last')": 'data_format is "channels_first" or "channels_last", not \'last\'',
    "nn.Input((8, 3), data_format='channels_last')": "takes images (height, width, channels), as data_format says, not",
    "model().fit(X, Y, name='a\\0b')": "the name 'a\\x00b' has a NUL, which no folder can have; leave it out",
    "nn.activations.relu(X)": "Activation is called on ndarray, not on the feature of another layer; begin with",
    "dsinga.train(job(nn.Dense(3), shape=4), worker=2)": "train has no argument 'worker'; did you mean 'workers'",
    "model().fit(X, Y, class_weight=[1, 2])": "as in {0: 1.0, 1: 5.0}, or is 'balanced', not [1, 2]",
    "model().fit(X, Y, validation_data=(X, Y, [1]))": "sample_weight has 1 numbers for 60 records; give one for each",
    "model().fit(X, Y, class_weight={'1': 2})": "'1' is a text: write {int(k): v for k, v in class_weight.items()}",
    "model().fit(X, Y, class_weight={0: 1, 7: 2})": "class_weight has a factor for 7, which is the class of no record",
    "model().fit(X, Y, class_weight={0: -1})": "class_weight[0] is -1; give a number of at least 0",
    "model(loss='mse').fit(X, X[:, :3], class_weight={0: 1})": "class_weight needs y, an array with the class of",
    "nn.Dense(unit=3)": "Dense has no argument 'unit'; did you mean 'units'?",
    "nn.Dense()": "Dense: missing a required argument: 'units'",
    "nn.RandomNormal(seed=3)": "the job's seed determines all random numbers",
    "nn.Bidirectional(nn.GRU(3), merge_mode='sum')": "the features of both directions are joined",
    "nn.Sequential(layers=[], trainable=False)": "Sequential has no argument 'trainable'; it has layers, name",
    "nn.Cluster(sites=2)": "sites=2 average every sync_freq steps; give sync_freq, such as 100 (1: each step)",
    "nn.Cluster(sites=2, sync_freq=9, mean_conf={'compression': 4})": "a name, such as 'kInt4' for 4 bits, not 4",
    "model()(X, training=True)": "fit trains, and model(x) is what predict returns",
    "nn.from_job(model().job())(nn.Input(4))": "is no layer, because its layers are in a job; model.features(x, layer)",
    "model().summry()": "a model has no 'summry'; did you mean 'summary'?",
    "model().summary(line_length=80)": "summary has no argument 'line_length'; leave it out",
    "model().fit(X, Y, epoch=1)": "no argument 'epoch'; did you mean 'epochs'?",
    "model().fit(X, Y, verbose=3)": "fit has no argument 'verbose'; it is 0 to show nothing, or 1",
    "model().fit(X, Y, sites=2)": "fit has no argument 'sites'; give compile cluster=nn.Cluster(sites=2, sync_freq=",
    "model().fit(X, Y, initial_epoch=2)": "fit has no argument 'initial_epoch'; a further fit goes on",
    "model().fit(X, Y, validation_split=20)": "between 0 and 1, not 20; for 20 % write 0.2",
    "model().fit(X, Y, validation_split=0.999)": "of 60 records leaves none to train or to validate with",
    "model().fit('a.zarr', validation_split=0.1)": "validation_split takes arrays and tables, not str; give",
    "model().fit(X, Y, validation_split=0.1, validation_data=(X, Y))": "give validation_split or validation_data, not",
    "nn.Dense(3, dtype='float16')": "Dense has no argument 'dtype'; params are float32",
    "extensions.EarlyStopping(baselin=1)": "EarlyStopping has no argument 'baselin'; did you mean 'baseline'",
    "nn.LocalNet(model())": "LocalNet takes a Job, not Sequential; of a model of dsinga.nn, write LocalNet(model.job(",
    "dsinga.load(5)": "a job is read from the path of a file, not from int",
}

LAYERS = {
    "nn.Input(True)": "above 0 for each axis, or None for any, not True",
    "nn.Input((3,), batch_size=3)": "write shape=, that of one record; fit has batch_size",
    "nn.Rescaling(0)": "Rescaling: scale is a number other than 0 and offset a number, not 0 and 0.0",
    "nn.Normalization(variance=0)": "the std has 0; give finite numbers above 0: a constant has nothing to normalise",
    "nn.Normalization(mean=[1, float('nan')])": "the mean has nan; give finite numbers",
    "job(nn.Normalization(mean=[1, 2]), shape=IMAGES)": "mean has 2 numbers, but rows are 3 x",
    "nn.RandomFlip('up')": "there is no mode of RandomFlip 'up'; these are horizontal, vertical, ",
    "nn.RandomTranslation(0.1, 0.1, fill_mode='wrap')": "fill_mode is \"reflect\", not 'wrap'; leave it out",
    "nn.Normalization().adapt(X, steps=3)": "adapt reads all records; give as many as are to be read",
    "nn.LSTM(3, recurrent_dropout=0.1)": "give the layer dropout=, which leaves out features of its source",
    "nn.Dense(3, 'rleu')": "Dense: there is no activation 'rleu'; did you mean 'relu'?",
    "nn.LSTM(3, 'swish')": "LSTM: there is no activation 'swish'; these are sigmoid, tanh, relu, linear",
    "nn.Conv2D(3, 3, activation='Tanh')": "no activation 'Tanh'; did you mean 'tanh'?",
    "nn.Dense(0)": "Dense: units must be at least 1, not 0",
    "nn.Conv1D(4, kernel_size=0)": "Conv1D: kernel_size must be in [1, 100000], not 0",
    "nn.Activation('none')": "no activation 'none'; these are linear, ",
    "job(nn.Dense(3, kernel_initializer='he_norml'), shape=ROWS)": "layer 'dense', param 'weight': there is no "
    "initialiser 'he_norml'; did you mean 'he_normal'?",
    "job(nn.Conv2D(3, 5), shape=(1, 9, 4))": "layer 'conv2d': a kernel of 5 x 5 is larger",
    "job(nn.Conv2D(3, 5), shape=(28, 20, 1))": "if the channels are last, begin with nn.Input(..., data",
    "job(nn.Conv2D(3, 5, name='c'), shape=ROWS)": "width), but gets (batch, 12); give",
    "job(nn.MaxPooling2D(2, padding='vaild'), shape=IMAGES)": "not 'vaild'",
    "job(nn.Reshape((4, -1, -1)), shape=ROWS)": "has the shape 4 x -1 x -1; give whole numbers above 0, one of which",
    "job(nn.Padding2D(1, 'circular'), shape=IMAGES)": "no padding_mode 'circular'; these are zero, edge, reflect",
    "job(nn.Padding2D(8, 'reflect'), shape=IMAGES)": "adds 8 points to an axis of 8, but kReflect has at most 7",
    "job(nn.GroupNormalization(2), shape=IMAGES)": "cannot divide 3 channels into 2 equal groups",
    "nn.UpSampling2D(2, 'bicubic')": "no interpolation 'bicubic'; these are nearest, bilinear",
    "job(nn.BatchNormalization(), shape=STEPS)": "use nn.LayerNormalization",
    "job(nn.BatchNormalization(axis=-1), shape=IMAGES)": "channels, which are not the axis -1 here; leave axis out",
    "job(nn.BatchNormalization(1.5), shape=IMAGES)": "the share of the old statistics, must be in [0, 1], not 1.5",
    "job(nn.BatchNormalization(synchronized='no'), shape=IMAGES)": "synchronized of batch_normalization",
    "job(nn.LayerNormalization(1), shape=STEPS)": "normalises the last axes",
    "job(nn.ReLU(name='a'), nn.ReLU(name='a'), shape=ROWS)": "two layers are called 'a'",
    "nn.Model([nn.Input(3, 'a'), nn.Input(4, 'a')], [])": "two inputs are called 'a'; name them",
    "job(nn.Dense(2, lr_scale=(1, 2, 3)), shape=ROWS)": "lr_scale has 3 numbers",
    "job(nn.Dense(2, param=[{}, {}, {}]), shape=ROWS)": "has the params weight, bias, but 3",
    "nn.Layer('kLNR')": "there is no layer type 'kLNR'; did you mean 'kLRN'?",
    "nn.Layer('kLRN', lrn_cnf={})": "has no argument 'lrn_cnf'; did you mean 'lrn_conf'?",
    "nn.Dense(4, 8)": "Dense: activation is a name, not 8; a layer takes the size of its source: write nn.Dense(8)",
    "nn.Dense(3)(np.zeros(3))": "Dense is called on ndarray",
    "nn.Bidirectional(nn.Dense(3))": "takes nn.GRU, nn.LSTM or nn.SimpleRNN",
    "nn.Attention('concat')": "no score_mode 'concat'; these are dot, scaled_dot, additive",
    "nn.MultiHeadAttention(2, 4)(nn.Input(STEPS))": "not 1 sources; for self-attention give the same feature twice",
    "setattr(nn.Dense(3, name='a'), 'trainable', 'no')": "trainable of a is 'no'; give True or False",
}

LOSSES_AND_OPTIMIZERS = {
    "nn.HingeLoss('L3')": "HingeLoss: norm: there is no HingeNorm 'L3'; these are L1, L2",
    "nn.SoftmaxLoss(scale=-1)": "SoftmaxLoss: scale must be at least 0, not -1",
    "nn.HuberLoss()(nn.Dense(5)(nn.Input(6)), nn.Input(6))": "compares 'dense', 5 numbers a row, with 'data', 6; give",
    "model(loss='SoftmaxLoss')": "there is no loss 'SoftmaxLoss'; for the layer of that name write nn.SoftmaxLoss()",
    "model(loss='binary_focal_crossentropy')": "write nn.FocalLoss(alpha=0.5, scale=2)",
    "model(loss='mse2')": "there is no loss 'mse2'; did you mean 'mse'?",
    "model(loss=dict).fit(X, Y)": "the loss dict is a class; call it: dict()",
    "model(loss=['mse', 'mse'])": "the model has 1 outputs, but 2 losses are given",
    "model(loss='mse', loss_weights=[1, 2])": "there are 1 losses, but 2 loss_weights",
    "model(loss=nn.SoftmaxLoss(), loss_weights=[2]).job()": "no effect on SoftmaxLoss(); give it scale=2",
    "nn.Model(x := nn.Input(4), nn.Dense(3, name='scores')(x)).compile('sgd', {'score': 'mse'})": "loss names 'score', "
    "which is no output; did you mean 'scores'?",
    "model(loss='mse').evaluate(X, HOT[:, :2])": "give the last layer as many outputs as the target has",
    "model(loss='categorical_crossentropy').evaluate(X, HOT + 1)": "takes the share of each class, numbers of",
    "model(loss=nn.SoftmaxLoss()).fit(X, 2 * HOT)": "nn.SoftmaxLoss takes the share of each class, numbers of at",
    "model(loss='kl_divergence').fit(X, -HOT)": "that add up to 1 in a row, but row 0 of y has the sum -1",
    "model(loss='focal').fit(X, 2 * HOT)": "focal takes labels from 0 to 1, but y has 0 to 2",
    "model(loss='triplet')": "give the symbol nn.TripletLoss()([anchor, positive, negative])",
    "model().evaluate(X, HOT)": 'takes classes, but y is one-hot; use "categorical_crossentropy"',
    "model().evaluate(X, Y.astype(float))": "but y has the dtype float64; give y.astype(int)",
    "model(loss='binary_crossentropy').fit(X, HOT * 255)": "y has 0 to 255; for answers of 0 and 255 give y // 255",
    "two_outputs().fit(X, HOT[:, :2])": "dense, dense_1, but y is one array; give a list: [y[:, 0], y[:, 1]]",
    "model(loss='binary_crossentropy').evaluate(X, HOT * 2)": "takes labels from 0 to 1, but y has 0 to 2",
    "model(loss='binary_crossentropy').fit(X, 2 * HOT - 1)": "y has -1 to 1; for answers of -1 and 1 give (y + 1) // 2",
    "model(metrics=['mape'])": "there is no metric 'mape'; did you mean",
    "model(loss='mse', metrics=['accuracy'])": "no metric 'accuracy': losses of classes and of yes-or-no questions",
    "model(metrics=[3])": 'metrics are names, as in metrics=["accuracy"], or functions',
    "model(metrics={'dense': ['iou']})": "there is no metric 'iou'",
    "model(loss='hinge', metrics=['entropy'])": "no metric 'entropy'; the layers report accuracy, loss;",
    "nn.Adam(beta_1=1)": "Adam: beta_1 must be in [0, 1), not 1",
    "model(optimizer=nn.Adam)": "the optimizer Adam is a function; call it: nn.Adam()",
    "model(optimizer='nadam')": "there is no optimizer 'nadam'; nn.Adam, nn.RMSprop",
    "updater_conf('sdg')": "there is no optimizer 'sdg'; did you mean 'sgd'?",
    "nn.Adam(amsgrad=True)": "Adam has no argument 'amsgrad'; there is none",
    "nn.SGD(lr=0.1)": "SGD has no argument 'lr'; use learning_rate",
    "nn.Adam(beta1=0.1)": "Adam has no argument 'beta1'; did you mean 'beta_1'?",
    "setattr(model().optimizer, 'learning_rate', -0.1)": "learning_rate is -0.1; give a number of at least 0",
    "nn.SGD('fast')": "learning_rate is a number or a schedule",
    "nn.ParamSettings('*', rate=0.1)": "ParamSettings has no argument 'rate'",
    "nn.LinearMomentum(0.1, 0.9, saturation=3)": "did you mean 'saturation_step'?",
    "nn.PiecewiseConstantDecay([1], [1.0])": "1 boundaries need 2 values, not 1",
}

MODELS = {
    "nn.Sequential(nn.Dense(3))": "nn.Sequential takes a list, as in nn.Sequential([nn.Dense(10)])",
    "nn.Sequential(['relu'])": "not 'relu'; write nn.Activation(\"relu\")",
    "nn.Sequential([nn.ReLU])": "nn.Sequential takes layers, as in nn.Dense(10), not ReLU; call it: nn.ReLU()",
    "nn.Sequential([nn.Adam])": "nn.Sequential takes layers, as in nn.Dense(10), not Adam",
    "nn.Sequential([3])": "nn.Sequential takes layers, as in nn.Dense(10), not 3",
    "nn.Sequential([two_outputs()])": "nn.Sequential takes layers of one feature, and",
    "deep()([nn.Input(4), nn.Input(4)])": "takes 1 features, not 2",
    "nn.Sequential().fit(X, Y)": "the model has no layers",
    "nn.Model(nn.Input(3))": "nn.Model takes inputs and outputs, as in nn.Model(x, nn.Dense(10)(x)); or a subclass",
    "type('Net', (nn.Model,), {'train_step': None})": "Net defines train_step, which fit does not call; a step of your "
    "own is an algorithm, registered and named by compile(algorithm=)",
    "nn.Dense(3)(nn.Input(4)) + np.ones(3)": "combined with array([1., 1., 1.]); operators take features of layers",
    "nn.Dense(3)(nn.Input(4)) - nn.Dense(2)(nn.Input(4))": "; give shapes that differ in axes of",
    "nn.Input(4) @ nn.Input(4)": "; give (B, ..., n, k) times (B, ..., k, m)",
    "nn.Input(4)[0]": "is indexed from its rows on, which stay: write x[:, 0], not x[0]",
    "nn.Input(4)[:, 'a']": "is indexed by numbers, slices, a list of numbers, None and ..., not by 'a'",
    "nn.Input(4)[:, np.array([0.5])]": "is indexed by numbers, slices, a list of numbers, None and ..., not by [0.5]",
    "nn.Input(4)[:, 7]": "takes [7] of rows of 4: index 7 is out of bounds",
    "nn.Input(4)[:, 2:2]": "[2:2] of 4 is empty",
    "nn.Model(nn.Dense(3), nn.Dense(3))": "inputs of nn.Model are features of layers",
    "nn.Model(nn.Input(3, name='a'), nn.Add()([nn.Input(3, name='b')] * 2))": "the outputs need the input 'b', which "
    "is not in inputs=",
    "shapeless().fit()": "the shape that 'data' gives; begin with nn.Input(shape=...)",
    "shapeless().params": "the shapes of the model's inputs are not known",
    "model().fit(X[:, :3], Y)": "records have shape (3,), but the model's input 'data' takes (4,)",
    "model().fit(None, Y)": "labels y are given without records; give x, too",
    "model().evaluate(X[:0], Y[:0])": "the batch is empty; give it at least 1 record",
    "model().fit(X, Y, sample_weight=np.ones((60, 2)))": "has a number for each record, (n,), not the shape (60",
    "model(metrics=['r2']).fit(X, Y)": "the metric 'r2' is of numbers to predict, but the loss of 'dense' compares cla",
    "model().fit(Y, X)": "takes classes, but y has numbers such as 0.12573; for shares of classes use",
    "two_outputs().fit(X, [Y, Y], class_weight={1: 2})": "class_weight is for models of one loss, because it weighs",
    "model().fit(X, Y, sample_weight='balanced')": "sample_weight has a number for each record, (n,), not 'balanced'",
    "model().fit(X, Y, sample_weight=-np.ones(60))": "sample_weight of record 0 is -1; give a number of at least 0",
    "model().fit(X, Y, sample_weight=np.full(60, np.nan))": "sample_weight of record 0 is nan; give a number",
    "model().fit(sample_weight=np.ones(60))": "sample_weight needs x, the records that it weighs",
    "nn.from_job(model(loss='hinge').job(X, Y)).fit(X, Y, sample_weight=np.ones(60))": "takes no weights of records",
    "model().job(X, Y, epochs=1, train_steps=1)": "give epochs or train_steps, not both",
    "model().fit(X, Y, validation_data=(X, Y), validation_steps=2)": "validation_steps is for batches of a generator",
    "two_outputs().fit(X, {'a': Y})": "y names 'a', which is no output",
    "deep().set_weights([])": "the model has 4 params",
    "deep().set_weights(None)": "set_weights takes a list of arrays, as get_weights returns it, not None",
    "deep().set_weights({})": "set model.params for arrays by name",
    "setattr(deep(), 'params', None)": "takes arrays by name, a result, or the path of a checkpoint, not NoneType",
    "setattr(deep(), 'params', {'a': 'b'})": "the param 'a' is no array of numbers: could not convert",
    "deep().layers[0].get_weights()": "has no params yet; model.get_weights() makes them, and so does fit",
    "deep().get_layer('dense_2')": "the model has no layer 'dense_2'; did you mean 'dense_1'?",
    "deep().get_layer(0)": "get_layer takes a name; write get_layer(index=0)",
    "deep().get_layer(index=2)": "the model has 2 layers; there is no layer 2",
    "nn.from_job(model().job()).layers": "param { static: true } in its layers",
    "setattr(nn.from_job(model().job()), 'trainable', False)": "param { static: true } in its layers",
    "nn.Sequential([nn.Input(4), nn.Dense(4, param=[nn.Param('w')]), "
    "nn.Dense(4, param=[nn.Param(share_from='w')], trainable=False)]).get_weights()": "it is static, but 'w', which "
    "it shares, is trained; make both so",
}

NAMESPACE = {
    "dsinga": dsinga, "nn": nn, "extensions": extensions, "np": np, "updater_conf": updater_conf, "model": model,
    "shapeless": shapeless, "deep": deep, "job": job, "X": X, "Y": Y, "HOT": HOT, "ROWS": ROWS, "STEPS": STEPS,
    "IMAGES": IMAGES, "Forgetful": Forgetful, "two_outputs": two_outputs, "all_steps": all_steps,
}  # fmt: skip
STATEMENTS = NAMES_AND_HABITS | LAYERS | LOSSES_AND_OPTIMIZERS | MODELS


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_wrong_statement_is_answered_in_one_sentence(statement):
    with pytest.raises(UserError) as error:
        exec(statement, NAMESPACE)
    assert STATEMENTS[statement] in str(error.value)
    assert len(str(error.value)) < 400  # with the signature of nn.Dense
