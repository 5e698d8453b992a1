"""Functions that return the jobs of well-known nets: ``dsinga.train(dsinga.models.resnet(depth=20, data="cifar10"))``.

``data`` defaults to the job file's folder. Further arguments are fields of the job, such as ``train_steps``.

``job.replace(train_steps=100)`` changes a job, ``dsinga.job.to_text`` writes it to a file, and ``job.net.layer`` lists
its layers. ``unet``, ``field_resnet``, ``deepesd``, ``convlstm``, ``tabm`` and ``realmlp`` return models of
``dsinga.nn`` instead of jobs.
"""

from dsinga.models.convnet import alexnet, convnet, lenet
from dsinga.models.fields import convlstm, deepesd, field_resnet, unet
from dsinga.models.gpt import gpt
from dsinga.models.mlp import line, mdnn, mlp, softmax_regression
from dsinga.models.rbm import autoencoder, rbm
from dsinga.models.recommender import recommender
from dsinga.models.resnet import resnet, vgg
from dsinga.models.rnnlm import char_rnn, rnnlm
from dsinga.models.tables import realmlp, tabm
from dsinga.models.texts import bigru_crf, gru_translator, sentiment_convolution, sentiment_lstm, skip_gram, word_ngram
from dsinga.models.transformer import transformer

__all__ = [
    "alexnet",
    "autoencoder",
    "bigru_crf",
    "char_rnn",
    "convlstm",
    "convnet",
    "deepesd",
    "field_resnet",
    "gpt",
    "gru_translator",
    "lenet",
    "line",
    "mdnn",
    "mlp",
    "rbm",
    "realmlp",
    "recommender",
    "resnet",
    "rnnlm",
    "sentiment_convolution",
    "sentiment_lstm",
    "skip_gram",
    "softmax_regression",
    "tabm",
    "transformer",
    "unet",
    "vgg",
    "word_ngram",
]
